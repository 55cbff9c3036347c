//! Reductions that keep the optimum: never critical, free, dominated, contract.

use super::bounds::{Passes, Proof};
use super::net::{Edge, NONE, Net, index};

/// Slack of comparisons between sums of the same terms in another order, relative.
const SAME: f64 = 1e-12;
/// A pass that leaves more than this share of nodes and edges is the last.
const WORTH_A_PASS: f64 = 0.995;
/// Edges looked at in the search for a path that dominates one.
const SEARCH_BUDGET: u32 = 48;

/// What a net was reduced to.
#[derive(Debug, Default)]
pub struct Reduced {
    /// What is left; None if the bound alone is the value.
    pub net: Option<Net>,
    /// The best bound seen, a bound of the net as it was given.
    pub proof: Proof,
    /// Pairs whose cost is spared in full.
    pub spared: Vec<u32>,
    /// Pairs inside a node of what is left.
    pub contracted: Vec<u32>,
    /// How many of them were so when the bound was proved.
    pub num_contracted_before: usize,
    /// Edges dropped because no path through them exceeds the bound, edges dropped because another path is as long.
    pub num_never_critical: usize,
    pub num_dominated: usize,
}

/// Reduces a net until a pass changes next to nothing. O(edges log degree) a pass.
///
/// 1. *Never critical*: no path through the edge exceeds the lower bound even if nothing is spared; it is
///    dropped and leaves its sender and receiver.
/// 2. *Free*: an edge alone at its sender and its receiver spares all of its cost.
/// 3. *Dominated*: another path between its ends is never shorter.
/// 4. *Contract*: an edge without a choice that alone enters or alone leaves a node joins its ends.
#[must_use]
pub fn reduce(mut net: Net, expired: &dyn Fn() -> bool) -> Reduced {
    let mut done = Reduced::default();
    done.proof.value = f64::NEG_INFINITY;
    loop {
        let passes = Passes::of(&net);
        if passes.value() > done.proof.value {
            done.proof = passes.proof(&net);
            done.num_contracted_before = done.contracted.len();
        }
        drop(passes);
        let before = net.num_nodes + net.edges.len() + net.num_live();
        let kept = critical(&net, done.proof.value * (1.0 + SAME), &mut done);
        if kept.is_empty() {
            return done;
        }
        let num_nodes = net.num_nodes;
        net = contract(num_nodes, kept, &mut done);
        if net.num_live() == 0 {
            // Now the bound is the longest path, and the next pass drops all.
            continue;
        }
        drop_dominated(&mut net, &mut done);
        let after = net.num_nodes + net.edges.len() + net.num_live();
        #[allow(clippy::cast_precision_loss)]
        if after as f64 > before as f64 * WORTH_A_PASS || expired() {
            done.net = Some(net);
            return done;
        }
    }
}

/// Drops what is never critical and settles what is free.
fn critical(net: &Net, bound: f64, done: &mut Reduced) -> Vec<Edge> {
    let heads = net.heads(|_, edge| edge.longest());
    let tails = net.tails(|_, edge| edge.longest());
    let mut keep: Vec<bool> = net
        .edges
        .iter()
        .map(|edge| heads[edge.tail as usize] + edge.longest() + tails[edge.head as usize] > bound)
        .collect();
    drop_dead_ends(net, &mut keep);
    let stars = net.stars();
    let mut at_sender = vec![0_u32; stars.num_senders];
    let mut at_receiver = vec![0_u32; stars.num_receivers];
    for (at, edge) in net.edges.iter().enumerate() {
        if keep[at] && edge.is_live() {
            at_sender[stars.sender[at] as usize] += 1;
            at_receiver[stars.receiver[at] as usize] += 1;
        }
    }
    let mut kept = Vec::with_capacity(keep.iter().filter(|keep| **keep).count());
    for (at, edge) in net.edges.iter().enumerate() {
        if !keep[at] {
            done.num_never_critical += 1;
            continue;
        }
        let mut edge = *edge;
        if edge.is_live()
            && at_sender[stars.sender[at] as usize] == 1
            && at_receiver[stars.receiver[at] as usize] == 1
        {
            done.spared.push(edge.pair);
            edge.settle(edge.fixed);
        }
        kept.push(edge);
    }
    kept
}

