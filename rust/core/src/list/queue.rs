//! Candidates of one device, by rank.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::min_tree::MinTree;
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
    num_ranks: usize,
    /// Perhaps startable now.
    now: RankSet,
    least_now: u32,
    /// Not startable before the given time.
    later: BinaryHeap<Reverse<(Ns, u32)>>,
    /// Not startable before what is sent over a channel has been sent.
    behind: Vec<Behind>,
    /// Not startable before so many bytes are free.
    blocked: BinaryHeap<Reverse<(Bytes, u32)>>,
}

/// Ranks that wait for one channel, by the time that they need from when it is free. However long it is held, none is
/// looked at for that: only the least rank of those that the channel lets pass is offered, then the next.
#[derive(Debug)]
struct Behind {
    channel: u32,
    ranks: MinTree,
    offered: u32,
}

impl Queue {
    pub(crate) fn new(num_ranks: usize) -> Self {
        Self {
            num_ranks,
            now: RankSet::new(num_ranks),
            least_now: NOTHING,
            later: BinaryHeap::new(),
            behind: Vec::new(),
            blocked: BinaryHeap::new(),
        }
    }

    /// As it was when it was new.
    pub(crate) fn clear(&mut self) {
        self.now.words.fill(0);
        self.least_now = NOTHING;
        self.later.clear();
        self.behind.clear();
        self.blocked.clear();
    }

    /// The least rank that may be startable now, or `NOTHING`.
    pub(crate) fn least_now(&self) -> u32 {
        self.least_now
    }

    pub(crate) fn offer(&mut self, rank: u32) {
        self.now.insert(rank);
        self.least_now = self.least_now.min(rank);
    }

    /// Takes back an offer; `free_at` says when a channel is free.
    pub(crate) fn withdraw(&mut self, rank: u32, now: Ns, free_at: impl Fn(u32) -> Ns) {
        self.now.remove(rank);
        if rank == self.least_now {
            self.least_now = self.now.least();
        }
        for at in 0..self.behind.len() {
            if self.behind[at].offered == rank {
                self.behind[at].offered = NOTHING;
                self.offer_next(at, now, &free_at);
            }
        }
    }

    /// How much is put off to a time.
    pub(crate) fn num_later(&self) -> usize {
        self.later.len()
    }

    pub(crate) fn put_off(&mut self, until: Ns, rank: u32) {
        self.later.push(Reverse((until, rank)));
    }

    /// Puts off until so long after a channel is free, which is still to come.
    pub(crate) fn put_behind(&mut self, channel: u32, after: Ns, rank: u32) {
        let known = self.behind.iter().position(|behind| behind.channel == channel);
        let at = known.unwrap_or_else(|| {
            let ranks = MinTree::new(self.num_ranks);
            self.behind.push(Behind { channel, ranks, offered: NOTHING });
            self.behind.len() - 1
        });
        self.behind[at].ranks.insert(rank, after);
    }

    pub(crate) fn block(&mut self, needed: Bytes, rank: u32) {
        self.blocked.push(Reverse((needed, rank)));
    }

    /// Offers what was put off until `now` or earlier, or what comes first of it.
    pub(crate) fn wake(&mut self, now: Ns, free_at: impl Fn(u32) -> Ns) {
        while let Some(Reverse((until, rank))) = self.later.peek().copied() {
            if until > now {
                break;
            }
            self.later.pop();
            self.offer(rank);
        }
        for at in 0..self.behind.len() {
            self.offer_next(at, now, &free_at);
        }
    }

    /// Offers the least rank that a channel lets pass by now, unless it offered a lesser one before.
    fn offer_next(&mut self, at: usize, now: Ns, free_at: &impl Fn(u32) -> Ns) {
        let behind = &mut self.behind[at];
        let within = now - free_at(behind.channel);
        if let Some(rank) = behind.ranks.first_within(within)
            && rank < behind.offered
        {
            behind.ranks.remove(rank);
            behind.offered = rank;
            self.offer(rank);
        }
    }

    /// Offers what `free` bytes might be enough for; whether there was anything.
    pub(crate) fn unblock(&mut self, free: Bytes) -> bool {
        let mut unblocked = false;
        while let Some(Reverse((needed, rank))) = self.blocked.peek().copied() {
            if needed > free {
                break;
            }
            self.blocked.pop();
            self.offer(rank);
            unblocked = true;
        }
        unblocked
    }

    /// Forgets what was put off to the earliest time as long as that `is_done`.
    pub(crate) fn forget_first_later(&mut self, is_done: impl Fn(u32) -> bool) {
        while self.later.peek().is_some_and(|Reverse((_, rank))| is_done(*rank)) {
            self.later.pop();
        }
    }

    /// The earliest time that something was put off to, as far as is known.
    pub(crate) fn earliest(&self, free_at: impl Fn(u32) -> Ns) -> Option<Ns> {
        let later = self.later.peek().map(|Reverse((until, _))| *until);
        if self.behind.is_empty() {
            return later;
        }
        let behind = self
            .behind
            .iter()
            .filter_map(|behind| behind.ranks.least().map(|after| free_at(behind.channel) + after));
        behind.chain(later).min()
    }

    /// Takes out what was put off to the earliest time, and that time.
    pub(crate) fn take_earliest(&mut self, free_at: impl Fn(u32) -> Ns) -> Option<(Ns, u32)> {
        let until = self.earliest(&free_at)?;
        if let Some(Reverse((first, rank))) = self.later.peek().copied()
            && first == until
        {
            self.later.pop();
            return Some((until, rank));
        }
        for behind in &mut self.behind {
            let within = until - free_at(behind.channel);
            if let Some(rank) = behind.ranks.first_within(within) {
                behind.ranks.remove(rank);
                return Some((until, rank));
            }
        }
        None
    }

    /// Forgets what was put off and `is_done` by now, once that is most of it.
    pub(crate) fn compact(&mut self, num_ready: usize, is_done: impl Fn(u32) -> bool) {
        if self.later.len() > 64 + 2 * num_ready {
            self.later.retain(|Reverse((_, rank))| !is_done(*rank));
        }
        for behind in &mut self.behind {
            if behind.ranks.len() > 64 + 2 * num_ready {
                behind.ranks.forget(&is_done);
            }
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
        let free = |_| 0;
        let mut queue = Queue::new(10);
        queue.put_off(5, 3);
        queue.block(100, 2);
        queue.wake(4, free);
        queue.unblock(99);
        assert_eq!(queue.least_now(), NOTHING);
        queue.wake(5, free);
        assert_eq!(queue.least_now(), 3);
        queue.unblock(100);
        assert_eq!(queue.least_now(), 2);
        queue.withdraw(2, 5, free);
        assert_eq!(queue.least_now(), 3);
    }

    #[test]
    fn what_waits_for_a_channel_is_offered_one_by_one_in_rank_order() {
        let mut queue = Queue::new(10);
        for (rank, after) in [(7, 2), (4, 9), (5, 2), (6, 3)] {
            queue.put_behind(1, after, rank);
        }
        assert_eq!(queue.earliest(|_| 10), Some(12));
        queue.wake(11, |_| 10);
        assert_eq!(queue.least_now(), NOTHING);
        queue.wake(13, |_| 10);
        assert_eq!(queue.least_now(), 5);
        // The channel is held until 11: what needs 3 after that has to wait again.
        queue.withdraw(5, 13, |_| 11);
        assert_eq!(queue.least_now(), 7);
        assert_eq!(queue.take_earliest(|_| 11), Some((14, 6)));
        assert_eq!(queue.take_earliest(|_| 11), Some((20, 4)));
    }
}
