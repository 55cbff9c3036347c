//! From a decision to its schedule: times, waits for memory, exact peaks.
//!
//! A decision is first scheduled as if memory were unlimited. If every peak fits, that is the schedule; else it is scheduled again
//! with each device's profile at hand, and transfers and ops that would overfill a device wait (docs/rules.md).

use crate::error::{Error, Placed, Result};
use crate::memory::Profile;
use crate::problem::Problem;
use crate::fifo;
use crate::list::{self, Effects, Policy, Timeline};
use crate::place::Request;
use crate::rules::Rules;
use crate::schedule::{Decision, Event, Executor, Schedule, Transfer};
use crate::timeline::{Book, ChannelClocks};
use crate::{Bytes, DeviceId, Ns, OpId, TensorId};

const NONE: u32 = u32::MAX;

/// Waits of a plan that is replayed: what each op, and each transfer in commit order, waits for.
#[derive(Debug, Clone, Default)]
pub struct Waits {
    /// Empty, or one entry per op.
    pub ops: Vec<Option<Event>>,
    /// Empty, or one entry per transfer.
    pub transfers: Vec<Option<Event>>,
}

/// Schedules a decision within the caps: freely if that fits, else with waits for memory.
///
/// # Errors
/// [`Error::OutOfMemory`] if an op never fits in this launch order, [`Error::LaunchOrder`],
/// [`Error::WrongDevice`], [`Error::Cancelled`].
pub fn schedule_within_caps(problem: &Problem, decision: &Decision) -> Result<Schedule> {
    let free = replay(problem, decision, &Waits::default())?;
    if free.over_limit(&problem.cluster.cap_bytes).is_none() {
        return Ok(free);
    }
    let ledger = Ledger::new(problem, decision);
    finish(problem, decision, Run::new(problem, decision)?.run(Some(ledger), &Waits::default())?)
}

/// Schedules a decision with the waits of its plan and no limits.
///
/// # Errors
/// [`Error::LaunchOrder`], [`Error::WrongDevice`], [`Error::Cancelled`].
pub fn replay(problem: &Problem, decision: &Decision, waits: &Waits) -> Result<Schedule> {
    finish(problem, decision, Run::new(problem, decision)?.run(None, waits)?)
}

/// Schedules a placement whose launch order is free, without limits: physical rules list-schedule it, the
/// originals run it first in, first out (TensorFlow) or in topological order (PyTorch).
///
/// # Errors
/// [`Error::WrongDevice`], [`Error::Cancelled`].
pub fn simulate_given(request: &Request, device: &[DeviceId]) -> Result<Schedule> {
    let problem = request.problem;
    check_devices(problem, device)?;
    match request.rules {
        Rules::Physical => {
            let policy =
                Policy { rules: request.rules.for_loop(), favorites: None, fixed: Some(device) };
            let mut book = Book::of_given(problem, request.no_caps());
            replay(problem, &list::run(problem, &mut book, policy)?, &Waits::default())
        }
        Rules::BaechiTf => fifo::run(problem, &request.op_bytes(), device),
        Rules::BaechiTorch => {
            let launch = problem.graph.order().to_vec();
            let decision = Decision { device: device.to_vec(), launch, not_before: Vec::new() };
            simulate_launched(request, &decision, &Waits::default(), false)
        }
    }
}

/// Schedules a launch order without limits; `reserve` is what the TensorFlow original was run with.
///
/// # Errors
/// [`Error::LaunchOrder`], [`Error::WrongDevice`], [`Error::Cancelled`].
pub fn simulate_launched(
    request: &Request,
    decision: &Decision,
    waits: &Waits,
    reserve: bool,
) -> Result<Schedule> {
    let problem = request.problem;
    // Checks the order; the originals' timelines then commit in it.
    let run = Run::new(problem, decision)?;
    match request.rules {
        Rules::Physical => finish(problem, decision, run.run(None, waits)?),
        Rules::BaechiTf => {
            let mut timeline = request.tensor_flow(request.no_caps(), reserve);
            commit_all(problem, &mut timeline, decision)?;
            Ok(timeline.into_schedule(decision))
        }
        Rules::BaechiTorch => {
            let mut timeline = request.py_torch(request.no_caps());
            commit_all(problem, &mut timeline, decision)?;
            Ok(timeline.into_schedule(decision))
        }
    }
}

