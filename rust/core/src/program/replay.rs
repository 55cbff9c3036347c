//! The memory ledger: what each device holds while a step runs under a placement (docs/memory.md).
//!
//! The step is replayed in program order, as the host issues its ops: PyTorch allocates when an op is issued. A value
//! that is read on another device is copied there once, before its first reader, and dropped after its last; what
//! autograd saves stays for its backward. All buffers are kept between replays.

use super::backward::Backward;
use super::blocks::{
    ACTIVATIONS, BUFFERS, Blocks, COPIES, Cause, HOST, OPTIMIZER, Peak, WEIGHTS, count, refill,
};
use super::regions::Regions;
use super::uses::Uses;
use super::{Kind, NONE, Program, Updates};
use crate::error::{Error, Result};
use crate::{Bytes, DeviceId};

/// One transfer; `value` is [`NONE`] for gradients.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Moved {
    pub source: DeviceId,
    pub destination: DeviceId,
    pub bytes: Bytes,
    pub backward: bool,
    pub value: u32,
}

/// What a recorded replay finds beside the peaks.
#[derive(Debug, Clone, Default)]
pub struct Record {
    pub moved: Vec<Moved>,
    /// Functions in the order in which they ran.
    pub order: Vec<u32>,
}

/// Buffers for one replay after the other.
pub struct Replay<'p> {
    pub(crate) program: &'p Program,
    pub(crate) updates: &'p Updates,
    /// Whether gradients of one value are added into the first where nothing else holds it.
    pub(crate) in_place: bool,
    pub(crate) device_of_step: Vec<DeviceId>,
    pub(crate) homes: Vec<DeviceId>,
    pub(crate) blocks: Blocks,
    pub(crate) own: Vec<u32>,
    pub(crate) saved: Vec<u32>,
    pub(crate) uses: Uses,
    pub(crate) regions: Regions,
    pub(crate) record: Record,
    made: Vec<u32>,
    until: Vec<u32>,
    most: Vec<Bytes>,
    backward: Backward,
}

impl<'p> Replay<'p> {
    /// Buffers for a program.
    #[must_use]
    pub fn new(program: &'p Program, updates: &'p Updates, in_place: bool) -> Self {
        Self {
            program,
            updates,
            in_place,
            device_of_step: Vec::new(),
            homes: Vec::new(),
            blocks: Blocks::default(),
            own: Vec::new(),
            saved: Vec::new(),
            uses: Uses::default(),
            regions: Regions::default(),
            record: Record::default(),
            made: Vec::new(),
            until: Vec::new(),
            most: Vec::new(),
            backward: Backward::default(),
        }
    }

    /// The peak of every device under a placement. With `RECORD` also what made it up, and `record`.
    ///
    /// # Errors
    /// [`Error::Shape`] or [`Error::Value`] for a step or weight on no device, or a gradient out of nowhere.
    pub fn run<const RECORD: bool>(
        &mut self,
        device_of_step: &[DeviceId],
        homes: &[DeviceId],
        num_devices: usize,
    ) -> Result<&[Peak]> {
        self.start_over(device_of_step, homes, num_devices)?;
        self.uses.fill(self.program, &self.device_of_step, &self.homes);
        self.regions.start_over(self.program);
        self.charge_persistent::<RECORD>();
        for at in 0..self.program.end() {
            self.step::<RECORD>(at);
        }
        self.blocks.position = self.program.end();
        self.blocks.end_following::<RECORD>();
        self.expire::<RECORD>();
        if self.program.seed != NONE {
            let mut backward = std::mem::take(&mut self.backward);
            let ran = backward.run::<RECORD>(self);
            self.backward = backward;
            ran?;
            self.update::<RECORD>();
        }
        Ok(&self.blocks.peaks)
    }

    /// What the latest replay recorded.
    #[must_use]
    pub fn record(&self) -> &Record {
        &self.record
    }

    /// Position at which the latest replay, if it recorded, dropped each storage on its own device, or [`NONE`].
    #[must_use]
    pub fn deaths(&self) -> &[u32] {
        &self.blocks.deaths
    }

