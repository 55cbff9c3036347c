//! The operator graph as flat columns: ops, tensors, and the edges that join a tensor to its consumers.

use crate::error::{Error, Result};
use crate::graph_columns::check_columns;
use crate::lists::Lists;
use crate::{Bytes, Ns, OpId, TensorId};

/// Role of an op in a training step.
pub const FORWARD: u8 = 0;
/// Class of the tensor of an op's control edges.
pub const CONTROL: u8 = 6;

/// Columns a graph is made of; lengths and values are checked by [`Graph::new`].
#[derive(Debug, Clone, Default)]
pub struct Columns {
    /// `num_kinds x num_ops`, row per device kind; -1 where the kind cannot run the op.
    pub compute_ns: Vec<Ns>,
    pub persistent_bytes: Vec<Bytes>,
    pub scratch_bytes: Vec<Bytes>,
    /// Colocation group of each op, -1 for none.
    pub group: Vec<i32>,
    /// Index of the set of devices each op may run on, -1 for any.
    pub allowed_set: Vec<i32>,
    pub role: Vec<u8>,
    /// The forward op a backward op belongs to, -1 for none.
    pub forward_op: Vec<i32>,
    pub tensor_producer: Vec<i32>,
    pub tensor_bytes: Vec<Bytes>,
    /// Transfer time given outright, -1 where it follows from the bytes.
    pub tensor_transfer_ns: Vec<Ns>,
    pub tensor_class: Vec<u8>,
    pub edge_tensor: Vec<i32>,
    pub edge_consumer: Vec<i32>,
}

/// An immutable operator graph with its adjacency and topological order.
#[derive(Debug, Clone)]
pub struct Graph {
    pub columns: Columns,
    pub num_ops: usize,
    pub num_kinds: usize,
    pub num_tensors: usize,
    /// Sum of the bytes of each op's outputs.
    pub output_bytes: Vec<Bytes>,
    inputs: Lists,
    outputs: Lists,
    consumers: Lists,
    children: Lists,
    num_parents: Vec<u32>,
    members: Lists,
    position: Vec<u32>,
    order: Vec<OpId>,
}

impl Graph {
    /// Checks the columns and derives adjacency and topological order.
    ///
    /// # Errors
    /// [`Error::Shape`], [`Error::Value`] or [`Error::Overflow`] for a bad column, [`Error::Cycle`]
    /// for a cyclic graph.
    pub fn new(columns: Columns) -> Result<Self> {
        let num_ops = columns.persistent_bytes.len();
        let num_tensors = columns.tensor_producer.len();
        let num_kinds = check_columns(&columns, num_ops, num_tensors)?;

        let edges = || columns.edge_tensor.iter().zip(&columns.edge_consumer);
        let producer_of = |tensor: i32| index(columns.tensor_producer[index(tensor) as usize]);
        let inputs =
            Lists::group(num_ops, edges().map(|(tensor, op)| (index(*op), index(*tensor))));
        let consumers =
            Lists::group(num_tensors, edges().map(|(tensor, op)| (index(*tensor), index(*op))));
        let producers = columns.tensor_producer.iter().map(|op| index(*op));
        let outputs = Lists::group(num_ops, producers.zip(0_u32..));
        let out_edges =
            Lists::group(num_ops, edges().map(|(tensor, op)| (producer_of(*tensor), index(*op))));
        let children = out_edges.without_repeats(num_ops);
        let groups = columns.group.iter().zip(0_u32..).filter(|(group, _)| **group >= 0);
        let num_groups = columns.group.iter().max().map_or(0, |most| (most + 1).max(0));
        let members =
            Lists::group(index(num_groups) as usize, groups.map(|(group, op)| (index(*group), op)));
        let mut output_bytes = vec![0; num_ops];
        for (producer, bytes) in columns.tensor_producer.iter().zip(&columns.tensor_bytes) {
            output_bytes[index(*producer) as usize] += bytes;
        }
        let mut num_parents = vec![0; num_ops];
        for child in children.all() {
            num_parents[*child as usize] += 1;
        }
        let order = topological_order(&children, &num_parents)?;
        let mut position = vec![0; num_ops];
        for (rank, op) in (0_u32..).zip(&order) {
            position[*op as usize] = rank;
        }
        Ok(Self {
            columns,
            num_ops,
            num_kinds,
            num_tensors,
            output_bytes,
            inputs,
            outputs,
            consumers,
            children,
            num_parents,
            members,
            position,
            order,
        })
    }