/// Runs a schedule's decision again, with its waits.
///
/// # Errors
/// As [`simulate_launched`].
pub fn replay_schedule(request: &Request, schedule: &Schedule, reserve: bool) -> Result<Schedule> {
    if schedule.executor == Executor::Fifo {
        return fifo::run(request.problem, &request.op_bytes(), &schedule.device);
    }
    let mut launch: Vec<OpId> = (0..request.problem.num_ops()).collect();
    launch.sort_unstable_by_key(|op| schedule.order[*op as usize]);
    let not_before = launch.iter().filter_map(|op| schedule.not_before.get(*op as usize).copied());
    let decision = Decision {
        device: schedule.device.clone(),
        not_before: not_before.collect(),
        launch,
    };
    let waits = Waits {
        ops: schedule.wait.clone(),
        transfers: schedule.transfers.iter().map(|transfer| transfer.wait).collect(),
    };
    simulate_launched(request, &decision, &waits, reserve)
}

/// Checks waits that came from a file: each must point to something launched before.
///
/// # Errors
/// [`Error::LaunchOrder`] or [`Error::Shape`].
pub fn check_waits(problem: &Problem, decision: &Decision, waits: &Waits) -> Result<()> {
    let num_ops = problem.graph.num_ops;
    if !waits.ops.is_empty() && waits.ops.len() != num_ops {
        let found = waits.ops.len();
        return Err(Error::Shape { what: "waits of ops", expected: num_ops, found });
    }
    if waits.ops.iter().chain(&waits.transfers).all(Option::is_none) {
        return Ok(());
    }
    // The transfers that this launch order makes, by the launch index of their consumers.
    let free = replay(problem, decision, &Waits::default())?;
    let launched = |event: Event| match event {
        Event::Op(op) => free.order.get(op as usize).copied(),
        Event::Transfer(at) => {
            free.transfers.get(at as usize).map(|transfer| free.order[transfer.consumer as usize])
        }
    };
    for (op, wait) in (0_u32..).zip(&waits.ops) {
        let Some(event) = wait else { continue };
        let own = free.order[op as usize];
        if !launched(*event).is_some_and(|rank| rank < own || *event != Event::Op(op) && rank == own) {
            return Err(Error::LaunchOrder { op });
        }
    }
    for (at, wait) in waits.transfers.iter().enumerate() {
        let (Some(event), Some(transfer)) = (wait, free.transfers.get(at)) else { continue };
        let own = free.order[transfer.consumer as usize];
        if !launched(*event).is_some_and(|rank| rank < own) {
            return Err(Error::LaunchOrder { op: transfer.consumer });
        }
    }
    Ok(())
}

fn commit_all<T: Timeline>(problem: &Problem, timeline: &mut T, decision: &Decision) -> Result<()> {
    let mut effects = Effects::default();
    for (rank, op) in decision.launch.iter().copied().enumerate() {
        let device = decision.device[op as usize];
        let not_before = decision.not_before.get(rank).copied().unwrap_or(0);
        let committed = timeline.commit(op, device, not_before, &mut effects);
        committed.map_err(|reason| Error::Stuck { op, device, reason, placed: Vec::new() })?;
        effects = Effects::default();
        if rank % 1024 == 0 {
            problem.check_cancelled()?;
        }
    }
    Ok(())
}

fn check_devices(problem: &Problem, device: &[DeviceId]) -> Result<()> {
    if device.len() != problem.graph.num_ops {
        let (expected, found) = (problem.graph.num_ops, device.len());
        return Err(Error::Shape { what: "devices of the placement", expected, found });
    }
    for op in 0..problem.num_ops() {
        let device = device[op as usize];
        if device as usize >= problem.cluster.num_devices || !problem.may_run(op, device) {
            return Err(Error::WrongDevice { op, device });
        }
    }
    Ok(())
}

