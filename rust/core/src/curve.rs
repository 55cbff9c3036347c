//! The exact use of each device's memory over a finished schedule (docs/rules.md, section 3).

use crate::problem::Problem;
use crate::schedule::Schedule;
use crate::{Bytes, Ns, OpId};

/// Use of one device's memory after each event, in event order.
#[derive(Debug, Clone)]
pub struct MemoryCurve {
    pub time: Vec<Ns>,
    pub bytes: Vec<Bytes>,
    pub peak: Bytes,
    /// The op whose launch reached the peak, `u32::MAX` if none did.
    pub peak_op: OpId,
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
