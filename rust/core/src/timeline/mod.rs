//! Placing under physical rules: when an op could start on a device, and the book of what is held there.
//!
//! The book is kept at the moment of decision. A copy stays in it until all consumers of its tensor are
//! placed, since one may still land there; `simulate` finds what the finished schedule really needs.

mod copies;
mod groups;

use copies::Copies;
use groups::Groups;

use crate::channels::ChannelClocks;
use crate::error::{Error, Result};
use crate::list::{Effects, Room, Score, Timeline};
use crate::problem::Problem;
use crate::{Bytes, DeviceId, Ns, OpId, TensorId};

const NOWHERE: DeviceId = DeviceId::MAX;

/// Clocks and memory while a placer decides.
pub struct Book<'p> {
    problem: &'p Problem<'p>,
    channels: ChannelClocks,
    undo: Vec<(i32, Ns)>,
    free_at: Vec<Ns>,
    device: Vec<DeviceId>,
    tensors: Vec<Tensor>,
    needs: Vec<Needs>,
    /// Holders beyond the first 64 devices: so many words per tensor.
    far_holders: Vec<u64>,
    far_words: usize,
    /// Whether groups are kept together; a given placement may split them.
    grouped: bool,
    cap: Vec<Bytes>,
    used: Vec<Bytes>,
    peak: Vec<Bytes>,
    running: Vec<OpId>,
    /// Tensors freed when the running op of each device ends.
    ending: Vec<Vec<TensorId>>,
    groups: Groups,
}

/// What the book knows of a tensor; together, since it is read together.
#[derive(Clone, Copy)]
struct Tensor {
    /// End of its producer.
    end: Ns,
    /// Bit mask of the first 64 devices that hold it.
    holders: u64,
    bytes: Bytes,
    /// Device of its producer.
    source: DeviceId,
    /// Consumers that are not placed yet.
    unplaced: u32,
}

/// What an op needs; together, since it is read together.
#[derive(Clone, Copy)]
struct Needs {
    /// Persistent bytes that were not booked before placing began.
    persistent: Bytes,
    /// Outputs and scratch.
    passing: Bytes,
}

impl<'p> Book<'p> {
    /// An empty book whose devices may hold `cap` bytes each. With `reserve`, the first op of a group also
    /// keeps room for the largest outputs and scratch of the rest.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] if the ops that are pinned to one device do not fit there.
    pub fn new(problem: &'p Problem<'p>, cap: Vec<Bytes>, reserve: bool) -> Result<Self> {
        let mut book = Self::empty(problem, cap, reserve);
        book.book_pinned()?;
        Ok(book)
    }

    fn empty(problem: &'p Problem<'p>, cap: Vec<Bytes>, reserve: bool) -> Self {
        let graph = problem.graph;
        let num_devices = problem.cluster.num_devices;
        let far_words = num_devices.div_ceil(64) - 1;
        let tensors = 0..u32::try_from(graph.num_tensors).expect("checked to fit 31 bits");
        let tensor = |tensor| Tensor {
            end: 0,
            holders: 0,
            bytes: problem.tensor_bytes(tensor),
            source: NOWHERE,
            unplaced: u32::try_from(graph.consumers(tensor).len()).expect("32 bits"),
        };
        let needs = |op| Needs {
            persistent: problem.persistent_bytes(op),
            passing: graph.output_bytes[op as usize] + problem.scratch_bytes(op),
        };
        Self {
            problem,
            channels: ChannelClocks::new(problem.cluster.num_channels),
            undo: Vec::new(),
            free_at: vec![0; num_devices],
            device: vec![NOWHERE; graph.num_ops],
            tensors: tensors.map(tensor).collect(),
            needs: (0..problem.num_ops()).map(needs).collect(),
            far_holders: vec![0; graph.num_tensors * far_words],
            far_words,
            grouped: !graph.members().is_empty(),
            cap,
            used: vec![0; num_devices],
            peak: vec![0; num_devices],
            running: vec![OpId::MAX; num_devices],
            ending: vec![Vec::new(); num_devices],
            groups: Groups::new(problem, reserve),
        }
    }

    /// An empty book for devices that are given from outside: groups are not looked at.
    #[must_use]
    pub fn of_given(problem: &'p Problem<'p>, cap: Vec<Bytes>) -> Self {
        Self { grouped: false, ..Self::empty(problem, cap, false) }
    }

    fn group(&self, op: OpId) -> Option<u32> {
        if self.grouped { self.problem.graph.group(op) } else { None }
    }

    /// Where an op was placed.
    #[must_use]
    pub fn device(&self, op: OpId) -> DeviceId {
        self.device[op as usize]
    }

