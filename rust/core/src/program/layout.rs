//! Layouts: where every step and weight goes when the modules of a model are placed.
//!
//! A step of a module goes where the module goes. Glue, the ops of modules with children, goes where all that is in its
//! module goes; if that is on several devices, where most bytes of what it reads are, copies made before included; what
//! reads nothing goes to its first reader. Glue that is tied goes together, where the first of it went that the rules send
//! somewhere.

use super::blocks::HOST;
use super::columns::ranges;
use super::{Kind, NONE, Program};
use crate::error::{Error, Result};
use crate::{Bytes, DeviceId};
use std::ops::Range;

/// No device yet.
const UNKNOWN: DeviceId = NONE - 1;

/// What may be placed on its own: a module, or several that must share a device.
#[derive(Debug, Clone)]
pub struct Units {
    pub(crate) count: usize,
    /// Unit of each step, [`NONE`] for glue.
    of_step: Vec<u32>,
    /// Unit of each weight by storage, else [`NONE`].
    of_storage: Vec<u32>,
    /// The step that glue must be with, else [`NONE`]; and all such pairs, that step first, in ascending order.
    tied_to: Vec<u32>,
    ties: Vec<(u32, u32)>,
    /// The module of glue, which is one of the scopes, else [`NONE`].
    scope_of_step: Vec<u32>,
    /// Units in each module that has glue.
    scopes: Vec<Range<usize>>,
    in_scopes: Vec<u32>,
}

/// Units as they arrive; -1 for none.
#[derive(Debug, Clone, Copy)]
pub struct UnitColumns<'a> {
    pub num_units: usize,
    pub of_step: &'a [i64],
    pub of_storage: &'a [i64],
    pub tied_to: &'a [i64],
    pub scope_of_step: &'a [i64],
    pub scope_start: &'a [i64],
    pub scope_unit: &'a [i64],
}

impl Units {
    /// Checks the units of a program.
    ///
    /// # Errors
    /// [`Error::Shape`] or [`Error::Value`], with the name of the column.
    pub fn new(program: &Program, given: &UnitColumns<'_>) -> Result<Self> {
        let (num_steps, num_units) = (program.num_steps(), given.num_units);
        let of_storage = given.of_storage;
        let of_storage = column("unit of storage", of_storage, program.num_storages(), num_units)?;
        let is_loose = |(at, unit): (usize, &u32)| *unit != NONE && !program.is_kept(at);
        if let Some(index) = of_storage.iter().enumerate().position(is_loose) {
            let value = i64::from(of_storage[index]);
            return Err(Error::Value { what: "unit of storage", index, value });
        }
        let num_entries = given.scope_unit.len();
        let num_scopes = given.scope_start.len().max(1) - 1;
        let scopes = ranges("scope_start", given.scope_start, num_scopes, num_entries)?;
        let tied_to = column("tied glue", given.tied_to, num_steps, num_steps)?;
        let mut ties: Vec<_> =
            tied_to.iter().copied().zip(0..).filter(|(to, _)| *to != NONE).collect();
        ties.sort_unstable();
        Ok(Self {
            count: num_units,
            of_step: column("unit of step", given.of_step, num_steps, num_units)?,
            of_storage,
            tied_to,
            ties,
            scope_of_step: column("scope of step", given.scope_of_step, num_steps, scopes.len())?,
            scopes,
            in_scopes: column("scope unit", given.scope_unit, num_entries, num_units)?,
        })
    }

    /// Number of units.
    #[must_use]
    pub fn num_units(&self) -> usize {
        self.count
    }
}

fn column(what: &'static str, given: &[i64], expected: usize, end: usize) -> Result<Vec<u32>> {
    if given.len() != expected {
        return Err(Error::Shape { what, expected, found: given.len() });
    }
    let entry = |(index, value): (usize, &i64)| match (*value, u32::try_from(*value)) {
        (-1, _) => Ok(NONE),
        (_, Ok(found)) if (found as usize) < end => Ok(found),
        _ => Err(Error::Value { what, index, value: *value }),
    };
    given.iter().enumerate().map(entry).collect()
}

