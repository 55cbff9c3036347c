//! The TensorFlow original's devices: queues, caches, and the book of memory with groups and reserves.

use super::{NOWHERE, OpBytes, finished, is_order_only, time_away};
use crate::list::{Effects, Room, Timeline};
use crate::lists::Lists;
use crate::problem::Problem;
use crate::schedule::{Decision, Schedule, Transfer};
use crate::{Bytes, DeviceId, Ns, OpId, TensorId};

/// The tensors between each op and each of its parents, in the order of the originals' in-edges.
struct Parents {
    /// Runs of `tensors` per op: (parent, end of run).
    runs: Lists,
    parent: Vec<OpId>,
    tensors: Lists,
}

impl Parents {
    fn new(problem: &Problem) -> Self {
        let graph = problem.graph;
        let mut run_of_op = Vec::new();
        let mut parent: Vec<OpId> = Vec::new();
        let mut tensor_of_run = Vec::new();
        let mut run_at = vec![u32::MAX; graph.num_ops];
        for op in 0..problem.num_ops() {
            let first = u32::try_from(parent.len()).expect("fewer than the edges");
            for tensor in graph.inputs(op) {
                let producer = graph.producer(*tensor);
                let known = run_at[producer as usize];
                let run = if known != u32::MAX && known >= first {
                    known
                } else {
                    let run = u32::try_from(parent.len()).expect("fewer than the edges");
                    run_at[producer as usize] = run;
                    parent.push(producer);
                    run_of_op.push((op, run));
                    run
                };
                tensor_of_run.push((run, *tensor));
            }
        }
        Self {
            runs: Lists::group(graph.num_ops, run_of_op.iter().copied()),
            tensors: Lists::group(parent.len(), tensor_of_run.iter().copied()),
            parent,
        }
    }

    fn of(&self, op: OpId) -> impl Iterator<Item = (OpId, &[TensorId])> {
        self.runs.of(op).iter().map(|run| (self.parent[*run as usize], self.tensors.of(*run)))
    }
}

/// Colocation groups and their reserves (TensorFlow only).
struct Groups {
    /// Group of each op; without colocation, none.
    of: Vec<Option<u32>>,
    members: Vec<Vec<OpId>>,
    need: Vec<Bytes>,
    left: Vec<Bytes>,
    unstarted: Vec<usize>,
    reserve: bool,
    /// Whether each device may run all of each of the graph's groups; ops that are a group of their own follow those.
    allowed: Vec<bool>,
}

impl Groups {
    fn new(problem: &Problem, bytes: &OpBytes, colocation: bool, reserve: bool) -> Self {
        let mut of = vec![None; problem.graph.num_ops];
        let mut members: Vec<Vec<OpId>> = Vec::new();
        if colocation {
            let lists = problem.graph.members();
            for group in 0..u32::try_from(lists.len()).expect("at most one per op") {
                members.push(lists.of(group).to_vec());
            }
            for op in 0..problem.num_ops() {
                let group = problem.graph.group(op).unwrap_or_else(|| {
                    members.push(vec![op]);
                    u32::try_from(members.len() - 1).expect("at most two per op")
                });
                of[op as usize] = Some(group);
            }
        }
        let most = |ops: &[OpId], column: &[Bytes]| {
            ops.iter().map(|op| column[*op as usize]).max().unwrap_or(0)
        };
        let need = |ops: &Vec<OpId>| {
            let persistent: Bytes = ops.iter().map(|op| bytes.persistent[*op as usize]).sum();
            let rest = most(ops, &bytes.scratch) + most(ops, &bytes.held);
            persistent + if reserve { rest } else { 0 }
        };
        let lists = problem.graph.members();
        let first = |group| lists.of(group).first().copied();
        let groups = (0..u32::try_from(lists.len()).expect("at most one per op")).map(first);
        let groups: Vec<Option<OpId>> = if colocation { groups.collect() } else { Vec::new() };
        let may_run = |first: &Option<OpId>, device| {
            first.is_none_or(|first| problem.group_may_run(first, device))
        };
        let row = |first| problem.devices().map(move |device| may_run(first, device));
        Self {
            allowed: groups.iter().flat_map(row).collect(),
            of,
            need: members.iter().map(need).collect(),
            left: vec![0; members.len()],
            unstarted: members.iter().map(Vec::len).collect(),
            members,
            reserve,
        }
    }
}

/// The TensorFlow original: one half-duplex queue per device, copies cached for ever and free of memory.
pub struct TensorFlow<'p> {
    problem: &'p Problem<'p>,
    bytes: OpBytes,
    parents: Parents,
    groups: Groups,
    limit: Vec<Bytes>,
    used: Vec<Bytes>,
    peak: Vec<Bytes>,
    peak_op: Vec<OpId>,
    free_at: Vec<Ns>,
    channel: Vec<Ns>,
    device: Vec<DeviceId>,
    end: Vec<Ns>,
    start: Vec<Ns>,
    started_children: Vec<u32>,
    num_children: Vec<u32>,
    /// Receive end of each tensor on each device, -1 where it is not.
    received: Vec<Ns>,
    transfers: Vec<Transfer>,
}

