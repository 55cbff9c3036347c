//! Inputs of ops with their producers, side by side for loops that read them in turn.

use crate::graph::Graph;
use crate::{OpId, TensorId};

/// Inputs op by op.
pub(crate) struct Inputs {
    pub(crate) all: Vec<Input>,
    /// Where those of each op begin; one more entry than there are ops.
    first: Vec<u32>,
}

/// One input of an op.
#[derive(Clone, Copy)]
pub(crate) struct Input {
    pub(crate) producer: OpId,
    pub(crate) tensor: TensorId,
}

impl Inputs {
    pub(crate) fn new(graph: &Graph) -> Self {
        let mut all = Vec::new();
        let mut first = vec![0];
        for op in 0..u32::try_from(graph.num_ops).expect("checked to fit 31 bits") {
            let input =
                |tensor: &TensorId| Input { producer: graph.producer(*tensor), tensor: *tensor };
            all.extend(graph.inputs(op).iter().map(input));
            first.push(u32::try_from(all.len()).expect("fewer than 32 bits"));
        }
        Self { all, first }
    }

    /// Where the inputs of an op are in `all`.
    pub(crate) fn range(&self, op: OpId) -> std::ops::Range<usize> {
        self.first[op as usize] as usize..self.first[op as usize + 1] as usize
    }

    pub(crate) fn of(&self, op: OpId) -> &[Input] {
        &self.all[self.range(op)]
    }
}
