//! Ranks with a value each: the least rank whose value is within a limit, in logarithmic time.

/// Value of a rank that is not in the tree.
const ABSENT: i64 = i64::MAX;
/// What stands for the children that a node does not have.
const NONE: usize = 0;
const ROOT: usize = 1;

/// A binary tree over the digits of the ranks, made as far as ranks are in it; every node knows the least value below.
#[derive(Debug)]
pub(super) struct MinTree {
    digits: usize,
    nodes: Vec<Node>,
    free: Vec<u32>,
    len: usize,
}

#[derive(Debug, Clone, Copy)]
struct Node {
    least: i64,
    children: [u32; 2],
}

const EMPTY: Node = Node { least: ABSENT, children: [0; 2] };

impl MinTree {
    pub(super) fn new(num_ranks: usize) -> Self {
        let digits = (usize::BITS - num_ranks.leading_zeros()) as usize;
        Self { digits, nodes: vec![EMPTY; 2], free: Vec::new(), len: 0 }
    }

    /// How many ranks are in it.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// The least value in it.
    pub(super) fn least(&self) -> Option<i64> {
        Some(self.nodes[ROOT].least).filter(|least| *least < ABSENT)
    }

    /// The least rank whose value is at most `limit`.
    pub(super) fn first_within(&self, limit: i64) -> Option<u32> {
        let mut at = ROOT;
        if self.nodes[at].least > limit || self.nodes[at].least == ABSENT {
            return None;
        }
        let mut rank = 0;
        for _ in 0..self.digits {
            let [zero, one] = self.nodes[at].children;
            let is_zero = self.nodes[zero as usize].least <= limit;
            at = if is_zero { zero } else { one } as usize;
            rank = rank << 1 | u32::from(!is_zero);
        }
        Some(rank)
    }

    /// Puts a rank in, with the latest of its values.
    pub(super) fn insert(&mut self, rank: u32, value: i64) {
        let mut path = [0; 32];
        let mut at = ROOT;
        for digit in (0..self.digits).rev() {
            path[digit] = at;
            let side = (rank >> digit & 1) as usize;
            if self.nodes[at].children[side] as usize == NONE {
                self.nodes[at].children[side] = self.new_node();
            }
            at = self.nodes[at].children[side] as usize;
        }
        self.len += usize::from(self.nodes[at].least == ABSENT);
        self.nodes[at].least = value;
        for at in &path[..self.digits] {
            self.nodes[*at].least = self.least_below(*at);
        }
    }

    /// Takes out a rank that is in it.
    pub(super) fn remove(&mut self, rank: u32) {
        let mut path = [0; 32];
        let mut at = ROOT;
        for digit in (0..self.digits).rev() {
            path[digit] = at;
            at = self.nodes[at].children[(rank >> digit & 1) as usize] as usize;
        }
        self.len -= 1;
        self.nodes[at].least = ABSENT;
        for (digit, at) in path[..self.digits].iter().enumerate() {
            let child = &mut self.nodes[*at].children[(rank >> digit & 1) as usize];
            let below = *child;
            if self.nodes[below as usize].least == ABSENT {
                self.nodes[*at].children[(rank >> digit & 1) as usize] = 0;
                self.free.push(below);
            }
            self.nodes[*at].least = self.least_below(*at);
        }
    }

    /// Takes out the ranks that `is_done`.
    pub(super) fn forget(&mut self, is_done: impl Fn(u32) -> bool) {
        let mut done = Vec::new();
        let mut open = vec![(ROOT, 0_u32, self.digits)];
        while let Some((at, rank, digits)) = open.pop() {
            if digits == 0 {
                if is_done(rank) {
                    done.push(rank);
                }
                continue;
            }
            for (side, child) in (0..).zip(self.nodes[at].children) {
                if child as usize != NONE {
                    open.push((child as usize, rank << 1 | side, digits - 1));
                }
            }
        }
        for rank in done {
            self.remove(rank);
        }
    }

    fn least_below(&self, at: usize) -> i64 {
        let [zero, one] = self.nodes[at].children;
        self.nodes[zero as usize].least.min(self.nodes[one as usize].least)
    }

    fn new_node(&mut self) -> u32 {
        if let Some(at) = self.free.pop() {
            self.nodes[at as usize] = EMPTY;
            return at;
        }
        self.nodes.push(EMPTY);
        u32::try_from(self.nodes.len() - 1).expect("at most 64 nodes per rank, 31 bits in all")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::SplitMix;
    use std::collections::BTreeMap;

    #[test]
    fn it_answers_like_a_search_through_all_ranks() {
        let mut random = SplitMix::new(5);
        for size in [1, 2, 64, 1000] {
            let mut tree = MinTree::new(size);
            let mut plain: BTreeMap<u32, i64> = BTreeMap::new();
            for _ in 0..4000 {
                let rank = u32::try_from(random.below(size as u64)).unwrap();
                let value = i64::try_from(random.below(50)).unwrap();
                if random.below(3) == 0 {
                    if plain.remove(&rank).is_some() {
                        tree.remove(rank);
                    }
                } else {
                    plain.insert(rank, value);
                    tree.insert(rank, value);
                }
                let within = |(_, known): &(&u32, &i64)| **known <= value;
                let first = plain.iter().find(within).map(|(rank, _)| *rank);
                assert_eq!(tree.first_within(value), first);
                assert_eq!(tree.least(), plain.values().min().copied());
                assert_eq!(tree.len(), plain.len());
            }
            tree.forget(|rank| rank % 3 != 0);
            plain.retain(|rank, _| rank % 3 == 0);
            assert_eq!(tree.len(), plain.len());
            assert_eq!(tree.first_within(50), plain.keys().next().copied());
        }
    }

    #[test]
    fn nodes_are_used_again() {
        let mut tree = MinTree::new(1 << 20);
        for rank in 0..10_000 {
            tree.insert(rank * 97, 1);
            tree.remove(rank * 97);
        }
        assert!(tree.nodes.len() < 30);
    }
}
