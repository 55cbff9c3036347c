//! The exact use of each device's memory over a finished schedule (docs/rules.md, section 3).
//!
//! Ops of one device start and end in turn, and transfers over a channel do so in commit order, so the events of a
//! device are a merge of three sorted streams: its ops, arriving transfers, and sends that were the last use
//! of what they sent. Time O(ops + edges + transfers), with a sort of the transfers where links have no channels.

use crate::error::{Error, Result};
use crate::launch::check_devices;
use crate::problem::Problem;
use crate::schedule::{Schedule, Transfer};
use crate::{Bytes, Ns, OpId};

const NONE: u32 = u32::MAX;

/// Use of one device's memory after each event, in event order.
#[derive(Debug, Clone)]
pub struct MemoryCurve {
    pub time: Vec<Ns>,
    pub bytes: Vec<Bytes>,
}

/// The most that a device ever holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Peak {
    pub bytes: Bytes,
    /// The op whose launch reached it, `u32::MAX` if none did.
    pub op: OpId,
}

/// The peak of every device.
#[must_use]
pub fn peaks(problem: &Problem, schedule: &Schedule) -> Vec<Peak> {
    let mut events = Events::default();
    events.fill(problem, schedule);
    problem.devices().map(|device| events.peak(problem, schedule, device)).collect()
}

/// Checks that a schedule is one of this problem, as far as indices go.
///
/// # Errors
/// [`Error::Shape`], [`Error::LaunchOrder`] or [`Error::WrongDevice`].
pub fn check_schedule(problem: &Problem, schedule: &Schedule) -> Result<()> {
    let (expected, found) = (problem.graph.num_ops, schedule.order.len());
    let is_known = |transfer: &Transfer| {
        (transfer.tensor as usize) < problem.graph.num_tensors
            && transfer.consumer < problem.num_ops()
            && transfer.source.max(transfer.destination) < problem.devices().end
    };
    if found != expected || !schedule.transfers.iter().all(is_known) {
        return Err(Error::Shape { what: "ops of the schedule", expected, found });
    }
    check_devices(problem, &schedule.device)
}

/// Use of every device over time; the first entry of each is what is held from time 0 on.
#[must_use]
pub fn memory_curves(problem: &Problem, schedule: &Schedule) -> Vec<MemoryCurve> {
    let mut events = Events::default();
    events.fill(problem, schedule);
    let curve_of = |device| {
        let mut curve = MemoryCurve { time: vec![0], bytes: vec![events.base[device as usize]] };
        events.visit(problem, schedule, device, |time, used, _| {
            curve.time.push(time);
            curve.bytes.push(used);
        });
        curve
    };
    problem.devices().map(curve_of).collect()
}

/// When an event happens: its time, then phase, launch index, position in the launch, and start before end.
type Moment = (Ns, u64);

const NEVER: Moment = (Ns::MAX, u64::MAX);

fn moment(time: Ns, instant: bool, rank: u32, position: u32, is_end: bool) -> Moment {
    let position = u64::from(position & 0x7fff_ffff) << 1 | u64::from(is_end);
    (time, u64::from(instant) << 63 | u64::from(rank) << 32 | position)
}

/// The events of all devices; one value serves many schedules of a graph without allocating again.
#[derive(Debug, Default)]
pub(crate) struct Events {
    base: Vec<Bytes>,
    launch: Vec<OpId>,
    /// Ops of each device in launch order.
    ops: Vec<Vec<OpId>>,
    /// Transfers to each device, and those from it that free something, by moment.
    arrivals: Vec<Vec<u32>>,
    sends: Vec<Vec<u32>>,
    /// What the end of each op or transfer frees.
    freed_by_op: Vec<Bytes>,
    freed_by_send: Vec<Bytes>,
    last: LastUses,
}

/// Last uses of tensors and copies, by index of the op or transfer that made them.
#[derive(Debug, Default)]
struct LastUses {
    /// Latest transfer of each tensor, and the one before each transfer.
    latest: Vec<u32>,
    before: Vec<u32>,
    /// The send of each tensor that ends last.
    send: Vec<u32>,
    /// The last op that uses each tensor where it was made, and each transfer's copy.
    here: Vec<u32>,
    there: Vec<u32>,
}