/// Device of each step, and of each weight, buffer and constant by storage; buffers for one layout after the other.
#[derive(Debug, Clone, Default)]
pub struct Layout {
    pub device_of_step: Vec<DeviceId>,
    pub homes: Vec<DeviceId>,
    /// Bytes and number of operands on each device seen, in the order in which it was seen.
    seen: Vec<(DeviceId, Bytes, u32)>,
    /// Device of each scope all of whose units are on one, else unknown.
    device_of_scope: Vec<DeviceId>,
    copies: Copies,
}

/// Where copies of values have been made so far: a list of devices per value.
#[derive(Debug, Clone, Default)]
struct Copies {
    /// The last copy of each value, or [`NONE`].
    last: Vec<u32>,
    /// Of each copy: its device, and the copy of the same value before it, or [`NONE`].
    made: Vec<(DeviceId, u32)>,
}

impl Copies {
    fn clear(&mut self, num_values: usize) {
        self.last.clear();
        self.last.resize(num_values, NONE);
        self.made.clear();
    }

    fn has(&self, value: u32, device: DeviceId) -> bool {
        let mut at = self.last[value as usize];
        while let Some((found, before)) = self.made.get(at as usize) {
            if *found == device {
                return true;
            }
            at = *before;
        }
        false
    }

    fn add(&mut self, value: u32, device: DeviceId) {
        if !self.has(value, device) {
            let at = u32::try_from(self.made.len()).unwrap_or(NONE);
            self.made.push((device, self.last[value as usize]));
            self.last[value as usize] = at;
        }
    }
}

impl Layout {
    /// Lays out a placement of the units; `exceptions` are steps that go elsewhere than the rules say.
    ///
    /// # Errors
    /// [`Error::Shape`] or [`Error::Value`] for a unit on no device, or an exception that is no step.
    pub fn fill(
        &mut self,
        program: &Program,
        units: &Units,
        device_of_unit: &[i32],
        exceptions: &[(u32, u32)],
        num_devices: usize,
    ) -> Result<()> {
        check(program, units, device_of_unit, exceptions, num_devices)?;
        let device = |unit: &u32, otherwise: DeviceId| match device_of_unit.get(*unit as usize) {
            Some(at) => u32::try_from(*at).unwrap_or(otherwise),
            None => otherwise,
        };
        self.homes.clear();
        self.homes.extend(units.of_storage.iter().map(|unit| device(unit, HOST)));
        self.device_of_step.clear();
        self.device_of_step.extend(units.of_step.iter().map(|unit| device(unit, UNKNOWN)));
        for (step, device) in exceptions {
            self.device_of_step[*step as usize] = *device;
        }
        self.device_of_scope.clear();
        self.device_of_scope.extend(units.scopes.iter().map(|scope| {
            let mut inside = units.in_scopes[scope.clone()].iter().map(|at| device(at, UNKNOWN));
            let first = inside.next().unwrap_or(UNKNOWN);
            if inside.all(|other| other == first) { first } else { UNKNOWN }
        }));
        self.copies.clear(program.values.len());
        for at in 0..program.num_steps() {
            if self.device_of_step[at] == UNKNOWN {
                let device = self.device_of_glue(program, units, at);
                self.settle(units, at, device);
            }
            self.note_copies(program, at);
        }
        self.adopt_from_readers(program, units);
        self.place_constants(program);
        Ok(())
    }

    /// Gives a step its device, and all that is tied to it, or tied to the same step, where that has none yet.
    fn settle(&mut self, units: &Units, at: usize, device: DeviceId) {
        self.device_of_step[at] = device;
        let at = u32::try_from(at).unwrap_or(NONE);
        let anchor = match units.tied_to[at as usize] {
            NONE => at,
            found => found,
        };
        let first = units.ties.partition_point(|(to, _)| *to < anchor);
        let tied = units.ties[first..].iter().take_while(|(to, _)| *to == anchor);
        for step in tied.flat_map(|(to, step)| [*to, *step]) {
            let other = &mut self.device_of_step[step as usize];
            if *other == UNKNOWN {
                *other = device;
            }
        }
    }

