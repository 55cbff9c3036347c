//! Contiguous splits: what a person does by hand, done by dynamic programming.
//!
//! Decides where to cut one depth-first topological order of the forward ops into k runs, one per device,
//! with least compute plus crossing transfers under the memory limits, for k = 1 to the number of devices; the
//! best by simulation is taken. Colocation groups and backward ops stay with their first forward op. Inputs: a
//! problem; result: its schedule. O(devices x (edges + cuts^2)) time with at most 512 cuts, O(ops + edges) space.
//!
//! A chain `a -> b -> c` on two devices that hold two ops each is cut behind `a` or `b`, wherever the
//! tensor that crosses is smaller.

use crate::error::{Error, Result};
use crate::problem::Problem;
use crate::request::Request;
use crate::schedule::Schedule;
use crate::{Bytes, DeviceId, Ns, OpId};

const MOST_CUTS: usize = 512;
const UNREACHED: Ns = Ns::MAX / 4;
/// How much more memory than estimated the activations are taken to need, one try after the other.
const SAFETY: [i64; 5] = [100, 125, 160, 220, 320];

/// The best contiguous split.
pub fn place(request: &Request) -> Result<Schedule> {
    let problem = request.problem;
    let chain = Chain::new(problem);
    let shares = Shares::new(problem, &chain)?;
    let devices = by_speed(problem, &chain, &shares);
    let mut best: Option<Schedule> = None;
    let mut last_error = None;
    // A device may be passed over only where no split gives each of the first few something.
    for (may_skip, percent) in [false, true].into_iter().flat_map(|skip| SAFETY.map(|p| (skip, p)))
    {
        let cuts = chain.cut(problem, &devices, &shares, percent, may_skip)?;
        for count in 1..=devices.len() {
            let Some(device) = chain.split(problem, &devices, &cuts, count) else {
                continue;
            };
            match request.schedule_given(&device) {
                Ok(schedule) => {
                    if best.as_ref().is_none_or(|known| schedule.makespan < known.makespan) {
                        best = Some(schedule);
                    }
                }
                Err(Error::Cancelled) => return Err(Error::Cancelled),
                Err(error) => last_error = Some(error),
            }
        }
        if best.is_some() {
            break;
        }
    }
    best.ok_or_else(|| last_error.unwrap_or_else(|| chain.too_large(problem, &devices, &shares)))
}

/// Units (ops that stay together) in a depth-first topological order, with prefix sums.
struct Chain {
    /// Unit of each op, by place in the chain.
    unit_of: Vec<u32>,
    num_units: usize,
    /// Prefix sums over units: persistent bytes, and outputs that are live at the peak.
    persistent: Vec<Bytes>,
    live: Vec<Bytes>,
    /// Most that an op of the unit adds to them while it runs.
    running: Vec<Bytes>,
    /// Time of the transfers that cross in front of each unit.
    crossing: Vec<Ns>,
    /// The first device that may run each op and its group.
    refuge: Vec<DeviceId>,
    cuts: Vec<usize>,
}

impl Chain {
    fn new(problem: &Problem) -> Self {
        let graph = problem.graph;
        let order = depth_first(problem);
        let (unit_of, num_units) = units(problem, &order);
        let mut persistent = vec![0; num_units + 1];
        let mut running = vec![0; num_units];
        for op in 0..problem.num_ops() {
            let unit = unit_of[op as usize] as usize;
            persistent[unit + 1] += problem.persistent_bytes(op);
        }
        let mut live = vec![0; num_units + 1];
        let mut passing = graph.output_bytes.clone();
        for tensor in live_at_peak(problem, &order) {
            let producer = graph.producer(tensor) as usize;
            live[unit_of[producer] as usize + 1] += problem.tensor_bytes(tensor);
            passing[producer] -= problem.tensor_bytes(tensor);
        }
        for op in 0..problem.num_ops() {
            let unit = unit_of[op as usize] as usize;
            let bytes = passing[op as usize] + problem.scratch_bytes(op);
            running[unit] = running[unit].max(bytes);
        }
        for unit in 0..num_units {
            persistent[unit + 1] += persistent[unit];
            live[unit + 1] += live[unit];
        }
        let crossing = crossing_ns(problem, &unit_of, num_units);
        let cuts = choose_cuts(&crossing, num_units);
        let refuge = refuges(problem);
        Self { unit_of, num_units, persistent, live, running, crossing, refuge, cuts }
    }

