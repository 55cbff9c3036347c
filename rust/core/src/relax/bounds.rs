//! Lower bounds without a solver: one pass that knows only the receivers' limits, one that knows only the senders'.
//!
//! With the receivers' limits alone, the earliest time of a node follows from those of its parents: it is the least `t` for which
//! the arrivals beyond `t` can all be spared, `sum of max(0, (arrival - t) / cost) <= 1`. The same backward with the senders. A path that is
//! bounded forward to a node and backward from it bounds the program. The passes also say which flow
//! proves the bound.

use super::net::{Net, index};

/// What proves a lower bound: a flow from source to sink, and a price per sender.
#[derive(Debug, Clone, Default)]
pub struct Proof {
    pub value: f64,
    /// (pair, flow); NaN where the flow follows from what enters and leaves.
    pub flow: Vec<(u32, f64)>,
    /// (sender, price); a sender that is missing has none.
    pub prices: Vec<(u32, f64)>,
}

/// The bound of both passes together.
pub struct Passes {
    heads: Vec<f64>,
    tails: Vec<f64>,
    middle: usize,
}

impl Passes {
    /// Runs both passes. O(edges log degree).
    #[must_use]
    pub fn of(net: &Net) -> Self {
        let heads = forward(net);
        let tails = backward(net);
        let value = |node: usize| heads[node] + tails[node];
        let mut middle = 0;
        for node in 1..net.num_nodes {
            if value(node) > value(middle) {
                middle = node;
            }
        }
        Self { heads, tails, middle }
    }

    /// The bound.
    #[must_use]
    pub fn value(&self) -> f64 {
        self.heads[self.middle] + self.tails[self.middle]
    }

    /// The flow and the prices that prove it.
    #[must_use]
    pub fn proof(&self, net: &Net) -> Proof {
        let mut proof = Proof { value: self.value(), ..Proof::default() };
        let mut through = vec![0.0; net.num_nodes];
        through[self.middle] = 1.0;
        let mut arrivals = Vec::new();
        for node in (1..=self.middle).rev().filter(|node| *node > 0) {
            if through[node] <= 0.0 {
                continue;
            }
            let share = through[node];
            for group in groups(net, net.into(node), |edge| edge.receiver) {
                let arrival = |at: u32| {
                    let edge = &net.edges[at as usize];
                    (self.heads[edge.tail as usize] + edge.longest(), edge.cost, at)
                };
                let time = fill(&mut arrivals, group.iter().map(|at| arrival(*at)));
                if time >= self.heads[node] {
                    for (at, part) in shares(&arrivals, time) {
                        let edge = &net.edges[at as usize];
                        proof.flow.push((edge.pair, share * part));
                        through[edge.tail as usize] += share * part;
                    }
                    break;
                }
            }
        }
        through.fill(0.0);
        through[self.middle] = 1.0;
        for node in self.middle..net.num_nodes - 1 {
            if through[node] <= 0.0 {
                continue;
            }
            let share = through[node];
            let out: Vec<u32> = net.out_of(node).map(index).collect();
            for group in groups(net, &out, |edge| edge.sender) {
                let arrival = |at: u32| {
                    let edge = &net.edges[at as usize];
                    (self.tails[edge.head as usize] + edge.longest(), edge.cost, at)
                };
                let time = fill(&mut arrivals, group.iter().map(|at| arrival(*at)));
                if time >= self.tails[node] {
                    let mut price = 0.0_f64;
                    for (at, part) in shares(&arrivals, time) {
                        let edge = &net.edges[at as usize];
                        proof.flow.push((edge.pair, share * part));
                        through[edge.head as usize] += share * part;
                        price = price.max(share * part * edge.cost);
                    }
                    let sender = net.edges[group[0] as usize].sender;
                    if price > 0.0 {
                        proof.prices.push((sender, price));
                    }
                    break;
                }
            }
        }
        proof
    }
}

