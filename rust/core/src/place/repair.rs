//! Repair: a placement within the limits where a greedy placer ran into a dead end.
//!
//! In a fixed launch order every op can wait until all before it have ended, so a decision is feasible if and only if each op fits
//! beside what is still needed then (docs/rules.md, section 4). That makes feasibility a matter of devices and order
//! alone: `Usage` measures by how many bytes a decision overfills its devices, and a local search with moves and swaps of units (ops and groups) and
//! shifts in the order drives that to zero. Deterministic: seeds are fixed, and work is counted, not timed.

use super::units::Units;
use crate::error::{Error, Result};
use crate::list::{self, Policy};
use crate::problem::Problem;
use crate::random::SplitMix;
use crate::request::Request;
use crate::rules::Rules;
use crate::schedule::{Decision, Schedule};
use crate::simulate;
use crate::timeline::Book;
use crate::{Bytes, DeviceId, OpId};

const NONE: u32 = u32::MAX;
/// Ops looked at in all evaluations of one repair.
const MOST_WORK: u64 = 20_000_000;
const RESTARTS: u64 = 24;

/// The schedule of a decision, or of its repair where the placer ran out of memory.
///
/// # Errors
/// The placer's own error if no repair is found, [`Error::Cancelled`].
pub(crate) fn schedule(request: &Request, decided: Result<Decision>) -> Result<Schedule> {
    let problem = request.problem;
    match decided {
        Ok(decision) => simulate::schedule_within_caps(problem, &decision),
        Err(Error::OutOfMemory { op, device, needed, free, placed }) => {
            if request.repair
                && let Some(decision) = repair(problem, &placed)
            {
                let schedule = best_order(problem, &decision)?;
                return Ok(Schedule { repaired: true, ..schedule });
            }
            problem.check_cancelled()?;
            Err(Error::OutOfMemory { op, device, needed, free, placed })
        }
        Err(error) => Err(error),
    }
}

/// The schedule of a feasible decision, in its own order or in a list-scheduled one if that fits and is shorter.
fn best_order(problem: &Problem, decision: &Decision) -> Result<Schedule> {
    let own = simulate::schedule_within_caps(problem, decision)?;
    let rules = Rules::Physical.for_loop();
    let policy = Policy { rules, favorites: None, fixed: Some(&decision.device) };
    let mut book = Book::of_given(problem, problem.cluster.cap_bytes.clone());
    match list::run(problem, &mut book, policy) {
        Ok(listed) => {
            let listed = simulate::schedule_within_caps(problem, &listed)?;
            Ok(if listed.makespan < own.makespan { listed } else { own })
        }
        Err(Error::Cancelled) => Err(Error::Cancelled),
        Err(_) => Ok(own),
    }
}

/// A feasible decision near `placed` (what the greedy placer had decided), if one is found.
pub(crate) fn repair(problem: &Problem, placed: &[(OpId, DeviceId)]) -> Option<Decision> {
    let units = Units::of_groups(problem);
    if !units.may_fit(problem) {
        return None;
    }
    let mut search = Search::new(problem, &units);
    for attempt in 0..RESTARTS {
        search.begin(attempt, placed);
        if search.descend() {
            let device = search.device.clone();
            return Some(Decision { device, launch: search.launch, not_before: Vec::new() });
        }
        if search.work > MOST_WORK {
            break;
        }
    }
    None
}

struct Search<'a> {
    problem: &'a Problem<'a>,
    units: &'a Units,
    usage: Usage,
    device: Vec<DeviceId>,
    launch: Vec<OpId>,
    rng: SplitMix,
    work: u64,
}

impl<'a> Search<'a> {
    fn new(problem: &'a Problem<'a>, units: &'a Units) -> Self {
        Self {
            problem,
            units,
            usage: Usage::new(problem),
            device: vec![0; problem.graph.num_ops],
            launch: Vec::new(),
            rng: SplitMix::new(0),
            work: 0,
        }
    }

