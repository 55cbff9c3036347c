//! Co-placement: ops with one child join it.

use super::{OWN, find, index};
use crate::Bytes;
use crate::graph::Graph;

/// Co-placement: every op with exactly one child joins the child's group, in topological order, as long as the group's persistent
/// bytes stay within `most_bytes` and one of the two may run wherever the other may. Returns the group of
/// each op; ops that stay alone keep -1.
#[must_use]
pub fn coplace(graph: &Graph, labels: &[i32], most_bytes: Bytes) -> Vec<i32> {
    let num_ops = graph.num_ops;
    let mut root: Vec<u32> = (0..index(num_ops)).collect();
    let mut first_of = vec![u32::MAX; num_ops];
    for (op, label) in (0_u32..).zip(labels) {
        if let Ok(label) = usize::try_from(*label) {
            if first_of[label] == u32::MAX {
                first_of[label] = op;
            } else {
                root[op as usize] = first_of[label];
            }
        }
    }
    let mut bytes = vec![0; num_ops];
    let mut homes: Vec<Homes> = (0..num_ops).map(|op| Homes::of(graph, op)).collect();
    for op in 0..num_ops {
        let home = find(&mut root, index(op)) as usize;
        bytes[home] += graph.columns.persistent_bytes[op];
        if home != op {
            let own = std::mem::take(&mut homes[op]);
            homes[home].restrict(&own);
        }
    }
    for op in graph.order().iter().copied() {
        let [child] = graph.children(op) else {
            continue;
        };
        let (one, other) = (find(&mut root, op) as usize, find(&mut root, *child) as usize);
        if one == other
            || !homes[one].surely_meet(&homes[other])
            || bytes[one] + bytes[other] > most_bytes
        {
            continue;
        }
        let (kept, gone) = (one.min(other), one.max(other));
        root[gone] = index(kept);
        bytes[kept] += bytes[gone];
        let lost = std::mem::take(&mut homes[gone]);
        homes[kept].restrict(&lost);
    }
    let mut size = vec![0_u32; num_ops];
    for op in 0..num_ops {
        size[find(&mut root, index(op)) as usize] += 1;
    }
    let mut number = vec![OWN; num_ops];
    let mut next = 0;
    (0..num_ops)
        .map(|op| {
            let home = find(&mut root, index(op)) as usize;
            if size[home] > 1 && number[home] == OWN {
                number[home] = next;
                next += 1;
            }
            number[home]
        })
        .collect()
}

/// Where the ops of a group may run, as far as a graph tells: it does not know the devices of a cluster.
#[derive(Default)]
struct Homes {
    set: Allowed,
    kinds: Vec<bool>,
}

/// Which allowed set the ops of a group have.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
enum Allowed {
    #[default]
    Any,
    One(i32),
    /// Different ones.
    Several,
}

impl Homes {
    fn of(graph: &Graph, op: usize) -> Self {
        let set = graph.columns.allowed_set[op];
        let can_run = |kind| graph.columns.compute_ns[kind * graph.num_ops + op] >= 0;
        Self {
            set: if set < 0 { Allowed::Any } else { Allowed::One(set) },
            kinds: (0..graph.num_kinds).map(can_run).collect(),
        }
    }

    fn restrict(&mut self, other: &Self) {
        self.set = match (self.set, other.set) {
            (Allowed::Any, set) | (set, Allowed::Any) => set,
            (one, other) if one == other => one,
            _ => Allowed::Several,
        };
        self.kinds.iter_mut().zip(&other.kinds).for_each(|(can, other)| *can &= *other);
    }

    /// Whether every device that one of the two may use is open to the other, on any cluster.
    fn surely_meet(&self, other: &Self) -> bool {
        let includes = |large: &Self, small: &Self| {
            let set = large.set == Allowed::Any
                || (large.set == small.set && large.set != Allowed::Several);
            set && large.kinds.iter().zip(&small.kinds).all(|(large, small)| *large || !*small)
        };
        includes(self, other) || includes(other, self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::tests::{columns, graph};

    #[test]
    fn coplacement_joins_only_ops_that_surely_have_a_device_in_common() {
        let mut old = columns(&[1; 6], &[(0, 1, 0), (2, 3, 0), (4, 5, 0)]);
        // Two kinds: op 0 runs on both, as op 1; 2 and 3 on one each; 4 is pinned, 5 runs on the second.
        old.compute_ns = vec![1, 1, 1, 1, 1, -1, -1, 1, 1, 1, 1, 1];
        old.compute_ns[2] = -1;
        old.compute_ns[9] = -1;
        old.allowed_set = vec![-1, -1, -1, -1, 0, -1];
        let graph = Graph::new(old).unwrap();
        assert_eq!(coplace(&graph, &[-1; 6], Bytes::MAX), [0, 0, -1, -1, -1, -1]);
    }

    #[test]
    fn coplacement_joins_only_children_without_siblings() {
        let graph = graph(&[1; 4], &[(0, 1, 0), (1, 2, 0), (1, 3, 0)]);
        assert_eq!(coplace(&graph, &[-1; 4], Bytes::MAX), [0, 0, -1, -1]);
    }

    #[test]
    fn coplacement_stops_where_a_group_grows_too_large() {
        let mut old = columns(&[1; 3], &[(0, 1, 0), (1, 2, 0)]);
        old.persistent_bytes = vec![4, 4, 4];
        let graph = Graph::new(old).unwrap();
        assert_eq!(coplace(&graph, &[-1; 3], 8), [0, 0, -1]);
    }
}