    /// The best cuts into one run per device, for every number of devices at once: a run on the next device is
    /// added to the best cuts for those before it.
    fn cut(
        &self,
        problem: &Problem,
        devices: &[DeviceId],
        shares: &Shares,
        percent: i64,
        may_skip: bool,
    ) -> Result<Cuts> {
        let num_cuts = self.cuts.len();
        let mut cost = vec![UNREACHED; num_cuts];
        cost[0] = 0;
        let mut found = Cuts { from: Vec::new(), is_whole: Vec::new() };
        for device in devices {
            problem.check_cancelled()?;
            let share = shares.of(*device);
            let cap = problem.cluster.cap_bytes[*device as usize];
            let mut next = if may_skip { cost.clone() } else { vec![UNREACHED; num_cuts] };
            let mut back: Vec<usize> = (0..num_cuts).collect();
            for end in 1..num_cuts {
                let mut running = 0;
                for start in (0..end).rev() {
                    let (first, last) = (self.cuts[start], self.cuts[end]);
                    running = running.max(share.running_between[start]);
                    let persistent = share.persistent[last] - share.persistent[first];
                    let live = share.live[last] - share.live[first];
                    if persistent + part(live + running, percent) > cap {
                        break;
                    }
                    if cost[start] >= UNREACHED {
                        continue;
                    }
                    let crossing = if first == 0 { 0 } else { self.crossing[first] };
                    let total = cost[start] + crossing + share.time[last] - share.time[first];
                    if total < next[end] {
                        next[end] = total;
                        back[end] = start;
                    }
                }
            }
            cost = next;
            found.from.push(back);
            found.is_whole.push(self.num_units == 0 || cost[num_cuts - 1] < UNREACHED);
        }
        Ok(found)
    }

    /// Devices of the ops under the best cuts for the first `count` devices, if those fit the estimates.
    fn split(
        &self,
        problem: &Problem,
        devices: &[DeviceId],
        cuts: &Cuts,
        count: usize,
    ) -> Option<Vec<DeviceId>> {
        if !cuts.is_whole[count - 1] {
            return None;
        }
        let mut end = self.cuts.len() - 1;
        let mut home = vec![0; self.num_units];
        for (device, back) in devices.iter().zip(&cuts.from).take(count).rev() {
            let start = back[end];
            home[self.cuts[start]..self.cuts[end]].fill(*device);
            end = start;
        }
        // A unit that may not run in its run's device goes elsewhere, all of it.
        let mut stays = vec![true; self.num_units];
        for op in 0..problem.num_ops() {
            let unit = self.unit_of[op as usize] as usize;
            stays[unit] &= problem.may_run(op, home[unit]);
        }
        let device = |op: OpId| {
            let unit = self.unit_of[op as usize] as usize;
            if stays[unit] { home[unit] } else { self.refuge[op as usize] }
        };
        Some((0..problem.num_ops()).map(device).collect())
    }

    /// What runs of units cost on a device: those that may not run there count with their time elsewhere
    /// and without bytes.
    fn share(&self, problem: &Problem, device: DeviceId) -> Share {
        let mut barred = vec![false; self.num_units];
        for op in 0..problem.num_ops() {
            barred[self.unit_of[op as usize] as usize] |= !problem.may_run(op, device);
        }
        let mut time = vec![0; self.num_units + 1];
        for op in 0..problem.num_ops() {
            let unit = self.unit_of[op as usize] as usize;
            let home = if barred[unit] { self.refuge[op as usize] } else { device };
            time[unit + 1] += problem.compute_ns(op, home);
        }
        let (mut persistent, mut live) = (self.persistent.clone(), self.live.clone());
        let mut running = self.running.clone();
        for unit in 0..self.num_units {
            let held = |sums: &[Bytes]| {
                if barred[unit] { 0 } else { sums[unit + 1] - sums[unit] }
            };
            persistent[unit + 1] = persistent[unit] + held(&self.persistent);
            live[unit + 1] = live[unit] + held(&self.live);
            if barred[unit] {
                running[unit] = 0;
            }
            time[unit + 1] += time[unit];
        }
        let num_barred = barred.iter().filter(|barred| **barred).count();
        let most = |run: &[usize]| running[run[0]..run[1]].iter().copied().max().unwrap_or(0);
        let running_between = self.cuts.windows(2).map(most).collect();
        Share { time, persistent, live, running, running_between, num_barred }
    }

