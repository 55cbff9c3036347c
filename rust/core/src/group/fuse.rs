//! Fusion: ops of one group become single ops along every edge that cannot close a cycle.

use std::collections::{BTreeSet, VecDeque};

use super::{OWN, find, index};
use crate::graph::{CONTROL, Columns, FORWARD, Graph};
use crate::rules::Retention;
use crate::{Bytes, Ns, OpId};

/// A graph whose ops stand for one or more ops of another.
pub struct Fusion {
    /// New op of each old op.
    pub node_of: Vec<u32>,
    /// Old op that gives each new op its name: the first of its members in topological order.
    pub first_of: Vec<OpId>,
    /// Old tensor of each new tensor.
    pub tensor_of: Vec<u32>,
    pub columns: Columns,
}

/// Fuses ops of one group along every edge whose contraction cannot make a cycle: the producer has no other child,
/// or the consumer no other parent.
///
/// Compute times and persistent bytes add up; scratch becomes the most that is live inside at once, scratch included and beyond the outputs
/// that stay, when the members run in topological order. Under `Training` retention, outputs of forward ops stay outputs.
#[must_use]
pub fn fuse(graph: &Graph, labels: &[i32], retention: Retention) -> Fusion {
    let root = contract(graph, labels);
    let mut node_of = vec![u32::MAX; graph.num_ops];
    let mut first_of: Vec<OpId> = Vec::new();
    let mut number = vec![u32::MAX; graph.num_ops];
    for op in 0..graph.num_ops {
        let home = root[op] as usize;
        if number[home] == u32::MAX {
            number[home] = index(first_of.len());
            first_of.push(OpId::MAX);
        }
        node_of[op] = number[home];
    }
    for op in graph.order().iter().copied() {
        let first = &mut first_of[node_of[op as usize] as usize];
        *first = (*first).min(if *first == OpId::MAX { op } else { *first });
    }
    let mut columns = merge_ops(graph, &node_of, &first_of);
    let tensor_of = keep_tensors(graph, &node_of, retention, &mut columns);
    columns.scratch_bytes = inner_peaks(graph, &node_of, first_of.len(), &tensor_of);
    Fusion { node_of, first_of, tensor_of, columns }
}

/// Root of each op after all safe contractions within groups.
fn contract(graph: &Graph, labels: &[i32]) -> Vec<u32> {
    let num_ops = graph.num_ops;
    let mut root: Vec<u32> = (0..index(num_ops)).collect();
    let mut children: Vec<BTreeSet<u32>> = vec![BTreeSet::new(); num_ops];
    let mut parents: Vec<BTreeSet<u32>> = vec![BTreeSet::new(); num_ops];
    let mut queue = VecDeque::new();
    for op in graph.order().iter().copied() {
        for child in graph.children(op) {
            children[op as usize].insert(*child);
            parents[*child as usize].insert(op);
            if labels[op as usize] >= 0 && labels[op as usize] == labels[*child as usize] {
                queue.push_back((op, *child));
            }
        }
    }
    let mut set: Vec<i32> = graph.columns.allowed_set.clone();
    while let Some((parent, child)) = queue.pop_front() {
        let (parent, child) = (find(&mut root, parent), find(&mut root, child));
        let (from, to) = (parent as usize, child as usize);
        if parent == child || !children[from].contains(&child) {
            continue;
        }
        let sets_differ = set[from] >= 0 && set[to] >= 0 && set[from] != set[to];
        if sets_differ || (children[from].len() > 1 && parents[to].len() > 1) {
            continue;
        }
        children[from].remove(&child);
        parents[to].remove(&parent);
        let degree = |op: usize| children[op].len() + parents[op].len();
        let (kept, gone) = if degree(from) < degree(to) { (to, from) } else { (from, to) };
        root[gone] = index(kept);
        set[kept] = set[kept].max(set[gone]);
        // An edge that was unsafe is looked at again where this fusion has left one neighbor of several.
        let mut again = Vec::new();
        for next in std::mem::take(&mut children[gone]) {
            parents[next as usize].remove(&index(gone));
            parents[next as usize].insert(index(kept));
            children[kept].insert(next);
            if parents[next as usize].len() == 1 {
                again.push((index(kept), next));
            }
        }
        for earlier in std::mem::take(&mut parents[gone]) {
            children[earlier as usize].remove(&index(gone));
            children[earlier as usize].insert(index(kept));
            parents[kept].insert(earlier);
            if children[earlier as usize].len() == 1 {
                again.push((earlier, index(kept)));
            }
        }
        let only = |ops: &BTreeSet<u32>| if ops.len() == 1 { ops.first().copied() } else { None };
        again.extend(only(&children[kept]).map(|next| (index(kept), next)));
        again.extend(only(&parents[kept]).map(|earlier| (earlier, index(kept))));
        let label = |op: u32| labels[op as usize];
        queue.extend(again.into_iter().filter(|(one, other)| label(*one) == label(*other)));
    }
    (0..index(num_ops)).map(|op| find(&mut root, op)).collect()
}