impl<'p> TensorFlow<'p> {
    /// Idle devices with these limits.
    #[must_use]
    pub fn new(
        problem: &'p Problem<'p>,
        bytes: OpBytes,
        limit: Vec<Bytes>,
        colocation: bool,
        reserve: bool,
    ) -> Self {
        let num_ops = problem.graph.num_ops;
        let num_devices = problem.cluster.num_devices;
        let children = |op| u32::try_from(problem.graph.children(op).len()).expect("31 bits");
        Self {
            problem,
            parents: Parents::new(problem),
            groups: Groups::new(problem, &bytes, colocation, reserve),
            bytes,
            limit,
            used: vec![0; num_devices],
            peak: vec![0; num_devices],
            peak_op: vec![OpId::MAX; num_devices],
            free_at: vec![0; num_devices],
            channel: vec![0; num_devices],
            device: vec![NOWHERE; num_ops],
            end: vec![0; num_ops],
            start: vec![0; num_ops],
            started_children: vec![0; num_ops],
            num_children: (0..problem.num_ops()).map(children).collect(),
            received: vec![-1; problem.graph.num_tensors * num_devices],
            transfers: Vec::new(),
        }
    }

    /// The schedule of what was committed in this launch order.
    #[must_use]
    pub fn into_schedule(self, decision: &Decision) -> Schedule {
        finished(
            self.problem,
            decision,
            self.start,
            self.end,
            self.transfers,
            self.peak,
            self.peak_op,
        )
    }

    fn available(&self, op: OpId, device: DeviceId) -> Bytes {
        let reserved = match self.groups.of[op as usize] {
            Some(group) if self.groups.reserve && self.device[op as usize] == device => {
                self.groups.left[group as usize]
            }
            _ => 0,
        };
        self.limit[device as usize] - self.used[device as usize] + reserved
    }

    fn need(&self, op: OpId) -> Bytes {
        self.bytes.scratch[op as usize] + self.bytes.held[op as usize]
    }

    fn allocate(&mut self, op: OpId, device: DeviceId, bytes: Bytes) {
        let mut drawn = 0;
        if self.groups.reserve
            && let Some(group) = self.groups.of[op as usize]
        {
            let left = &mut self.groups.left[group as usize];
            drawn = bytes.min(*left);
            *left -= drawn;
        }
        let at = device as usize;
        self.used[at] += bytes - drawn;
        if self.used[at] > self.peak[at] {
            self.peak[at] = self.used[at];
            self.peak_op[at] = op;
        }
    }

    fn free(&mut self, op: OpId, bytes: Bytes) {
        let device = self.device[op as usize] as usize;
        let mut back = 0;
        if self.groups.reserve
            && let Some(group) = self.groups.of[op as usize]
            && self.groups.unstarted[group as usize] > 0
        {
            let at = group as usize;
            back = bytes.min(self.groups.need[at] - self.groups.left[at]);
            self.groups.left[at] += back;
        }
        self.used[device] -= bytes - back;
    }

    fn transfer_ns(&self, tensor: TensorId, source: DeviceId, destination: DeviceId) -> Ns {
        self.problem.transfer_ns(tensor, source, destination)
    }

    fn cached(&self, tensor: TensorId, device: DeviceId) -> Ns {
        self.received[tensor as usize * self.problem.cluster.num_devices + device as usize]
    }

    /// Sends what is not there yet; answers when all inputs are.
    fn receive(&mut self, op: OpId, device: DeviceId) -> Ns {
        let mut ready = 0;
        let parents = std::mem::replace(
            &mut self.parents,
            Parents { runs: Lists::default(), parent: Vec::new(), tensors: Lists::default() },
        );
        for (parent, tensors) in parents.of(op) {
            let source = self.device[parent as usize];
            let sent = self.end[parent as usize];
            if source == device {
                ready = ready.max(sent);
                continue;
            }
            for tensor in tensors.iter().copied() {
                if is_order_only(self.problem, tensor) {
                    continue;
                }
                if self.cached(tensor, device) < 0 {
                    let duration = self.transfer_ns(tensor, source, device);
                    let start = sent.max(self.channel[source as usize]);
                    self.channel[source as usize] = start + duration;
                    let arrive = start.max(self.channel[device as usize]);
                    self.channel[device as usize] = arrive + duration;
                    let slot = tensor as usize * self.problem.cluster.num_devices + device as usize;
                    self.received[slot] = arrive + duration;
                    self.transfers.push(Transfer {
                        tensor,
                        source,
                        destination: device,
                        start,
                        end: arrive + duration,
                        consumer: op,
                        wait: None,
                    });
                }
                ready = ready.max(self.cached(tensor, device));
            }
        }
        self.parents = parents;
        ready
    }

