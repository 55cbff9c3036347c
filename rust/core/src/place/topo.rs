//! m-TOPO: memory-constrained topological placement.
//!
//! Decides by walking the ops in topological order and filling one device after the other, each up to a
//! balanced share plus the largest op (Baechi, SoCC 2020, section 3). Inputs: a problem; result: its schedule.
//! O(ops + edges) time and space.
//!
//! Differences from the originals, under physical rules: the limit of a device is obeyed, memory is what is live in launch order instead of
//! the sum of all outputs, and ops left over are tried again against the limits alone.
//!
//! A chain of four ops of 2 bytes each on two devices: share 4 + 2 = 6, so the first three go to the
//! first device and the last to the second.

use super::repair;
use crate::error::{Error, Result};
use crate::launch::Waits;
use crate::list::{Effects, Room, Timeline};
use crate::problem::Problem;
use crate::request::Request;
use crate::rules::Rules;
use crate::schedule::{Decision, Schedule};
use crate::simulate;
use crate::timeline::Book;
use crate::{Bytes, DeviceId, OpId};

/// m-TOPO with the balanced share.
pub fn balanced(request: &Request) -> Result<Schedule> {
    place(request, true)
}

/// m-TOPO that fills each device to its limit.
pub fn to_the_limit(request: &Request) -> Result<Schedule> {
    place(request, false)
}

fn place(request: &Request, uniform: bool) -> Result<Schedule> {
    match request.rules {
        Rules::Physical => physical(request, uniform),
        Rules::BaechiTf => tensor_flow(request, uniform),
        Rules::BaechiTorch => py_torch(request, uniform),
    }
}

fn share(total: Bytes, largest: Bytes, num_devices: usize) -> Bytes {
    total / i64::try_from(num_devices).expect("at most 15 bits") + largest
}

fn physical(request: &Request, uniform: bool) -> Result<Schedule> {
    let book = Book::new(request.problem, request.caps(), false)?;
    repair::schedule(request, walk(request, book, uniform))
}

fn walk(request: &Request, mut book: Book, uniform: bool) -> Result<Decision> {
    let problem = request.problem;
    let graph = problem.graph;
    let bytes = |op: OpId| {
        problem.persistent_bytes(op) + problem.scratch_bytes(op) + graph.output_bytes[op as usize]
    };
    let total = (0..problem.num_ops()).map(bytes).sum();
    let largest = (0..problem.num_ops()).map(bytes).max().unwrap_or(0);
    let share = share(total, largest, problem.cluster.num_devices);
    let limits = request.caps();
    let shares = limits.iter().map(|limit| if uniform { share.min(*limit) } else { *limit });
    let mut walk = Walk { problem, caps: shares.collect(), limits, current: 0, at_limit: false };
    let mut effects = Effects::default();
    for (rank, op) in graph.order().iter().copied().enumerate() {
        let device = walk.choose(&mut book, op).map_err(|(device, needed, free)| {
            let placed = graph.order()[..rank].iter().map(|op| (*op, book.device(*op))).collect();
            Error::OutOfMemory { op, device, needed, free, placed }
        })?;
        book.commit(op, device, 0, &mut effects).expect("the book never refuses");
        book.finish(op, device, &mut effects);
        effects = Effects::default();
        if rank % 1024 == 0 {
            problem.check_cancelled()?;
        }
    }
    Ok(Decision {
        device: (0..problem.num_ops()).map(|op| book.device(op)).collect(),
        launch: graph.order().to_vec(),
        not_before: Vec::new(),
    })
}

/// The walk over the devices: never back, until ops are left over; then once more to the limits.
struct Walk<'p> {
    problem: &'p Problem<'p>,
    caps: Vec<Bytes>,
    limits: Vec<Bytes>,
    current: DeviceId,
    at_limit: bool,
}

