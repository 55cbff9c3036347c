//! Placing under physical rules: when an op could start on a device, and the book of what is held there.
//!
//! The book is kept at the moment of decision. A copy stays in it until all consumers of its tensor are
//! placed, since one may still land there; `simulate` finds what the finished schedule really needs.

use crate::channels::ChannelClocks;
use crate::error::{Error, Result};
use crate::list::{Effects, Room, Timeline};
use crate::problem::Problem;
use crate::{Bytes, DeviceId, Ns, OpId, TensorId};

const NOWHERE: DeviceId = DeviceId::MAX;

/// Clocks and memory while a placer decides.
pub struct Book<'p> {
    problem: &'p Problem<'p>,
    channels: ChannelClocks,
    undo: Vec<(i32, Ns)>,
    free_at: Vec<Ns>,
    end: Vec<Ns>,
    device: Vec<DeviceId>,
    /// Bit mask of the devices that hold each tensor.
    holders: Vec<u64>,
    words: usize,
    /// Whether groups are kept together; a given placement may split them.
    grouped: bool,
    /// Consumers of each tensor that are not placed yet.
    unplaced: Vec<u32>,
    cap: Vec<Bytes>,
    used: Vec<Bytes>,
    peak: Vec<Bytes>,
    running: Vec<OpId>,
    /// Tensors freed when the running op of each device ends.
    ending: Vec<Vec<TensorId>>,
    groups: Groups,
}

/// Where groups live and what they need together.
struct Groups {
    home: Vec<DeviceId>,
    persistent: Vec<Bytes>,
    allowed: Vec<bool>,
    /// Bytes kept free for the rest of each group (`reserve` variants), and their sum per device.
    guard: Vec<Bytes>,
    guarded: Vec<Bytes>,
    unplaced: Vec<u32>,
    reserve: bool,
    /// Persistent bytes that were booked before placing began.
    booked: Vec<bool>,
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
        let words = num_devices.div_ceil(64);
        let tensors = 0..u32::try_from(graph.num_tensors).expect("checked to fit 31 bits");
        let count = |t| u32::try_from(graph.consumers(t).len()).expect("checked to fit 32 bits");
        Self {
            problem,
            channels: ChannelClocks::new(problem.cluster.num_channels),
            undo: Vec::new(),
            free_at: vec![0; num_devices],
            end: vec![0; graph.num_ops],
            device: vec![NOWHERE; graph.num_ops],
            holders: vec![0; graph.num_tensors * words],
            words,
            grouped: true,
            unplaced: tensors.map(count).collect(),
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
            self.groups.booked[op as usize] = true;
        }
        for group in 0..self.groups.persistent.len() {
            let members = problem.graph.members().of(u32::try_from(group).expect("one per op"));
            if members.first().is_some_and(|first| self.groups.booked[*first as usize]) {
                self.groups.persistent[group] = 0;
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
            None if self.groups.booked[op as usize] => 0,
            None => self.problem.persistent_bytes(op),
        }
    }