    /// Persistent bytes of ops and groups that only one device may run are there from the start.
    fn book_pinned(&mut self) -> Result<()> {
        let problem = self.problem;
        for op in 0..problem.num_ops() {
            let bytes = problem.persistent_bytes(op);
            if bytes == 0 && problem.graph.group(op).is_none() {
                continue;
            }
            let mut homes =
                problem.devices().filter(|device| self.groups.allow(problem, op, *device));
            let (Some(device), None) = (homes.next(), homes.next()) else {
                continue;
            };
            let at = device as usize;
            if self.used[at] + bytes > self.cap[at] {
                let free = self.cap[at] - self.used[at];
                return Err(Error::OutOfMemory {
                    op,
                    device,
                    needed: bytes,
                    free,
                    placed: Vec::new(),
                });
            }
            self.used[at] += bytes;
            self.peak[at] = self.used[at];
            self.needs[op as usize].persistent = 0;
            if let Some(group) = problem.graph.group(op) {
                self.groups.persistent[group as usize] = 0;
            }
        }
        Ok(())
    }

    /// Persistent bytes that placing `op` would add: those of its whole group with its first op.
    fn new_persistent(&self, op: OpId) -> Bytes {
        match self.group(op) {
            Some(group) if self.groups.home[group as usize] == NOWHERE => {
                self.groups.persistent[group as usize]
            }
            Some(_) => 0,
            None => self.needs[op as usize].persistent,
        }
    }

    /// As `room`, with other caps than the book's own.
    #[must_use]
    pub fn room_within(&self, op: OpId, device: DeviceId, caps: &[Bytes]) -> Room {
        if !self.is_home(op, device) {
            return Room::Never;
        }
        let missing = self.problem.graph.inputs(op).iter().filter(|t| !self.holds(**t, device));
        let copies = missing.map(|tensor| self.tensors[*tensor as usize].bytes).sum();
        self.room_with(op, device, copies, caps)
    }

    /// Whether an op whose missing inputs have so many bytes may start on a device that may hold `caps`.
    fn room_with(&self, op: OpId, device: DeviceId, copies: Bytes, caps: &[Bytes]) -> Room {
        let persistent = self.new_persistent(op);
        let needed = persistent + self.needs[op as usize].passing + copies;
        let at = device as usize;
        let own = self.group(op).map_or(0, |group| {
            let group = group as usize;
            if self.groups.home[group] == device { self.groups.guard[group] } else { 0 }
        });
        let cap = caps[at] - self.groups.guarded[at] + own;
        if self.used[at] + needed > cap {
            return Room::Short { needed, free: cap - self.used[at] };
        }
        if persistent > 0 && self.peak[at] + persistent > caps[at] {
            // The past is full: what is there from time 0 can never be added.
            return Room::Full { needed: persistent, free: caps[at] - self.peak[at] };
        }
        Room::Fits
    }

    /// Whether groups and pins let the op run on the device.
    fn is_home(&self, op: OpId, device: DeviceId) -> bool {
        match self.group(op) {
            Some(group) => {
                let home = self.groups.home[group as usize];
                (home == NOWHERE || home == device) && self.groups.allow(self.problem, op, device)
            }
            None => self.problem.may_run(op, device),
        }
    }

    fn charge(&mut self, device: DeviceId, bytes: Bytes) {
        let at = device as usize;
        self.used[at] += bytes;
        self.peak[at] = self.peak[at].max(self.used[at]);
    }

    /// Takes a tensor whose consumers are all placed off every device that no longer needs it.
    fn drop_everywhere(&mut self, tensor: TensorId, effects: &mut Effects) {
        let Tensor { holders, bytes, .. } = self.tensors[tensor as usize];
        for word in 0..=self.far_words {
            let mut bits = match word.checked_sub(1) {
                None => holders,
                Some(far) => self.far_holders[tensor as usize * self.far_words + far],
            };
            while bits != 0 {
                let at = word * 64 + bits.trailing_zeros() as usize;
                bits &= bits - 1;
                let running = self.running[at];
                if running != OpId::MAX && self.consumes(running, tensor) {
                    self.ending[at].push(tensor);
                } else {
                    self.used[at] -= bytes;
                    effects.roomier.push(u32::try_from(at).expect("at most 15 bits"));
                }
            }
        }
    }

    /// Whether an op consumes a tensor, by the shorter of the two lists: either may have a million entries.
    fn consumes(&self, op: OpId, tensor: TensorId) -> bool {
        let (inputs, consumers) =
            (self.problem.graph.inputs(op), self.problem.graph.consumers(tensor));
        if inputs.len() < consumers.len() {
            inputs.contains(&tensor)
        } else {
            consumers.contains(&op)
        }
    }

    fn enter_group(&mut self, op: OpId, device: DeviceId, effects: &mut Effects) {
        let Some(group) = self.group(op) else { return };
        let at = group as usize;
        if self.groups.home[at] == NOWHERE {
            self.groups.home[at] = device;
            let members = self.problem.graph.members().of(group);
            effects.reoffer.extend(members.iter().map(|member| (*member, device)));
            if self.groups.reserve {
                self.groups.guard[at] = members
                    .iter()
                    .map(|m| {
                        self.problem.graph.output_bytes[*m as usize]
                            + self.problem.scratch_bytes(*m)
                    })
                    .max()
                    .unwrap_or(0);
                self.groups.guarded[device as usize] += self.groups.guard[at];
            }
        }
        self.groups.unplaced[at] -= 1;
        if self.groups.unplaced[at] == 0 && self.groups.guard[at] > 0 {
            self.groups.guarded[device as usize] -= self.groups.guard[at];
            self.groups.guard[at] = 0;
            effects.roomier.push(device);
        }
    }
}

