//! Large blocks: solve only the edges that are nearly critical, extend the answer to the rest, repeat with what that left too long.
//!
//! The program of some of the edges is a relaxation, so its value is a lower bound; its shares, with what senders and receivers
//! have left over, are shares for the block, so their longest path is an upper bound.

use super::bounds::Proof;
use super::certificate;
use super::first_order::{self, Sweeps};
use super::mend;
use super::model::Model;
use super::net::{Edge, NONE, Net, index};
use super::session::Options;
use super::tree::{Answer, Tree};
use super::windows::{self, Pass};

/// Gap at which a block is solved, relative.
const SOLVED: f64 = 1e-10;
/// Distance from the longest path of edges with flow within which an edge may be in the first core, relative.
const FIRST_CORE: f64 = 1e-3;
/// Mean flow of the guide above which it is.
const FIRST_FLOW: f64 = 1e-6;
/// In a deep block, whose windows find what is missing, only the edges with most flow, this share of all.
const DEEP_FIRST_SHARE: f64 = 0.12;
/// How many times as many nodes as the least deep block it takes until the guide needs twice the sweeps.
const LONG: usize = 4;
/// Edges above this share of the gap may join the core.
const JOINS: f64 = 0.3;
/// By how much the core may grow in a round, relative; twice that after some rounds that did not raise the bound.
const GROWTH: f64 = 0.1;
const STALLED_ROUNDS: u32 = 6;
const LEAST_GROWTH: usize = 200;
const MOST_ROUNDS: u32 = 120;
/// Flow of a solution above which the shares of an edge are not the guide's to choose.
const FIRM_FLOW: f64 = 1e-9;

/// A large block between two rounds.
#[derive(Debug)]
pub struct Large {
    /// The block in the tree it belongs to.
    pub block: usize,
    /// The core of this round, reduced and split; its pairs are edges of the block.
    pub tree: Tree,
    in_core: Vec<bool>,
    guide: Vec<f64>,
    y: Vec<f64>,
    upper: f64,
    lower: f64,
    flow: Vec<f64>,
    prices: Vec<f64>,
    /// The value of the last core, and how many rounds in a row have not raised it.
    value: f64,
    num_stalled: u32,
    /// In a deep block, whose windows can be solved one by one where the core's shares leave too much too long: the least such block's nodes.
    deep_nodes: Option<usize>,
    pass: Option<Pass>,
    /// Whether shares near the guide's were tried.
    is_eased: bool,
    pub num_rounds: u32,
    /// Answers of a round that served again in the next.
    pub num_reused: usize,
    pub is_done: bool,
}

impl Large {
    /// Guides by the first-order method, then takes the first core.
    #[must_use]
    pub fn start(block: usize, net: &Net, options: Options, expired: &dyn Fn() -> bool) -> Self {
        let is_deep = windows::is_deep(net, options.deep_nodes);
        let is_long = is_deep && net.num_nodes >= LONG * options.deep_nodes;
        let sweeps = if is_long { 2 * options.sweeps } else { options.sweeps };
        let guide = first_order::guide(net, Sweeps::of(sweeps), expired);
        let prices = super::auction::prices(net, &guide.flow, expired);
        let lower = certificate::lower(net, guide.flow.clone(), prices.clone());
        let share = if is_deep { DEEP_FIRST_SHARE } else { 1.0 };
        let least_flow = guide.least_flow(net, share, FIRST_FLOW);
        let mut large = Self {
            block,
            tree: Tree::empty(),
            in_core: vec![false; net.edges.len()],
            guide: guide.y.clone(),
            y: guide.y,
            upper: guide.upper,
            lower,
            flow: guide.flow,
            prices,
            value: 0.0,
            num_stalled: 0,
            deep_nodes: is_deep.then_some(options.deep_nodes),
            pass: None,
            is_eased: false,
            num_rounds: 0,
            num_reused: 0,
            is_done: false,
        };
        let is_rare = |at: usize| large.flow[at] <= least_flow;
        let length = |at: usize, edge: &Edge| {
            if is_rare(at) {
                f64::NEG_INFINITY
            } else {
                edge.fixed + edge.cost * (1.0 - large.y[at])
            }
        };
        let (heads, tails) = (net.heads(length), net.tails(length));
        let reach = heads[net.num_nodes - 1] * (1.0 - FIRST_CORE);
        for (at, edge) in net.edges.iter().enumerate() {
            let path = heads[edge.tail as usize] + length(at, edge) + tails[edge.head as usize];
            large.in_core[at] = path >= reach;
        }
        mend::tighten(net, large.upper, |_| true, &mut large.guide);
        large.tree = Tree::grow(large.core(net), expired);
        large
    }

