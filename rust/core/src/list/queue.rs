//! Candidates of one device, by rank.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::{Bytes, Ns};

/// Rank of a queue that has nothing to offer now.
pub(crate) const NOTHING: u32 = u32::MAX;

/// A set of ranks that gives its least: a bit per rank, and a bit per nonzero word above, 64 to 1.
#[derive(Debug)]
struct RankSet {
    words: Vec<u64>,
    /// Start of each level in `words`, from the bits of the ranks upwards.
    levels: Vec<usize>,
}

impl RankSet {
    fn new(num_ranks: usize) -> Self {
        let mut levels = Vec::new();
        let (mut start, mut length) = (0, num_ranks.div_ceil(64).max(1));
        loop {
            levels.push(start);
            start += length;
            if length == 1 {
                break;
            }
            length = length.div_ceil(64);
        }
        Self { words: vec![0; start], levels }
    }

    fn insert(&mut self, rank: u32) {
        let mut at = rank as usize;
        for start in &self.levels {
            let word = &mut self.words[start + at / 64];
            let was_empty = *word == 0;
            *word |= 1 << (at % 64);
            if !was_empty {
                break;
            }
            at /= 64;
        }
    }

    fn remove(&mut self, rank: u32) {
        let mut at = rank as usize;
        for start in &self.levels {
            let word = &mut self.words[start + at / 64];
            *word &= !(1 << (at % 64));
            if *word != 0 {
                break;
            }
            at /= 64;
        }
    }

    fn least(&self) -> u32 {
        let mut at = 0;
        for start in self.levels.iter().rev() {
            let word = self.words[start + at];
            if word == 0 {
                return NOTHING;
            }
            at = at * 64 + word.trailing_zeros() as usize;
        }
        u32::try_from(at).expect("ranks fit 31 bits")
    }
}

/// Where the ready ops stand with one device. A rank may be in several places, and stay after its op was
/// placed; both are harmless.
#[derive(Debug)]
pub(crate) struct Queue {
    /// Perhaps startable now.
    now: RankSet,
    least_now: u32,
    /// Not startable before the given time.
    later: BinaryHeap<Reverse<(Ns, u32)>>,
    /// Not startable before so many bytes are free.
    blocked: BinaryHeap<Reverse<(Bytes, u32)>>,
}

impl Queue {
    pub(crate) fn new(num_ranks: usize) -> Self {
        Self {
            now: RankSet::new(num_ranks),
            least_now: NOTHING,
            later: BinaryHeap::new(),
            blocked: BinaryHeap::new(),
        }
    }

    /// The least rank that may be startable now, or `NOTHING`.
    pub(crate) fn least_now(&self) -> u32 {
        self.least_now
    }

    pub(crate) fn offer(&mut self, rank: u32) {
        self.now.insert(rank);
        self.least_now = self.least_now.min(rank);
    }

    pub(crate) fn withdraw(&mut self, rank: u32) {
        self.now.remove(rank);
        if rank == self.least_now {
            self.least_now = self.now.least();
        }
    }

    pub(crate) fn put_off(&mut self, until: Ns, rank: u32) {
        self.later.push(Reverse((until, rank)));
    }

    pub(crate) fn block(&mut self, needed: Bytes, rank: u32) {
        self.blocked.push(Reverse((needed, rank)));
    }

    /// Offers what was put off until `now` or earlier; whether there was anything.
    pub(crate) fn wake(&mut self, now: Ns) -> bool {
        let mut woke = false;
        while let Some(Reverse((until, rank))) = self.later.peek().copied() {
            if until > now {
                break;
            }
            self.later.pop();
            self.offer(rank);
            woke = true;
        }
        woke
    }

    /// Offers what `free` bytes might be enough for.
    pub(crate) fn unblock(&mut self, free: Bytes) {
        while let Some(Reverse((needed, rank))) = self.blocked.peek().copied() {
            if needed > free {
                break;
            }
            self.blocked.pop();
            self.offer(rank);
        }
    }

    /// What was put off to the earliest time.
    pub(crate) fn earliest_later(&self) -> Option<(Ns, u32)> {
        self.later.peek().map(|Reverse(entry)| *entry)
    }

    pub(crate) fn drop_earliest_later(&mut self) {
        self.later.pop();
    }

    /// Forgets what was put off and `is_done` by now, once that is most of it.
    pub(crate) fn compact(&mut self, num_ready: usize, is_done: impl Fn(u32) -> bool) {
        if self.later.len() > 64 + 2 * num_ready {
            self.later.retain(|Reverse((_, rank))| !is_done(*rank));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_rank_is_found_at_every_size() {
        for size in [1_u32, 64, 65, 5000, 300_000] {
            let mut set = RankSet::new(size as usize);
            assert_eq!(set.least(), NOTHING);
            for rank in [size - 1, size / 2, size / 3] {
                set.insert(rank);
            }
            assert_eq!(set.least(), size / 3);
            set.remove(size / 3);
            set.remove(size / 2);
            let left = if size / 2 == size - 1 { NOTHING } else { size - 1 };
            assert_eq!(set.least(), left);
        }
    }

    #[test]
    fn what_is_put_off_or_blocked_comes_back_in_time() {
        let mut queue = Queue::new(10);
        queue.put_off(5, 3);
        queue.block(100, 2);
        queue.wake(4);
        queue.unblock(99);
        assert_eq!(queue.least_now(), NOTHING);
        queue.wake(5);
        assert_eq!(queue.least_now(), 3);
        queue.unblock(100);
        assert_eq!(queue.least_now(), 2);
        queue.withdraw(2);
        assert_eq!(queue.least_now(), 3);
    }
}
