//! Uses: on which devices each value is read, and by which step for the last time.

use super::blocks::{count, refill};
use super::{NONE, Program};
use crate::DeviceId;

/// A value on a device: when it is read there for the last time, and its copy.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Use {
    pub value: u32,
    device: DeviceId,
    /// The checkpointed region that has a copy of its own, or [`NONE`].
    pub region: u32,
    last: u32,
    is_copy: bool,
    /// The block of the copy, [`NONE`] at home and before it is made.
    pub copy: u32,
    /// The next use of the same value, and the next with the same last step.
    next: u32,
    pub next_dying: u32,
}

/// All uses under one placement.
#[derive(Debug, Clone, Default)]
pub(crate) struct Uses {
    pub all: Vec<Use>,
    /// The use of each entry of [`Program::reads`]; [`NONE`] for weights and inputs that are at home.
    pub of_read: Vec<u32>,
    /// The use at home of each entry of [`Program::makes`].
    pub of_make: Vec<u32>,
    /// The first of the uses that end with each step.
    pub dying: Vec<u32>,
    first: Vec<u32>,
}

impl Uses {
    /// Finds the last step that reads each value at each place; making a copy reads it at home.
    pub fn fill(&mut self, program: &Program, device_of_step: &[DeviceId], homes: &[DeviceId]) {
        self.all.clear();
        self.of_read.clear();
        self.of_make.clear();
        refill(&mut self.first, program.values.len(), NONE);
        refill(&mut self.dying, program.steps.len() + 1, NONE);
        for (at, step) in (0..).zip(&program.steps) {
            let here = device_of_step[at as usize];
            for make in &program.makes[step.makes.clone()] {
                let found = self.touch(make.value, here, NONE, at);
                self.of_make.push(found);
            }
            for value in program.reads[step.reads.clone()].iter().copied() {
                let home = program.home(value, device_of_step, homes);
                let is_made = program.values[value as usize].step != NONE;
                let found = if home != here {
                    let region = self.region_of_read(program, value, at, here);
                    let found = self.touch(value, here, region, at);
                    let one = &mut self.all[found as usize];
                    if !std::mem::replace(&mut one.is_copy, true) && is_made {
                        self.touch(value, home, NONE, at);
                    }
                    found
                } else if is_made {
                    self.touch(value, here, NONE, at)
                } else {
                    NONE
                };
                self.of_read.push(found);
            }
        }
        for value in program.outputs.iter().copied() {
            if program.values[value as usize].step != NONE {
                let home = program.home(value, device_of_step, homes);
                self.touch(value, home, NONE, program.end());
            }
        }
        for (at, one) in (0..).zip(&mut self.all) {
            one.next_dying = std::mem::replace(&mut self.dying[one.last as usize], at);
        }
    }

    /// A region has copies of its own of what was not copied to the device before.
    fn region_of_read(&self, program: &Program, value: u32, at: u32, here: DeviceId) -> u32 {
        let region = program.region_of_step[at as usize];
        if region == NONE {
            return NONE;
        }
        let outside = self.find(value, here, NONE);
        let is_copied = self.all.get(outside as usize).is_some_and(|one| one.is_copy);
        if is_copied { NONE } else { region }
    }

    /// The use of a value at a place, or [`NONE`].
    fn find(&self, value: u32, device: DeviceId, region: u32) -> u32 {
        let mut at = self.first[value as usize];
        while let Some(one) = self.all.get(at as usize)
            && (one.device, one.region) != (device, region)
        {
            at = one.next;
        }
        at
    }

    /// Notes that a value is needed at a place up to a step; answers the use.
    fn touch(&mut self, value: u32, device: DeviceId, region: u32, last: u32) -> u32 {
        let mut at = self.find(value, device, region);
        if at == NONE {
            at = count(&self.all);
            let next = std::mem::replace(&mut self.first[value as usize], at);
            let (is_copy, copy, next_dying) = (false, NONE, NONE);
            self.all.push(Use { value, device, region, last, is_copy, copy, next, next_dying });
        }
        self.all[at as usize].last = last;
        at
    }

    /// The use of a made value at home.
    pub fn at_home(&self, value: u32, home: DeviceId) -> u32 {
        self.find(value, home, NONE)
    }

    /// The region that has a copy of its own for a read, or [`NONE`].
    pub fn region_of(&self, read: u32) -> u32 {
        let found = self.of_read.get(read as usize);
        let one = found.and_then(|at| self.all.get(*at as usize));
        one.map_or(NONE, |one| one.region)
    }
}
