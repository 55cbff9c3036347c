//! The program as a network: longest paths from a source to a sink, whose edges may spare part of their length.
//!
//! With `y = 1 - x` the program reads: choose `y` in 0..=1 per edge, at most 1 in total per sender and per receiver,
//! so that the longest path with edge lengths `fixed + cost (1 - y)` is as short as possible. An edge whose cost is 0 has no choice
//! and belongs to no sender and no receiver.

use crate::lists::Lists;

/// No sender, no receiver.
pub const NONE: u32 = u32::MAX;

/// An edge of length `fixed + cost (1 - y)`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Edge {
    pub tail: u32,
    pub head: u32,
    /// Its sender's values add up to at most 1; all edges of a sender leave the same node.
    pub sender: u32,
    /// Its receiver's values add up to at most 1; all edges of a receiver enter the same node.
    pub receiver: u32,
    /// What the caller knows the edge by.
    pub pair: u32,
    pub fixed: f64,
    pub cost: f64,
}

impl Edge {
    /// An edge without a choice.
    #[must_use]
    pub fn constant(tail: u32, head: u32, pair: u32, fixed: f64) -> Self {
        Self { tail, head, sender: NONE, receiver: NONE, pair, fixed, cost: 0.0 }
    }

    /// Whether it may spare anything.
    #[must_use]
    pub fn is_live(&self) -> bool {
        self.sender != NONE
    }

    /// Takes the choice away.
    pub fn settle(&mut self, fixed: f64) {
        (self.fixed, self.cost, self.sender, self.receiver) = (fixed, 0.0, NONE, NONE);
    }

    /// Its length when nothing is spared.
    #[must_use]
    pub fn longest(&self) -> f64 {
        self.fixed + self.cost
    }
}

/// A network in topological order: node 0 is the source, the last node the sink.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Net {
    pub num_nodes: usize,
    /// By tail, then sender.
    pub edges: Vec<Edge>,
    first_out: Vec<u32>,
    /// Edge indices by head, then receiver.
    by_head: Lists,
}

/// Senders and receivers of a net, numbered from 0, per edge; [`NONE`] for edges without a choice.
#[derive(Debug, Clone, Default)]
pub struct Stars {
    pub sender: Vec<u32>,
    pub receiver: Vec<u32>,
    pub num_senders: usize,
    pub num_receivers: usize,
}

impl Net {
    /// Sorts the edges; every tail is less than its head.
    #[must_use]
    pub fn new(num_nodes: usize, edges: Vec<Edge>) -> Self {
        let mut edges = by_tail(num_nodes, edges);
        let mut first_out = vec![0_u32; num_nodes + 1];
        for edge in &edges {
            first_out[edge.tail as usize + 1] += 1;
        }
        for node in 0..num_nodes {
            first_out[node + 1] += first_out[node];
        }
        for node in 0..num_nodes {
            edges[first_out[node] as usize..first_out[node + 1] as usize]
                .sort_unstable_by_key(|edge| (edge.sender, edge.head, edge.pair));
        }
        let heads = edges.iter().map(|edge| edge.head).zip(0_u32..);
        let mut by_head = Lists::group(num_nodes, heads);
        by_head.sort_each_by_key(|at| (edges[*at as usize].receiver, *at));
        Self { num_nodes, edges, first_out, by_head }
    }

    /// Indices of the edges that leave a node.
    #[must_use]
    pub fn out_of(&self, node: usize) -> std::ops::Range<usize> {
        self.first_out[node] as usize..self.first_out[node + 1] as usize
    }

    /// Indices of the edges that enter a node, by receiver.
    #[must_use]
    pub fn into(&self, node: usize) -> &[u32] {
        self.by_head.of(index(node))
    }

    /// Longest path from the source to every node, for a length per edge; -inf where there is none.
    #[must_use]
    pub fn heads(&self, length: impl Fn(usize, &Edge) -> f64) -> Vec<f64> {
        let mut head = vec![f64::NEG_INFINITY; self.num_nodes];
        head[0] = 0.0;
        for (at, edge) in self.edges.iter().enumerate() {
            let end = head[edge.tail as usize] + length(at, edge);
            if end > head[edge.head as usize] {
                head[edge.head as usize] = end;
            }
        }
        head
    }

    /// Longest path from every node to the sink, for a length per edge; -inf where there is none.
    #[must_use]
    pub fn tails(&self, length: impl Fn(usize, &Edge) -> f64) -> Vec<f64> {
        let mut tail = vec![f64::NEG_INFINITY; self.num_nodes];
        tail[self.num_nodes - 1] = 0.0;
        for (at, edge) in self.edges.iter().enumerate().rev() {
            let rest = tail[edge.head as usize] + length(at, edge);
            if rest > tail[edge.tail as usize] {
                tail[edge.tail as usize] = rest;
            }
        }
        tail
    }

