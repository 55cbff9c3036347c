//! The timelines of the two original placers, to the letter (docs/original-rules.md).
//!
//! They are kept as they were, faults included, so that results can be compared: the dry run scores several remote
//! inputs as if sent in parallel, outputs are freed when their last consumer starts, and received copies
//! are free (TensorFlow) or charged per edge (PyTorch).

mod py_torch;
mod tensor_flow;

pub use py_torch::PyTorch;
pub use tensor_flow::TensorFlow;

use crate::error::{Error, Result};
use crate::graph::CONTROL;
use crate::problem::Problem;
use crate::schedule::{Decision, Executor, Schedule, Transfer};
use crate::{Bytes, DeviceId, Ns, OpId, TensorId, UNLIMITED};

const NOWHERE: DeviceId = DeviceId::MAX;

/// Bytes of each op as the originals count them.
#[derive(Debug, Clone)]
pub struct OpBytes {
    /// What an op holds while it runs and until its consumers ran (TensorFlow), or for good (PyTorch: permanent).
    pub held: Vec<Bytes>,
    /// Part of `held` that is never freed.
    pub persistent: Vec<Bytes>,
    pub scratch: Vec<Bytes>,
    /// The PyTorch placer's test at placement.
    pub peak: Vec<Bytes>,
}

impl OpBytes {
    /// Checks what came from outside: nothing negative, and sums far from 64 bits.
    ///
    /// # Errors
    /// [`Error::Value`] or [`Error::Overflow`].
    pub fn check(&self) -> Result<()> {
        let columns = [
            ("held bytes of ops", &self.held),
            ("persistent bytes of ops", &self.persistent),
            ("scratch bytes of ops", &self.scratch),
            ("peak bytes of ops", &self.peak),
        ];
        for (what, column) in columns {
            if let Some(index) = column.iter().position(|bytes| *bytes < 0) {
                return Err(Error::Value { what, index, value: column[index] });
            }
            let sum: i128 = column.iter().map(|bytes| i128::from(*bytes)).sum();
            if sum >= i128::from(UNLIMITED / 4) {
                return Err(Error::Overflow { what });
            }
        }
        Ok(())
    }

    /// From the graph's columns: an op holds its persistent bytes and its outputs.
    #[must_use]
    pub fn of(problem: &Problem) -> Self {
        let graph = problem.graph;
        let persistent = graph.columns.persistent_bytes.clone();
        let outputs = persistent.iter().zip(&graph.output_bytes);
        let held: Vec<Bytes> = outputs.map(|(persistent, outputs)| persistent + outputs).collect();
        let scratch = graph.columns.scratch_bytes.clone();
        let peak = held.iter().zip(&scratch).map(|(held, scratch)| held + scratch).collect();
        Self { held, persistent, scratch, peak }
    }
}

/// Whether a tensor only orders its ends: an edge of the original graph without tensors.
pub(crate) fn is_order_only(problem: &Problem, tensor: TensorId) -> bool {
    let columns = &problem.graph.columns;
    columns.tensor_class[tensor as usize] == CONTROL
        && columns.tensor_transfer_ns[tensor as usize] == 0
}

/// [`Timeline::time_away`](crate::list::Timeline::time_away) of both originals: they send all inputs at once.
fn time_away(problem: &Problem, op: OpId, producer: OpId, home: DeviceId) -> Ns {
    let sent = problem.graph.inputs(op).iter().filter(|tensor| {
        problem.graph.producer(**tensor) == producer && !is_order_only(problem, **tensor)
    });
    sent.map(|tensor| problem.least_transfer_ns(*tensor, home)).max().unwrap_or(0)
}

/// The schedule of a finished run of an original's timeline.
pub(crate) fn finished(
    problem: &Problem,
    decision: &Decision,
    start: Vec<Ns>,
    end: Vec<Ns>,
    transfers: Vec<Transfer>,
    peak: Vec<Bytes>,
    peak_op: Vec<OpId>,
) -> Schedule {
    let mut order = vec![0; start.len()];
    for (rank, op) in (0_u32..).zip(&decision.launch) {
        order[*op as usize] = rank;
    }
    let mut not_before = vec![0; if decision.not_before.is_empty() { 0 } else { start.len() }];
    for (op, time) in decision.launch.iter().zip(&decision.not_before) {
        not_before[*op as usize] = *time;
    }
    let mut busy = vec![0; problem.cluster.num_devices];
    for op in 0..start.len() {
        busy[decision.device[op] as usize] += end[op] - start[op];
    }
    Schedule {
        executor: Executor::Launch,
        repaired: false,
        device: decision.device.clone(),
        order,
        makespan: end.iter().copied().max().unwrap_or(0),
        wait: vec![None; start.len()],
        not_before,
        start,
        end,
        transfers,
        busy,
        peak,
        peak_op,
    }
}
