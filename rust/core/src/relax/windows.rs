//! Shares for what the core leaves out of a deep block: one window after the other, in the order of time.
//!
//! Every node has a time by which it is due. A window frees the times and shares of some thousand nodes that follow each other and holds
//! all others; its program keeps what enters and makes what leaves as little late as can be. What is late is left to the next window, so
//! lateness moves on to where there is time to spare. The core's paths have none: their lateness weighs more, and where it stays in the
//! largest window the core lacks edges. Those are the ones whose rows have a dual, there and since paths beside the core have been late; all
//! that follows is put off.

use super::model::Model;
use super::net::{Edge, NONE, Net, Stars, index};

/// Nodes of a window, how many windows a block has at least, and how many may be freed together.
const WINDOW_NODES: usize = 1_500;
const LEAST_WINDOWS: usize = 64;
const LARGEST: usize = 8;
/// The same where the core has all edges that matter there.
const LARGEST_IN_CORE: usize = 32;
/// After so many of the largest that were of no use, only single windows are freed.
const MOST_IN_VAIN: usize = 4;
/// Nodes per level up to which a block is deep, not wide.
const MOST_PER_LEVEL: usize = 40;
/// What it costs to leave a window late beside the core: the longer, the more per unit of time, up to these lengths.
const TIERS: [(f64, f64); 3] = [(0.25, 1.0), (1.0, 4.0), (f64::INFINITY, 16.0)];
/// The same for the core's paths.
const FIRM_WEIGHT: f64 = 400.0;
/// What it is worth to leave a window early, against leaving it late, and up to how early.
const EARLY_WEIGHT: f64 = 0.01;
const EARLIEST: f64 = 16.0;
/// Dual of an edge from which it matters to the core's paths.
const MATTERS: f64 = 1e-3 * FIRM_WEIGHT;
/// Lateness below which an edge is on time, and that is put down to the solver's tolerance.
const ON_TIME: f64 = 1e-9;
const TOLERANCE: f64 = 1e-7;

/// Whether windows say anything about a block: it has many of them, and each reaches over many levels.
#[must_use]
pub fn is_deep(net: &Net, deep_nodes: usize) -> bool {
    if net.num_nodes < deep_nodes {
        return false;
    }
    let mut level = vec![0_usize; net.num_nodes];
    for edge in &net.edges {
        level[edge.head as usize] = level[edge.head as usize].max(level[edge.tail as usize] + 1);
    }
    net.num_nodes <= MOST_PER_LEVEL * level[net.num_nodes - 1]
}

/// A block on the way from its first window to its last.
#[derive(Debug)]
pub struct Pass {
    /// A share per edge, within the limits of senders and receivers but for the solver's tolerance.
    pub y: Vec<f64>,
    in_core: Vec<bool>,
    /// Edges beside the core on paths that have been late since some window.
    carried: Vec<usize>,
    /// Edges that the core lacks.
    pub missing: Vec<usize>,
    /// When each node is due, the sink last.
    due: Vec<f64>,
    /// Whether a node is on a path of the core.
    is_firm: Vec<bool>,
    stars: Stars,
    sent: Vec<f64>,
    received: Vec<f64>,
    /// Nodes between source and sink, by time and never before a parent.
    order: Vec<u32>,
    window_nodes: usize,
    /// How many windows may be freed together to keep the core's paths on time: the less, the more often that was of no use.
    most_windows: usize,
    num_in_vain: usize,
    /// The window: which of them are free.
    free: std::ops::Range<usize>,
    window: Window,
    /// Position in the window per node.
    slot: Vec<u32>,
}

/// What the program of a window is about.
#[derive(Debug, Default)]
struct Window {
    nodes: Vec<u32>,
    /// Edges with an end in it, ascending.
    edges: Vec<usize>,
    /// Edges that leave it for a node that is not of the core, as positions in `edges`.
    leaving: Vec<usize>,
    /// When its first node is due; the program counts from there.
    start: f64,
}

