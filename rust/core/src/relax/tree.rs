//! A net, reduced and split at the nodes that every path passes, again and again; what its parts add up to.
//!
//! The value of a block is the greater of its own bound and the sum of its parts: what was dropped as never
//! critical can decide it. So a block has a proof of its own, and its parts' proofs count only if they add up to more.

use super::bounds::Proof;
use super::greedy;
use super::net::Net;
use super::reduce::{Reduced, reduce};

const DEEPEST: usize = 8;
const NO_BLOCK: usize = usize::MAX;

/// What was found for a block that was not split: a share `y` of the cost per edge, and a proof.
#[derive(Debug, Clone, Default)]
pub struct Answer {
    pub y: Vec<(u32, f64)>,
    pub proof: Proof,
}

#[derive(Debug)]
struct Block {
    parent: usize,
    reduced: Reduced,
    answer: Option<Answer>,
}

/// The blocks of a net, parents before their parts.
#[derive(Debug)]
pub struct Tree {
    blocks: Vec<Block>,
    /// Blocks that were neither split nor settled by the reductions.
    pub open: Vec<usize>,
    pub num_never_critical: usize,
    pub num_free: usize,
    pub num_dominated: usize,
    pub num_contracted: usize,
}

/// Shares, flow and prices for the pairs of a net.
#[derive(Debug, Clone)]
pub struct Collected {
    pub y: Vec<f64>,
    /// NaN where the flow follows from what enters and leaves.
    pub flow: Vec<f64>,
    pub prices: Vec<(u32, f64)>,
    /// Sum over the blocks; what the proofs should come to.
    pub value: f64,
}

impl Tree {
    /// Reduces and splits. Once time has expired, what is not reduced stays as it is.
    #[must_use]
    pub fn grow(net: Net, expired: &dyn Fn() -> bool) -> Self {
        let mut tree = Self::empty();
        let mut waiting = vec![(NO_BLOCK, 0, net)];
        while let Some((parent, depth, net)) = waiting.pop() {
            let mut reduced = if expired() { Self::unreduced(net) } else { reduce(net, expired) };
            let me = tree.blocks.len();
            tree.num_never_critical += reduced.num_never_critical;
            tree.num_dominated += reduced.num_dominated;
            tree.num_free += reduced.spared.len();
            tree.num_contracted += reduced.contracted.len();
            if let Some(net) = &reduced.net {
                let cuts = net.cuts();
                if cuts.len() > 2 && depth < DEEPEST {
                    let parts = cuts.windows(2).map(|cut| net.between(cut[0], cut[1]));
                    waiting.extend(parts.map(|part| (me, depth + 1, part)));
                    reduced.net = None;
                } else {
                    tree.open.push(me);
                }
            }
            tree.blocks.push(Block { parent, reduced, answer: None });
        }
        tree
    }

    /// The net as one block, as it is.
    #[must_use]
    pub fn whole(net: Net) -> Self {
        let open = if net.num_live() > 0 { vec![0] } else { Vec::new() };
        let block = Block { parent: NO_BLOCK, reduced: Self::unreduced(net), answer: None };
        Self { blocks: vec![block], open, ..Self::empty() }
    }

    /// Nothing to solve.
    #[must_use]
    pub fn empty() -> Self {
        Self {
            blocks: Vec::new(),
            open: Vec::new(),
            num_never_critical: 0,
            num_free: 0,
            num_dominated: 0,
            num_contracted: 0,
        }
    }

    fn unreduced(net: Net) -> Reduced {
        let passes = super::bounds::Passes::of(&net);
        Reduced { proof: passes.proof(&net), net: Some(net), ..Reduced::default() }
    }

    /// The net of an open block.
    #[must_use]
    pub fn net(&self, block: usize) -> &Net {
        self.blocks[block].reduced.net.as_ref().expect("the block is open")
    }

    /// The net of a tree that was not split.
    #[must_use]
    pub fn root(&self) -> &Net {
        self.net(0)
    }

    /// The bound of a block before anything was solved.
    #[must_use]
    pub fn bound(&self, block: usize) -> f64 {
        self.blocks[block].reduced.proof.value
    }

    /// Settles an open block.
    pub fn settle(&mut self, block: usize, answer: Answer) {
        self.blocks[block].answer = Some(answer);
    }

    /// Open blocks without an answer.
    #[must_use]
    pub fn unsolved(&self) -> Vec<usize> {
        let unsolved = |block: &usize| self.blocks[*block].answer.is_none();
        self.open.iter().copied().filter(unsolved).collect()
    }