impl Walk<'_> {
    fn choose(
        &mut self,
        book: &mut Book,
        op: OpId,
    ) -> std::result::Result<DeviceId, (DeviceId, Bytes, Bytes)> {
        if let Some(home) = book.bound_to(op) {
            return match book.room_within(op, home, &self.limits) {
                Room::Fits => Ok(home),
                Room::Short { needed, free } | Room::Full { needed, free } => {
                    Err((home, needed, free))
                }
                Room::Never => unreachable!("an op's own home may run it"),
            };
        }
        loop {
            for device in self.current..self.problem.devices().end {
                match book.room_within(op, device, &self.caps) {
                    Room::Fits => return Ok(device),
                    // The device cannot run this op, but others may still come to it.
                    Room::Never => {}
                    Room::Short { .. } | Room::Full { .. } => {
                        if device == self.current {
                            self.current += 1;
                        }
                    }
                }
            }
            if self.at_limit {
                return self.any(book, op);
            }
            self.at_limit = true;
            self.caps.clone_from(&self.limits);
            self.current = 0;
        }
    }

    /// The first device with room, or the one that comes closest.
    fn any(
        &self,
        book: &Book,
        op: OpId,
    ) -> std::result::Result<DeviceId, (DeviceId, Bytes, Bytes)> {
        let mut closest = (0, Bytes::MAX, 0);
        for device in self.problem.devices() {
            match book.room_within(op, device, &self.limits) {
                Room::Fits => return Ok(device),
                Room::Never => {}
                Room::Short { needed, free } | Room::Full { needed, free } => {
                    if closest.1 == Bytes::MAX || needed - free < closest.1 - closest.2 {
                        closest = (device, needed, free);
                    }
                }
            }
        }
        Err(closest)
    }
}

fn tensor_flow(request: &Request, uniform: bool) -> Result<Schedule> {
    let problem = request.problem;
    let bytes = request.op_bytes();
    let memory = |op: OpId| bytes.scratch[op as usize] + bytes.held[op as usize];
    let total = (0..problem.num_ops()).map(memory).sum();
    let largest = (0..problem.num_ops()).map(memory).max().unwrap_or(0);
    let share = share(total, largest, problem.cluster.num_devices);
    let caps = request.caps();
    let caps: Vec<Bytes> = caps.iter().map(|cap| if uniform { share } else { *cap }).collect();
    let mut used = vec![0; problem.cluster.num_devices];
    let mut device = vec![DeviceId::MAX; problem.graph.num_ops];
    let mut placed = Vec::new();
    let mut current = 0;
    for op in problem.graph.order().iter().copied() {
        if device[op as usize] != DeviceId::MAX {
            continue;
        }
        let group = if request.colocation { problem.graph.group(op) } else { None };
        let members =
            group.map_or_else(|| vec![op], |group| problem.graph.members().of(group).to_vec());
        let persistent: Bytes = members.iter().map(|m| bytes.persistent[*m as usize]).sum();
        let scratch = members.iter().map(|m| bytes.scratch[*m as usize]).max().unwrap_or(0);
        // With groups, the balanced share must stay below the cap: one byte more than the sum is needed.
        let needed = match (request.colocation, uniform) {
            (false, _) => memory(op),
            (true, false) => scratch + persistent,
            (true, true) => scratch + persistent + 1,
        };
        let free = |at: DeviceId| caps[at as usize] - used[at as usize];
        let may_run = |at: DeviceId| members.iter().all(|member| problem.may_run(*member, at));
        let home = next_home(problem, &mut current, may_run, |at| needed <= free(at));
        let Some(home) = home else {
            let device = tried(problem, may_run).max_by_key(|at| (free(*at), *at));
            let device = device.expect("a group has a home");
            return Err(Error::OutOfMemory { op, device, needed, free: free(device), placed });
        };
        for member in members {
            device[member as usize] = home;
            used[home as usize] += memory(member);
            placed.push((member, home));
        }
    }
    simulate::simulate_given(request, &device)
}

/// The originals' walk: the first device that is not closed, closing those without room. An op that not every
/// device may run takes the first that may and has room, and closes none.
fn next_home(
    problem: &Problem,
    current: &mut DeviceId,
    may_run: impl Fn(DeviceId) -> bool,
    fits: impl Fn(DeviceId) -> bool,
) -> Option<DeviceId> {
    let end = problem.devices().end;
    if !problem.devices().all(&may_run) {
        return (*current..end).chain(0..*current).find(|at| may_run(*at) && fits(*at));
    }
    while *current < end && !fits(*current) {
        *current += 1;
    }
    (*current < end).then_some(*current)
}

