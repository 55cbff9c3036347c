//! The exact use of each device's memory over a finished schedule (docs/rules.md, section 3).
//!
//! Ops of one device start and end in launch order, and transfers over a channel do so in commit order, so the events of a
//! device are a merge of four sorted streams: op starts, op ends, arriving transfers, and sends that were the last use
//! of what they sent. Time O(ops + edges + transfers) (with a sort of the transfers where links have no channels).

use crate::lists::Lists;
use crate::problem::Problem;
use crate::schedule::Schedule;
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
    let events = Events::new(problem, schedule);
    let peak_of = |device| {
        let mut peak = Peak { bytes: events.base[device as usize], op: OpId::MAX };
        events.visit(device, |_, used, op| {
            if used > peak.bytes {
                peak = Peak { bytes: used, op };
            }
        });
        peak
    };
    problem.devices().map(peak_of).collect()
}

/// Use of every device over time; the first entry of each is what is held from time 0 on.
#[must_use]
pub fn memory_curves(problem: &Problem, schedule: &Schedule) -> Vec<MemoryCurve> {
    let events = Events::new(problem, schedule);
    let curve_of = |device| {
        let mut curve = MemoryCurve { time: vec![0], bytes: vec![events.base[device as usize]] };
        events.visit(device, |time, used, _| {
            curve.time.push(time);
            curve.bytes.push(used);
        });
        curve
    };
    problem.devices().map(curve_of).collect()
}

/// When an event happens: its time, then phase, launch index, position in the launch, and start before end.
type Moment = (Ns, u64);

fn moment(time: Ns, instant: bool, rank: u32, position: u32, is_end: bool) -> Moment {
    let position = u64::from(position & 0x7fff_ffff) << 1 | u64::from(is_end);
    (time, u64::from(instant) << 63 | u64::from(rank) << 32 | position)
}

/// The events of all devices.
struct Events<'a> {
    problem: &'a Problem<'a>,
    schedule: &'a Schedule,
    base: Vec<Bytes>,
    /// Ops of each device in launch order.
    ops: Lists,
    /// Transfers to each device, and those from it that free something, by moment.
    arrivals: Vec<Vec<u32>>,
    sends: Vec<Vec<u32>>,
    /// What the end of each op or transfer frees.
    freed_by_op: Vec<Bytes>,
    freed_by_send: Vec<Bytes>,
}

impl<'a> Events<'a> {
    fn new(problem: &'a Problem<'a>, schedule: &'a Schedule) -> Self {
        let graph = problem.graph;
        let num_devices = problem.cluster.num_devices;
        let mut launch = vec![0; graph.num_ops];
        let mut base = vec![0; num_devices];
        for op in 0..problem.num_ops() {
            launch[schedule.order[op as usize] as usize] = op;
            base[schedule.device[op as usize] as usize] += problem.persistent_bytes(op);
        }
        let homes = launch.iter().map(|op| (schedule.device[*op as usize], *op));
        let mut events = Self {
            problem,
            schedule,
            base,
            ops: Lists::group(num_devices, homes),
            arrivals: vec![Vec::new(); num_devices],
            sends: vec![Vec::new(); num_devices],
            freed_by_op: graph.columns.scratch_bytes.clone(),
            freed_by_send: vec![0; schedule.transfers.len()],
        };
        events.find_last_uses(&launch);
        for at in 0..u32::try_from(schedule.transfers.len()).expect("fewer than 32 bits") {
            let transfer = &schedule.transfers[at as usize];
            if problem.tensor_bytes(transfer.tensor) > 0 {
                events.arrivals[transfer.destination as usize].push(at);
            }
            if events.freed_by_send[at as usize] > 0 {
                events.sends[transfer.source as usize].push(at);
            }
        }
        sort_unless_sorted(&mut events.arrivals, |at| transfer_start(schedule, at));
        sort_unless_sorted(&mut events.sends, |at| transfer_end(schedule, at));
        events
    }