    /// A first placement: what the greedy placer had, the rest by best fit of persistent bytes, largest unit first. Later
    /// attempts forget a growing share of what it had, and take other launch orders.
    fn begin(&mut self, attempt: u64, placed: &[(OpId, DeviceId)]) {
        self.rng = SplitMix::new(attempt);
        let problem = self.problem;
        self.launch = match attempt % 3 {
            0 => prefix_then_order(problem, placed),
            1 => super::contiguous::depth_first(problem),
            _ => problem.graph.order().to_vec(),
        };
        let forget = attempt * 100 / RESTARTS;
        let mut home = vec![NONE; self.units.len()];
        for (op, device) in placed {
            let unit = self.units.of(*op);
            if home[unit as usize] == NONE && self.rng.below(100) >= forget {
                home[unit as usize] = *device;
            }
        }
        let mut free: Vec<Bytes> = problem.cluster.cap_bytes.clone();
        let mut open: Vec<u32> = Vec::new();
        for unit in self.units.all() {
            match home[unit as usize] {
                NONE => open.push(unit),
                device => free[device as usize] -= self.units.persistent(unit),
            }
        }
        open.sort_by_key(|unit| (std::cmp::Reverse(self.units.bytes(*unit)), *unit));
        for unit in open {
            let bytes = self.units.persistent(unit);
            let allowed =
                problem.devices().filter(|device| self.units.may_run(problem, unit, *device));
            // The tightest device with room, else the one with most room.
            let fit = |device: &DeviceId| {
                let left = free[*device as usize] - bytes;
                (left < 0, if left < 0 { -left } else { left }, *device)
            };
            let device = if attempt.is_multiple_of(2) {
                allowed.min_by_key(fit)
            } else {
                allowed.min_by_key(|device| (std::cmp::Reverse(free[*device as usize]), *device))
            };
            let device = device.expect("every unit has a home");
            home[unit as usize] = device;
            free[device as usize] -= bytes;
        }
        for op in 0..problem.num_ops() {
            self.device[op as usize] = home[self.units.of(op) as usize];
        }
    }

    fn evaluate(&mut self) -> Bytes {
        self.work += u64::from(self.problem.num_ops()) + 1;
        self.usage.overflow(self.problem, &self.device, &self.launch)
    }

    /// Local search by late acceptance (Burke and Bykov 2017); whether nothing overflows at its end.
    fn descend(&mut self) -> bool {
        const HISTORY: usize = 40;
        let mut now = self.evaluate();
        let mut history = [now; HISTORY];
        let ops = u64::from(self.problem.num_ops()) + 1;
        let most_steps = (MOST_WORK / RESTARTS / ops).clamp(200, 40_000);
        for step in 0..most_steps {
            if now == 0 {
                return true;
            }
            if self.work > MOST_WORK
                || ((step.is_multiple_of(64) || ops > 10_000)
                    && self.problem.check_cancelled().is_err())
            {
                return false;
            }
            let undo = self.change();
            if matches!(undo, Change::Nothing) {
                continue;
            }
            let then = self.evaluate();
            let slot = usize::try_from(step).unwrap_or(0) % HISTORY;
            if then <= now || then <= history[slot] {
                now = then;
            } else {
                self.undo(undo);
            }
            history[slot] = now;
        }
        now == 0
    }

    /// A random change near the trouble: units of overfull devices are moved or swapped, or an op is shifted in the order.
    fn change(&mut self) -> Change {
        if self.rng.below(5) == 0
            && let Some(change) = self.shift()
        {
            return change;
        }
        let devices = u64::from(self.problem.devices().end);
        let mut unit = u32::try_from(self.rng.below(self.units.len() as u64)).expect("31 bits");
        for _ in 0..8 {
            let home = self.device_of(unit);
            if self.usage.excess[home as usize] > 0 {
                break;
            }
            unit = u32::try_from(self.rng.below(self.units.len() as u64)).expect("31 bits");
        }
        let home = self.device_of(unit);
        let to = u32::try_from(self.rng.below(devices)).expect("15 bits");
        if to == home || !self.units.may_run(self.problem, unit, to) {
            return Change::Nothing;
        }
        if self.rng.below(2) == 0 {
            // In exchange for a unit that is there.
            let other = u32::try_from(self.rng.below(self.units.len() as u64)).expect("31 bits");
            if self.device_of(other) == to && self.units.may_run(self.problem, other, home) {
                self.put(unit, to);
                self.put(other, home);
                return Change::Moved([(unit, home), (other, to)]);
            }
        }
        self.put(unit, to);
        Change::Moved([(unit, home), (unit, home)])
    }

    /// Moves an op to another place in the order, as far as its producers and consumers let it.
    fn shift(&mut self) -> Option<Change> {
        let length = self.launch.len();
        let from = usize::try_from(self.rng.below(length as u64)).ok()?;
        let op = self.launch[from];
        let graph = self.problem.graph;
        let earlier = self.rng.below(2) == 0;
        let reach = usize::try_from(1 + self.rng.below(12)).ok()?;
        let mut to = from;
        if earlier {
            while to > 0 && from - to < reach && !graph.children(self.launch[to - 1]).contains(&op)
            {
                to -= 1;
            }
        } else {
            while to + 1 < length
                && to - from < reach
                && !graph.children(op).contains(&self.launch[to + 1])
            {
                to += 1;
            }
        }
        if to == from {
            return None;
        }
        self.rotate(from, to);
        Some(Change::Shifted { from, to })
    }

    fn rotate(&mut self, from: usize, to: usize) {
        if from < to {
            self.launch[from..=to].rotate_left(1);
        } else {
            self.launch[to..=from].rotate_right(1);
        }
    }

    fn undo(&mut self, change: Change) {
        match change {
            Change::Nothing => {}
            Change::Moved(units) => {
                for (unit, home) in units {
                    self.put(unit, home);
                }
            }
            Change::Shifted { from, to } => self.rotate(to, from),
        }
    }

