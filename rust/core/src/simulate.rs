//! From a placement or a decision to its schedule.
//!
//! A decision is first scheduled as if memory were unlimited. If every peak fits, that is the schedule; else it is
//! scheduled again with each device's use of memory at hand, and transfers and ops that would overfill a device
//! wait (docs/rules.md).

use crate::curve;
use crate::error::{Error, Result};
use crate::fifo;
pub use crate::launch::check_devices;
use crate::launch::{Run, Waits};
use crate::ledger::Ledger;
use crate::list::{self, Effects, Policy, Timeline};
use crate::problem::Problem;
use crate::request::Request;
use crate::rules::Rules;
use crate::schedule::{Decision, Event, Executor, Schedule};
use crate::timeline::Book;
use crate::{DeviceId, OpId};

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
    persistent_bytes_fit(problem, decision)?;
    let ledger = Ledger::new(problem, decision);
    finish(problem, decision, Run::new(problem, decision)?.run(Some(ledger), &Waits::default())?)
}

/// Names the first op in launch order whose persistent bytes are more than its device still has.
fn persistent_bytes_fit(problem: &Problem, decision: &Decision) -> Result<()> {
    let mut free = problem.cluster.cap_bytes.clone();
    for (rank, op) in decision.launch.iter().copied().enumerate() {
        let device = decision.device[op as usize];
        let (needed, left) = (problem.persistent_bytes(op), &mut free[device as usize]);
        if needed > *left {
            let placed = &decision.launch[..rank];
            let placed = placed.iter().map(|op| (*op, decision.device[*op as usize])).collect();
            return Err(Error::OutOfMemory { op, device, needed, free: *left, placed });
        }
        *left -= needed;
    }
    Ok(())
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
        Rules::Physical => replay(problem, &list_scheduled(request, device)?, &Waits::default()),
        Rules::BaechiTf => fifo::run(problem, &request.op_bytes(), device),
        Rules::BaechiTorch => {
            let launch = problem.graph.order().to_vec();
            let decision = Decision { device: device.to_vec(), launch, not_before: Vec::new() };
            simulate_launched(request, &decision, &Waits::default(), false)
        }
    }
}

/// A launch order for given devices: the ready-queue loop without limits, under physical rules.
///
/// # Errors
/// [`Error::WrongDevice`], [`Error::Cancelled`].
pub fn list_scheduled(request: &Request, device: &[DeviceId]) -> Result<Decision> {
    check_devices(request.problem, device)?;
    let policy = Policy { rules: request.rules.for_loop(), favorites: None, fixed: Some(device) };
    let mut book = Book::of_given(request.problem, request.no_caps());
    list::run(request.problem, &mut book, policy)
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
    let decision =
        Decision { device: schedule.device.clone(), not_before: not_before.collect(), launch };
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
        if !launched(*event)
            .is_some_and(|rank| rank < own || *event != Event::Op(op) && rank == own)
        {
            return Err(Error::LaunchOrder { op });
        }
    }
    for (at, wait) in waits.transfers.iter().enumerate() {
        let (Some(event), Some(transfer)) = (wait, free.transfers.get(at)) else {
            continue;
        };
        let own = free.order[transfer.consumer as usize];
        if launched(*event).is_none_or(|rank| rank >= own) {
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

fn finish(problem: &Problem, decision: &Decision, run: Run) -> Result<Schedule> {
    let mut busy = vec![0; problem.cluster.num_devices];
    for op in 0..problem.graph.num_ops {
        busy[decision.device[op] as usize] += run.end[op] - run.start[op];
    }
    let mut schedule = Schedule {
        executor: Executor::Launch,
        repaired: false,
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
    for peak in curve::peaks(problem, &schedule) {
        schedule.peak.push(peak.bytes);
        schedule.peak_op.push(peak.op);
    }
    Ok(schedule)
}