/// Drops edges that lie on no path from source to sink.
fn drop_dead_ends(net: &Net, keep: &mut [bool]) {
    let mut reached = vec![false; net.num_nodes];
    reached[0] = true;
    for (at, edge) in net.edges.iter().enumerate() {
        keep[at] &= reached[edge.tail as usize];
        reached[edge.head as usize] |= keep[at];
    }
    reached.fill(false);
    reached[net.num_nodes - 1] = true;
    for (at, edge) in net.edges.iter().enumerate().rev() {
        keep[at] &= reached[edge.head as usize];
        reached[edge.tail as usize] |= keep[at];
    }
}

/// Joins nodes, then keeps of parallel edges those that can be the longest.
fn contract(num_nodes: usize, mut edges: Vec<Edge>, done: &mut Reduced) -> Net {
    join(num_nodes, &mut edges, done, Side::Head);
    join(num_nodes, &mut edges, done, Side::Tail);
    let mut number = vec![NONE; num_nodes];
    for edge in &edges {
        number[edge.tail as usize] = 0;
        number[edge.head as usize] = 0;
    }
    let mut count = 0;
    for slot in number.iter_mut().filter(|slot| **slot == 0) {
        *slot = count;
        count += 1;
    }
    for edge in &mut edges {
        edge.tail = number[edge.tail as usize];
        edge.head = number[edge.head as usize];
    }
    let mut net = Net::new(count as usize, edges);
    if drop_parallel(&mut net) {
        net = Net::new(net.num_nodes, net.edges);
    }
    net
}

#[derive(Clone, Copy, PartialEq)]
enum Side {
    Head,
    Tail,
}

/// Joins every node into the other end of its only in-edge (`Head`) or its only out-edge (`Tail`), if that has no choice.
fn join(num_nodes: usize, edges: &mut Vec<Edge>, done: &mut Reduced, side: Side) {
    let ends = |edge: &Edge| match side {
        Side::Head => (edge.head, edge.tail),
        Side::Tail => (edge.tail, edge.head),
    };
    // Index of the only edge at that side, or how many there are.
    let mut only = vec![NONE; num_nodes];
    let mut count = vec![0_u32; num_nodes];
    for (at, edge) in edges.iter().enumerate() {
        let (node, _) = ends(edge);
        count[node as usize] += 1;
        only[node as usize] = index(at);
    }
    let mut joined: Vec<u32> = (0..index(num_nodes)).collect();
    let mut shift = vec![0.0; num_nodes];
    let mut any = false;
    let mut visit = |node: usize| {
        if count[node] != 1 || edges[only[node] as usize].is_live() {
            return;
        }
        let edge = &mut edges[only[node] as usize];
        let (_, other) = ends(edge);
        joined[node] = joined[other as usize];
        shift[node] = shift[other as usize] + edge.fixed;
        done.contracted.push(edge.pair);
        // Marks the edge for removal.
        edge.pair = NONE;
        any = true;
    };
    match side {
        Side::Head => (1..num_nodes - 1).for_each(&mut visit),
        Side::Tail => (1..num_nodes - 1).rev().for_each(&mut visit),
    }
    if !any {
        return;
    }
    edges.retain(|edge| edge.pair != NONE);
    for edge in edges {
        let end = match side {
            Side::Head => &mut edge.tail,
            Side::Tail => &mut edge.head,
        };
        edge.fixed += shift[*end as usize];
        *end = joined[*end as usize];
    }
}