fn finish(problem: &Problem, decision: &Decision, run: Run) -> Result<Schedule> {
    let mut busy = vec![0; problem.cluster.num_devices];
    for op in 0..problem.graph.num_ops {
        busy[decision.device[op] as usize] += run.end[op] - run.start[op];
    }
    let mut schedule = Schedule {
        executor: Executor::Launch,
        device: decision.device.clone(),
        order: run.order,
        makespan: run.end.iter().copied().max().unwrap_or(0),
        start: run.start,
        end: run.end,
        transfers: run.transfers,
        wait: run.wait,
        not_before: Vec::new(),
        busy,
        peak: Vec::new(),
        peak_op: Vec::new(),
    };
    problem.check_cancelled()?;
    for curve in memory_curves(problem, &schedule) {
        schedule.peak.push(curve.peak);
        schedule.peak_op.push(curve.peak_op);
    }
    Ok(schedule)
}

/// Use of one device's memory after each event, in event order.
#[derive(Debug, Clone)]
pub struct MemoryCurve {
    pub time: Vec<Ns>,
    pub bytes: Vec<Bytes>,
    pub peak: Bytes,
    /// The op whose launch reached the peak, `u32::MAX` if none did.
    pub peak_op: OpId,
}

/// Scheduling state: clocks, and what was sent where.
struct Run<'p> {
    problem: &'p Problem<'p>,
    decision: &'p Decision,
    channels: ChannelClocks,
    free_at: Vec<Ns>,
    order: Vec<u32>,
    start: Vec<Ns>,
    end: Vec<Ns>,
    wait: Vec<Option<Event>>,
    transfers: Vec<Transfer>,
    /// Latest transfer of each tensor, and the one before each transfer.
    last_transfer: Vec<u32>,
    before: Vec<u32>,
}

impl<'p> Run<'p> {
    fn new(problem: &'p Problem<'p>, decision: &'p Decision) -> Result<Self> {
        let num_ops = problem.graph.num_ops;
        let mut order = vec![NONE; num_ops];
        for (rank, op) in (0_u32..).zip(&decision.launch) {
            if *op as usize >= num_ops || order[*op as usize] != NONE {
                return Err(Error::LaunchOrder { op: *op });
            }
            order[*op as usize] = rank;
        }
        if let Some(op) = order.iter().position(|rank| *rank == NONE) {
            return Err(Error::LaunchOrder { op: u32::try_from(op).expect("31 bits") });
        }
        check_devices(problem, &decision.device)?;
        for op in 0..problem.num_ops() {
            let is_early = |tensor: &TensorId| {
                order[problem.graph.producer(*tensor) as usize] >= order[op as usize]
            };
            if problem.graph.inputs(op).iter().any(is_early) {
                return Err(Error::LaunchOrder { op });
            }
        }
        Ok(Self {
            problem,
            decision,
            channels: ChannelClocks::new(problem.cluster.num_channels),
            free_at: vec![0; problem.cluster.num_devices],
            order,
            start: vec![0; num_ops],
            end: vec![0; num_ops],
            wait: vec![None; num_ops],
            transfers: Vec::new(),
            last_transfer: vec![NONE; problem.graph.num_tensors],
            before: Vec::new(),
        })
    }

    fn run(mut self, mut ledger: Option<Ledger<'p>>, waits: &Waits) -> Result<Self> {
        let launch = &self.decision.launch;
        for (rank, op) in launch.iter().copied().enumerate() {
            self.launch(op, ledger.as_mut(), waits)?;
            if rank % 1024 == 0 {
                self.problem.check_cancelled()?;
            }
        }
        Ok(self)
    }