    fn start_over(
        &mut self,
        device_of_step: &[DeviceId],
        homes: &[DeviceId],
        num_devices: usize,
    ) -> Result<()> {
        let program = self.program;
        check_devices("device_of_step", device_of_step, program.num_steps(), num_devices, |_| {
            true
        })?;
        check_devices("home_of_storage", homes, program.num_storages(), num_devices, |at| {
            program.is_kept(at)
        })?;
        refill(&mut self.own, program.storages.len(), NONE);
        refill(&mut self.made, program.values.len(), NONE);
        refill(&mut self.saved, program.saved.len(), NONE);
        refill(&mut self.until, program.steps.len() + 1 + program.functions.len(), NONE);
        self.blocks.start_over(num_devices, program.storages.len());
        self.record.moved.clear();
        self.record.order.clear();
        self.device_of_step.clear();
        self.device_of_step.extend_from_slice(device_of_step);
        self.homes.clear();
        self.homes.extend_from_slice(homes);
        Ok(())
    }

    /// Weights, buffers and optimizer state, which are there before the step.
    fn charge_persistent<const RECORD: bool>(&mut self) {
        for (at, storage) in (0..).zip(&self.program.storages) {
            let (class, home) = match storage.kind {
                Kind::Made => continue,
                Kind::Input => (COPIES, HOST),
                Kind::Parameter => (WEIGHTS, self.homes[at as usize]),
                Kind::Buffer | Kind::Constant => (BUFFERS, self.homes[at as usize]),
            };
            self.make_own::<RECORD>(at, home, class);
        }
        for one in &self.updates.of {
            let home = self.homes[one.storage as usize];
            self.blocks.allocate::<RECORD>(home, one.state, OPTIMIZER, NONE);
        }
        for device in 0..count(&self.blocks.peaks) {
            self.blocks.mark::<RECORD>(device, 0, Cause::Weights);
        }
    }

    /// A new block of a storage on its own device; whoever keeps it for good holds it.
    fn make_own<const RECORD: bool>(&mut self, storage: u32, device: DeviceId, class: u8) {
        let one = self.program.storages[storage as usize];
        let block = self.blocks.allocate::<RECORD>(device, one.bytes, class, storage);
        self.own[storage as usize] = block;
        if class != ACTIVATIONS {
            self.blocks.hold(block);
        } else if one.until != NONE {
            self.blocks.hold(block);
            let next = std::mem::replace(&mut self.until[one.until as usize], block);
            self.blocks.get_mut(block).next = next;
        }
    }

    /// Allocates what an op makes, at its own peak.
    pub(crate) fn bear<const RECORD: bool>(
        &mut self,
        born: std::ops::Range<usize>,
        device: DeviceId,
        peak: Bytes,
        at: Cause,
    ) {
        self.blocks.mark::<RECORD>(device, peak, at);
        for place in born {
            self.make_own::<RECORD>(self.program.born[place], device, ACTIVATIONS);
        }
    }

    /// Frees what was born and that nobody ever held.
    pub(crate) fn forget<const RECORD: bool>(&mut self, born: std::ops::Range<usize>) {
        for storage in &self.program.born[born] {
            self.blocks.forget::<RECORD>(self.own[*storage as usize]);
        }
    }

    /// The block that a step reads, by entry of [`Program::reads`].
    pub(crate) fn block_of_read(&self, read: usize) -> u32 {
        match self.uses.all.get(self.uses.of_read[read] as usize) {
            Some(one) if one.copy != NONE => one.copy,
            _ => self.block_at_home(self.program.reads[read]),
        }
    }

    fn block_at_home(&self, value: u32) -> u32 {
        match self.made[value as usize] {
            NONE => self.own[self.program.values[value as usize].storage as usize],
            made => made,
        }
    }

    /// Copies what a step reads, runs it, and drops what was used for the last time.
    fn step<const RECORD: bool>(&mut self, at: u32) {
        self.blocks.position = at;
        self.enter_region(at);
        self.copy_reads::<RECORD>(at, false);
        self.compute::<RECORD>(at, self.program.region_of_step[at as usize] == NONE);
        let mut next = self.uses.dying[at as usize];
        while next != NONE {
            self.drop_use::<RECORD>(next);
            next = self.uses.all[next as usize].next_dying;
        }
        self.forget::<RECORD>(self.program.steps[at as usize].born.clone());
        self.expire::<RECORD>();
        self.leave_region::<RECORD>(at);
    }