impl Timeline for Book<'_> {
    fn free_at(&self, device: DeviceId) -> Ns {
        self.free_at[device as usize]
    }

    fn bound_to(&self, op: OpId) -> Option<DeviceId> {
        let home = match self.group(op) {
            Some(group) => self.groups.home[group as usize],
            None => self.device[op as usize],
        };
        (home != NOWHERE).then_some(home)
    }

    fn arrival(&mut self, op: OpId, device: DeviceId) -> Ns {
        self.copies::<false>(op, device).arrival
    }

    fn score(&mut self, op: OpId, device: DeviceId, now: Ns) -> Score {
        if !self.is_home(op, device) {
            return Score::Never;
        }
        let Copies { arrival, bytes, .. } = self.copies::<false>(op, device);
        match self.room_with(op, device, bytes, &self.cap) {
            Room::Fits => Score::Start(arrival.max(now)),
            Room::Short { needed, .. } => Score::Short { needed },
            Room::Full { .. } | Room::Never => Score::Never,
        }
    }

    fn time_away(&self, op: OpId, producer: OpId, home: DeviceId) -> Ns {
        let mut inputs = self.problem.graph.inputs(op).iter();
        let sent = inputs.find(|tensor| self.problem.graph.producer(**tensor) == producer);
        sent.map_or(0, |tensor| self.problem.least_transfer_ns(*tensor, home))
    }

    fn room(&self, op: OpId, device: DeviceId) -> Room {
        self.room_within(op, device, &self.cap)
    }

    fn behind(&mut self, op: OpId, device: DeviceId) -> Option<(u32, Ns)> {
        let Copies { arrival, behind, .. } = self.copies::<true>(op, device);
        let (channel, after) = behind?;
        // Where links into the device have several channels, another input may be the last to come.
        let is_last = self.channels.get(channel) + after == arrival;
        is_last.then_some((channel.unsigned_abs(), after))
    }

    fn channel_free_at(&self, channel: u32) -> Ns {
        self.channels.clock(channel)
    }

    fn free_bytes(&self, device: DeviceId) -> Bytes {
        if self.groups.reserve {
            return Bytes::MAX;
        }
        self.cap[device as usize] - self.used[device as usize]
    }

    fn urgent(&self, op: OpId) -> Ns {
        let mut urgent = 0;
        for tensor in self.problem.graph.inputs(op) {
            let Tensor { end, source, .. } = self.tensors[*tensor as usize];
            urgent = urgent.max(end + self.problem.longest_transfer_ns(*tensor, source));
        }
        urgent
    }

    fn commit(
        &mut self,
        op: OpId,
        device: DeviceId,
        now: Ns,
        effects: &mut Effects,
    ) -> std::result::Result<Ns, &'static str> {
        let problem = self.problem;
        let mut start = now.max(self.free_at[device as usize]);
        let persistent = self.new_persistent(op);
        self.peak[device as usize] += persistent;
        self.used[device as usize] += persistent;
        self.enter_group(op, device, effects);
        for tensor in problem.graph.inputs(op) {
            if self.holds(*tensor, device) {
                continue;
            }
            let known = self.tensors[*tensor as usize];
            let channels = problem.channels(known.source, device);
            let ready = self.channels.free_from(channels, known.end);
            let end = ready + problem.transfer_ns(*tensor, known.source, device);
            self.channels.hold(channels, end);
            self.hold(*tensor, device);
            self.charge(device, known.bytes);
            if known.unplaced > 1 {
                effects.nearer.push((*tensor, device));
            }
            start = start.max(end);
        }
        let end = start + problem.compute_ns(op, device);
        for tensor in problem.graph.outputs(op) {
            let known = &mut self.tensors[*tensor as usize];
            (known.end, known.source) = (end, device);
            self.hold(*tensor, device);
        }
        self.charge(device, self.needs[op as usize].passing);
        self.device[op as usize] = device;
        self.free_at[device as usize] = end;
        self.running[device as usize] = op;
        for tensor in problem.graph.inputs(op) {
            let known = &mut self.tensors[*tensor as usize];
            known.unplaced -= 1;
            if known.unplaced == 0 && !problem.is_kept(*tensor) {
                self.drop_everywhere(*tensor, effects);
            }
        }
        Ok(end)
    }

    fn finish(&mut self, op: OpId, device: DeviceId, effects: &mut Effects) {
        let at = device as usize;
        let mut freed = self.problem.scratch_bytes(op);
        while let Some(tensor) = self.ending[at].pop() {
            freed += self.problem.tensor_bytes(tensor);
        }
        self.running[at] = OpId::MAX;
        if freed > 0 {
            self.used[at] -= freed;
            effects.roomier.push(device);
        }
    }
}