    fn enter_group(
        &mut self,
        op: OpId,
        device: DeviceId,
        effects: &mut Effects,
    ) -> Result<(), &'static str> {
        let Some(group) = self.groups.of[op as usize] else {
            self.device[op as usize] = device;
            return Ok(());
        };
        if self.device[op as usize] != NOWHERE {
            return Ok(());
        }
        let at = group as usize;
        if self.groups.reserve {
            self.used[device as usize] += self.groups.need[at];
            self.groups.left[at] = self.groups.need[at];
        }
        for index in 0..self.groups.members[at].len() {
            let member = self.groups.members[at][index];
            self.device[member as usize] = device;
            if self.need(member) > self.available(member, device) {
                return Err("a member of the colocation group does not fit the device");
            }
            effects.reoffer.push((member, device));
        }
        Ok(())
    }
}

impl Timeline for TensorFlow<'_> {
    fn free_at(&self, device: DeviceId) -> Ns {
        self.free_at[device as usize]
    }

    fn bound_to(&self, op: OpId) -> Option<DeviceId> {
        let device = self.device[op as usize];
        (device != NOWHERE).then_some(device)
    }

    fn arrival(&mut self, op: OpId, device: DeviceId) -> Ns {
        let mut ready = 0;
        for (parent, tensors) in self.parents.of(op) {
            let source = self.device[parent as usize];
            let sent = self.end[parent as usize];
            if source == device {
                ready = ready.max(sent);
                continue;
            }
            let mut total = None;
            for tensor in
                tensors.iter().copied().filter(|tensor| !is_order_only(self.problem, *tensor))
            {
                let cached = self.cached(tensor, device);
                if cached < 0 {
                    *total.get_or_insert(0) += self.transfer_ns(tensor, source, device);
                } else {
                    ready = ready.max(cached);
                }
            }
            if let Some(total) = total {
                let start = sent.max(self.channel[source as usize]);
                ready = ready.max(start.max(self.channel[device as usize]) + total);
            }
        }
        ready
    }

    fn room(&self, op: OpId, device: DeviceId) -> Room {
        if self.device[op as usize] == NOWHERE
            && let Some(group) = self.groups.of[op as usize]
        {
            let at = group as usize * self.problem.cluster.num_devices + device as usize;
            let allowed = self.groups.allowed.get(at).copied();
            if !allowed.unwrap_or_else(|| self.problem.may_run(op, device)) {
                return Room::Never;
            }
            let needed = self.groups.need[group as usize];
            let free = self.limit[device as usize] - self.used[device as usize];
            if needed > free {
                return Room::Short { needed, free };
            }
        }
        self.room_for_one(op, device)
    }

    fn room_for_one(&self, op: OpId, device: DeviceId) -> Room {
        let home = self.device[op as usize];
        if home != NOWHERE && home != device {
            return Room::Never;
        }
        let (needed, free) = (self.need(op), self.available(op, device));
        if needed > free { Room::Short { needed, free } } else { Room::Fits }
    }

    fn free_bytes(&self, device: DeviceId) -> Bytes {
        if self.groups.reserve {
            return Bytes::MAX;
        }
        self.limit[device as usize] - self.used[device as usize]
    }

    fn time_away(&self, op: OpId, producer: OpId, home: DeviceId) -> Ns {
        time_away(self.problem, op, producer, home)
    }

    fn urgent(&self, _op: OpId) -> Ns {
        0
    }

    fn commit(
        &mut self,
        op: OpId,
        device: DeviceId,
        now: Ns,
        effects: &mut Effects,
    ) -> Result<Ns, &'static str> {
        let ready = self.receive(op, device);
        self.enter_group(op, device, effects)?;
        self.allocate(op, device, self.bytes.held[op as usize]);
        self.allocate(op, device, self.bytes.scratch[op as usize]);
        let at = device as usize;
        let start = ready.max(self.free_at[at]).max(now);
        let end = start + self.problem.compute_ns(op, device);
        self.start[op as usize] = start;
        self.end[op as usize] = end;
        self.free_at[at] = end;
        self.free(op, self.bytes.scratch[op as usize]);
        let parents: Vec<OpId> = self.parents.of(op).map(|(parent, _)| parent).collect();
        for parent in parents {
            let count = &mut self.started_children[parent as usize];
            *count += 1;
            if *count == self.num_children[parent as usize] {
                let at = parent as usize;
                self.free(parent, self.bytes.held[at] - self.bytes.persistent[at]);
                effects.roomier.push(self.device[at]);
            }
        }
        if let Some(group) = self.groups.of[op as usize] {
            let at = group as usize;
            self.groups.unstarted[at] -= 1;
            if self.groups.reserve && self.groups.unstarted[at] == 0 {
                self.used[device as usize] -= self.groups.left[at];
                self.groups.left[at] = 0;
            }
        }
        effects.roomier.push(device);
        Ok(end)
    }

    fn finish(&mut self, _op: OpId, _device: DeviceId, _effects: &mut Effects) {}
}