    /// Hangs every byte that is freed on the event that frees it.
    fn find_last_uses(&mut self, launch: &[OpId]) {
        let (problem, schedule) = (self.problem, self.schedule);
        let graph = problem.graph;
        let transfers = &schedule.transfers;
        let mut latest = vec![NONE; graph.num_tensors];
        let mut before = vec![NONE; transfers.len()];
        let mut last_send: Vec<u32> = vec![NONE; graph.num_tensors];
        for (at, transfer) in (0_u32..).zip(transfers) {
            let tensor = transfer.tensor as usize;
            before[at as usize] = latest[tensor];
            latest[tensor] = at;
            let known = last_send[tensor];
            if known == NONE || transfer_end(schedule, at) > transfer_end(schedule, known) {
                last_send[tensor] = at;
            }
        }
        // In launch order the last consumer on a device overwrites the earlier ones.
        let mut last_here = vec![NONE; graph.num_tensors];
        let mut last_there = vec![NONE; transfers.len()];
        for op in launch {
            let device = schedule.device[*op as usize];
            for tensor in graph.inputs(*op).iter().copied() {
                if schedule.device[graph.producer(tensor) as usize] == device {
                    last_here[tensor as usize] = *op;
                    continue;
                }
                let mut at = latest[tensor as usize];
                while at != NONE && transfers[at as usize].destination != device {
                    at = before[at as usize];
                }
                if at != NONE {
                    last_there[at as usize] = *op;
                }
            }
        }
        for (at, op) in last_there.iter().enumerate().filter(|(_, op)| **op != NONE) {
            self.freed_by_op[*op as usize] += problem.tensor_bytes(transfers[at].tensor);
        }
        for tensor in 0..u32::try_from(graph.num_tensors).expect("31 bits") {
            let bytes = problem.tensor_bytes(tensor);
            if bytes == 0 || problem.is_kept(tensor) {
                continue;
            }
            let (op, send) = (last_here[tensor as usize], last_send[tensor as usize]);
            let by_send = send != NONE
                && (op == NONE || transfer_end(schedule, send) > op_end(schedule, op));
            if by_send {
                self.freed_by_send[send as usize] += bytes;
            } else if op != NONE {
                self.freed_by_op[op as usize] += bytes;
            }
        }
    }

    /// Calls `seen(time, bytes held after it, op)` for every event of a device, in order.
    fn visit(&self, device: u32, mut seen: impl FnMut(Ns, Bytes, OpId)) {
        const NEVER: Moment = (Ns::MAX, u64::MAX);
        let schedule = self.schedule;
        let ops = self.ops.of(device);
        let (arrivals, sends) = (&self.arrivals[device as usize], &self.sends[device as usize]);
        let start_of = |at: usize| ops.get(at).map_or(NEVER, |op| op_start(schedule, *op));
        let end_of = |at: usize| ops.get(at).map_or(NEVER, |op| op_end(schedule, *op));
        let arrival_of =
            |at: usize| arrivals.get(at).map_or(NEVER, |at| transfer_start(schedule, *at));
        let send_of = |at: usize| sends.get(at).map_or(NEVER, |at| transfer_end(schedule, *at));
        let mut at = [0_usize; 4];
        let mut next = [start_of(0), end_of(0), arrival_of(0), send_of(0)];
        let mut used = self.base[device as usize];
        loop {
            let stream = (1..4).fold(0, |best, at| if next[at] < next[best] { at } else { best });
            if next[stream] == NEVER {
                return;
            }
            let time = next[stream].0;
            let index = at[stream];
            at[stream] += 1;
            let (change, op) = match stream {
                0 => {
                    next[0] = start_of(index + 1);
                    let op = ops[index];
                    let outputs = self.problem.graph.output_bytes[op as usize];
                    (outputs + self.problem.scratch_bytes(op), op)
                }
                1 => {
                    next[1] = end_of(index + 1);
                    (-self.freed_by_op[ops[index] as usize], ops[index])
                }
                2 => {
                    next[2] = arrival_of(index + 1);
                    let transfer = &schedule.transfers[arrivals[index] as usize];
                    (self.problem.tensor_bytes(transfer.tensor), transfer.consumer)
                }
                _ => {
                    next[3] = send_of(index + 1);
                    let send = sends[index] as usize;
                    (-self.freed_by_send[send], schedule.transfers[send].consumer)
                }
            };
            if change != 0 {
                used += change;
                seen(time, used, op);
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