fn merge_ops(graph: &Graph, node_of: &[u32], first_of: &[OpId]) -> Columns {
    let old = &graph.columns;
    let num_nodes = first_of.len();
    let mut compute_ns: Vec<Ns> = vec![0; graph.num_kinds * num_nodes];
    let mut columns = Columns {
        persistent_bytes: vec![0; num_nodes],
        group: vec![OWN; num_nodes],
        allowed_set: vec![OWN; num_nodes],
        role: first_of.iter().map(|op| old.role[*op as usize]).collect(),
        forward_op: vec![OWN; num_nodes],
        ..Columns::default()
    };
    for (op, node) in node_of.iter().map(|node| *node as usize).enumerate() {
        for kind in 0..graph.num_kinds {
            let time = old.compute_ns[kind * graph.num_ops + op];
            let sum = &mut compute_ns[kind * num_nodes + node];
            *sum = if *sum < 0 || time < 0 { -1 } else { *sum + time };
        }
        columns.persistent_bytes[node] += old.persistent_bytes[op];
        columns.group[node] = columns.group[node].max(old.group[op]);
        columns.allowed_set[node] = columns.allowed_set[node].max(old.allowed_set[op]);
        if let Ok(forward) = usize::try_from(old.forward_op[op])
            && node_of[forward] as usize != node
            && columns.forward_op[node] == OWN
        {
            columns.forward_op[node] = i32::try_from(node_of[forward]).expect("31 bits");
        }
    }
    columns.compute_ns = compute_ns;
    columns
}

/// Keeps the tensors that leave their node, or that nothing frees; returns their old indices.
fn keep_tensors(
    graph: &Graph,
    node_of: &[u32],
    retention: Retention,
    columns: &mut Columns,
) -> Vec<u32> {
    let old = &graph.columns;
    let mut number = vec![-1; graph.num_tensors];
    let mut tensor_of = Vec::new();
    // An op has one control tensor: those of the members become one.
    let mut control_of: Vec<Option<i32>> = vec![None; columns.persistent_bytes.len()];
    for tensor in 0..index(graph.num_tensors) {
        let producer = graph.producer(tensor) as usize;
        let home = node_of[producer];
        let is_control = old.tensor_class[tensor as usize] == CONTROL;
        if let (true, Some(known)) = (is_control, control_of[home as usize]) {
            number[tensor as usize] = known;
            continue;
        }
        let kept = retention == Retention::Training && old.role[producer] == FORWARD;
        let consumers = graph.consumers(tensor);
        let leaves = consumers.iter().any(|op| node_of[*op as usize] != home);
        if leaves || kept || consumers.is_empty() {
            let at = tensor as usize;
            number[at] = i32::try_from(tensor_of.len()).expect("31 bits");
            control_of[home as usize] =
                control_of[home as usize].or(is_control.then_some(number[at]));
            tensor_of.push(tensor);
            columns.tensor_producer.push(i32::try_from(home).expect("31 bits"));
            columns.tensor_bytes.push(old.tensor_bytes[at]);
            columns.tensor_transfer_ns.push(old.tensor_transfer_ns[at]);
            columns.tensor_class.push(old.tensor_class[at]);
        }
    }
    let mut seen = BTreeSet::new();
    for (tensor, consumer) in old.edge_tensor.iter().zip(&old.edge_consumer) {
        let at = usize::try_from(*tensor).expect("checked");
        let node = node_of[usize::try_from(*consumer).expect("checked")];
        let home = node_of[graph.producer(index(at)) as usize];
        if node != home && seen.insert((number[at], node)) {
            columns.edge_tensor.push(number[at]);
            columns.edge_consumer.push(i32::try_from(node).expect("31 bits"));
        }
    }
    tensor_of
}