    fn launch(&mut self, op: OpId, ledger: Option<&mut Ledger<'p>>, waits: &Waits) -> Result<()> {
        let device = self.decision.device[op as usize];
        let first = self.transfers.len();
        let mut start = self.free_at[device as usize];
        let mut just_in_time = false;
        let mut ledger = ledger;
        for tensor in self.problem.graph.inputs(op).iter().copied() {
            let producer = self.problem.graph.producer(tensor);
            let source = self.decision.device[producer as usize];
            if source == device {
                start = start.max(self.end[producer as usize]);
            } else if let Some(sent) = self.sent(tensor, device) {
                start = start.max(self.transfers[sent as usize].end);
            } else {
                let at = u32::try_from(self.transfers.len()).expect("fewer than 32 bits");
                let given = waits.transfers.get(at as usize).copied().flatten();
                let mut transfer = Transfer {
                    tensor,
                    source,
                    destination: device,
                    start: self.end[producer as usize].max(self.end_of(given)),
                    end: 0,
                    consumer: op,
                    wait: given,
                };
                let duration = self.problem.transfer_ns(tensor, source, device);
                let channels = self.problem.channels(source, device);
                if channels.unlimited() {
                    just_in_time = true;
                } else {
                    transfer.start = self.channels.free_from(channels, transfer.start);
                    if let Some(ledger) = ledger.as_deref_mut() {
                        let bytes = self.problem.tensor_bytes(tensor);
                        let fit = ledger.fit(device, transfer.start, bytes);
                        let fit = fit.ok_or_else(|| self.no_room(op, device, bytes, ledger))?;
                        (transfer.start, transfer.wait) = fit;
                        ledger.profiles[device as usize].charge(transfer.start, bytes);
                    }
                    self.channels.hold(channels, transfer.start + duration);
                }
                transfer.end = transfer.start + duration;
                start = start.max(transfer.end);
                self.before.push(self.last_transfer[tensor as usize]);
                self.last_transfer[tensor as usize] = at;
                self.transfers.push(transfer);
            }
        }
        let given = waits.ops.get(op as usize).copied().flatten();
        self.wait[op as usize] = given;
        start = start.max(self.end_of(given));
        if let Some(ledger) = ledger.as_deref_mut() {
            start = self.wait_for_room(op, device, start, first, ledger)?;
        }
        if just_in_time {
            for transfer in &mut self.transfers[first..] {
                if self.problem.channels(transfer.source, device).unlimited() {
                    let duration = transfer.end - transfer.start;
                    transfer.end = start;
                    transfer.start = start - duration;
                }
            }
        }
        let end = start + self.problem.compute_ns(op, device);
        self.start[op as usize] = start;
        self.end[op as usize] = end;
        self.free_at[device as usize] = end;
        if let Some(ledger) = ledger {
            ledger.settle(self, op, device, first);
        }
        Ok(())
    }

    /// Delays an op until it and its just-in-time copies fit for good.
    fn wait_for_room(
        &mut self,
        op: OpId,
        device: DeviceId,
        mut start: Ns,
        first: usize,
        ledger: &Ledger,
    ) -> Result<Ns> {
        let own = self.problem.graph.output_bytes[op as usize] + self.problem.scratch_bytes(op);
        let mut copies = 0;
        let mut longest: Option<usize> = None;
        for at in first..self.transfers.len() {
            let transfer = &self.transfers[at];
            if self.problem.channels(transfer.source, device).unlimited() {
                copies += self.problem.tensor_bytes(transfer.tensor);
                let length = |at: usize| self.transfers[at].end - self.transfers[at].start;
                if longest.is_none_or(|known| length(at) > length(known)) {
                    longest = Some(at);
                }
            }
        }
        loop {
            let fit = ledger.fit(device, start, own + copies);
            let (later, wait) =
                fit.ok_or_else(|| self.no_room(op, device, own + copies, ledger))?;
            if wait.is_some() {
                self.wait[op as usize] = wait;
                start = later;
            }
            let Some(at) = longest else { return Ok(start) };
            let length = self.transfers[at].end - self.transfers[at].start;
            let (sent, wait) = ledger.fit(device, start - length, copies).expect("more than this fits");
            if wait.is_none() {
                return Ok(start);
            }
            self.transfers[at].wait = wait;
            start = sent + length;
        }
    }

    fn sent(&self, tensor: TensorId, device: DeviceId) -> Option<u32> {
        let mut at = self.last_transfer[tensor as usize];
        while at != NONE && self.transfers[at as usize].destination != device {
            at = self.before[at as usize];
        }
        (at != NONE).then_some(at)
    }

    fn end_of(&self, event: Option<Event>) -> Ns {
        match event {
            Some(Event::Op(op)) => self.end[op as usize],
            Some(Event::Transfer(at)) => self.transfers[at as usize].end,
            None => 0,
        }
    }

    fn no_room(&self, op: OpId, device: DeviceId, needed: Bytes, ledger: &Ledger) -> Error {
        let free = ledger.profiles[device as usize].free_at_the_end();
        let rank = self.order[op as usize] as usize;
        let placed: Placed = self.decision.launch[..rank]
            .iter()
            .map(|op| (*op, self.decision.device[*op as usize]))
            .collect();
        Error::OutOfMemory { op, device, needed, free, placed }
    }
}