    /// The same graph with another order of its ops in the place of the topological one: what the TensorFlow
    /// original takes from its caller to break ties. Physical rules want a topological order.
    ///
    /// # Errors
    /// [`Error::Shape`] or [`Error::LaunchOrder`] unless every op is there once.
    pub fn with_order(self, order: Vec<OpId>) -> Result<Self> {
        if order.len() != self.num_ops {
            let (expected, found) = (self.num_ops, order.len());
            return Err(Error::Shape { what: "order of the ops", expected, found });
        }
        let mut position = vec![u32::MAX; self.num_ops];
        for (rank, op) in (0_u32..).zip(&order) {
            match position.get_mut(*op as usize) {
                Some(slot) if *slot == u32::MAX => *slot = rank,
                _ => return Err(Error::LaunchOrder { op: *op }),
            }
        }
        Ok(Self { position, order, ..self })
    }

    /// Input tensors of an op, in edge order.
    #[must_use]
    pub fn inputs(&self, op: OpId) -> &[TensorId] {
        self.inputs.of(op)
    }

    /// Output tensors of an op, by index.
    #[must_use]
    pub fn outputs(&self, op: OpId) -> &[TensorId] {
        self.outputs.of(op)
    }

    /// Consumers of a tensor, in edge order.
    #[must_use]
    pub fn consumers(&self, tensor: TensorId) -> &[OpId] {
        self.consumers.of(tensor)
    }

    /// Distinct ops that consume something of `op`, by their first edge.
    #[must_use]
    pub fn children(&self, op: OpId) -> &[OpId] {
        self.children.of(op)
    }

    /// Number of distinct ops that `op` consumes from, for every op.
    #[must_use]
    pub fn num_parents(&self) -> &[u32] {
        &self.num_parents
    }

    /// The op that makes a tensor.
    #[must_use]
    pub fn producer(&self, tensor: TensorId) -> OpId {
        index(self.columns.tensor_producer[tensor as usize])
    }

    /// Ops of each colocation group.
    #[must_use]
    pub fn members(&self) -> &Lists {
        &self.members
    }

    /// The group of an op, if it has one.
    #[must_use]
    pub fn group(&self, op: OpId) -> Option<u32> {
        u32::try_from(self.columns.group[op as usize]).ok()
    }

    /// Topological position of each op: first in, first out, sources in insertion order.
    #[must_use]
    pub fn position(&self) -> &[u32] {
        &self.position
    }

    /// Ops by topological position.
    #[must_use]
    pub fn order(&self) -> &[OpId] {
        &self.order
    }
}

/// A checked, nonnegative column entry as an index.
fn index(value: i32) -> u32 {
    u32::try_from(value).expect("columns are checked before they are indexed")
}

fn topological_order(children: &Lists, num_parents: &[u32]) -> Result<Vec<OpId>> {
    let mut waiting = num_parents.to_vec();
    let mut order: Vec<OpId> = Vec::with_capacity(waiting.len());
    order.extend((0_u32..).zip(&waiting).filter(|(_, count)| **count == 0).map(|(op, _)| op));
    let mut next = 0;
    while next < order.len() {
        for child in children.of(order[next]) {
            waiting[*child as usize] -= 1;
            if waiting[*child as usize] == 0 {
                order.push(*child);
            }
        }
        next += 1;
    }
    if order.len() == waiting.len() { Ok(order) } else { Err(find_cycle(children, &waiting)) }
}