fn reset<T: Clone>(buffer: &mut Vec<T>, length: usize, value: T) {
    buffer.clear();
    buffer.resize(length, value);
}

fn clear_lists(lists: &mut Vec<Vec<u32>>, length: usize) {
    lists.resize_with(length, Vec::new);
    lists.iter_mut().for_each(Vec::clear);
}

impl Events {
    /// Takes in a schedule.
    pub(crate) fn fill(&mut self, problem: &Problem, schedule: &Schedule) {
        let num_devices = problem.cluster.num_devices;
        reset(&mut self.launch, problem.graph.num_ops, 0);
        reset(&mut self.base, num_devices, 0);
        clear_lists(&mut self.ops, num_devices);
        clear_lists(&mut self.arrivals, num_devices);
        clear_lists(&mut self.sends, num_devices);
        for op in 0..problem.num_ops() {
            self.launch[schedule.order[op as usize] as usize] = op;
            self.base[schedule.device[op as usize] as usize] += problem.persistent_bytes(op);
        }
        for op in &self.launch {
            self.ops[schedule.device[*op as usize] as usize].push(*op);
        }
        self.freed_by_op.clone_from(&problem.graph.columns.scratch_bytes);
        reset(&mut self.freed_by_send, schedule.transfers.len(), 0);
        self.last.find(problem, schedule, &self.launch);
        self.hang_frees(problem, schedule);
        for (at, transfer) in (0_u32..).zip(&schedule.transfers) {
            if problem.tensor_bytes(transfer.tensor) > 0 {
                self.arrivals[transfer.destination as usize].push(at);
            }
            if self.freed_by_send[at as usize] > 0 {
                self.sends[transfer.source as usize].push(at);
            }
        }
        sort_unless_sorted(&mut self.arrivals, |at| transfer_start(schedule, at));
        sort_unless_sorted(&mut self.sends, |at| transfer_end(schedule, at));
    }

    /// Hangs every byte that is freed on the event that frees it.
    fn hang_frees(&mut self, problem: &Problem, schedule: &Schedule) {
        for (transfer, op) in schedule.transfers.iter().zip(&self.last.there) {
            if *op != NONE {
                self.freed_by_op[*op as usize] += problem.tensor_bytes(transfer.tensor);
            }
        }
        for tensor in 0..u32::try_from(problem.graph.num_tensors).expect("31 bits") {
            let bytes = problem.tensor_bytes(tensor);
            if bytes == 0 || problem.is_kept(tensor) {
                continue;
            }
            let (op, send) = (self.last.here[tensor as usize], self.last.send[tensor as usize]);
            let by_send =
                send != NONE && (op == NONE || transfer_end(schedule, send) > op_end(schedule, op));
            if by_send {
                self.freed_by_send[send as usize] += bytes;
            } else if op != NONE {
                self.freed_by_op[op as usize] += bytes;
            }
        }
    }

    /// The peak of one device.
    pub(crate) fn peak(&self, problem: &Problem, schedule: &Schedule, device: u32) -> Peak {
        let mut peak = Peak { bytes: self.base[device as usize], op: OpId::MAX };
        self.visit(problem, schedule, device, |_, used, op| {
            if used > peak.bytes {
                peak = Peak { bytes: used, op };
            }
        });
        peak
    }