fn forward(net: &Net) -> Vec<f64> {
    let mut heads = vec![f64::NEG_INFINITY; net.num_nodes];
    heads[0] = 0.0;
    let mut arrivals = Vec::new();
    for node in 1..net.num_nodes {
        for group in groups(net, net.into(node), |edge| edge.receiver) {
            let arrival = |at: &u32| {
                let edge = &net.edges[*at as usize];
                (heads[edge.tail as usize] + edge.longest(), edge.cost, *at)
            };
            heads[node] = heads[node].max(fill(&mut arrivals, group.iter().map(arrival)));
        }
    }
    heads
}

fn backward(net: &Net) -> Vec<f64> {
    let mut tails = vec![f64::NEG_INFINITY; net.num_nodes];
    tails[net.num_nodes - 1] = 0.0;
    let mut arrivals = Vec::new();
    let mut out = Vec::new();
    for node in (0..net.num_nodes - 1).rev() {
        out.clear();
        out.extend(net.out_of(node).map(index));
        for group in groups(net, &out, |edge| edge.sender) {
            let arrival = |at: &u32| {
                let edge = &net.edges[*at as usize];
                (tails[edge.head as usize] + edge.longest(), edge.cost, *at)
            };
            tails[node] = tails[node].max(fill(&mut arrivals, group.iter().map(arrival)));
        }
    }
    tails
}

/// Runs of edges with the same star; edges without a choice come one by one.
fn groups<'a>(
    net: &'a Net,
    edges: &'a [u32],
    star: impl Fn(&super::net::Edge) -> u32 + 'a,
) -> impl Iterator<Item = &'a [u32]> {
    edges.chunk_by(move |a, b| {
        let (a, b) = (&net.edges[*a as usize], &net.edges[*b as usize]);
        a.is_live() && star(a) == star(b)
    })
}

/// The least time by which all arrivals are in, if one in total may be spared; sorts them latest first.
///
/// An arrival is (time when nothing is spared, cost, edge).
fn fill(sorted: &mut Vec<(f64, f64, u32)>, arrivals: impl Iterator<Item = (f64, f64, u32)>) -> f64 {
    sorted.clear();
    sorted.extend(arrivals);
    if let [(time, cost, _)] = sorted[..] {
        return time - cost;
    }
    sorted.sort_unstable_by(|a, b| b.0.total_cmp(&a.0).then(a.2.cmp(&b.2)));
    let (mut weighted, mut weight) = (0.0, 0.0);
    for (at, (time, cost, _)) in sorted.iter().enumerate() {
        weighted += time / cost;
        weight += 1.0 / cost;
        let level = (weighted - 1.0) / weight;
        if sorted.get(at + 1).is_none_or(|next| level >= next.0) {
            return level;
        }
    }
    f64::NEG_INFINITY
}

/// How the flow of a node splits over the arrivals that decide its time.
fn shares(sorted: &[(f64, f64, u32)], time: f64) -> impl Iterator<Item = (u32, f64)> {
    let single = sorted.len() == 1;
    let late = move |(arrival, ..): &&(f64, f64, u32)| single || *arrival > time;
    let weight = move |cost: f64| if single { 1.0 } else { 1.0 / cost };
    let total: f64 = sorted.iter().filter(late).map(|(_, cost, _)| weight(*cost)).sum();
    sorted.iter().filter(move |a| late(a)).map(move |(_, cost, at)| (*at, weight(*cost) / total))
}

#[cfg(test)]
mod tests {
    use super::super::net::tests::net;
    use super::*;

    #[test]
    fn two_arrivals_share_what_one_receiver_may_spare() {
        // Arrivals at 6 and 5 with costs 4 and 4 (both fixed lengths before the sink are 0).
        let net = net(4, &[(0, 1, 2.0, 0.0), (0, 2, 1.0, 0.0), (1, 3, 0.0, 4.0), (2, 3, 0.0, 4.0)]);
        let passes = Passes::of(&net);
        // t with (6 - t) / 4 + (5 - t) / 4 = 1.
        assert!((passes.value() - 3.5).abs() < 1e-12);
        let proof = passes.proof(&net);
        let flow: f64 =
            proof.flow.iter().filter(|(pair, _)| *pair >= 2).map(|(_, flow)| flow).sum();
        assert!((flow - 1.0).abs() < 1e-12);
    }
}
