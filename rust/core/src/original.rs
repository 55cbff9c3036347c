//! The timelines of the two original placers, to the letter (docs/original-rules.md).
//!
//! They are kept as they were, faults included, so that results can be compared: the dry run scores several remote
//! inputs as if sent in parallel, outputs are freed when their last consumer starts, and received copies
//! are free (TensorFlow) or charged per edge (PyTorch).

use crate::error::{Error, Result};
use crate::list::{Effects, Room, Timeline};
use crate::lists::Lists;
use crate::problem::Problem;
use crate::schedule::{Decision, Executor, Schedule, Transfer};
use crate::{Bytes, DeviceId, Ns, OpId, TensorId, UNLIMITED};

const NOWHERE: DeviceId = DeviceId::MAX;
const CONTROL: u8 = 6;

/// Bytes of each op as the originals count them.
#[derive(Debug, Clone)]
pub struct OpBytes {
    /// What an op holds while it runs and until its consumers ran (TensorFlow), or for good (PyTorch: permanent).
    pub held: Vec<Bytes>,
    /// Part of `held` that is never freed.
    pub persistent: Vec<Bytes>,
    pub scratch: Vec<Bytes>,
    /// The PyTorch placer's test at placement.
    pub peak: Vec<Bytes>,
}

impl OpBytes {
    /// From the graph's columns: an op holds its persistent bytes and its outputs.
    #[must_use]
    pub fn of(problem: &Problem) -> Self {
        let graph = problem.graph;
        let persistent = graph.columns.persistent_bytes.clone();
        let outputs = persistent.iter().zip(&graph.output_bytes);
        let held: Vec<Bytes> = outputs.map(|(persistent, outputs)| persistent + outputs).collect();
        let scratch = graph.columns.scratch_bytes.clone();
        let peak = held.iter().zip(&scratch).map(|(held, scratch)| held + scratch).collect();
        Self { held, persistent, scratch, peak }
    }
}

impl OpBytes {
    /// Checks what came from outside: nothing negative, and sums far from 64 bits.
    ///
    /// # Errors
    /// [`Error::Value`] or [`Error::Overflow`].
    pub fn check(&self) -> Result<()> {
        let columns = [
            ("held bytes of ops", &self.held),
            ("persistent bytes of ops", &self.persistent),
            ("scratch bytes of ops", &self.scratch),
            ("peak bytes of ops", &self.peak),
        ];
        for (what, column) in columns {
            if let Some(index) = column.iter().position(|bytes| *bytes < 0) {
                return Err(Error::Value { what, index, value: column[index] });
            }
            if column.iter().map(|bytes| i128::from(*bytes)).sum::<i128>()
                >= i128::from(UNLIMITED / 4)
            {
                return Err(Error::Overflow { what });
            }
        }
        Ok(())
    }
}

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
    ) -> std::result::Result<(), &'static str> {
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
        let tensors = self.problem.graph.inputs(op).iter().copied();
        let sent = tensors.filter(|tensor| {
            self.problem.graph.producer(*tensor) == producer
                && !is_order_only(self.problem, *tensor)
        });
        sent.map(|tensor| self.problem.least_transfer_ns(tensor, home)).max().unwrap_or(0)
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
    ) -> std::result::Result<Ns, &'static str> {
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

/// The PyTorch original: unlimited channels, every edge its own copy, nothing ever freed.
pub struct PyTorch<'p> {
    problem: &'p Problem<'p>,
    bytes: OpBytes,
    limit: Vec<Bytes>,
    used: Vec<Bytes>,
    peak: Vec<Bytes>,
    peak_op: Vec<OpId>,
    free_at: Vec<Ns>,
    device: Vec<DeviceId>,
    end: Vec<Ns>,
    start: Vec<Ns>,
    transfers: Vec<Transfer>,
}