    /// Calls `seen(time, bytes held after it, op)` for every event of a device, in order.
    fn visit(
        &self,
        problem: &Problem,
        schedule: &Schedule,
        device: u32,
        mut seen: impl FnMut(Ns, Bytes, OpId),
    ) {
        let at = device as usize;
        let (ops, arrivals, sends) = (&self.ops[at], &self.arrivals[at], &self.sends[at]);
        // Even steps of the first stream are starts of ops, odd ones their ends.
        let op_of = |step: usize| match ops.get(step / 2) {
            Some(op) if step.is_multiple_of(2) => op_start(schedule, *op),
            Some(op) => op_end(schedule, *op),
            None => NEVER,
        };
        let arrival_of =
            |step: usize| arrivals.get(step).map_or(NEVER, |at| transfer_start(schedule, *at));
        let send_of = |step: usize| sends.get(step).map_or(NEVER, |at| transfer_end(schedule, *at));
        let (mut op_step, mut arrival_step, mut send_step) = (0, 0, 0);
        let (mut next_op, mut next_arrival, mut next_send) = (op_of(0), arrival_of(0), send_of(0));
        let mut used = self.base[at];
        loop {
            let (time, change, op);
            if next_op < next_arrival && next_op < next_send {
                op = ops[op_step / 2];
                time = next_op.0;
                change = if op_step.is_multiple_of(2) {
                    problem.graph.output_bytes[op as usize] + problem.scratch_bytes(op)
                } else {
                    -self.freed_by_op[op as usize]
                };
                op_step += 1;
                next_op = op_of(op_step);
            } else if next_arrival < next_send {
                let transfer = &schedule.transfers[arrivals[arrival_step] as usize];
                (time, op) = (next_arrival.0, transfer.consumer);
                change = problem.tensor_bytes(transfer.tensor);
                arrival_step += 1;
                next_arrival = arrival_of(arrival_step);
            } else if next_send == NEVER {
                return;
            } else {
                let send = sends[send_step] as usize;
                (time, op) = (next_send.0, schedule.transfers[send].consumer);
                change = -self.freed_by_send[send];
                send_step += 1;
                next_send = send_of(send_step);
            }
            if change != 0 {
                used += change;
                seen(time, used, op);
            }
        }
    }
}

impl LastUses {
    fn find(&mut self, problem: &Problem, schedule: &Schedule, launch: &[OpId]) {
        let graph = problem.graph;
        let transfers = &schedule.transfers;
        reset(&mut self.latest, graph.num_tensors, NONE);
        reset(&mut self.send, graph.num_tensors, NONE);
        reset(&mut self.here, graph.num_tensors, NONE);
        reset(&mut self.there, transfers.len(), NONE);
        self.before.clear();
        for (at, transfer) in (0_u32..).zip(transfers) {
            let tensor = transfer.tensor as usize;
            self.before.push(self.latest[tensor]);
            self.latest[tensor] = at;
            let known = self.send[tensor];
            if known == NONE || transfer_end(schedule, at) > transfer_end(schedule, known) {
                self.send[tensor] = at;
            }
        }
        // In launch order the last consumer on a device overwrites the earlier ones.
        for op in launch {
            let device = schedule.device[*op as usize];
            for tensor in graph.inputs(*op).iter().copied() {
                if schedule.device[graph.producer(tensor) as usize] == device {
                    self.here[tensor as usize] = *op;
                    continue;
                }
                let mut at = self.latest[tensor as usize];
                while at != NONE && transfers[at as usize].destination != device {
                    at = self.before[at as usize];
                }
                if at != NONE {
                    self.there[at as usize] = *op;
                }
            }
        }
    }
}

fn op_start(schedule: &Schedule, op: OpId) -> Moment {
    moment(schedule.start[op as usize], true, schedule.order[op as usize], NONE, false)
}

fn op_end(schedule: &Schedule, op: OpId) -> Moment {
    let (start, end) = (schedule.start[op as usize], schedule.end[op as usize]);
    moment(end, start == end, schedule.order[op as usize], NONE, true)
}

fn transfer_start(schedule: &Schedule, at: u32) -> Moment {
    let transfer = &schedule.transfers[at as usize];
    moment(transfer.start, true, schedule.order[transfer.consumer as usize], at, false)
}

fn transfer_end(schedule: &Schedule, at: u32) -> Moment {
    let transfer = &schedule.transfers[at as usize];
    let instant = transfer.start == transfer.end;
    moment(transfer.end, instant, schedule.order[transfer.consumer as usize], at, true)
}

fn sort_unless_sorted(lists: &mut [Vec<u32>], key: impl Fn(u32) -> Moment) {
    for list in lists {
        if !list.is_sorted_by_key(|at| key(*at)) {
            list.sort_by_cached_key(|at| key(*at));
        }
    }
}