/// The devices whose lack of room ended the walk: an op that any device may run was last tried on the last.
fn tried(problem: &Problem, may_run: impl Fn(DeviceId) -> bool) -> impl Iterator<Item = DeviceId> {
    let last = problem.devices().end - 1;
    let anywhere = problem.devices().all(&may_run);
    problem.devices().filter(move |at| if anywhere { *at == last } else { may_run(*at) })
}

fn py_torch(request: &Request, uniform: bool) -> Result<Schedule> {
    let problem = request.problem;
    let bytes = request.op_bytes();
    let total = bytes.held.iter().sum();
    let largest = bytes.held.iter().copied().max().unwrap_or(0);
    let share = share(total, largest, problem.cluster.num_devices);
    let walk = request.walk.unwrap_or(problem.graph.order());
    let mut timeline = request.py_torch(request.caps());
    let mut placed: Vec<(OpId, DeviceId)> = Vec::new();
    let mut current = 0;
    for op in walk.iter().copied() {
        let room = |at: DeviceId| {
            if uniform {
                let (needed, free) = (bytes.peak[op as usize], share - timeline.used(at));
                if needed > free { Room::Short { needed, free } } else { Room::Fits }
            } else {
                timeline.room(op, at)
            }
        };
        let may_run = |at| problem.may_run(op, at);
        let home = next_home(problem, &mut current, may_run, |at| room(at) == Room::Fits);
        let Some(home) = home else {
            let lacking = tried(problem, may_run).filter_map(|device| match room(device) {
                Room::Short { needed, free } | Room::Full { needed, free } => {
                    Some((needed - free, device, needed, free))
                }
                Room::Fits | Room::Never => None,
            });
            let (_, device, needed, free) = lacking.min().expect("a device was tried");
            return Err(Error::OutOfMemory { op, device, needed, free, placed });
        };
        timeline.charge(op, home);
        placed.push((op, home));
    }
    let mut device = vec![0; problem.graph.num_ops];
    for (op, home) in &placed {
        device[*op as usize] = *home;
    }
    // The original gives no times; ours are those of running the ops in the order of the walk, if it can be run.
    let launch = placed.iter().map(|(op, _)| *op).collect();
    let decision = Decision { device, launch, not_before: Vec::new() };
    let mut schedule =
        match simulate::simulate_launched(request, &decision, &Waits::default(), false) {
            Err(Error::LaunchOrder { .. }) => simulate::simulate_given(request, &decision.device),
            schedule => schedule,
        }?;
    schedule.peak = timeline.peaks().to_vec();
    for (rank, (op, _)) in (0_u32..).zip(&placed) {
        schedule.order[*op as usize] = rank;
    }
    Ok(schedule)
}

#[cfg(test)]
mod tests {
    use super::super::tests::request;
    use super::*;
    use crate::cluster::tests::cluster;
    use crate::graph::tests::graph;
    use crate::rules::Retention;

    fn chain_on(caps: &[Bytes]) -> Result<Schedule> {
        let graph = graph(&[1; 4], &[(0, 1, 2), (1, 2, 2), (2, 3, 2)]);
        let cluster = cluster(caps, 1, 0, "serial");
        let problem = Problem::new(&graph, &cluster, Retention::Training, &|| false).unwrap();
        balanced(&request(&problem, Rules::Physical))
    }

    #[test]
    fn a_device_is_filled_to_its_share_and_the_next_one_follows() {
        // Share: 6 / 2 + 2 = 5 bytes; everything is kept, so two outputs fit the first device.
        assert_eq!(chain_on(&[100, 100]).unwrap().device, [0, 0, 1, 1]);
    }

    #[test]
    fn ops_left_over_go_where_the_limit_has_room() {
        assert_eq!(chain_on(&[100, 3]).unwrap().device[..2], [0, 0]);
    }

    #[test]
    fn an_op_that_fits_nowhere_is_named_with_its_bytes() {
        let error = chain_on(&[3, 1]).unwrap_err();
        assert!(matches!(error, Error::OutOfMemory { op: 1, .. }), "{error:?}");
    }
}