impl Pass {
    /// Begins with shares that keep the limits, and with the times that they should keep.
    #[must_use]
    pub fn new(
        net: &Net,
        due: Vec<f64>,
        firm: &[bool],
        y: Vec<f64>,
        in_core: Vec<bool>,
        deep_nodes: usize,
    ) -> Self {
        let stars = net.stars();
        let mut is_firm = vec![false; net.num_nodes];
        is_firm[net.num_nodes - 1] = true;
        for edge in net.edges.iter().zip(firm).filter(|(_, firm)| **firm).map(|(edge, _)| edge) {
            is_firm[edge.tail as usize] = true;
            is_firm[edge.head as usize] = true;
        }
        let mut pass = Self {
            in_core,
            carried: Vec::new(),
            missing: Vec::new(),
            is_firm,
            sent: vec![0.0; stars.num_senders],
            received: vec![0.0; stars.num_receivers],
            stars,
            order: in_order(net, &due),
            window_nodes: (deep_nodes / LEAST_WINDOWS).clamp(2, WINDOW_NODES),
            most_windows: LARGEST,
            num_in_vain: 0,
            free: 0..0,
            window: Window::default(),
            slot: vec![NONE; net.num_nodes],
            y,
            due,
        };
        for at in 0..pass.y.len() {
            pass.add(at, pass.y[at]);
        }
        pass.advance();
        pass
    }

    /// The program of the next window in which something is late; None after the last.
    pub fn next(&mut self, net: &Net) -> Option<Model> {
        while !self.free.is_empty() {
            self.window = self.open(net);
            if self.window.edges.iter().any(|at| self.lateness(net, *at) > ON_TIME) {
                return Some(self.model(net));
            }
            self.advance();
        }
        None
    }

    /// Takes the solution of the program handed out last.
    pub fn take(&mut self, columns: &[f64], duals: &[f64]) {
        let window = std::mem::take(&mut self.window);
        let (shares, times) = columns.split_at(window.edges.len());
        for (at, share) in window.edges.iter().zip(shares) {
            let share = share.clamp(0.0, 1.0);
            self.add(*at, share - self.y[*at]);
            self.y[*at] = share;
        }
        for (node, time) in window.nodes.iter().zip(times) {
            self.due[*node as usize] = window.start + time;
        }
        let (_, lateness) = times.split_at(window.nodes.len());
        let num_leaving = window.leaving.len();
        let (beside, late) = (&lateness[..num_leaving], lateness[TIERS.len() * num_leaving]);
        let with_dual = window.edges.iter().zip(duals).filter(|(_, dual)| **dual > MATTERS);
        let missing = with_dual.map(|(at, _)| *at).filter(|at| !self.in_core[*at]);
        let missing: Vec<usize> = missing.collect();
        let size = self.free.len();
        let most = if missing.is_empty() { LARGEST_IN_CORE } else { self.most_windows };
        if late > TOLERANCE && size < most * self.window_nodes && self.free.start > 0 {
            self.free.start = self.free.start.saturating_sub(size);
            return;
        }
        if beside.iter().all(|late| *late <= TOLERANCE) && late <= TOLERANCE {
            self.carried.clear();
        } else {
            self.carried.extend(missing);
        }
        if late > TOLERANCE {
            self.missing.append(&mut self.carried);
            self.put_off(late);
        }
        self.advance();
    }

    /// Makes all that follows the window due later.
    fn put_off(&mut self, late: f64) {
        for node in &self.order[self.free.end..] {
            self.due[*node as usize] += late;
        }
        *self.due.last_mut().expect("there is a sink") += late;
        self.num_in_vain += 1;
        if self.num_in_vain >= MOST_IN_VAIN {
            self.most_windows = 1;
        }
    }

    fn advance(&mut self) {
        let start = self.free.end;
        self.free = start..(start + self.window_nodes).min(self.order.len());
    }

    fn add(&mut self, at: usize, share: f64) {
        if self.stars.sender[at] != NONE {
            self.sent[self.stars.sender[at] as usize] += share;
            self.received[self.stars.receiver[at] as usize] += share;
        }
    }

    fn lateness(&self, net: &Net, at: usize) -> f64 {
        let edge = &net.edges[at];
        let length = edge.fixed + edge.cost * (1.0 - self.y[at]);
        self.due[edge.tail as usize] + length - self.due[edge.head as usize]
    }

    fn open(&mut self, net: &Net) -> Window {
        let nodes = self.order[self.free.clone()].to_vec();
        for (slot, node) in (0..).zip(&nodes) {
            self.slot[*node as usize] = slot;
        }
        let mut edges: Vec<usize> = Vec::new();
        for node in &nodes {
            edges.extend(net.out_of(*node as usize));
            let entering = net.into(*node as usize).iter().map(|at| *at as usize);
            edges.extend(entering.filter(|at| !self.is_free(net.edges[*at].tail)));
        }
        edges.sort_unstable();
        let leaves = |at: &usize| {
            let head = net.edges[edges[*at]].head;
            !self.is_free(head) && !self.is_firm[head as usize]
        };
        let leaving = (0..edges.len()).filter(leaves).collect();
        let start = self.due[nodes[0] as usize];
        for node in &nodes {
            self.slot[*node as usize] = NONE;
        }
        Window { nodes, edges, leaving, start }
    }

