//! The proof of an answer: a lower and an upper bound from the program as it was given, each by itself.
//!
//! The upper bound is the longest path under the shares. The lower bound is what a flow from source to sink pays for its
//! lengths, less prices for sparing: with prices `u`, `v` of at least 0 and `u[sender] + v[receiver] >= cost * flow` on every
//! edge, no shares spare more than the sum of the prices. Neither looks at how shares, flow or prices came about: they are
//! repaired first, and a bad one only makes the bound worse.

use super::net::{Net, index};

/// Bounds of the program's value.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Bounds {
    pub lower: f64,
    pub upper: f64,
}

/// Makes the shares of every sender and receiver add up to at most 1.
pub fn repair_shares(net: &Net, y: &mut [f64]) {
    let stars = net.stars();
    for (at, share) in y.iter_mut().enumerate() {
        let live = net.edges[at].is_live();
        *share = if live && share.is_finite() { share.clamp(0.0, 1.0) } else { 0.0 };
    }
    for (star, count) in
        [(&stars.sender, stars.num_senders), (&stars.receiver, stars.num_receivers)]
    {
        let mut total = vec![0.0_f64; count];
        for (at, share) in y.iter().enumerate().filter(|(_, share)| **share > 0.0) {
            total[star[at] as usize] += share;
        }
        for (at, share) in y.iter_mut().enumerate().filter(|(_, share)| **share > 0.0) {
            if total[star[at] as usize] > 1.0 {
                *share /= total[star[at] as usize];
            }
        }
    }
}

/// The length of the longest path under the shares, rounded up.
#[must_use]
pub fn upper(net: &Net, y: &[f64]) -> f64 {
    // Every node on a path adds at most three roundings.
    net.value(y) * (1.0 + rounding(net))
}

/// What the flow proves with the prices, rounded down.
///
/// `flow` is per edge, NaN where it follows from what enters and leaves; `prices` is per sender of `net.stars()`.
#[must_use]
pub fn lower(net: &Net, flow: Vec<f64>, prices: Vec<f64>) -> f64 {
    let flow = unit_flow(net, resolved(net, flow));
    let mut paid = Sum::default();
    for (edge, flow) in net.edges.iter().zip(&flow) {
        paid.add(flow * edge.fixed);
        paid.add(flow * edge.cost);
    }
    paid.value() - sum_of_prices(net, &flow, prices) - rounding(net) * paid.value()
}

/// A price per sender of `net.stars()` from pairs of sender and price.
#[must_use]
pub fn prices_in_order(net: &Net, prices: &[(u32, f64)]) -> Vec<f64> {
    let mut named: Vec<(u32, f64)> = prices.to_vec();
    named.sort_unstable_by(|a, b| a.0.cmp(&b.0).then(a.1.total_cmp(&b.1)));
    let stars = net.stars();
    let mut in_order = vec![0.0; stars.num_senders];
    for (at, edge) in net.edges.iter().enumerate().filter(|(_, edge)| edge.is_live()) {
        if let Ok(found) = named.binary_search_by_key(&edge.sender, |price| price.0) {
            in_order[stars.sender[at] as usize] = named[found].1;
        }
    }
    in_order
}

/// Flow where it is not known, from what enters and leaves the nodes; the unknown edges form a forest.
#[must_use]
pub fn resolved(net: &Net, mut flow: Vec<f64>) -> Vec<f64> {
    // What enters less what leaves; the source gets 1 from outside.
    let mut excess = vec![0.0; net.num_nodes];
    excess[0] = 1.0;
    let mut unknown = vec![0_u32; net.num_nodes];
    let mut sum = vec![0_u32; net.num_nodes];
    for (at, edge) in net.edges.iter().enumerate() {
        let ends = [edge.tail as usize, edge.head as usize];
        if flow[at].is_nan() {
            for end in ends {
                unknown[end] += 1;
                // With one unknown left, the sum is that one.
                sum[end] = sum[end].wrapping_add(index(at));
            }
        } else {
            excess[ends[0]] -= flow[at];
            excess[ends[1]] += flow[at];
        }
    }
    let sink = net.num_nodes - 1;
    let mut ready: Vec<usize> = (0..sink).filter(|node| unknown[*node] == 1).collect();
    while let Some(node) = ready.pop() {
        if unknown[node] != 1 {
            continue;
        }
        let at = sum[node] as usize;
        let edge = &net.edges[at];
        let leaves = edge.tail as usize == node;
        let amount = if leaves { excess[node] } else { -excess[node] };
        flow[at] = amount;
        let ends = [edge.tail as usize, edge.head as usize];
        excess[ends[0]] -= amount;
        excess[ends[1]] += amount;
        for end in ends {
            unknown[end] -= 1;
            sum[end] = sum[end].wrapping_sub(sum[node] * u32::from(end != node));
        }
        sum[node] = 0;
        let other = if leaves { ends[1] } else { ends[0] };
        if other != sink && unknown[other] == 1 {
            ready.push(other);
        }
    }
    flow
}