/// Most bytes that are live in each node at once, beyond all its outputs, which it holds from its start.
fn inner_peaks(graph: &Graph, node_of: &[u32], num_nodes: usize, kept: &[u32]) -> Vec<Bytes> {
    let mut is_inner = vec![true; graph.num_tensors];
    let mut outputs = vec![0; num_nodes];
    for tensor in kept {
        is_inner[*tensor as usize] = false;
        let node = node_of[graph.producer(*tensor) as usize] as usize;
        outputs[node] += graph.columns.tensor_bytes[*tensor as usize];
    }
    let mut uses: Vec<usize> =
        (0..index(graph.num_tensors)).map(|tensor| graph.consumers(tensor).len()).collect();
    let mut live = vec![0; num_nodes];
    let mut peak = vec![0; num_nodes];
    for op in graph.order().iter().copied() {
        let node = node_of[op as usize] as usize;
        live[node] += graph.output_bytes[op as usize];
        peak[node] = peak[node].max(live[node] + graph.columns.scratch_bytes[op as usize]);
        for tensor in graph.inputs(op).iter().filter(|tensor| is_inner[**tensor as usize]) {
            uses[*tensor as usize] -= 1;
            if uses[*tensor as usize] == 0 {
                live[node] -= graph.columns.tensor_bytes[*tensor as usize];
            }
        }
    }
    peak.into_iter().zip(outputs).map(|(peak, outputs)| peak - outputs).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::tests::{columns, graph};

    fn fused(ops: &[Ns], edges: &[(i32, i32, Bytes)], labels: &[i32]) -> (Fusion, Graph) {
        let fusion = fuse(&graph(ops, edges), labels, Retention::Liveness);
        let new = Graph::new(fusion.columns.clone()).expect("never a cycle");
        (fusion, new)
    }

    #[test]
    fn a_chain_of_one_group_becomes_one_op_with_its_inner_peak() {
        let (_, new) = fused(&[1, 2, 3], &[(0, 1, 5), (1, 2, 7)], &[0, 0, 0]);
        assert_eq!((new.num_ops, new.num_tensors), (1, 0));
        assert_eq!(new.columns.compute_ns, [6]);
        assert_eq!(new.columns.scratch_bytes, [12]);
    }

    #[test]
    fn a_group_that_another_op_splits_stays_apart() {
        // 0 -> 1 -> 2 and 0 -> 2; 0 and 2 share a group, 1 does not: fusing them would make a cycle.
        let (fusion, new) = fused(&[1; 3], &[(0, 1, 0), (1, 2, 0), (0, 2, 0)], &[0, -1, 0]);
        assert_eq!(new.num_ops, 3);
        assert_eq!(fusion.node_of, [0, 1, 2]);
    }

    #[test]
    fn an_edge_becomes_safe_when_its_neighbor_is_fused() {
        // The diamond fuses wholly: first the arms into their ends, then the two that are left.
        let edges = [(0, 1, 1), (0, 2, 1), (1, 3, 1), (2, 3, 1)];
        let (_, new) = fused(&[1; 4], &edges, &[0; 4]);
        assert_eq!(new.num_ops, 1);
    }

    #[test]
    fn a_wide_group_is_fused_without_looking_at_every_pair() {
        let width: i32 = 30_000;
        let out = (1..=width).map(|op| (0, op, 1));
        let edges: Vec<_> = out.chain((1..=width).map(|op| (op, width + 1, 1))).collect();
        let num_ops = usize::try_from(width + 2).unwrap();
        let (_, new) = fused(&vec![1; num_ops], &edges, &vec![0; num_ops]);
        assert_eq!(new.num_ops, 1);
    }

    #[test]
    fn an_output_of_a_fused_op_makes_room_for_what_ran_before_it() {
        let mut old = columns(&[1; 3], &[(0, 1, 2), (1, 2, 9)]);
        old.scratch_bytes = vec![8, 1, 0];
        let fusion = fuse(&Graph::new(old).unwrap(), &[0, 0, -1], Retention::Liveness);
        // The first op needs 2 + 8, the second 2 + 9 + 1; 9 of them are the output.
        assert_eq!(fusion.columns.scratch_bytes, [3, 0]);
    }

    #[test]
    fn control_tensors_of_fused_ops_become_one() {
        let mut old = columns(&[1; 4], &[(0, 1, 0), (0, 2, 0), (1, 2, 0), (1, 3, 0)]);
        old.tensor_class = vec![4, CONTROL, CONTROL, CONTROL];
        let fusion = fuse(&Graph::new(old).unwrap(), &[0, 0, -1, -1], Retention::Liveness);
        assert_eq!(fusion.columns.tensor_producer, [0]);
        assert_eq!(fusion.columns.edge_consumer, [1, 2]);
    }

    #[test]
    fn ops_of_different_allowed_sets_stay_apart() {
        let mut old = columns(&[1; 3], &[(0, 1, 3), (1, 2, 3)]);
        old.allowed_set = vec![0, 1, -1];
        let fusion = fuse(&Graph::new(old).unwrap(), &[0; 3], Retention::Liveness);
        assert_eq!(fusion.node_of, [0, 1, 1]);
        assert_eq!(fusion.columns.allowed_set, [0, 1]);
    }

    #[test]
    fn weights_of_fused_ops_are_kept() {
        let mut old = columns(&[1, 1], &[(0, 1, 3)]);
        old.persistent_bytes = vec![8, 9];
        let fusion = fuse(&Graph::new(old).unwrap(), &[0, 0], Retention::Liveness);
        assert_eq!(fusion.columns.persistent_bytes, [17]);
    }

    #[test]
    fn training_keeps_forward_outputs_that_vanish_in_inference() {
        let old = graph(&[1, 1], &[(0, 1, 3)]);
        let fusion = fuse(&old, &[0, 0], Retention::Training);
        assert_eq!(fusion.columns.tensor_bytes, [3]);
        assert_eq!(fusion.columns.scratch_bytes, [0]);
    }
}