    /// Length of the longest path when each edge spares a share `y` of its cost.
    #[must_use]
    pub fn value(&self, y: &[f64]) -> f64 {
        self.heads(|at, edge| edge.fixed + edge.cost * (1.0 - y[at]))[self.num_nodes - 1]
    }

    /// Number of edges with a choice.
    #[must_use]
    pub fn num_live(&self) -> usize {
        self.edges.iter().filter(|edge| edge.is_live()).count()
    }

    /// Numbers senders and receivers from 0, in the order of their edges.
    #[must_use]
    pub fn stars(&self) -> Stars {
        let mut stars = Stars {
            sender: vec![NONE; self.edges.len()],
            receiver: vec![NONE; self.edges.len()],
            ..Stars::default()
        };
        let mut last = (NONE, NONE);
        for (at, edge) in self.edges.iter().enumerate().filter(|(_, edge)| edge.is_live()) {
            stars.num_senders += usize::from((edge.tail, edge.sender) != last);
            last = (edge.tail, edge.sender);
            stars.sender[at] = index(stars.num_senders - 1);
        }
        last = (NONE, NONE);
        for at in self.by_head.all() {
            let edge = &self.edges[*at as usize];
            if edge.is_live() {
                stars.num_receivers += usize::from((edge.head, edge.receiver) != last);
                last = (edge.head, edge.receiver);
                stars.receiver[*at as usize] = index(stars.num_receivers - 1);
            }
        }
        stars
    }

    /// The part between two nodes that no edge jumps over, as a net of its own.
    #[must_use]
    pub fn between(&self, from: usize, to: usize) -> Self {
        let range = self.first_out[from] as usize..self.first_out[to] as usize;
        let shift = index(from);
        let moved =
            |edge: &Edge| Edge { tail: edge.tail - shift, head: edge.head - shift, ..*edge };
        Self::new(to - from + 1, self.edges[range].iter().map(moved).collect())
    }

    /// Nodes that no edge jumps over, source and sink included, ascending.
    #[must_use]
    pub fn cuts(&self) -> Vec<usize> {
        let mut cuts = Vec::new();
        let mut reach = 0;
        for node in 0..self.num_nodes {
            if reach <= node {
                cuts.push(node);
            }
            for edge in &self.edges[self.out_of(node)] {
                reach = reach.max(edge.head as usize);
            }
        }
        cuts
    }
}

/// Counting sort by tail.
fn by_tail(num_nodes: usize, edges: Vec<Edge>) -> Vec<Edge> {
    if edges.is_sorted_by_key(|edge| edge.tail) {
        return edges;
    }
    let order = Lists::group(num_nodes, edges.iter().map(|edge| edge.tail).zip(0_u32..));
    order.all().iter().map(|at| edges[*at as usize]).collect()
}

pub(super) fn index(at: usize) -> u32 {
    u32::try_from(at).expect("ops and edges fit 31 bits")
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A net of (tail, head, fixed, cost); every tail is a sender, every head a receiver.
    pub fn net(num_nodes: usize, edges: &[(u32, u32, f64, f64)]) -> Net {
        let edge = |(pair, (tail, head, fixed, cost)): (u32, &(u32, u32, f64, f64))| Edge {
            cost: *cost,
            sender: if *cost > 0.0 { *tail } else { NONE },
            receiver: if *cost > 0.0 { *head } else { NONE },
            ..Edge::constant(*tail, *head, pair, *fixed)
        };
        Net::new(num_nodes, (0..).zip(edges).map(edge).collect())
    }

    #[test]
    fn no_edge_jumps_over_a_cut() {
        let net = net(
            5,
            &[
                (0, 1, 1.0, 0.0),
                (1, 2, 1.0, 1.0),
                (1, 3, 1.0, 1.0),
                (2, 3, 1.0, 1.0),
                (3, 4, 1.0, 0.0),
            ],
        );
        assert_eq!(net.cuts(), [0, 1, 3, 4]);
        let part = net.between(1, 3);
        assert_eq!((part.num_nodes, part.edges.len(), part.num_live()), (3, 3, 3));
    }

    #[test]
    fn what_is_spared_shortens_the_longest_path() {
        let net = net(3, &[(0, 1, 1.0, 4.0), (1, 2, 2.0, 0.0), (0, 2, 3.0, 0.0)]);
        assert!((net.value(&[0.0; 3]) - 7.0).abs() < 1e-12);
        let y: Vec<f64> =
            net.edges.iter().map(|edge| if edge.is_live() { 1.0 } else { 0.0 }).collect();
        assert!((net.value(&y) - 3.0).abs() < 1e-12);
    }
}