    /// The device of a step that it must be with, or of all that is in its module, or of most bytes.
    fn device_of_glue(&mut self, program: &Program, units: &Units, at: usize) -> DeviceId {
        let tied = self.device_of_step.get(units.tied_to[at] as usize);
        let scope = self.device_of_scope.get(units.scope_of_step[at] as usize);
        let given = [tied, scope].into_iter().flatten().copied().find(|device| *device != UNKNOWN);
        given.unwrap_or_else(|| self.majority(program, at))
    }

    /// Notes the copies that a step needs; where a device is not known yet, there are none.
    fn note_copies(&mut self, program: &Program, at: usize) {
        let device = self.device_of_step[at];
        if device == UNKNOWN {
            return;
        }
        for value in &program.reads[program.steps[at].reads.clone()] {
            let home = program.home(*value, &self.device_of_step, &self.homes);
            if home != device && home != UNKNOWN {
                self.copies.add(*value, device);
            }
        }
    }

    /// The device of an operand that holds most bytes of what a step reads, in copies too; of those that hold as
    /// many, that of most operands, so that few are copied; then the first one's.
    fn majority(&mut self, program: &Program, at: usize) -> DeviceId {
        let reads = &program.reads[program.steps[at].reads.clone()];
        self.seen.clear();
        for value in reads {
            let home = program.home(*value, &self.device_of_step, &self.homes);
            let is_new = self.seen.iter().all(|(device, ..)| *device != home);
            if home != HOST && home != UNKNOWN && is_new {
                self.seen.push((home, 0, 0));
            }
        }
        for value in reads {
            let home = program.home(*value, &self.device_of_step, &self.homes);
            for (device, bytes, count) in &mut self.seen {
                if *device == home || self.copies.has(*value, *device) {
                    *bytes += program.values[*value as usize].bytes;
                    *count += 1;
                }
            }
        }
        let mut most = (UNKNOWN, -1, 0);
        for found in &self.seen {
            if (found.1, found.2) > (most.1, most.2) {
                most = *found;
            }
        }
        most.0
    }

    /// Ops that read nothing from a device go to their first reader's, else to the next op's.
    fn adopt_from_readers(&mut self, program: &Program, units: &Units) {
        for at in (0..self.device_of_step.len()).rev() {
            if self.device_of_step[at] == UNKNOWN {
                let first = match program.first_reader[at] {
                    NONE => at + 1,
                    reader => reader as usize,
                };
                let device = self.device_of_step.get(first).copied().unwrap_or(UNKNOWN);
                self.settle(units, at, device);
            }
        }
        let devices = &mut self.device_of_step;
        let mut known = devices.iter().rev().copied().find(|at| *at != UNKNOWN).unwrap_or(0);
        for device in devices.iter_mut().rev() {
            if *device == UNKNOWN {
                *device = known;
            }
            known = *device;
        }
    }

    /// Weights that no module owns are kept by their first reader; those that nothing reads by the first device.
    fn place_constants(&mut self, program: &Program) {
        for (storage, reader) in &program.constants {
            let home = &mut self.homes[*storage as usize];
            if *home == HOST && *reader != NONE {
                *home = self.device_of_step[*reader as usize];
            }
        }
        for (at, home) in self.homes.iter_mut().enumerate() {
            let kind = program.storages[at].kind;
            if *home == HOST && !matches!(kind, Kind::Made | Kind::Input) {
                *home = 0;
            }
        }
    }
}

fn check(
    program: &Program,
    units: &Units,
    device_of_unit: &[i32],
    exceptions: &[(u32, u32)],
    num_devices: usize,
) -> Result<()> {
    let (expected, found) = (units.count, device_of_unit.len());
    if found != expected {
        return Err(Error::Shape { what: "device of unit", expected, found });
    }
    let is_device = |at: &i32| usize::try_from(*at).is_ok_and(|at| at < num_devices);
    if let Some(index) = device_of_unit.iter().position(|at| !is_device(at)) {
        let value = i64::from(device_of_unit[index]);
        return Err(Error::Value { what: "device of unit", index, value });
    }
    for (index, (step, device)) in exceptions.iter().enumerate() {
        if *step as usize >= program.num_steps() || *device as usize >= num_devices {
            let value = i64::from(*step);
            return Err(Error::Value { what: "exceptions", index, value });
        }
    }
    Ok(())
}