    fn device_of(&self, unit: u32) -> DeviceId {
        self.device[self.units.members(unit)[0] as usize]
    }

    fn put(&mut self, unit: u32, device: DeviceId) {
        for op in self.units.members(unit) {
            self.device[*op as usize] = device;
        }
    }
}

enum Change {
    Nothing,
    Moved([(u32, DeviceId); 2]),
    Shifted { from: usize, to: usize },
}

fn prefix_then_order(problem: &Problem, placed: &[(OpId, DeviceId)]) -> Vec<OpId> {
    let mut seen = vec![false; problem.graph.num_ops];
    let mut launch: Vec<OpId> = Vec::with_capacity(problem.graph.num_ops);
    for (op, _) in placed {
        // A placer that gave up may have placed a whole group at once; an op needs its producers.
        let ready = problem.graph.inputs(*op).iter();
        if !seen[*op as usize] && ready.clone().all(|t| seen[problem.graph.producer(*t) as usize]) {
            seen[*op as usize] = true;
            launch.push(*op);
        }
    }
    launch.extend(problem.graph.order().iter().copied().filter(|op| !seen[*op as usize]));
    launch
}

/// Bytes that a decision holds if every op waits for all before it.
struct Usage {
    used: Vec<Bytes>,
    peak: Vec<Bytes>,
    /// By how much each device was overfull in the latest evaluation.
    excess: Vec<Bytes>,
    /// Uses of each tensor that are left, by device: `num_tensors x num_devices`.
    left: Vec<u32>,
    /// Uses left on the tensor's own device: local consumers and devices it must still be sent to.
    own: Vec<u32>,
}

impl Usage {
    fn new(problem: &Problem) -> Self {
        let num_devices = problem.cluster.num_devices;
        Self {
            used: vec![0; num_devices],
            peak: vec![0; num_devices],
            excess: vec![0; num_devices],
            left: vec![0; problem.graph.num_tensors * num_devices],
            own: vec![0; problem.graph.num_tensors],
        }
    }

    /// Bytes beyond the caps, summed over the devices.
    fn overflow(&mut self, problem: &Problem, device: &[DeviceId], launch: &[OpId]) -> Bytes {
        let graph = problem.graph;
        let num_devices = problem.cluster.num_devices;
        self.left.fill(0);
        self.used.fill(0);
        for op in 0..problem.num_ops() {
            let home = device[op as usize];
            self.used[home as usize] += problem.persistent_bytes(op);
            for tensor in graph.inputs(op) {
                self.left[*tensor as usize * num_devices + home as usize] += 1;
            }
        }
        for tensor in 0..u32::try_from(graph.num_tensors).expect("31 bits") {
            let at = tensor as usize * num_devices;
            let home = device[graph.producer(tensor) as usize] as usize;
            let remote = (0..num_devices).filter(|d| *d != home && self.left[at + d] > 0).count();
            self.own[tensor as usize] = self.left[at + home] + u32::try_from(remote).unwrap_or(0);
        }
        self.peak.clone_from(&self.used);
        for op in launch {
            let home = device[*op as usize] as usize;
            for tensor in graph.inputs(*op) {
                let source = device[graph.producer(*tensor) as usize] as usize;
                let at = *tensor as usize * num_devices + home;
                // The top bit marks a copy that is there.
                if source != home && self.left[at] & (1 << 31) == 0 {
                    self.left[at] |= 1 << 31;
                    self.used[home] += problem.tensor_bytes(*tensor);
                    self.release_own(problem, *tensor, source);
                }
            }
            self.used[home] += graph.output_bytes[*op as usize] + problem.scratch_bytes(*op);
            self.peak[home] = self.peak[home].max(self.used[home]);
            // What was sent in this step is on its own device until the step ends.
            self.used[home] -= problem.scratch_bytes(*op);
            for tensor in graph.inputs(*op) {
                let source = device[graph.producer(*tensor) as usize] as usize;
                let at = *tensor as usize * num_devices + home;
                self.left[at] -= 1;
                if source == home {
                    self.release_own(problem, *tensor, source);
                } else if self.left[at] & !(1 << 31) == 0 {
                    self.used[home] -= problem.tensor_bytes(*tensor);
                }
            }
        }
        let mut overflow = 0;
        for (at, peak) in self.peak.iter().enumerate() {
            self.excess[at] = (peak - problem.cluster.cap_bytes[at]).max(0);
            overflow += self.excess[at];
        }
        overflow
    }

    fn release_own(&mut self, problem: &Problem, tensor: u32, home: usize) {
        if problem.is_kept(tensor) {
            return;
        }
        self.own[tensor as usize] -= 1;
        if self.own[tensor as usize] == 0 {
            self.used[home] -= problem.tensor_bytes(tensor);
        }
    }
}