/// Of edges between the same two nodes, drops those that another is never shorter than. Whether any was dropped.
fn drop_parallel(net: &mut Net) -> bool {
    let mut constant: Vec<(u32, u32)> = vec![(NONE, 0); net.num_nodes];
    let mut drop = vec![false; net.edges.len()];
    for node in 0..net.num_nodes {
        let tail = index(node);
        for at in net.out_of(node) {
            let edge = &net.edges[at];
            let (seen, other) = constant[edge.head as usize];
            if edge.is_live() {
            } else if seen != tail || net.edges[other as usize].fixed < edge.fixed {
                if seen == tail {
                    drop[other as usize] = true;
                }
                constant[edge.head as usize] = (tail, index(at));
            } else {
                drop[at] = true;
            }
        }
        for at in net.out_of(node) {
            let edge = &net.edges[at];
            let (seen, other) = constant[edge.head as usize];
            if seen != tail || !edge.is_live() || drop[other as usize] {
                continue;
            }
            let floor = net.edges[other as usize].fixed;
            if edge.longest() <= floor {
                drop[at] = true;
            } else if edge.fixed >= floor {
                drop[other as usize] = true;
            }
        }
    }
    retain(&mut net.edges, &drop)
}

/// Drops edges between whose ends another path, even fully spared, is at least as long.
fn drop_dominated(net: &mut Net, done: &mut Reduced) {
    let heads = net.heads(|_, edge| edge.fixed);
    let tails = net.tails(|_, edge| edge.fixed);
    let mut drop = vec![false; net.edges.len()];
    let mut stack: Vec<(u32, f64)> = Vec::new();
    for (at, edge) in net.edges.iter().enumerate() {
        let (tail, head) = (edge.tail as usize, edge.head as usize);
        let need = edge.longest();
        if tails[tail] - tails[head] < need || heads[head] - heads[tail] < need {
            continue;
        }
        let mut budget = SEARCH_BUDGET;
        stack.clear();
        stack.push((edge.tail, 0.0));
        'search: while let Some((node, length)) = stack.pop() {
            for next in net.out_of(node as usize) {
                let step = &net.edges[next];
                if next == at || step.head > edge.head {
                    continue;
                }
                if budget == 0 {
                    break 'search;
                }
                budget -= 1;
                let length = length + step.fixed;
                let over = step.head as usize;
                if over == head && length >= need {
                    drop[at] = true;
                    break 'search;
                }
                let rest = (tails[over] - tails[head]).min(heads[head] - heads[over]);
                if over != head && length + rest >= need {
                    stack.push((step.head, length));
                }
            }
        }
    }
    done.num_dominated += drop.iter().filter(|drop| **drop).count();
    if retain(&mut net.edges, &drop) {
        *net = Net::new(net.num_nodes, std::mem::take(&mut net.edges));
    }
}

fn retain(edges: &mut Vec<Edge>, drop: &[bool]) -> bool {
    if !drop.contains(&true) {
        return false;
    }
    let mut drop = drop.iter();
    edges.retain(|_| !drop.next().expect("one per edge"));
    true
}

#[cfg(test)]
mod tests {
    use super::super::net::tests::net;
    use super::*;

    #[test]
    fn an_edge_alone_at_both_ends_is_free_and_the_bound_alone_remains() {
        let reduced = reduce(net(3, &[(0, 1, 1.0, 4.0), (1, 2, 2.0, 0.0)]), &|| false);
        assert!(reduced.net.is_none());
        assert_eq!(reduced.spared, [0]);
        assert!((reduced.proof.value - 3.0).abs() < 1e-12);
    }

    #[test]
    fn a_path_as_long_when_all_is_spared_dominates_an_edge() {
        let edges = [
            (0, 1, 1.0, 3.0),
            (1, 2, 5.0, 3.0),
            (0, 2, 1.0, 2.0),
            (0, 3, 1.0, 9.0),
            (2, 3, 1.0, 9.0),
        ];
        let mut done = Reduced::default();
        let mut given = net(4, &edges);
        drop_dominated(&mut given, &mut done);
        assert_eq!(done.num_dominated, 1);
        assert!(given.edges.iter().all(|edge| edge.pair != 2));
    }

    #[test]
    fn parallel_edges_without_a_choice_become_the_longest() {
        let mut done = Reduced::default();
        let edges = net(3, &[(0, 2, 1.0, 0.0), (0, 1, 2.0, 0.0), (1, 2, 3.0, 0.0)]).edges;
        let left = contract(3, edges, &mut done);
        assert_eq!((left.num_nodes, left.edges.len()), (2, 1));
        assert!((left.edges[0].fixed - 5.0).abs() < 1e-12);
        assert_eq!(done.contracted, [1]);
    }
}