/// Walks backwards among ops that were never released: every one of them has such a parent.
fn find_cycle(children: &Lists, waiting: &[u32]) -> Error {
    let mut parent = vec![u32::MAX; waiting.len()];
    let stuck = |op: u32| waiting[op as usize] > 0;
    let ops = 0..u32::try_from(waiting.len()).expect("checked to fit 31 bits");
    for op in ops.clone().filter(|op| stuck(*op)) {
        for child in children.of(op) {
            parent[*child as usize] = op;
        }
    }
    let mut op = ops.into_iter().find(|op| stuck(*op)).expect("a cycle leaves ops waiting");
    let mut seen_at = vec![usize::MAX; waiting.len()];
    let mut path = Vec::new();
    while seen_at[op as usize] == usize::MAX {
        seen_at[op as usize] = path.len();
        path.push(op);
        op = parent[op as usize];
    }
    let mut cycle = path.split_off(seen_at[op as usize]);
    cycle.reverse();
    Error::Cycle { ops: cycle }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A graph with one device kind: `ops` are compute times, `edges` are `(producer, consumer, bytes)`,
    /// each its own tensor.
    pub(crate) fn graph(ops: &[Ns], edges: &[(i32, i32, Bytes)]) -> Graph {
        Graph::new(columns(ops, edges)).expect("a valid graph")
    }

    pub(crate) fn columns(ops: &[Ns], edges: &[(i32, i32, Bytes)]) -> Columns {
        Columns {
            compute_ns: ops.to_vec(),
            persistent_bytes: vec![0; ops.len()],
            scratch_bytes: vec![0; ops.len()],
            group: vec![-1; ops.len()],
            allowed_set: vec![-1; ops.len()],
            role: vec![FORWARD; ops.len()],
            forward_op: vec![-1; ops.len()],
            tensor_producer: edges.iter().map(|edge| edge.0).collect(),
            tensor_bytes: edges.iter().map(|edge| edge.2).collect(),
            tensor_transfer_ns: vec![-1; edges.len()],
            tensor_class: vec![4; edges.len()],
            edge_tensor: (0..i32::try_from(edges.len()).unwrap()).collect(),
            edge_consumer: edges.iter().map(|edge| edge.1).collect(),
        }
    }

    #[test]
    fn the_topological_order_is_first_in_first_out_by_edge_order() {
        let graph = graph(&[1; 5], &[(0, 3, 0), (0, 2, 0), (1, 4, 0), (3, 4, 0)]);
        assert_eq!(graph.order(), [0, 1, 3, 2, 4]);
    }

    #[test]
    fn another_order_holds_every_op_once() {
        let other = graph(&[1; 3], &[]).with_order(vec![2, 0, 1]).unwrap();
        assert_eq!((other.order(), other.position()), (&[2, 0, 1][..], &[1, 2, 0][..]));
        let twice = graph(&[1; 3], &[]).with_order(vec![2, 0, 2]);
        assert_eq!(twice.unwrap_err(), Error::LaunchOrder { op: 2 });
    }

    #[test]
    fn a_cycle_is_named_in_order() {
        let error = Graph::new(columns(&[1; 4], &[(0, 1, 0), (1, 2, 0), (2, 3, 0), (3, 1, 0)]));
        let Err(Error::Cycle { mut ops }) = error else { panic!("expected a cycle") };
        ops.sort_unstable();
        assert_eq!(ops, [1, 2, 3]);
    }

    #[test]
    fn a_column_of_the_wrong_length_is_refused() {
        let mut bad = columns(&[1, 1], &[]);
        bad.scratch_bytes.pop();
        let expected = Error::Shape { what: "scratch_bytes", expected: 2, found: 1 };
        assert_eq!(Graph::new(bad).unwrap_err(), expected);
    }

    #[test]
    fn an_edge_to_an_unknown_op_is_refused() {
        let bad = columns(&[1, 1], &[(0, 7, 0)]);
        let expected = Error::Value { what: "edge_consumer", index: 0, value: 7 };
        assert_eq!(Graph::new(bad).unwrap_err(), expected);
    }

    #[test]
    fn byte_sums_beyond_64_bits_are_refused() {
        let mut bad = columns(&[1, 1], &[]);
        bad.persistent_bytes = vec![i64::MAX / 2; 2];
        assert_eq!(Graph::new(bad).unwrap_err(), Error::Overflow { what: "persistent_bytes" });
    }

    #[test]
    fn bytes_count_with_a_copy_per_consumer() {
        let third = crate::UNLIMITED / 3;
        let fits = columns(&[1; 3], &[(0, 1, third)]);
        assert!(Graph::new(fits.clone()).is_ok());
        let mut shared = fits;
        (shared.edge_tensor, shared.edge_consumer) = (vec![0, 0], vec![1, 2]);
        shared.persistent_bytes = vec![4, 0, 0];
        assert_eq!(
            Graph::new(shared).unwrap_err(),
            Error::Overflow { what: "all bytes, with a copy per consumer," }
        );
    }
}
