//! Judging many placements of a model's modules: the time of a step, simulated, and peaks of memory, replayed.

use super::blocks::Peak;
use super::layout::{Layout, Units};
use super::replay::Replay;
use super::{NONE, Program, Updates};
use crate::error::{Error, Result};
use crate::evaluate::Evaluator;
use crate::problem::Problem;
use crate::{Bytes, Ns};

/// What each op of the operator graph follows: a unit or a step, [`NONE`] for the other; and its launch index.
#[derive(Debug, Clone, Default)]
pub struct Ops {
    pub unit: Vec<u32>,
    pub step: Vec<u32>,
    pub launch: Vec<i32>,
}

impl Ops {
    fn check(&self, program: &Program, units: &Units, num_ops: usize) -> Result<()> {
        for (what, column, end) in [
            ("unit of op", &self.unit, units.num_units()),
            ("step of op", &self.step, program.num_steps()),
        ] {
            if column.len() != num_ops {
                return Err(Error::Shape { what, expected: num_ops, found: column.len() });
            }
            let is_wrong = |at: &u32| *at != NONE && *at as usize >= end;
            if let Some(index) = column.iter().position(is_wrong) {
                return Err(Error::Value { what, index, value: i64::from(column[index]) });
            }
        }
        Ok(())
    }
}

/// What a placement costs. Its peaks are in [`Judge::peaks`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Verdict {
    /// Length of the step; `None` where an op cannot run on its device.
    pub makespan: Option<Ns>,
    /// How many devices have an op or a unit.
    pub num_used: usize,
}

/// Buffers for one placement after the other.
pub struct Judge<'p> {
    program: &'p Program,
    units: &'p Units,
    ops: &'p Ops,
    num_devices: usize,
    layout: Layout,
    replay: Replay<'p>,
    evaluator: Evaluator<'p>,
    device_of_op: Vec<i32>,
    is_used: Vec<bool>,
    peaks: Vec<Bytes>,
}

impl<'p> Judge<'p> {
    /// Buffers for a program whose operator graph is in `problem`.
    ///
    /// # Errors
    /// [`Error::Shape`], [`Error::Value`] or [`Error::Overflow`] for columns that do not match.
    pub fn new(
        program: &'p Program,
        units: &'p Units,
        updates: &'p Updates,
        ops: &'p Ops,
        problem: &'p Problem<'p>,
        in_place: bool,
    ) -> Result<Self> {
        ops.check(program, units, problem.graph.num_ops)?;
        program.check_updates(updates)?;
        Ok(Self {
            program,
            units,
            ops,
            num_devices: problem.cluster.num_devices,
            layout: Layout::default(),
            replay: Replay::new(program, updates, in_place),
            evaluator: Evaluator::new(problem),
            device_of_op: Vec::new(),
            is_used: Vec::new(),
            peaks: Vec::new(),
        })
    }

    /// Judges one placement.
    ///
    /// # Errors
    /// [`Error::Shape`] or [`Error::Value`] for a unit on no device; [`Error::LaunchOrder`].
    pub fn judge(&mut self, device_of_unit: &[i32], exceptions: &[(u32, u32)]) -> Result<Verdict> {
        let layout = &mut self.layout;
        layout.fill(self.program, self.units, device_of_unit, exceptions, self.num_devices)?;
        let steps = &layout.device_of_step;
        let found = self.replay.run::<false>(steps, &layout.homes, self.num_devices)?;
        self.peaks.clear();
        self.peaks.extend(found.iter().map(|peak: &Peak| peak.bytes));
        self.is_used.clear();
        self.is_used.resize(self.num_devices, false);
        for device in steps {
            self.is_used[*device as usize] = true;
        }
        for device in device_of_unit {
            self.is_used[usize::try_from(*device).expect("the layout checked it")] = true;
        }
        self.device_of_op.clear();
        let device = |(unit, step): (&u32, &u32)| match (*unit, *step) {
            (NONE, NONE) => 0,
            (unit, NONE) => device_of_unit[unit as usize],
            (_, step) => i32::try_from(steps[step as usize]).expect("fewer than 2^15 devices"),
        };
        self.device_of_op.extend(self.ops.unit.iter().zip(&self.ops.step).map(device));
        let makespan = match self.evaluator.makespan(&self.device_of_op, &self.ops.launch) {
            Ok(makespan) => Some(makespan),
            Err(Error::WrongDevice { .. }) => None,
            Err(error) => return Err(error),
        };
        let num_used = self.is_used.iter().filter(|used| **used).count();
        Ok(Verdict { makespan, num_used })
    }

    /// Peaks of the latest placement by device.
    #[must_use]
    pub fn peaks(&self) -> &[Bytes] {
        &self.peaks
    }
}