    /// The first unit that is left over when one device after the other is filled with whole units.
    fn too_large(&self, problem: &Problem, devices: &[DeviceId], shares: &Shares) -> Error {
        let (mut unit, mut at) = (0, 0);
        let (mut needed, mut free) = (0, 0);
        while unit < self.num_units && at < devices.len() {
            let share = shares.of(devices[at]);
            free = problem.cluster.cap_bytes[devices[at] as usize];
            let mut running = 0;
            while unit < self.num_units {
                let held = |sums: &[Bytes]| sums[unit + 1] - sums[unit];
                let bytes = held(&share.persistent) + held(&share.live);
                running = running.max(share.running[unit]);
                needed = bytes + running;
                if needed > free {
                    break;
                }
                free -= bytes;
                unit += 1;
            }
            at += 1;
        }
        let left = unit.min(self.num_units - 1);
        let in_unit = |op: &OpId| self.unit_of[*op as usize] as usize == left;
        let op = problem.graph.order().iter().copied().find(in_unit).unwrap_or(0);
        let device = devices[at - 1];
        if unit < self.num_units {
            return Error::OutOfMemory { op, device, needed, free, placed: Vec::new() };
        }
        let reason = "no split at the places looked at fits";
        Error::Stuck { op, device, reason, placed: Vec::new() }
    }
}

/// What units cost on one device: prefix sums of time and bytes, and what each adds while it runs.
struct Share {
    time: Vec<Ns>,
    persistent: Vec<Bytes>,
    live: Vec<Bytes>,
    running: Vec<Bytes>,
    /// The most of `running` between each place to cut and the next.
    running_between: Vec<Bytes>,
    num_barred: usize,
}

/// The shares of all devices; devices that are alike have one together.
struct Shares {
    shares: Vec<Share>,
    of_device: Vec<usize>,
}

impl Shares {
    fn new(problem: &Problem, chain: &Chain) -> Result<Self> {
        let mut shares = Vec::new();
        let mut of_device: Vec<usize> = Vec::new();
        for device in problem.devices() {
            let alike = (0..device).find(|other| problem.run_the_same(*other, device));
            let Some(alike) = alike else {
                problem.check_cancelled()?;
                of_device.push(shares.len());
                shares.push(chain.share(problem, device));
                continue;
            };
            of_device.push(of_device[alike as usize]);
        }
        Ok(Self { shares, of_device })
    }

    fn of(&self, device: DeviceId) -> &Share {
        &self.shares[self.of_device[device as usize]]
    }
}

/// The best cuts for each number of devices.
struct Cuts {
    /// For each device and end of its run, the place where that run starts.
    from: Vec<Vec<usize>>,
    /// Whether so many devices take the whole chain.
    is_whole: Vec<bool>,
}

/// The first device that may run each op and its group.
fn refuges(problem: &Problem) -> Vec<DeviceId> {
    let mut of_group = vec![DeviceId::MAX; problem.graph.members().len()];
    let first = |op| {
        let mut devices = problem.devices();
        devices.find(|device| problem.group_may_run(op, *device)).expect("every op has a home")
    };
    let refuge = |op| match problem.graph.group(op) {
        Some(group) if of_group[group as usize] != DeviceId::MAX => of_group[group as usize],
        Some(group) => {
            of_group[group as usize] = first(op);
            of_group[group as usize]
        }
        None => first(op),
    };
    (0..problem.num_ops()).map(refuge).collect()
}

/// So many percent of the bytes, without overflow.
fn part(bytes: Bytes, percent: i64) -> Bytes {
    bytes / 100 * percent + bytes % 100 * percent / 100
}

