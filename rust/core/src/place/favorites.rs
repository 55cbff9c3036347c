//! Favorite children for m-SCT: the edges of its linear program, its rounding, and a greedy rule without it.

use crate::error::{Error, Result};
use crate::problem::Problem;
use crate::rules::Rules;
use crate::{Ns, OpId};

/// Edges of the linear program: one per pair of ops that exchange something.
#[derive(Debug, Clone, Default)]
pub struct Pairs {
    pub parent: Vec<OpId>,
    pub child: Vec<OpId>,
    /// Time of the transfer if the two are apart.
    pub transfer_ns: Vec<Ns>,
    /// Compute time of each op.
    pub compute_ns: Vec<Ns>,
}

/// Lists the pairs in the order in which the originals list edges: parent by parent, children by first edge.
///
/// An op takes what it takes on the fastest device that may run it. A transfer takes what it takes over the
/// cheapest link between two devices; several tensors of one pair travel at the same time under physical
/// rules and add up in the originals.
#[must_use]
pub fn pairs(problem: &Problem, rules: Rules) -> Pairs {
    let graph = problem.graph;
    let fastest = |op: OpId| {
        let times = problem.devices().filter(|device| problem.may_run(op, *device));
        times.map(|device| problem.compute_ns(op, device)).min().unwrap_or(0)
    };
    let mut pairs =
        Pairs { compute_ns: (0..problem.num_ops()).map(fastest).collect(), ..Pairs::default() };
    // Where the pair of the current parent and each of its children is.
    let mut pair_of = vec![0; graph.num_ops];
    for parent in 0..problem.num_ops() {
        for child in graph.children(parent) {
            pair_of[*child as usize] = pairs.parent.len();
            pairs.parent.push(parent);
            pairs.child.push(*child);
            pairs.transfer_ns.push(0);
        }
        for tensor in graph.outputs(parent) {
            let transfer = problem.cheapest_transfer_ns(*tensor);
            for child in graph.consumers(*tensor) {
                let time = &mut pairs.transfer_ns[pair_of[*child as usize]];
                match rules {
                    Rules::BaechiTf => *time += transfer,
                    Rules::Physical | Rules::BaechiTorch => *time = transfer.max(*time),
                }
            }
        }
    }
    pairs
}

/// Favorites without a linear program: in topological order, each op becomes the favorite of the parent whose data
/// would arrive last, if that parent has no favorite yet. O(ops + edges).
#[must_use]
pub fn greedy(problem: &Problem, pairs: &Pairs) -> Vec<i32> {
    let num_ops = problem.graph.num_ops;
    let by_child = crate::lists::Lists::group(num_ops, pairs.child.iter().copied().zip(0_u32..));
    let mut favorite = vec![-1; num_ops];
    let mut end = vec![0; num_ops];
    for op in problem.graph.order().iter().copied() {
        // (arrival, local arrival, parent) of the parent that would be worth most.
        let arrival = |pair: &u32| {
            end[pairs.parent[*pair as usize] as usize] + pairs.transfer_ns[*pair as usize]
        };
        let mut latest: Option<u32> = None;
        for pair in by_child.of(op) {
            if latest.is_none_or(|known| arrival(pair) > arrival(&known)) {
                latest = Some(*pair);
            }
        }
        let mut start = 0;
        let mut chosen = None;
        if let Some(pair) = latest {
            let parent = pairs.parent[pair as usize] as usize;
            if favorite[parent] < 0 {
                favorite[parent] = i32::try_from(op).expect("31 bits");
                start = end[parent];
                chosen = latest;
            }
        }
        for pair in by_child.of(op).iter().filter(|pair| Some(**pair) != chosen) {
            start = start.max(arrival(pair));
        }
        end[op as usize] = start + pairs.compute_ns[op as usize];
    }
    favorite
}

/// Favorites from the values of the linear program, one per pair.
///
/// Under physical rules an edge is a favorite if its value is below the threshold. Under the originals'
/// rules a value at the threshold counts too, and conflicts are settled in pair order as theirs are: a later favorite replaces
/// the parent's earlier one, and takes the child from an earlier parent.
///
/// # Errors
/// [`Error::Shape`] if there is not one value per pair, [`Error::Value`] if a pair names no op.
pub fn round(
    num_ops: usize,
    pairs: &Pairs,
    values: &[f64],
    threshold: f64,
    rules: Rules,
) -> Result<Vec<i32>> {
    let expected = pairs.parent.len();
    if let Some(found) = [values.len(), pairs.child.len()].into_iter().find(|n| *n != expected) {
        return Err(Error::Shape { what: "values of the linear program", expected, found });
    }
    for (what, ops) in [("parent", &pairs.parent), ("child", &pairs.child)] {
        if let Some(index) = ops.iter().position(|op| *op as usize >= num_ops) {
            return Err(Error::Value { what, index, value: i64::from(ops[index]) });
        }
    }
    let is_favorite = |value: f64| match rules {
        Rules::Physical => value < threshold,
        // As they round, down to the last bit: halves to even, so the threshold itself is in.
        Rules::BaechiTf | Rules::BaechiTorch => (value - threshold + 0.5).round_ties_even() <= 0.0,
    };
    let mut favorite = vec![-1; num_ops];
    let mut parent_of = vec![u32::MAX; num_ops];
    for (pair, value) in values.iter().enumerate() {
        if !is_favorite(*value) {
            continue;
        }
        let (parent, child) = (pairs.parent[pair], pairs.child[pair]);
        favorite[parent as usize] = i32::try_from(child).expect("31 bits");
        let earlier = parent_of[child as usize];
        if earlier != u32::MAX {
            favorite[earlier as usize] = -1;
        }
        parent_of[child as usize] = parent;
    }
    Ok(favorite)
}

#[cfg(test)]
mod tests {
    use super::super::tests::with_request;
    use super::*;

    #[test]
    fn the_greedy_rule_hides_the_latest_arrival() {
        with_request(&[1, 9, 1], &[(0, 2, 0), (1, 2, 0)], 3, Rules::Physical, |given| {
            let pairs = pairs(given.problem, Rules::Physical);
            assert_eq!(greedy(given.problem, &pairs), [-1, 2, -1]);
        });
    }

    #[test]
    fn a_value_at_the_threshold_counts_only_for_the_originals() {
        with_request(&[1; 3], &[(0, 1, 0), (1, 2, 0)], 3, Rules::Physical, |given| {
            let pairs = pairs(given.problem, Rules::Physical);
            let round = |rules| round(3, &pairs, &[0.5, 0.4], 0.5, rules).unwrap();
            assert_eq!(round(Rules::Physical), [-1, 2, -1]);
            assert_eq!(round(Rules::BaechiTf), [1, 2, -1]);
        });
    }

    #[test]
    fn a_stale_parent_link_erases_the_newer_favorite_as_in_the_originals() {
        with_request(&[1; 4], &[(0, 2, 0), (0, 3, 0), (1, 2, 0)], 3, Rules::BaechiTf, |given| {
            let pairs = pairs(given.problem, Rules::BaechiTf);
            let favorites = round(4, &pairs, &[0.0; 3], 0.1, Rules::BaechiTf).unwrap();
            assert_eq!(favorites, [-1, 2, -1, -1]);
        });
    }
}