    /// Copies what a step reads and does not find on its device.
    pub(crate) fn copy_reads<const RECORD: bool>(&mut self, at: u32, backward: bool) {
        let program = self.program;
        let here = self.device_of_step[at as usize];
        for read in program.steps[at as usize].reads.clone() {
            let value = program.reads[read];
            let home = program.home(value, &self.device_of_step, &self.homes);
            let found = self.uses.of_read[read] as usize;
            if home == here || self.uses.all[found].copy != NONE {
                continue;
            }
            let bytes = program.values[value as usize].bytes;
            let copy = self.blocks.allocate::<RECORD>(here, bytes, COPIES, NONE);
            self.blocks.hold(copy);
            self.uses.all[found].copy = copy;
            if program.follows {
                let source = if home == HOST { HOST } else { self.block_at_home(value) };
                self.blocks.follow(copy, source);
            }
            self.blocks.mark::<RECORD>(here, 0, Cause::Step(at));
            if RECORD {
                let moved = Moved { source: home, destination: here, bytes, backward, value };
                self.record.moved.push(moved);
            }
        }
    }

    /// Allocates what a step makes; `keeps`: autograd holds what it saves.
    pub(crate) fn compute<const RECORD: bool>(&mut self, at: u32, keeps: bool) {
        let program = self.program;
        let step = &program.steps[at as usize];
        let here = self.device_of_step[at as usize];
        self.bear::<RECORD>(step.born.clone(), here, step.peak, Cause::Step(at));
        for make in &program.makes[step.makes.clone()] {
            // A view of a copy is of the copy.
            let block = self.block_of_part(step.reads.start, make.read, make.storage);
            self.made[make.value as usize] = block;
            self.blocks.hold(block);
        }
        for place in if keeps { step.saved.clone() } else { 0..0 } {
            let saved = program.saved[place];
            let block = self.block_of_part(step.reads.start, saved.read, saved.storage);
            self.blocks.hold(block);
            self.saved[place] = block;
        }
    }

    /// The block of a storage as a step sees it: of what it reads, or of its own.
    fn block_of_part(&self, first_read: usize, read: u32, storage: u32) -> u32 {
        match read {
            NONE => self.own[storage as usize],
            read => self.block_of_read(first_read + read as usize),
        }
    }

    /// A value is not needed at a place any more.
    pub(crate) fn drop_use<const RECORD: bool>(&mut self, found: u32) {
        let one = self.uses.all[found as usize];
        if one.copy != NONE {
            self.blocks.drop::<RECORD>(one.copy);
        } else if self.program.values[one.value as usize].step != NONE {
            self.blocks.drop::<RECORD>(self.block_at_home(one.value));
        }
    }

    /// Drops what was held up to the present position from outside.
    pub(crate) fn expire<const RECORD: bool>(&mut self) {
        let mut block = std::mem::replace(&mut self.until[self.blocks.position as usize], NONE);
        while block != NONE {
            let next = self.blocks.get(block).next;
            self.blocks.drop::<RECORD>(block);
            block = next;
        }
    }

    /// The optimizer's step, all gradients being there.
    fn update<const RECORD: bool>(&mut self) {
        let (mut last, mut kept) = (NONE, 0);
        let mut most = std::mem::take(&mut self.most);
        refill(&mut most, self.blocks.peaks.len(), 0);
        for one in &self.updates.of {
            let home = self.homes[one.storage as usize];
            let most = &mut most[home as usize];
            if self.updates.together {
                *most += one.peak;
                continue;
            }
            *most = one.peak.max(*most).max(if home == last { kept + one.peak } else { 0 });
            (last, kept) = (home, one.kept);
        }
        for (device, extra) in (0..).zip(&most) {
            self.blocks.mark::<RECORD>(device, *extra, Cause::Optimizer);
        }
        self.most = most;
    }
}

fn check_devices(
    what: &'static str,
    devices: &[DeviceId],
    expected: usize,
    num_devices: usize,
    matters: impl Fn(usize) -> bool,
) -> Result<()> {
    if devices.len() != expected {
        return Err(Error::Shape { what, expected, found: devices.len() });
    }
    let is_wrong = |(at, device): &(usize, &DeviceId)| {
        **device as usize >= num_devices && (**device != HOST || matters(*at))
    };
    match devices.iter().enumerate().find(is_wrong) {
        Some((index, device)) => Err(Error::Value { what, index, value: i64::from(*device) }),
        None => Ok(()),
    }
}