/// Ops behind their producers, each producer as late as its first consumer lets it be: the postorder of a
/// depth-first search from the ops that nobody consumes, along in-edges in their order.
pub(super) fn depth_first(problem: &Problem) -> Vec<OpId> {
    let graph = problem.graph;
    let mut order = Vec::with_capacity(graph.num_ops);
    let mut seen = vec![false; graph.num_ops];
    let mut path: Vec<(OpId, usize)> = Vec::new();
    for last in graph.order().iter().copied().filter(|op| graph.children(*op).is_empty()) {
        seen[last as usize] = true;
        path.push((last, 0));
        while let Some((op, next)) = path.pop() {
            let Some(tensor) = graph.inputs(op).get(next) else {
                order.push(op);
                continue;
            };
            path.push((op, next + 1));
            let producer = graph.producer(*tensor);
            if !seen[producer as usize] {
                seen[producer as usize] = true;
                path.push((producer, 0));
            }
        }
    }
    order
}

/// Unit of each op, numbered by the place of its first op in `order`, and how many units there are.
fn units(problem: &Problem, order: &[OpId]) -> (Vec<u32>, usize) {
    let graph = problem.graph;
    let mut root: Vec<u32> = (0..problem.num_ops()).collect();
    for group in 0..u32::try_from(graph.members().len()).expect("at most one per op") {
        for pair in graph.members().of(group).windows(2) {
            join(&mut root, pair[0], pair[1]);
        }
    }
    for (op, forward) in (0_u32..).zip(&graph.columns.forward_op) {
        if let Ok(forward) = u32::try_from(*forward) {
            join(&mut root, forward, op);
        }
    }
    let mut number = vec![u32::MAX; graph.num_ops];
    let mut unit_of = vec![0; graph.num_ops];
    let mut num_units = 0;
    for op in order {
        let root = find(&mut root, *op) as usize;
        if number[root] == u32::MAX {
            number[root] = num_units;
            num_units += 1;
        }
        unit_of[*op as usize] = number[root];
    }
    (unit_of, num_units as usize)
}

fn find(root: &mut [u32], mut op: u32) -> u32 {
    while root[op as usize] != op {
        root[op as usize] = root[root[op as usize] as usize];
        op = root[op as usize];
    }
    op
}

fn join(root: &mut [u32], one: u32, other: u32) {
    let (one, other) = (find(root, one), find(root, other));
    root[one.max(other) as usize] = one.min(other);
}

/// Tensors that are live at the moment of most live bytes when the order is run on one device.
fn live_at_peak(problem: &Problem, order: &[OpId]) -> Vec<u32> {
    let graph = problem.graph;
    let mut place = vec![0; graph.num_ops];
    for (rank, op) in order.iter().enumerate() {
        place[*op as usize] = rank;
    }
    let span = |tensor: u32| {
        let first = place[graph.producer(tensor) as usize];
        let last = graph.consumers(tensor).iter().map(|op| place[*op as usize]).max();
        (first, if problem.is_kept(tensor) { order.len() } else { last.unwrap_or(order.len()) })
    };
    let tensors = 0..u32::try_from(graph.num_tensors).expect("31 bits");
    let mut change = vec![0; order.len() + 2];
    for tensor in tensors.clone() {
        let (first, last) = span(tensor);
        change[first] += problem.tensor_bytes(tensor);
        change[last + 1] -= problem.tensor_bytes(tensor);
    }
    let (mut used, mut most, mut peak) = (0, Bytes::MIN, 0);
    for (rank, change) in change.iter().enumerate().take(order.len()) {
        used += change;
        if used > most {
            (most, peak) = (used, rank);
        }
    }
    let is_live = |tensor: &u32| {
        let (first, last) = span(*tensor);
        first <= peak && peak <= last
    };
    tensors.filter(is_live).collect()
}

