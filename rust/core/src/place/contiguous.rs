//! Contiguous splits: what a person does by hand, done by dynamic programming.
//!
//! Decides where to cut one depth-first topological order of the forward ops into k runs, one per device,
//! with least compute plus crossing transfers under the memory limits, for k = 1 to the number of devices; the
//! best by simulation is taken. Colocation groups and backward ops stay with their first forward op. Inputs: a
//! problem; result: its schedule. O(edges + devices x cuts^2) time with at most 512 cuts, O(ops + edges) space.
//!
//! A chain `a -> b -> c` on two devices that hold two ops each is cut behind `a` or `b`, wherever the
//! tensor that crosses is smaller.

use crate::error::{Error, Result};
use crate::problem::Problem;
use crate::request::Request;
use crate::schedule::Schedule;
use crate::{Bytes, DeviceId, Ns, OpId};

const MOST_CUTS: usize = 512;
/// How much more memory than estimated the activations are taken to need, one try after the other.
const SAFETY: [i64; 5] = [100, 125, 160, 220, 320];

/// The best contiguous split.
pub fn place(request: &Request) -> Result<Schedule> {
    let problem = request.problem;
    let chain = Chain::new(problem);
    let devices = by_speed(problem, &chain);
    let mut best: Option<Schedule> = None;
    let mut last_error = None;
    for percent in SAFETY {
        for count in 1..=devices.len() {
            problem.check_cancelled()?;
            let Some(device) = chain.split(problem, &devices[..count], percent) else {
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
    best.ok_or_else(|| last_error.unwrap_or_else(|| chain.too_large(problem)))
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
        Self { unit_of, num_units, persistent, live, running, crossing, cuts }
    }

    /// Devices of the ops when the chain is cut into one run per device, if that fits the estimates.
    fn split(
        &self,
        problem: &Problem,
        devices: &[DeviceId],
        percent: i64,
    ) -> Option<Vec<DeviceId>> {
        const UNREACHED: Ns = Ns::MAX / 4;
        let mut cost = vec![UNREACHED; self.cuts.len()];
        cost[0] = 0;
        let mut from: Vec<Vec<usize>> = Vec::new();
        for device in devices {
            let time = self.compute_prefix(problem, *device);
            let cap = problem.cluster.cap_bytes[*device as usize];
            let mut next = vec![UNREACHED; self.cuts.len()];
            let mut back = vec![0; self.cuts.len()];
            for end in 1..self.cuts.len() {
                let mut running = 0;
                for start in (0..end).rev() {
                    let (first, last) = (self.cuts[start], self.cuts[end]);
                    for unit in first..self.cuts[start + 1] {
                        running = running.max(self.running[unit]);
                    }
                    let persistent = self.persistent[last] - self.persistent[first];
                    let live = self.live[last] - self.live[first];
                    let needed = persistent + (live + running) / 100 * percent;
                    if needed > cap {
                        break;
                    }
                    let Some(compute) = time.between(first, last) else {
                        break;
                    };
                    if cost[start] >= UNREACHED {
                        continue;
                    }
                    let crossing = if first == 0 { 0 } else { self.crossing[first] };
                    let total = cost[start] + crossing + compute;
                    if total < next[end] {
                        next[end] = total;
                        back[end] = start;
                    }
                }
            }
            cost = next;
            from.push(back);
        }
        let mut end = self.cuts.len() - 1;
        if cost[end] >= UNREACHED {
            return None;
        }
        let mut home = vec![0; self.num_units];
        for (device, back) in devices.iter().zip(&from).rev() {
            let start = back[end];
            home[self.cuts[start]..self.cuts[end]].fill(*device);
            end = start;
        }
        Some(self.unit_of.iter().map(|unit| home[*unit as usize]).collect())
    }

    fn compute_prefix(&self, problem: &Problem, device: DeviceId) -> ComputePrefix {
        let mut time = vec![0; self.num_units + 1];
        let mut barred = vec![0_u32; self.num_units + 1];
        for op in 0..problem.num_ops() {
            let unit = self.unit_of[op as usize] as usize;
            if problem.may_run(op, device) {
                time[unit + 1] += problem.compute_ns(op, device);
            } else {
                barred[unit + 1] += 1;
            }
        }
        for unit in 0..self.num_units {
            time[unit + 1] += time[unit];
            barred[unit + 1] += barred[unit];
        }
        ComputePrefix { time, barred }
    }

    fn too_large(&self, problem: &Problem) -> Error {
        let caps = &problem.cluster.cap_bytes;
        let device = problem.devices().max_by_key(|at| caps[*at as usize]).unwrap_or(0);
        let op = problem.graph.order().first().copied().unwrap_or(0);
        let needed = self.persistent[self.num_units] + self.live[self.num_units];
        let free = caps.iter().fold(0_i64, |sum, cap| sum.saturating_add(*cap));
        Error::OutOfMemory { op, device, needed, free, placed: Vec::new() }
    }
}

/// Compute time of runs of units on one device.
struct ComputePrefix {
    time: Vec<Ns>,
    barred: Vec<u32>,
}

impl ComputePrefix {
    fn between(&self, first: usize, last: usize) -> Option<Ns> {
        let runs = self.barred[last] == self.barred[first];
        runs.then(|| self.time[last] - self.time[first])
    }
}

/// Ops behind their producers, each producer as late as its first consumer lets it be: the postorder of a
/// depth-first search from the ops that nobody consumes, along in-edges in their order.
fn depth_first(problem: &Problem) -> Vec<OpId> {
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
fn by_speed(problem: &Problem, chain: &Chain) -> Vec<DeviceId> {
    let mut devices: Vec<DeviceId> = problem.devices().collect();
    let key = |device: &DeviceId| {
        let prefix = chain.compute_prefix(problem, *device);
        (prefix.barred[chain.num_units], prefix.time[chain.num_units], *device)
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
    fn what_fits_nowhere_is_an_error() {
        let error = split([2, 1], &[4, 4]).unwrap_err();
        assert!(matches!(error, Error::OutOfMemory { .. }), "{error:?}");
    }
}
