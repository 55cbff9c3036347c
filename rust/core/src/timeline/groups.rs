//! Colocation groups in the book: where they live and what they need together.

use super::NOWHERE;
use crate::problem::Problem;
use crate::{Bytes, DeviceId, OpId};

/// Where groups live and what they need together.
pub(super) struct Groups {
    pub(super) home: Vec<DeviceId>,
    pub(super) persistent: Vec<Bytes>,
    pub(super) allowed: Vec<bool>,
    /// Bytes kept free for the rest of each group (`reserve` variants), and their sum per device.
    pub(super) guard: Vec<Bytes>,
    pub(super) guarded: Vec<Bytes>,
    pub(super) unplaced: Vec<u32>,
    pub(super) reserve: bool,
}

impl Groups {
    pub(super) fn new(problem: &Problem, reserve: bool) -> Self {
        let members = problem.graph.members();
        let groups = 0..u32::try_from(members.len()).expect("at most one group per op");
        let mut allowed = Vec::new();
        let mut persistent = Vec::new();
        let mut unplaced = Vec::new();
        for group in groups.clone() {
            let ops = members.of(group);
            persistent.push(ops.iter().map(|op| problem.persistent_bytes(*op)).sum());
            unplaced.push(u32::try_from(ops.len()).expect("fewer than 31 bits"));
            for device in problem.devices() {
                allowed.push(ops.iter().all(|op| problem.may_run(*op, device)));
            }
        }
        Self {
            home: vec![NOWHERE; members.len()],
            persistent,
            allowed,
            guard: vec![0; members.len()],
            guarded: vec![0; problem.cluster.num_devices],
            unplaced,
            reserve,
        }
    }

    pub(super) fn allow(&self, problem: &Problem, op: OpId, device: DeviceId) -> bool {
        match problem.graph.group(op) {
            Some(group) => {
                self.allowed[group as usize * problem.cluster.num_devices + device as usize]
            }
            None => problem.may_run(op, device),
        }
    }
}