impl<'p> PyTorch<'p> {
    /// Idle devices with these limits. In `bytes`, `persistent` are the parameters with their gradients.
    #[must_use]
    pub fn new(problem: &'p Problem<'p>, bytes: OpBytes, limit: Vec<Bytes>) -> Self {
        let num_ops = problem.graph.num_ops;
        let num_devices = problem.cluster.num_devices;
        Self {
            problem,
            bytes,
            limit,
            used: vec![0; num_devices],
            peak: vec![0; num_devices],
            peak_op: vec![OpId::MAX; num_devices],
            free_at: vec![0; num_devices],
            device: vec![NOWHERE; num_ops],
            end: vec![0; num_ops],
            start: vec![0; num_ops],
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

    /// Peak of each device in the placer's own book.
    #[must_use]
    pub fn peaks(&self) -> &[Bytes] {
        &self.peak
    }

    /// Charges an op as m-TOPO does: without clocks and without the receive test.
    pub fn charge(&mut self, op: OpId, device: DeviceId) {
        let at = device as usize;
        let before = self.used[at];
        let held = self.bytes.held[op as usize];
        self.used[at] += held + self.remote_bytes(op, device);
        let running = before + held + self.bytes.scratch[op as usize];
        let peak = running.max(self.used[at]);
        if peak > self.peak[at] {
            self.peak[at] = peak;
            self.peak_op[at] = op;
        }
        self.device[op as usize] = device;
    }

    /// Bytes in use on a device.
    #[must_use]
    pub fn used(&self, device: DeviceId) -> Bytes {
        self.used[device as usize]
    }

    fn remote_inputs(&self, op: OpId, device: DeviceId) -> impl Iterator<Item = TensorId> {
        let inputs = self.problem.graph.inputs(op).iter().copied();
        inputs.filter(move |tensor| {
            self.device[self.problem.graph.producer(*tensor) as usize] != device
        })
    }

    fn remote_bytes(&self, op: OpId, device: DeviceId) -> Bytes {
        self.remote_inputs(op, device).map(|tensor| self.problem.tensor_bytes(tensor)).sum()
    }
}

impl Timeline for PyTorch<'_> {
    fn free_at(&self, device: DeviceId) -> Ns {
        self.free_at[device as usize]
    }

    fn bound_to(&self, op: OpId) -> Option<DeviceId> {
        let device = self.device[op as usize];
        (device != NOWHERE).then_some(device)
    }

    fn arrival(&mut self, op: OpId, device: DeviceId) -> Ns {
        let mut ready = 0;
        for tensor in self.problem.graph.inputs(op).iter().copied() {
            let producer = self.problem.graph.producer(tensor) as usize;
            let source = self.device[producer];
            let transfer =
                if source == device { 0 } else { self.problem.transfer_ns(tensor, source, device) };
            ready = ready.max(self.end[producer] + transfer);
        }
        ready
    }

    fn room(&self, op: OpId, device: DeviceId) -> Room {
        let at = device as usize;
        let remote = self.remote_bytes(op, device);
        let tests = [
            (remote + self.bytes.peak[op as usize], self.limit[at] - self.used[at]),
            (remote + self.bytes.persistent[op as usize], self.limit[at] - self.peak[at]),
        ];
        match tests.into_iter().find(|(needed, free)| needed > free) {
            Some((needed, free)) => Room::Full { needed, free },
            None => Room::Fits,
        }
    }

    fn free_bytes(&self, device: DeviceId) -> Bytes {
        self.limit[device as usize] - self.used[device as usize]
    }

    fn time_away(&self, op: OpId, producer: OpId, home: DeviceId) -> Ns {
        let tensors = self.problem.graph.inputs(op).iter().copied();
        let sent = tensors.filter(|tensor| {
            self.problem.graph.producer(*tensor) == producer
                && !is_order_only(self.problem, *tensor)
        });
        sent.map(|tensor| self.problem.least_transfer_ns(tensor, home)).max().unwrap_or(0)
    }

    fn urgent(&self, _op: OpId) -> Ns {
        0
    }

    fn commit(
        &mut self,
        op: OpId,
        device: DeviceId,
        now: Ns,
        _effects: &mut Effects,
    ) -> std::result::Result<Ns, &'static str> {
        let ready = self.arrival(op, device);
        self.charge(op, device);
        let at = device as usize;
        let remote: Vec<TensorId> = self.remote_inputs(op, device).collect();
        for tensor in remote {
            let bytes = self.problem.tensor_bytes(tensor);
            if bytes > self.limit[at] - self.used[at] {
                return Err("not enough memory to receive a tensor");
            }
            let producer = self.problem.graph.producer(tensor) as usize;
            let source = self.device[producer];
            let start = self.end[producer];
            let end = start + self.problem.transfer_ns(tensor, source, device);
            let destination = device;
            let transfer =
                Transfer { tensor, source, destination, start, end, consumer: op, wait: None };
            self.transfers.push(transfer);
        }
        let start = ready.max(self.free_at[at]).max(now);
        let end = start + self.problem.compute_ns(op, device);
        self.start[op as usize] = start;
        self.end[op as usize] = end;
        self.free_at[at] = end;
        Ok(end)
    }

    fn finish(&mut self, _op: OpId, _device: DeviceId, _effects: &mut Effects) {}
}

/// Whether a tensor only orders its ends: an edge of the original graph without tensors.
pub(crate) fn is_order_only(problem: &Problem, tensor: TensorId) -> bool {
    let columns = &problem.graph.columns;
    columns.tensor_class[tensor as usize] == CONTROL
        && columns.tensor_transfer_ns[tensor as usize] == 0
}

/// The schedule of a finished run of an original's timeline.
pub(crate) fn finished(
    problem: &Problem,
    decision: &Decision,
    start: Vec<Ns>,
    end: Vec<Ns>,
    transfers: Vec<Transfer>,
    peak: Vec<Bytes>,
    peak_op: Vec<OpId>,
) -> Schedule {
    let mut order = vec![0; start.len()];
    for (rank, op) in (0_u32..).zip(&decision.launch) {
        order[*op as usize] = rank;
    }
    let mut not_before = vec![0; if decision.not_before.is_empty() { 0 } else { start.len() }];
    for (op, time) in decision.launch.iter().zip(&decision.not_before) {
        not_before[*op as usize] = *time;
    }
    let mut busy = vec![0; problem.cluster.num_devices];
    for op in 0..start.len() {
        busy[decision.device[op] as usize] += end[op] - start[op];
    }
    Schedule {
        executor: Executor::Launch,
        repaired: false,
        device: decision.device.clone(),
        order,
        makespan: end.iter().copied().max().unwrap_or(0),
        wait: vec![None; start.len()],
        not_before,
        start,
        end,
        transfers,
        busy,
        peak,
        peak_op,
    }
}
