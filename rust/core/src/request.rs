//! What a placer or a simulation is asked for: a problem, the rules, and their options.

use crate::original::{OpBytes, PyTorch, TensorFlow};
use crate::problem::Problem;
use crate::rules::Rules;
use crate::{Bytes, OpId, UNLIMITED};

/// A problem with the rules and options that hold for it.
pub struct Request<'a> {
    pub problem: &'a Problem<'a>,
    pub rules: Rules,
    /// Favorite child of each op, -1 for none (m-SCT).
    pub favorites: Option<&'a [i32]>,
    /// Whether a placer that runs out of memory under physical rules may be repaired.
    pub repair: bool,
    /// Seed of the random placement.
    pub seed: u64,
    /// Whether the originals' rules keep colocation groups together.
    pub colocation: bool,
    /// What the originals count as bytes of each op, where it does not follow from the graph's columns.
    pub bytes: Option<&'a OpBytes>,
    /// Order in which the originals' m-TOPO walks the ops, where it is not the topological one.
    pub walk: Option<&'a [OpId]>,
}

impl<'a> Request<'a> {
    /// A problem with the options that hold where nothing is asked for.
    #[must_use]
    pub fn new(problem: &'a Problem<'a>, rules: Rules) -> Self {
        Self {
            problem,
            rules,
            favorites: None,
            repair: true,
            seed: 0,
            colocation: true,
            bytes: None,
            walk: None,
        }
    }
}

impl Request<'_> {
    /// What the originals count as bytes of each op.
    pub(crate) fn op_bytes(&self) -> OpBytes {
        self.bytes.cloned().unwrap_or_else(|| OpBytes::of(self.problem))
    }

    /// The TensorFlow original's devices.
    pub(crate) fn tensor_flow(&self, limit: Vec<Bytes>, reserve: bool) -> TensorFlow<'_> {
        TensorFlow::new(self.problem, self.op_bytes(), limit, self.colocation, reserve)
    }

    /// The PyTorch original's devices.
    pub(crate) fn py_torch(&self, limit: Vec<Bytes>) -> PyTorch<'_> {
        PyTorch::new(self.problem, self.op_bytes(), limit)
    }

    pub(crate) fn caps(&self) -> Vec<Bytes> {
        self.problem.cluster.cap_bytes.clone()
    }

    pub(crate) fn no_caps(&self) -> Vec<Bytes> {
        // The PyTorch original counts a tensor twice while it receives it.
        vec![2 * UNLIMITED; self.problem.cluster.num_devices]
    }
}