    /// As `room`, with other caps than the book's own.
    #[must_use]
    pub fn room_within(&self, op: OpId, device: DeviceId, caps: &[Bytes]) -> Room {
        if self.bound_to(op).is_some_and(|home| home != device)
            || (self.grouped && !self.groups.allow(self.problem, op, device))
        {
            return Room::Never;
        }
        let persistent = self.new_persistent(op);
        let mut needed = persistent
            + self.problem.graph.output_bytes[op as usize]
            + self.problem.scratch_bytes(op);
        for tensor in self.problem.graph.inputs(op) {
            if !self.holds(*tensor, device) {
                needed += self.problem.tensor_bytes(*tensor);
            }
        }
        let at = device as usize;
        let own = self.group(op).map_or(0, |group| {
            if self.groups.home[group as usize] == device {
                self.groups.guard[group as usize]
            } else {
                0
            }
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

    fn holds(&self, tensor: TensorId, device: DeviceId) -> bool {
        let word = self.holders[tensor as usize * self.words + device as usize / 64];
        word >> (device % 64) & 1 == 1
    }

    fn charge(&mut self, device: DeviceId, bytes: Bytes) {
        let at = device as usize;
        self.used[at] += bytes;
        self.peak[at] = self.peak[at].max(self.used[at]);
    }

    /// Takes a tensor whose consumers are all placed off every device that no longer needs it.
    fn drop_everywhere(&mut self, tensor: TensorId, effects: &mut Effects) {
        let bytes = self.problem.tensor_bytes(tensor);
        for word in 0..self.words {
            let mut bits = self.holders[tensor as usize * self.words + word];
            while bits != 0 {
                let at = word * 64 + bits.trailing_zeros() as usize;
                bits &= bits - 1;
                let running = self.running[at];
                if running != OpId::MAX && self.problem.graph.inputs(running).contains(&tensor) {
                    self.ending[at].push(tensor);
                } else {
                    self.used[at] -= bytes;
                    effects.roomier.push(u32::try_from(at).expect("at most 15 bits"));
                }
            }
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

impl Groups {
    fn new(problem: &Problem, reserve: bool) -> Self {
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
            booked: vec![false; problem.graph.num_ops],
        }
    }

    fn allow(&self, problem: &Problem, op: OpId, device: DeviceId) -> bool {
        match problem.graph.group(op) {
            Some(group) => {
                self.allowed[group as usize * problem.cluster.num_devices + device as usize]
            }
            None => problem.may_run(op, device),
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
        let mut arrival = 0;
        self.undo.clear();
        for tensor in self.problem.graph.inputs(op) {
            if self.holds(*tensor, device) {
                continue;
            }
            let producer = self.problem.graph.producer(*tensor);
            let source = self.device[producer as usize];
            let ready = self.end[producer as usize];
            let duration = self.problem.transfer_ns(*tensor, source, device);
            let channels = self.problem.channels(source, device);
            let end = self.channels.free_from(channels, ready) + duration;
            for channel in [channels.send, channels.recv] {
                if channel >= 0 {
                    self.undo.push((channel, self.channels.get(channel)));
                }
            }
            self.channels.hold(channels, end);
            arrival = arrival.max(end);
        }
        while let Some((channel, time)) = self.undo.pop() {
            self.channels.set(channel, time);
        }
        arrival
    }

    fn room(&self, op: OpId, device: DeviceId) -> Room {
        self.room_within(op, device, &self.cap)
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
            let producer = self.problem.graph.producer(*tensor);
            let source = self.device[producer as usize];
            let others = self.problem.devices().filter(|device| *device != source);
            let longest =
                others.map(|device| self.problem.transfer_ns(*tensor, source, device)).max();
            urgent = urgent.max(self.end[producer as usize] + longest.unwrap_or(0));
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
        let (word, bit) = (device as usize / 64, 1_u64 << (device % 64));
        for tensor in problem.graph.inputs(op) {
            if self.holds(*tensor, device) {
                continue;
            }
            let producer = problem.graph.producer(*tensor);
            let source = self.device[producer as usize];
            let channels = problem.channels(source, device);
            let ready = self.channels.free_from(channels, self.end[producer as usize]);
            let end = ready + problem.transfer_ns(*tensor, source, device);
            self.channels.hold(channels, end);
            self.holders[*tensor as usize * self.words + word] |= bit;
            self.charge(device, problem.tensor_bytes(*tensor));
            effects.nearer.push((*tensor, device));
            start = start.max(end);
        }
        for tensor in problem.graph.outputs(op) {
            self.holders[*tensor as usize * self.words + word] |= bit;
        }
        self.charge(device, problem.graph.output_bytes[op as usize] + problem.scratch_bytes(op));
        let end = start + problem.compute_ns(op, device);
        self.device[op as usize] = device;
        self.end[op as usize] = end;
        self.free_at[device as usize] = end;
        self.running[device as usize] = op;
        for tensor in problem.graph.inputs(op) {
            self.unplaced[*tensor as usize] -= 1;
            if self.unplaced[*tensor as usize] == 0 && !problem.is_kept(*tensor) {
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