    /// Takes the answers of a round: better bounds, and the next core unless the block is solved.
    pub fn end_round(&mut self, net: &Net, expired: &dyn Fn() -> bool) {
        let collected = self.tree.collect(net.edges.len());
        let mut y = collected.y;
        certificate::repair_shares(net, &mut y);
        let value = collected.value;
        let solved = y.clone();
        let stars = net.stars();
        mend::tighten(net, value, |at| self.in_core[at], &mut y);
        for (at, share) in y.iter_mut().enumerate() {
            if !self.in_core[at] {
                *share = self.guide[at];
            }
        }
        mend::limit(&stars, |at| !self.in_core[at], &mut y);
        mend::spread(net, &stars, value, &mut y);
        let upper = net.value(&y);
        let flow = certificate::resolved(net, collected.flow);
        let firm: Vec<bool> = flow.iter().map(|flow| *flow > FIRM_FLOW).collect();
        let prices = certificate::prices_in_order(net, &collected.prices);
        let lower = certificate::lower(net, flow.clone(), prices.clone());
        if lower > self.lower {
            (self.lower, self.flow, self.prices) = (lower, flow, prices);
        }
        self.num_rounds += 1;
        let rose = value > self.value * (1.0 + SOLVED);
        self.num_stalled = if rose { 0 } else { self.num_stalled + 1 };
        self.value = value;
        if upper < self.upper {
            (self.upper, self.y) = (upper, y.clone());
        } else if !self.is_eased && !expired() {
            self.is_eased = true;
            self.stay_near_the_guide(net, &firm, solved.clone(), expired);
        }
        if self.upper - value <= SOLVED * self.upper || expired() {
            self.is_done = true;
            return;
        }
        match self.deep_nodes {
            Some(deep_nodes) if !self.is_nearly_complete(net, &y, value) => {
                let (time, y) = self.near_the_guide(net, &firm, solved);
                self.pass = Some(Pass::new(net, time, &firm, y, self.in_core.clone(), deep_nodes));
            }
            _ => self.grow(net, &y, value, &[], expired),
        }
    }

    /// The next program of the windows that are open; None if there are none left.
    pub fn next_window(&mut self, net: &Net) -> Option<Model> {
        self.pass.as_mut()?.next(net)
    }

    /// Takes the answer to the program of a window.
    pub fn take_window(&mut self, columns: &[f64], duals: &[f64]) {
        self.pass.as_mut().expect("windows are open").take(columns, duals);
    }

    /// Whether windows are open.
    #[must_use]
    pub fn has_windows(&self) -> bool {
        self.pass.is_some()
    }

    /// Takes the shares of the windows: an upper bound, and the next core unless the block is solved.
    pub fn end_windows(&mut self, net: &Net, expired: &dyn Fn() -> bool) {
        let Some(Pass { mut y, missing, .. }) = self.pass.take() else { return };
        certificate::repair_shares(net, &mut y);
        let upper = net.value(&y);
        if upper < self.upper {
            (self.upper, self.y) = (upper, y.clone());
        }
        if self.upper - self.value <= SOLVED * self.upper || expired() {
            self.is_done = true;
            return;
        }
        self.grow(net, &y, self.value, &missing, expired);
    }

    /// The next core: with the edges that are known to be missing, or those on paths beyond `value`.
    fn grow(
        &mut self,
        net: &Net,
        y: &[f64],
        value: f64,
        missing: &[usize],
        expired: &dyn Fn() -> bool,
    ) {
        let mut grew = false;
        for at in missing {
            grew |= !std::mem::replace(&mut self.in_core[*at], true);
        }
        let is_late = self.num_rounds > MOST_ROUNDS / 2;
        grew = grew || (!is_late && self.join_late(net, y, value)) || self.join_all();
        self.is_done = !grew || self.num_rounds >= MOST_ROUNDS || expired();
        if !self.is_done {
            let next_tree = Tree::grow(self.core(net), expired);
            let before = std::mem::replace(&mut self.tree, next_tree);
            self.num_reused += self.tree.reuse(before);
        }
    }

    /// Whether no more edges are so late that they should join the core than may.
    fn is_nearly_complete(&self, net: &Net, y: &[f64], value: f64) -> bool {
        let lengths = self.ear_lengths(net, y);
        self.late(value, &lengths).is_none_or(|(_, late)| late.len() < self.growth())
    }

    /// Takes of a solution only the shares of edges with flow, which it needs, and the guide's for all others; a time per node, and the shares.
    ///
    /// A vertex spares next to nothing where its core has time to spare, so in a deep block the paths beside the core can come out
    /// far longer than under the guide.
    fn near_the_guide(&self, net: &Net, firm: &[bool], mut y: Vec<f64>) -> (Vec<f64>, Vec<f64>) {
        let time = mend::times(net, self.value, firm, &y, &self.guide);
        mend::fit(net, &time, firm, &mut y);
        mend::limit(&net.stars(), |at| !firm[at], &mut y);
        (time, y)
    }

    /// Tries such shares, eased. They do not solve the block, but come nearer.
    fn stay_near_the_guide(
        &mut self,
        net: &Net,
        firm: &[bool],
        y: Vec<f64>,
        expired: &dyn Fn() -> bool,
    ) {
        let (_, mut y) = self.near_the_guide(net, firm, y);
        mend::spread(net, &net.stars(), self.value, &mut y);
        let upper = first_order::ease(net, firm, self.value, &mut y, expired);
        if upper < self.upper {
            (self.upper, self.y) = (upper, y);
        }
    }