    fn is_free(&self, node: u32) -> bool {
        self.slot[node as usize] != NONE
    }

    /// Columns: a share per edge, a time per node, the lateness of each edge that leaves for a node beside the core, the lateness of all others
    /// that leave. Rows: per edge, then per sender and receiver.
    fn model(&mut self, net: &Net) -> Model {
        let window = &self.window;
        for (slot, node) in (0..).zip(&window.nodes) {
            self.slot[*node as usize] = slot;
        }
        let (times, lateness) = (window.edges.len(), window.edges.len() + window.nodes.len());
        let num_leaving = window.leaving.len();
        let late = lateness + TIERS.len() * num_leaving;
        let mut model = Model::default();
        model.column_upper.resize(times, 1.0);
        model.column_upper.resize(lateness, f64::INFINITY);
        for (length, _) in TIERS {
            model.column_upper.resize(model.column_upper.len() + num_leaving, length);
        }
        model.column_upper.push(f64::INFINITY);
        model.column_lower.resize(times, 0.0);
        model.column_lower.resize(lateness, f64::NEG_INFINITY);
        model.column_lower.resize(late + 1, 0.0);
        model.cost.resize(lateness, 0.0);
        for (_, cost) in TIERS {
            model.cost.resize(model.cost.len() + num_leaving, cost);
        }
        model.cost.push(FIRM_WEIGHT);
        let early = model.cost.len();
        model.cost.resize(early + num_leaving, -EARLY_WEIGHT);
        model.column_lower.resize(model.cost.len(), 0.0);
        for at in &window.leaving {
            let slack = -self.lateness(net, window.edges[*at]);
            model.column_upper.push(if slack < EARLIEST { EARLIEST } else { 0.0 });
        }
        model.start.push(0);
        let mut own = window.leaving.iter().zip(0..).peekable();
        for (at, edge) in window.edges.iter().map(|at| &net.edges[*at]).enumerate() {
            let mut least = edge.longest();
            if self.is_free(edge.head) {
                model.entry(times + self.slot[edge.head as usize] as usize, 1.0);
            } else {
                least -= self.due[edge.head as usize] - window.start;
                if let Some((_, own)) = own.next_if(|(leaving, _)| **leaving == at) {
                    for tier in 0..TIERS.len() {
                        model.entry(lateness + tier * num_leaving + own, 1.0);
                    }
                    model.entry(early + own, -1.0);
                } else {
                    model.entry(late, 1.0);
                }
            }
            if self.is_free(edge.tail) {
                model.entry(times + self.slot[edge.tail as usize] as usize, -1.0);
            } else {
                least += self.due[edge.tail as usize] - window.start;
            }
            if edge.is_live() {
                model.entry(at, edge.cost);
            }
            model.end_row(least, f64::INFINITY);
        }
        self.limit(&mut model, &self.stars.sender, &self.sent);
        self.limit(&mut model, &self.stars.receiver, &self.received);
        for node in &self.window.nodes {
            self.slot[*node as usize] = NONE;
        }
        model
    }

    /// What the edges outside the window leave of senders or receivers.
    fn limit(&self, model: &mut Model, star: &[u32], total: &[f64]) {
        let edges = &self.window.edges;
        let mut shares: Vec<(u32, usize)> =
            (0..edges.len()).map(|at| (star[edges[at]], at)).filter(|of| of.0 != NONE).collect();
        shares.sort_unstable();
        for of in shares.chunk_by(|a, b| a.0 == b.0) {
            let inside: f64 = of.iter().map(|(_, at)| self.y[edges[*at]]).sum();
            let left = (1.0 - (total[of[0].0 as usize] - inside)).clamp(0.0, 1.0);
            if let [(_, at)] = of {
                model.column_upper[*at] = left.min(model.column_upper[*at]);
            } else {
                for (_, at) in of {
                    model.entry(*at, 1.0);
                }
                model.end_row(f64::NEG_INFINITY, left);
            }
        }
    }
}

/// Nodes between source and sink by time, children after their parents.
fn in_order(net: &Net, due: &[f64]) -> Vec<u32> {
    let mut time = due.to_vec();
    for Edge { tail, head, .. } in &net.edges {
        time[*head as usize] = time[*head as usize].max(time[*tail as usize]);
    }
    let mut order: Vec<u32> = (1..index(net.num_nodes - 1)).collect();
    order.sort_by(|a, b| time[*a as usize].total_cmp(&time[*b as usize]));
    order
}