/// Memory of all devices over time, with everything launched so far.
struct Ledger<'p> {
    problem: &'p Problem<'p>,
    device: &'p [DeviceId],
    profiles: Vec<Profile>,
    /// Uses of each tensor on its producer's device that are not launched yet: local consumers and sends.
    uses: Vec<u32>,
    last_use: Vec<(Ns, Option<Event>)>,
    /// The same for the copy that each transfer makes.
    copy_uses: Vec<u32>,
    copy_last_use: Vec<(Ns, Option<Event>)>,
}

impl<'p> Ledger<'p> {
    fn new(problem: &'p Problem<'p>, decision: &'p Decision) -> Self {
        let mut persistent = vec![0; problem.cluster.num_devices];
        for op in 0..problem.num_ops() {
            persistent[decision.device[op as usize] as usize] += problem.persistent_bytes(op);
        }
        let caps = &problem.cluster.cap_bytes;
        let profiles = caps.iter().zip(persistent).map(|(cap, base)| Profile::new(*cap, base));
        let mut ledger = Self {
            problem,
            device: &decision.device,
            profiles: profiles.collect(),
            uses: Vec::with_capacity(problem.graph.num_tensors),
            last_use: vec![(0, None); problem.graph.num_tensors],
            copy_uses: Vec::new(),
            copy_last_use: Vec::new(),
        };
        let mut destinations: Vec<DeviceId> = Vec::new();
        for tensor in 0..u32::try_from(problem.graph.num_tensors).expect("31 bits") {
            let home = ledger.device[problem.graph.producer(tensor) as usize];
            destinations.clear();
            let mut uses = 0;
            for consumer in problem.graph.consumers(tensor) {
                let device = ledger.device[*consumer as usize];
                if device == home {
                    uses += 1;
                } else if !destinations.contains(&device) {
                    destinations.push(device);
                    uses += 1;
                }
            }
            ledger.uses.push(if problem.is_kept(tensor) { NONE } else { uses });
        }
        ledger
    }

    fn fit(&self, device: DeviceId, from: Ns, bytes: Bytes) -> Option<(Ns, Option<Event>)> {
        self.profiles[device as usize].earliest_fit(from, bytes)
    }

    /// Books a launched op: charges it and its just-in-time copies, frees what it used last.
    fn settle(&mut self, run: &Run, op: OpId, device: DeviceId, first: usize) {
        let graph = self.problem.graph;
        let (start, end) = (run.start[op as usize], run.end[op as usize]);
        for at in first..run.transfers.len() {
            let transfer = &run.transfers[at];
            let bytes = self.problem.tensor_bytes(transfer.tensor);
            if self.problem.channels(transfer.source, device).unlimited() {
                self.profiles[device as usize].charge(transfer.start, bytes);
            }
            let consumers = graph.consumers(transfer.tensor).iter();
            let here = consumers.filter(|op| self.device[**op as usize] == device).count();
            self.copy_uses.push(u32::try_from(here).expect("fewer than the edges"));
            self.copy_last_use.push((0, None));
            let event = Event::Transfer(u32::try_from(at).expect("32 bits"));
            self.use_original(transfer.tensor, transfer.source, transfer.end, event);
        }
        let scratch = self.problem.scratch_bytes(op);
        let profile = &mut self.profiles[device as usize];
        profile.charge(start, graph.output_bytes[op as usize] + scratch);
        profile.release(end, scratch, Event::Op(op));
        for tensor in graph.inputs(op).iter().copied() {
            let home = self.device[graph.producer(tensor) as usize];
            if home == device {
                self.use_original(tensor, device, end, Event::Op(op));
                continue;
            }
            let at = run.sent(tensor, device).expect("sent before it is used") as usize;
            self.copy_uses[at] -= 1;
            keep_later(&mut self.copy_last_use[at], end, Event::Op(op));
            if self.copy_uses[at] == 0 {
                let (time, event) = self.copy_last_use[at];
                let event = event.expect("a used copy");
                self.profiles[device as usize].release(time, self.problem.tensor_bytes(tensor), event);
            }
        }
    }

    fn use_original(&mut self, tensor: TensorId, home: DeviceId, end: Ns, event: Event) {
        let at = tensor as usize;
        if self.uses[at] == NONE {
            return;
        }
        self.uses[at] -= 1;
        keep_later(&mut self.last_use[at], end, event);
        if self.uses[at] == 0 {
            let (time, event) = self.last_use[at];
            let event = event.expect("a used tensor");
            self.profiles[home as usize].release(time, self.problem.tensor_bytes(tensor), event);
        }
    }
}