    /// The best shares and the best proof so far.
    #[must_use]
    pub fn answer(&self, net: &Net) -> Answer {
        let stars = net.stars();
        let proof = Proof { value: self.lower, ..Proof::default() };
        let mut answer = Answer { proof, ..Answer::default() };
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

    /// How many edges may join the core in this round.
    #[allow(clippy::cast_precision_loss, clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    fn growth(&self) -> usize {
        let size = self.in_core.iter().filter(|is_in| **is_in).count();
        let share = GROWTH * f64::from(1_u32 << (self.num_stalled / STALLED_ROUNDS).min(8));
        ((size as f64 * share) as usize).max(LEAST_GROWTH)
    }

    /// Puts edges into the core that are on paths beyond `value`, the longest first; whether there were new ones.
    ///
    /// A path that leaves the core once says where the core lacks an edge. A path that leaves it at several
    /// places counts only if there is none of the former.
    fn join_late(&mut self, net: &Net, y: &[f64], value: f64) -> bool {
        let ears = self.ear_lengths(net, y);
        self.join(value, &ears) || self.join(value, &path_lengths(net, y))
    }

    /// Puts the longest of the paths beyond `value` into the core, as many edges as it may grow by.
    fn join(&mut self, value: f64, path: &[f64]) -> bool {
        let Some((mut least, mut late)) = self.late(value, path) else { return false };
        let most = self.growth();
        if most < late.len() {
            late.select_nth_unstable_by(most, |a, b| b.total_cmp(a));
            least = late[most];
        }
        for (is_in, path) in self.in_core.iter_mut().zip(path) {
            *is_in |= *path >= least;
        }
        true
    }

    /// From which length on paths beyond `value` count, and those of edges that are not in the core; None if there are none.
    fn late(&self, value: f64, path: &[f64]) -> Option<(f64, Vec<f64>)> {
        let outside = || path.iter().zip(&self.in_core).filter(|(_, is_in)| !**is_in);
        let longest = outside().map(|(path, _)| *path).fold(value, f64::max);
        if longest <= value * (1.0 + SOLVED) {
            return None;
        }
        let least = value + JOINS * (longest - value);
        Some((least, outside().map(|(path, _)| *path).filter(|path| *path >= least).collect()))
    }

    /// Per edge, the longest path over it that is past the core from there to where it meets it on either side.
    fn ear_lengths(&self, net: &Net, y: &[f64]) -> Vec<f64> {
        let (heads, tails) = self.ears(net, y);
        over_edges(net, y, &heads, &tails)
    }

    /// Longest paths to and from every node that enter or leave it by the core if it is in the core, else past it.
    fn ears(&self, net: &Net, y: &[f64]) -> (Vec<f64>, Vec<f64>) {
        let length = |at: usize, edge: &Edge| edge.fixed + edge.cost * (1.0 - y[at]);
        let core = |at: usize, edge: &Edge| {
            if self.in_core[at] { length(at, edge) } else { f64::NEG_INFINITY }
        };
        let (mut heads, mut tails) = (net.heads(core), net.tails(core));
        let reached: Vec<bool> = heads.iter().map(|head| head.is_finite()).collect();
        for (at, edge) in net.edges.iter().enumerate().filter(|(at, _)| !self.in_core[*at]) {
            let node = edge.head as usize;
            if !reached[node] {
                heads[node] = heads[node].max(heads[edge.tail as usize] + length(at, edge));
            }
        }
        let leaves: Vec<bool> = tails.iter().map(|tail| tail.is_finite()).collect();
        for (at, edge) in net.edges.iter().enumerate().rev().filter(|(at, _)| !self.in_core[*at]) {
            let node = edge.tail as usize;
            if !leaves[node] {
                tails[node] = tails[node].max(tails[edge.head as usize] + length(at, edge));
            }
        }
        (heads, tails)
    }

    /// Puts every edge into the core; whether one was missing.
    fn join_all(&mut self) -> bool {
        let any = self.in_core.contains(&false);
        self.in_core.fill(true);
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
        let renamed = |(at, edge): (usize, &Edge)| Edge {
            tail: number[edge.tail as usize],
            head: number[edge.head as usize],
            pair: index(at),
            ..*edge
        };
        Net::new(count as usize, chosen().map(renamed).collect())
    }
}

/// Per edge, the longest path from source to sink over it.
fn path_lengths(net: &Net, y: &[f64]) -> Vec<f64> {
    let length = |at: usize, edge: &Edge| edge.fixed + edge.cost * (1.0 - y[at]);
    over_edges(net, y, &net.heads(length), &net.tails(length))
}

fn over_edges(net: &Net, y: &[f64], heads: &[f64], tails: &[f64]) -> Vec<f64> {
    let length = |(edge, y): (&Edge, &f64)| {
        heads[edge.tail as usize] + edge.fixed + edge.cost * (1.0 - y) + tails[edge.head as usize]
    };
    net.edges.iter().zip(y).map(length).collect()
}
