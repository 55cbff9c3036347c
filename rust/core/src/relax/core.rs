//! Large blocks: solve only the edges that are nearly critical, extend the answer to the rest, repeat with what that left too long.
//!
//! The program of some of the edges is a relaxation, so its value is a lower bound; its shares, with what senders and receivers
//! have left over, are shares for the block, so their longest path is an upper bound.

use super::bounds::Proof;
use super::certificate;
use super::first_order::{self, Sweeps};
use super::net::{NONE, Net, index};
use super::tree::{Answer, Tree};

/// Gap at which a block is solved, relative.
const SOLVED: f64 = 1e-10;
/// Least and greatest distance from the longest path at which an edge is in the first core, relative.
const FIRST_CORE: (f64, f64) = (1e-3, 5e-3);
/// Edges above this share of the gap join the core.
const JOINS: f64 = 0.2;
const MOST_ROUNDS: u32 = 30;

/// A large block between two rounds.
#[derive(Debug)]
pub struct Large {
    /// The block in the tree it belongs to.
    pub block: usize,
    /// The core of this round, reduced and split; its pairs are edges of the block.
    pub tree: Tree,
    in_core: Vec<bool>,
    y: Vec<f64>,
    upper: f64,
    lower: f64,
    flow: Vec<f64>,
    prices: Vec<f64>,
    pub num_rounds: u32,
    pub is_done: bool,
}

impl Large {
    /// Guides by the first-order method, then takes the first core.
    #[must_use]
    pub fn start(block: usize, net: &Net, bound: f64, sweeps: u32, expired: &dyn Fn() -> bool) -> Self {
        let guide = first_order::guide(net, Sweeps::of(sweeps), expired);
        let prices = super::auction::prices(net, &guide.flow, expired);
        let lower = certificate::lower(net, guide.flow.clone(), prices.clone());
        let gap = (guide.upper - lower.max(bound)) / guide.upper;
        let reach = guide.upper * (1.0 - gap.clamp(FIRST_CORE.0, FIRST_CORE.1));
        let mut large = Self {
            block,
            tree: Tree::empty(),
            in_core: vec![false; net.edges.len()],
            y: guide.y,
            upper: guide.upper,
            lower,
            flow: guide.flow,
            prices,
            num_rounds: 0,
            is_done: false,
        };
        large.join_core(net, &large.y.clone(), reach);
        large.tree = Tree::grow(large.core(net), expired);
        large
    }

    /// Takes the answers of a round: better bounds, and the next core unless the block is solved.
    pub fn end_round(&mut self, net: &Net, expired: &dyn Fn() -> bool) {
        let collected = self.tree.collect(net.edges.len());
        let mut y = collected.y;
        certificate::repair_shares(net, &mut y);
        let value = collected.value;
        spread(net, &mut y, value);
        let upper = net.value(&y);
        let flow = certificate::resolved(net, collected.flow);
        let prices = certificate::prices_in_order(net, &collected.prices);
        let lower = certificate::lower(net, flow.clone(), prices.clone());
        if lower > self.lower {
            (self.lower, self.flow, self.prices) = (lower, flow, prices);
        }
        let reach = value + JOINS * (upper - value).max(0.0);
        self.num_rounds += 1;
        let grew = upper - value > SOLVED * upper && self.join_core(net, &y, reach);
        if upper < self.upper {
            (self.upper, self.y) = (upper, y);
        }
        self.is_done = !grew || self.num_rounds >= MOST_ROUNDS || expired();
        if !self.is_done {
            self.tree = Tree::grow(self.core(net), expired);
        }
    }

    /// The best shares and the best proof so far.
    #[must_use]
    pub fn answer(&self, net: &Net) -> Answer {
        let stars = net.stars();
        let mut answer = Answer::default();
        answer.proof = Proof { value: self.lower, ..Proof::default() };
        let mut last = NONE;
        for (at, edge) in net.edges.iter().enumerate() {
            if self.flow[at] != 0.0 {
                answer.proof.flow.push((edge.pair, self.flow[at]));
            }
            if edge.is_live() {
                answer.y.push((edge.pair, self.y[at]));
                if stars.sender[at] != last {
                    last = stars.sender[at];
                    answer.proof.prices.push((edge.sender, self.prices[last as usize]));
                }
            }
        }
        answer
    }

    /// Puts edges on paths of at least that length into the core; whether there were new ones.
    fn join_core(&mut self, net: &Net, y: &[f64], reach: f64) -> bool {
        let length = |at: usize, edge: &super::net::Edge| edge.fixed + edge.cost * (1.0 - y[at]);
        let (heads, tails) = (net.heads(length), net.tails(length));
        let mut any = false;
        for (at, edge) in net.edges.iter().enumerate() {
            let path = heads[edge.tail as usize] + length(at, edge) + tails[edge.head as usize];
            if path >= reach && !self.in_core[at] {
                self.in_core[at] = true;
                any = true;
            }
        }
        any
    }

    fn core(&self, net: &Net) -> Net {
        let mut number = vec![NONE; net.num_nodes];
        let chosen = || net.edges.iter().enumerate().filter(|(at, _)| self.in_core[*at]);
        for (_, edge) in chosen() {
            number[edge.tail as usize] = 0;
            number[edge.head as usize] = 0;
        }
        let mut count = 0;
        for slot in number.iter_mut().filter(|slot| **slot == 0) {
            *slot = count;
            count += 1;
        }
        let renamed = |(at, edge): (usize, &super::net::Edge)| super::net::Edge {
            tail: number[edge.tail as usize],
            head: number[edge.head as usize],
            pair: index(at),
            ..*edge
        };
        Net::new(count as usize, chosen().map(renamed).collect())
    }
}

/// Gives what senders and receivers have left to the edges that paths beyond `value` need it for, longest path first.
fn spread(net: &Net, y: &mut [f64], value: f64) {
    let stars = net.stars();
    let mut sent = vec![0.0; stars.num_senders];
    let mut received = vec![0.0; stars.num_receivers];
    for (at, share) in y.iter().enumerate().filter(|(_, share)| **share > 0.0) {
        sent[stars.sender[at] as usize] += share;
        received[stars.receiver[at] as usize] += share;
    }
    let length = |at: usize, edge: &super::net::Edge| edge.fixed + edge.cost * (1.0 - y[at]);
    let (heads, tails) = (net.heads(length), net.tails(length));
    let path = |at: usize, edge: &super::net::Edge| {
        heads[edge.tail as usize] + length(at, edge) + tails[edge.head as usize]
    };
    let mut late: Vec<(f64, usize)> = net
        .edges
        .iter()
        .enumerate()
        .filter(|(_, edge)| edge.is_live())
        .map(|(at, edge)| (path(at, edge), at))
        .filter(|(path, _)| *path > value)
        .collect();
    late.sort_unstable_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
    for (path, at) in late {
        let (from, to) = (stars.sender[at] as usize, stars.receiver[at] as usize);
        let left = (1.0 - sent[from]).min(1.0 - received[to]).min(1.0 - y[at]);
        let more = left.min((path - value) / net.edges[at].cost);
        if more > 0.0 {
            y[at] += more;
            sent[from] += more;
            received[to] += more;
        }
    }
}