/// Sends 1 from the source to the sink, split at every node in proportion to the flow given.
fn unit_flow(net: &Net, mut flow: Vec<f64>) -> Vec<f64> {
    let mut through = vec![0.0; net.num_nodes];
    through[0] = 1.0;
    for node in 0..net.num_nodes {
        let out = net.out_of(node);
        for share in &mut flow[out.clone()] {
            *share = if share.is_finite() { share.max(0.0) } else { 0.0 };
        }
        let total: f64 = flow[out.clone()].iter().sum();
        for at in out.clone() {
            flow[at] = if through[node] <= 0.0 {
                0.0
            } else if total > 0.0 {
                through[node] * (flow[at] / total)
            } else if at == out.start {
                through[node]
            } else {
                0.0
            };
            through[net.edges[at].head as usize] += flow[at];
        }
    }
    flow
}

/// The sum of prices that cover `cost * flow`, starting from those of the senders.
fn sum_of_prices(net: &Net, flow: &[f64], mut paid_by: Vec<f64>) -> f64 {
    let stars = net.stars();
    paid_by.resize(stars.num_senders, 0.0);
    let mut rest = vec![0.0_f64; stars.num_receivers];
    let live = || net.edges.iter().enumerate().filter(|(_, edge)| edge.is_live());
    for (at, edge) in live() {
        let covered = paid_by[stars.sender[at] as usize].max(0.0);
        let price = &mut rest[stars.receiver[at] as usize];
        *price = price.max(edge.cost * flow[at] - covered);
    }
    paid_by.fill(0.0);
    for (at, edge) in live() {
        let covered = rest[stars.receiver[at] as usize];
        let price = &mut paid_by[stars.sender[at] as usize];
        *price = price.max(edge.cost * flow[at] - covered);
    }
    let mut sum = Sum::default();
    for price in paid_by.iter().chain(&rest) {
        sum.add(*price);
    }
    sum.value()
}

/// Relative error of a sum along a path.
fn rounding(net: &Net) -> f64 {
    let mut depth = vec![0_u32; net.num_nodes];
    for edge in &net.edges {
        let deeper = depth[edge.tail as usize] + 1;
        depth[edge.head as usize] = depth[edge.head as usize].max(deeper);
    }
    f64::from(4 * depth[net.num_nodes - 1] + 8) * f64::EPSILON
}

/// A sum with a correction for rounding (Neumaier).
#[derive(Default)]
struct Sum {
    total: f64,
    lost: f64,
}

impl Sum {
    fn add(&mut self, term: f64) {
        let total = self.total + term;
        self.lost += if self.total.abs() >= term.abs() {
            (self.total - total) + term
        } else {
            (term - total) + self.total
        };
        self.total = total;
    }

    fn value(&self) -> f64 {
        self.total + self.lost
    }
}

#[cfg(test)]
mod tests {
    use super::super::net::tests::net;
    use super::*;

    #[test]
    fn shares_beyond_one_are_cut_down_and_flow_that_does_not_add_up_still_proves() {
        let net = net(4, &[(0, 1, 2.0, 0.0), (0, 2, 1.0, 0.0), (1, 3, 0.0, 4.0), (2, 3, 0.0, 4.0)]);
        let mut y = vec![0.0, 0.0, 0.9, 0.9];
        repair_shares(&net, &mut y);
        assert_eq!(y, [0.0, 0.0, 0.5, 0.5]);
        assert!((upper(&net, &y) - 4.0).abs() < 1e-9);
        let bound = lower(&net, vec![3.0, 3.0, f64::NAN, f64::NAN], Vec::new());
        assert!(bound <= 3.5 && bound > 3.0);
        assert!(lower(&net, vec![-1.0, f64::INFINITY, 0.0, 0.0], Vec::new()) <= 3.5);
    }

    #[test]
    fn unknown_flow_follows_from_its_neighbors() {
        let net = net(4, &[(0, 1, 1.0, 0.0), (0, 2, 1.0, 0.0), (1, 3, 1.0, 0.0), (2, 3, 1.0, 0.0)]);
        let flow = resolved(&net, vec![0.25, f64::NAN, f64::NAN, f64::NAN]);
        assert_eq!(flow, [0.25, 0.75, 0.25, 0.75]);
    }
}