fn crossing_ns(problem: &Problem, unit_of: &[u32], num_units: usize) -> Vec<Ns> {
    let graph = problem.graph;
    let mut crossing = vec![0; num_units + 1];
    if problem.cluster.num_devices == 1 {
        return crossing;
    }
    for tensor in 0..u32::try_from(graph.num_tensors).expect("31 bits") {
        let home = unit_of[graph.producer(tensor) as usize];
        let consumers = graph.consumers(tensor).iter().map(|op| unit_of[*op as usize]);
        let (first, last) =
            consumers.fold((home, home), |(first, last), unit| (first.min(unit), last.max(unit)));
        let duration = problem.transfer_ns(tensor, 0, 1);
        crossing[first as usize + 1] += duration;
        crossing[last as usize + 1] -= duration;
    }
    for unit in 0..num_units {
        crossing[unit + 1] += crossing[unit];
    }
    crossing
}

/// All places between units, or the cheapest of each of some 500 equal stretches.
fn choose_cuts(crossing: &[Ns], num_units: usize) -> Vec<usize> {
    if num_units <= MOST_CUTS {
        return (0..=num_units).collect();
    }
    let mut cuts = vec![0];
    for stretch in 0..MOST_CUTS {
        let first = (stretch * num_units / MOST_CUTS).max(1);
        let last = (stretch + 1) * num_units / MOST_CUTS;
        cuts.extend((first..last).min_by_key(|unit| crossing[*unit]));
    }
    cuts.push(num_units);
    cuts
}

/// Devices by the time all ops would take there, fastest first; a device that cannot run some counts as slow.
fn by_speed(problem: &Problem, chain: &Chain, shares: &Shares) -> Vec<DeviceId> {
    let mut devices: Vec<DeviceId> = problem.devices().collect();
    let key = |device: &DeviceId| {
        let share = shares.of(*device);
        (share.num_barred, share.time[chain.num_units], *device)
    };
    devices.sort_by_cached_key(key);
    devices
}

#[cfg(test)]
mod tests {
    use super::super::tests::request;
    use super::*;
    use crate::cluster::tests::cluster;
    use crate::graph::Graph;
    use crate::graph::tests::columns;
    use crate::rules::{Retention, Rules};

    /// Devices of a chain of three ops with 5 persistent bytes each.
    fn split(tensors: [Bytes; 2], caps: &[Bytes]) -> Result<Vec<DeviceId>> {
        let mut columns = columns(&[5; 3], &[(0, 1, tensors[0]), (1, 2, tensors[1])]);
        columns.persistent_bytes = vec![5; 3];
        let graph = Graph::new(columns).unwrap();
        let cluster = cluster(caps, 1, 1_000_000_000, "duplex");
        let problem = Problem::new(&graph, &cluster, Retention::Liveness, &|| false).unwrap();
        Ok(place(&request(&problem, Rules::Physical))?.device)
    }

    #[test]
    fn the_cut_is_where_the_smaller_tensor_crosses() {
        assert_eq!(split([2, 1], &[13, 13]).unwrap(), [0, 0, 1]);
        assert_eq!(split([1, 2], &[13, 13]).unwrap(), [0, 1, 1]);
    }

    #[test]
    fn one_device_is_taken_where_everything_fits() {
        assert_eq!(split([2, 1], &[18, 18]).unwrap(), [0, 0, 0]);
    }

    #[test]
    fn a_device_that_is_too_small_is_passed_over() {
        assert_eq!(split([2, 1], &[13, 1, 13]).unwrap(), [0, 0, 2]);
    }

    #[test]
    fn an_op_that_may_not_run_in_its_run_goes_elsewhere() {
        let mut columns = columns(&[5; 3], &[(0, 1, 1), (1, 2, 1)]);
        columns.allowed_set = vec![-1, 0, -1];
        let graph = Graph::new(columns).unwrap();
        let mut of_two = cluster(&[9, 9], 1, 1_000_000_000, "duplex").columns;
        of_two.allowed = vec![0, 1];
        let cluster = crate::cluster::Cluster::new(of_two).unwrap();
        let problem = Problem::new(&graph, &cluster, Retention::Liveness, &|| false).unwrap();
        assert_eq!(place(&request(&problem, Rules::Physical)).unwrap().device, [1, 1, 1]);
    }

    #[test]
    fn what_fits_nowhere_is_an_error() {
        let error = split([2, 1], &[4, 4]).unwrap_err();
        assert!(matches!(error, Error::OutOfMemory { .. }), "{error:?}");
    }
}