fn keep_later(last: &mut (Ns, Option<Event>), end: Ns, event: Event) {
    if last.1.is_none() || end >= last.0 {
        *last = (end, Some(event));
    }
}

/// Place of an event within its moment; see docs/rules.md section 3.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
struct Moment {
    time: Ns,
    /// Phase, launch index, position within the launch, start before end.
    place: (u8, u32, u32, u8),
}

/// Exact use of every device over time.
#[must_use]
pub fn memory_curves(problem: &Problem, schedule: &Schedule) -> Vec<MemoryCurve> {
    let graph = problem.graph;
    let num_devices = problem.cluster.num_devices;
    let op_start = |op: OpId| Moment {
        time: schedule.start[op as usize],
        place: (1, schedule.order[op as usize], u32::MAX, 0),
    };
    let op_end = |op: OpId| {
        let (start, end) = (schedule.start[op as usize], schedule.end[op as usize]);
        let phase = u8::from(start == end);
        Moment { time: end, place: (phase, schedule.order[op as usize], u32::MAX, 1) }
    };
    let transfer_end = |at: u32| {
        let transfer = &schedule.transfers[at as usize];
        let phase = u8::from(transfer.start == transfer.end);
        let rank = schedule.order[transfer.consumer as usize];
        Moment { time: transfer.end, place: (phase, rank, at, 1) }
    };
    let mut base = vec![0; num_devices];
    let mut events: Vec<Vec<(Moment, Bytes, OpId)>> = vec![Vec::new(); num_devices];
    for op in 0..problem.num_ops() {
        let device = schedule.device[op as usize] as usize;
        base[device] += problem.persistent_bytes(op);
        let scratch = problem.scratch_bytes(op);
        let bytes = graph.output_bytes[op as usize] + scratch;
        if bytes > 0 {
            events[device].push((op_start(op), bytes, op));
        }
        if scratch > 0 {
            events[device].push((op_end(op), -scratch, op));
        }
    }
    let mut last_send = vec![None; graph.num_tensors];
    for (at, transfer) in (0_u32..).zip(&schedule.transfers) {
        let bytes = problem.tensor_bytes(transfer.tensor);
        let end = transfer_end(at);
        let known = &mut last_send[transfer.tensor as usize];
        *known = (*known).max(Some(end));
        if bytes == 0 {
            continue;
        }
        let consumer = transfer.consumer;
        let rank = schedule.order[consumer as usize];
        let start = Moment { time: transfer.start, place: (1, rank, at, 0) };
        let device = transfer.destination;
        events[device as usize].push((start, bytes, consumer));
        let here = graph.consumers(transfer.tensor).iter().copied();
        let uses = here.filter(|op| schedule.device[*op as usize] == device).map(op_end);
        let last = uses.max().expect("a transfer has a consumer");
        events[device as usize].push((last, -bytes, consumer));
    }
    for tensor in 0..u32::try_from(graph.num_tensors).expect("31 bits") {
        let bytes = problem.tensor_bytes(tensor);
        if bytes == 0 || problem.is_kept(tensor) {
            continue;
        }
        let producer = graph.producer(tensor);
        let home = schedule.device[producer as usize];
        let here = graph.consumers(tensor).iter().copied();
        let uses = here.filter(|op| schedule.device[*op as usize] == home).map(op_end).max();
        let last = uses.max(last_send[tensor as usize]).expect("a consumer, here or elsewhere");
        events[home as usize].push((last, -bytes, producer));
    }
    let curves = events.into_iter().zip(base);
    curves.map(|(events, base)| curve_of(events, base)).collect()
}

fn curve_of(mut events: Vec<(Moment, Bytes, OpId)>, base: Bytes) -> MemoryCurve {
    events.sort_unstable();
    let mut curve =
        MemoryCurve { time: vec![0], bytes: vec![base], peak: base, peak_op: OpId::MAX };
    let mut used = base;
    for (moment, change, op) in events {
        used += change;
        curve.time.push(moment.time);
        curve.bytes.push(used);
        if used > curve.peak {
            curve.peak = used;
            curve.peak_op = op;
        }
    }
    curve
}
