//! Checkpointed regions in the memory ledger: forgotten in forward, computed again in backward.
//!
//! As torch's non-reentrant checkpoint does it: autograd saves nothing inside a region; the region's arguments stay
//! until its last function has run; the first function that needs something saved makes the region run again, up to
//! the last op that saves something.

use super::blocks::refill;
use super::replay::Replay;
use super::{NONE, Program};

/// What is known of the regions during one replay.
#[derive(Debug, Clone, Default)]
pub(crate) struct Regions {
    /// How many functions of each region are yet to run, and which functions have run.
    waiting: Vec<u32>,
    has_run: Vec<bool>,
    /// Regions that have run again.
    again: Vec<bool>,
    /// Blocks that are held for a region while it waits, in one list, and where those of each region begin and end.
    arguments: Vec<u32>,
    held: Vec<(usize, usize)>,
    /// Uses inside a region that runs again, with the last step that needs them.
    locals: Vec<(u32, u32)>,
}

impl Regions {
    pub fn start_over(&mut self, program: &Program) {
        self.waiting.clear();
        self.waiting.extend(program.regions.iter().map(|region| region.num_functions));
        refill(&mut self.has_run, program.functions.len(), false);
        refill(&mut self.again, program.regions.len(), false);
        refill(&mut self.held, program.regions.len(), (0, 0));
        self.arguments.clear();
    }
}

impl Replay<'_> {
    /// Before the first step of a region: its arguments are held.
    pub(crate) fn enter_region(&mut self, at: u32) {
        let program = self.program;
        let number = program.region_of_step[at as usize];
        let Some(region) = program.regions.get(number as usize) else { return };
        let steps = &program.region_steps[region.steps.clone()];
        if steps[0] != at {
            return;
        }
        let first = self.regions.arguments.len();
        for step in steps {
            for read in program.steps[*step as usize].reads.clone() {
                let value = program.reads[read];
                let maker = program.values[value as usize].step;
                if maker == NONE || program.region_of_step[maker as usize] == number {
                    continue;
                }
                let block = self.block_of_read(read);
                if !self.regions.arguments[first..].contains(&block) {
                    self.regions.arguments.push(block);
                    self.blocks.hold(block);
                }
            }
        }
        self.regions.held[number as usize] = (first, self.regions.arguments.len());
    }

    /// After the last step of a region: without a backward its arguments go.
    pub(crate) fn leave_region<const RECORD: bool>(&mut self, at: u32) {
        let program = self.program;
        let number = program.region_of_step[at as usize];
        let Some(region) = program.regions.get(number as usize) else { return };
        let steps = &program.region_steps[region.steps.clone()];
        if steps.last() != Some(&at) {
            return;
        }
        if self.regions.waiting[number as usize] == 0 {
            self.drop_arguments::<RECORD>(number);
        }
        for step in steps {
            for read in program.steps[*step as usize].reads.clone() {
                if let Some(one) = self.uses.all.get_mut(self.uses.of_read[read] as usize)
                    && one.region == number
                {
                    one.copy = NONE; // dropped after its last use
                }
            }
        }
    }

    /// Before a function runs: its region is computed again, if that has not been done.
    pub(crate) fn need_region<const RECORD: bool>(&mut self, function: u32) {
        let number = self.waiting_region(function);
        if number != NONE && !std::mem::replace(&mut self.regions.again[number as usize], true) {
            self.recompute::<RECORD>(number);
        }
    }

    /// A function has run; after the last one of its region the arguments go.
    pub(crate) fn ran_in_region<const RECORD: bool>(&mut self, function: u32) {
        let number = self.waiting_region(function);
        if number == NONE {
            return;
        }
        self.regions.has_run[function as usize] = true;
        let waiting = &mut self.regions.waiting[number as usize];
        *waiting -= 1;
        if *waiting == 0 {
            self.drop_arguments::<RECORD>(number);
        }
    }

    fn waiting_region(&self, function: u32) -> u32 {
        if self.regions.has_run[function as usize] {
            return NONE;
        }
        self.program.region_of_function[function as usize]
    }

    fn drop_arguments<const RECORD: bool>(&mut self, number: u32) {
        let (first, last) = std::mem::take(&mut self.regions.held[number as usize]);
        for at in first..last {
            self.blocks.drop::<RECORD>(self.regions.arguments[at]);
        }
    }

    /// Runs a region's steps again, up to the last that saves; then its locals go.
    fn recompute<const RECORD: bool>(&mut self, number: u32) {
        let program = self.program;
        let region = &program.regions[number as usize];
        let steps = &program.region_steps[region.again.clone()];
        let Some(last) = steps.last().copied() else { return };
        let mut locals = std::mem::take(&mut self.regions.locals);
        self.find_locals(number, steps, &mut locals);
        let mut done = 0;
        for at in steps.iter().copied() {
            self.copy_reads::<RECORD>(at, true);
            if at == last && region.stops {
                // It stops at what this op saves, before the op runs.
                self.save_what_is_read(at);
                continue;
            }
            self.compute::<RECORD>(at, true);
            if at != last {
                while let Some((_, found)) = locals.get(done).filter(|(step, _)| *step == at) {
                    self.drop_use::<RECORD>(*found);
                    done += 1;
                }
            }
            self.forget::<RECORD>(program.steps[at as usize].born.clone());
        }
        for (_, found) in &locals[done..] {
            let one = self.uses.all[*found as usize];
            let maker = program.values[one.value as usize].step;
            if !(region.stops && one.region == NONE && maker == last) {
                self.drop_use::<RECORD>(*found);
            }
        }
        self.regions.locals = locals;
    }

    /// The last step again of what the region's steps make, and of its own copies, in the order of those steps.
    fn find_locals(&mut self, number: u32, steps: &[u32], locals: &mut Vec<(u32, u32)>) {
        let program = self.program;
        locals.clear();
        let last_step = steps.last().copied().unwrap_or(0);
        for at in steps {
            let step = &program.steps[*at as usize];
            for make in step.makes.clone() {
                locals.push((*at, self.uses.of_make[make]));
            }
            for read in step.reads.clone() {
                let maker = program.values[program.reads[read] as usize].step;
                let found = self.uses.of_read[read];
                let is_inside = maker != NONE
                    && maker <= last_step
                    && program.region_of_step[maker as usize] == number;
                if is_inside {
                    let home = self.device_of_step[maker as usize];
                    locals.push((*at, self.uses.at_home(program.reads[read], home)));
                }
                if self.uses.all.get(found as usize).is_some_and(|one| one.region == number) {
                    locals.push((*at, found));
                }
            }
        }
        // The latest step of each use, then by step.
        locals.sort_unstable_by_key(|(at, found)| (*found, std::cmp::Reverse(*at)));
        locals.dedup_by_key(|(_, found)| *found);
        locals.sort_unstable();
    }

    fn save_what_is_read(&mut self, at: u32) {
        let program = self.program;
        let step = &program.steps[at as usize];
        for place in step.saved.clone() {
            let saved = program.saved[place];
            let block = match saved.read {
                NONE => self.own[saved.storage as usize],
                read => self.block_of_read(step.reads.start + read as usize),
            };
            if block != NONE {
                self.blocks.hold(block);
                self.saved[place] = block;
            }
        }
    }
}
