//! Baselines that choose devices without looking at time: one device, round robin, random.

use crate::error::{Error, Result};
use crate::random::SplitMix;
use crate::request::Request;
use crate::schedule::Schedule;
use crate::{Bytes, DeviceId};

/// Everything on one device: the one with the least makespan among those where it fits, the first on a tie.
/// Ops that may not run there go to the first device that may run them.
pub fn single(request: &Request) -> Result<Schedule> {
    let problem = request.problem;
    let mut best: Option<Schedule> = None;
    let mut first_error = None;
    let mut tried: Vec<DeviceId> = Vec::new();
    for device in problem.devices() {
        if tried.iter().any(|other| are_alike(request, *other, device)) {
            continue;
        }
        tried.push(device);
        match request.schedule_given(&homes(request, false, |_| device)) {
            Ok(schedule) => {
                if best.as_ref().is_none_or(|known| schedule.makespan < known.makespan) {
                    best = Some(schedule);
                }
            }
            Err(Error::Cancelled) => return Err(Error::Cancelled),
            Err(error) => first_error = first_error.or(Some(error)),
        }
    }
    best.ok_or_else(|| first_error.expect("a cluster has a device"))
}

/// The ops, or their colocation groups, dealt out in topological order.
pub fn round_robin(request: &Request) -> Result<Schedule> {
    let num_devices = request.problem.devices().end;
    request.schedule_given(&homes(request, true, |unit| unit % num_devices))
}

/// Each op, or colocation group, on a device drawn with the request's seed.
pub fn random(request: &Request) -> Result<Schedule> {
    let num_devices = u64::from(request.problem.devices().end);
    let mut rng = SplitMix::new(request.seed);
    let draw = |_| u32::try_from(rng.below(num_devices)).expect("15 bits");
    request.schedule_given(&homes(request, true, draw))
}

/// Device of each op: `wish(unit)` asked once per op or group in topological order, else the next device
/// that may run the unit and, if `spill`, has room for its persistent bytes.
fn homes(request: &Request, spill: bool, mut wish: impl FnMut(u32) -> DeviceId) -> Vec<DeviceId> {
    let problem = request.problem;
    let mut device = vec![DeviceId::MAX; problem.graph.num_ops];
    let mut held: Vec<Bytes> = vec![0; problem.cluster.num_devices];
    let mut unit = 0;
    let end = problem.devices().end;
    for op in problem.graph.order().iter().copied() {
        if device[op as usize] != DeviceId::MAX {
            continue;
        }
        let alone = [op];
        let members = problem.graph.group(op).map_or(&alone[..], |g| problem.graph.members().of(g));
        let bytes: Bytes = members.iter().map(|member| problem.persistent_bytes(*member)).sum();
        let wished = wish(unit);
        let in_turn = || (wished..end).chain(0..wished);
        let may_run = |at: &DeviceId| members.iter().all(|m| problem.may_run(*m, *at));
        let has_room =
            |at: &DeviceId| held[*at as usize] + bytes <= problem.cluster.cap_bytes[*at as usize];
        let home = in_turn()
            .find(|at| may_run(at) && (!spill || has_room(at)))
            .or_else(|| in_turn().find(may_run))
            .expect("every unit has a home");
        held[home as usize] += bytes;
        for member in members {
            device[*member as usize] = home;
        }
        unit += 1;
    }
    device
}

/// Whether two devices give the same single-device schedule.
fn are_alike(request: &Request, one: DeviceId, other: DeviceId) -> bool {
    let cluster = request.problem.cluster;
    let key = |device: DeviceId| {
        let at = device as usize;
        (cluster.columns.kind[at], cluster.columns.speed[at].to_bits(), cluster.cap_bytes[at])
    };
    cluster.num_sets == 0
        && cluster.columns.kind.iter().all(|kind| *kind == cluster.columns.kind[0])
        && key(one) == key(other)
}

#[cfg(test)]
mod tests {
    use super::super::tests::with_request;
    use super::*;
    use crate::rules::Rules;

    #[test]
    fn a_single_device_runs_everything() {
        with_request(&[1, 2, 3], &[(0, 1, 4)], 1, Rules::Physical, |request| {
            let schedule = single(request).unwrap();
            assert_eq!((schedule.makespan, schedule.transfers.len()), (6, 0));
        });
    }

    #[test]
    fn round_robin_deals_ops_out_in_order() {
        with_request(&[1; 5], &[], 1, Rules::Physical, |request| {
            assert_eq!(round_robin(request).unwrap().device, [0, 1, 0, 1, 0]);
        });
    }

    #[test]
    fn a_seed_always_draws_the_same_devices() {
        with_request(&[1; 64], &[], 1, Rules::Physical, |request| {
            let schedule = random(request).unwrap();
            assert_eq!(schedule.device, random(request).unwrap().device);
            assert!(schedule.device.contains(&0) && schedule.device.contains(&1));
        });
    }
}
