//! Units: what a placement may not split. A unit is a colocation group, or an op without one.

use crate::lists::Lists;
use crate::problem::Problem;
use crate::{Bytes, DeviceId, OpId};

/// The units of a graph, numbered by their first op.
pub(crate) struct Units {
    unit_of: Vec<u32>,
    members: Lists,
    persistent: Vec<Bytes>,
    bytes: Vec<Bytes>,
}

impl Units {
    /// Colocation groups, and the other ops one by one.
    pub(crate) fn of_groups(problem: &Problem) -> Self {
        let graph = problem.graph;
        let mut number = vec![u32::MAX; graph.members().len()];
        let mut unit_of = Vec::with_capacity(graph.num_ops);
        let mut next = 0;
        for op in 0..problem.num_ops() {
            let unit = match graph.group(op) {
                Some(group) if number[group as usize] != u32::MAX => number[group as usize],
                group => {
                    if let Some(group) = group {
                        number[group as usize] = next;
                    }
                    next += 1;
                    next - 1
                }
            };
            unit_of.push(unit);
        }
        let mut persistent = vec![0; next as usize];
        let mut bytes = vec![0; next as usize];
        for (op, unit) in (0_u32..).zip(&unit_of) {
            let outputs = graph.output_bytes[op as usize] + problem.scratch_bytes(op);
            persistent[*unit as usize] += problem.persistent_bytes(op);
            bytes[*unit as usize] += problem.persistent_bytes(op) + outputs;
        }
        let members =
            Lists::group(next as usize, unit_of.iter().copied().zip(0..problem.num_ops()));
        Self { unit_of, members, persistent, bytes }
    }

    pub(crate) fn len(&self) -> usize {
        self.persistent.len()
    }

    pub(crate) fn all(&self) -> std::ops::Range<u32> {
        0..u32::try_from(self.len()).expect("at most one per op")
    }

    pub(crate) fn of(&self, op: OpId) -> u32 {
        self.unit_of[op as usize]
    }

    pub(crate) fn members(&self, unit: u32) -> &[OpId] {
        self.members.of(unit)
    }

    /// Persistent bytes of all its ops.
    pub(crate) fn persistent(&self, unit: u32) -> Bytes {
        self.persistent[unit as usize]
    }

    /// Persistent bytes, outputs and scratch of all its ops.
    pub(crate) fn bytes(&self, unit: u32) -> Bytes {
        self.bytes[unit as usize]
    }

    /// Whether every unit fits some device by itself, and all persistent bytes fit all devices together.
    pub(crate) fn may_fit(&self, problem: &Problem) -> bool {
        let graph = problem.graph;
        let caps = &problem.cluster.cap_bytes;
        let running = |op: &OpId| graph.output_bytes[*op as usize] + problem.scratch_bytes(*op);
        let fits_alone = |unit: u32| {
            let largest = self.members(unit).iter().map(running).max().unwrap_or(0);
            let needed = self.persistent(unit) + largest;
            let mut homes = problem.devices().filter(|at| self.may_run(problem, unit, *at));
            homes.any(|at| needed <= caps[at as usize])
        };
        let total: i128 = self.persistent.iter().map(|bytes| i128::from(*bytes)).sum();
        total <= caps.iter().map(|cap| i128::from(*cap)).sum() && self.all().all(fits_alone)
    }

    pub(crate) fn may_run(&self, problem: &Problem, unit: u32, device: DeviceId) -> bool {
        self.members(unit).iter().all(|op| problem.may_run(*op, device))
    }
}