    /// Takes over the answers to blocks that an earlier tree had too. The number taken.
    pub fn reuse(&mut self, earlier: Self) -> usize {
        let first = |block: &Block| block.reduced.net.as_ref().map(|net| net.edges[0].pair);
        let mut known: Vec<Block> =
            earlier.blocks.into_iter().filter(|block| block.answer.is_some()).collect();
        known.sort_by_key(first);
        let mut count = 0;
        for at in self.unsolved() {
            let mine = &mut self.blocks[at];
            let start = known.partition_point(|block| first(block) < first(mine));
            let same = known[start..]
                .iter_mut()
                .take_while(|block| first(block) == first(mine))
                .find(|block| block.reduced.net == mine.reduced.net);
            if let Some(block) = same {
                mine.answer = block.answer.take();
                count += usize::from(mine.answer.is_some());
            }
        }
        count
    }

    /// Puts the answers together, for pairs below `num_pairs`. A block without an answer gets a greedy one.
    #[must_use]
    pub fn collect(&self, num_pairs: usize) -> Collected {
        let mut value = vec![0.0; self.blocks.len()];
        let mut by_parts = vec![false; self.blocks.len()];
        for (at, block) in self.blocks.iter().enumerate().rev() {
            let own = block.reduced.proof.value;
            let answered = block.answer.as_ref().map_or(0.0, |answer| answer.proof.value);
            let parts = value[at] + answered;
            by_parts[at] = parts > own;
            value[at] = parts.max(own);
            if block.parent != NO_BLOCK {
                value[block.parent] += value[at];
            }
        }
        let mut collected = Collected {
            y: vec![0.0; num_pairs],
            flow: vec![0.0; num_pairs],
            prices: Vec::new(),
            value: value.first().copied().unwrap_or(0.0),
        };
        // Whether a block's proof counts: all blocks around it count by their parts.
        let mut counts = vec![false; self.blocks.len()];
        for (at, block) in self.blocks.iter().enumerate() {
            counts[at] =
                block.parent == NO_BLOCK || (counts[block.parent] && by_parts[block.parent]);
            self.add_shares(at, &mut collected.y);
            if counts[at] {
                self.add_proof(at, by_parts[at], &mut collected);
            }
        }
        collected
    }

    fn add_shares(&self, at: usize, y: &mut [f64]) {
        let block = &self.blocks[at];
        for pair in &block.reduced.spared {
            y[*pair as usize] = 1.0;
        }
        if let Some(answer) = &block.answer {
            for (pair, share) in &answer.y {
                y[*pair as usize] = *share;
            }
        } else if let Some(net) = &block.reduced.net {
            for (edge, share) in net.edges.iter().zip(greedy::shares(net)) {
                if edge.is_live() {
                    y[edge.pair as usize] = share;
                }
            }
        }
    }

    fn add_proof(&self, at: usize, by_parts: bool, collected: &mut Collected) {
        let block = &self.blocks[at];
        let reduced = &block.reduced;
        let (proof, num_joined) = match (&block.answer, by_parts) {
            (Some(answer), true) => (Some(&answer.proof), reduced.contracted.len()),
            (None, true) => (None, reduced.contracted.len()),
            (_, false) => (Some(&reduced.proof), reduced.num_contracted_before),
        };
        for pair in &reduced.contracted[..num_joined] {
            collected.flow[*pair as usize] = f64::NAN;
        }
        if let Some(proof) = proof {
            for (pair, flow) in &proof.flow {
                collected.flow[*pair as usize] = *flow;
            }
            collected.prices.extend(&proof.prices);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::net::tests::net;
    use super::*;

    #[test]
    fn a_block_is_worth_its_own_bound_if_its_parts_add_up_to_less() {
        // Two parts behind each other, and a path beside them that was dropped as it decides the bound.
        let mut tree = Tree::whole(net(3, &[(0, 1, 1.0, 1.0), (0, 2, 9.0, 0.0), (1, 2, 1.0, 1.0)]));
        let answer =
            Answer { proof: Proof { value: 2.0, ..Proof::default() }, ..Answer::default() };
        tree.settle(0, answer);
        let collected = tree.collect(3);
        assert!((collected.value - 9.0).abs() < 1e-12);
        assert_eq!(collected.flow, [0.0, 1.0, 0.0]);
    }
}
