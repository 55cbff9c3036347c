//! A graph and a cluster together: what each op costs on each device, and where it may run.

use crate::cluster::{Channels, Cluster};
use crate::error::{Error, Result};
use crate::graph::{FORWARD, Graph};
use crate::rules::Retention;
use crate::{Bytes, Cancelled, DeviceId, Ns, OpId, TensorId, UNLIMITED};

/// Everything a placer or simulator is given. Borrowed, immutable.
pub struct Problem<'a> {
    pub graph: &'a Graph,
    pub cluster: &'a Cluster,
    pub retention: Retention,
    cancelled: Cancelled<'a>,
    /// Compute times per class of device (same kind and speed), -1 where it cannot run.
    class_ns: Vec<Vec<Ns>>,
    class_of: Vec<usize>,
    /// Transfer time of each tensor, where every link takes the same; else empty.
    uniform_ns: Vec<Ns>,
    /// Links that may be the fastest for some tensor: no other has less latency and more bandwidth.
    best_links: Vec<(DeviceId, DeviceId)>,
    /// Whether every op may run on every device.
    runs_anywhere: bool,
}

impl<'a> Problem<'a> {
    /// Joins a graph and a cluster.
    ///
    /// # Errors
    /// [`Error::Value`] where their indices do not match, [`Error::NowhereToRun`] for an op that no device
    /// may run, [`Error::GroupNowhereToRun`] for a group without a common device, [`Error::Overflow`] if
    /// a schedule could exceed 64 bits.
    pub fn new(
        graph: &'a Graph,
        cluster: &'a Cluster,
        retention: Retention,
        cancelled: Cancelled<'a>,
    ) -> Result<Self> {
        check_indices(graph, cluster)?;
        let (class_ns, class_of) = compute_classes(graph, cluster);
        let uniform_ns = Vec::new();
        let mut problem = Self {
            graph,
            cluster,
            retention,
            cancelled,
            class_ns,
            class_of,
            uniform_ns,
            best_links: cluster.best_links(),
            runs_anywhere: false,
        };
        problem.runs_anywhere = cluster.num_sets == 0
            && problem.class_ns.iter().flatten().all(|duration| *duration >= 0);
        problem.uniform_ns = problem.uniform_transfers();
        problem.check_homes()?;
        problem.check_length()?;
        Ok(problem)
    }

    /// Number of ops as an index type.
    #[must_use]
    pub fn num_ops(&self) -> u32 {
        u32::try_from(self.graph.num_ops).expect("checked to fit 31 bits")
    }

    /// All devices, in cluster order.
    #[must_use]
    pub fn devices(&self) -> std::ops::Range<DeviceId> {
        0..u32::try_from(self.cluster.num_devices).expect("checked to fit 15 bits")
    }

    /// Compute time of an op on a device that may run it.
    #[must_use]
    pub fn compute_ns(&self, op: OpId, device: DeviceId) -> Ns {
        self.class_ns[self.class_of[device as usize]][op as usize]
    }

    /// Compute times of all ops on a device; -1 where it cannot run them.
    #[must_use]
    pub fn compute_column(&self, device: DeviceId) -> &[Ns] {
        &self.class_ns[self.class_of[device as usize]]
    }

    /// Whether kind and pins let the op run on the device.
    #[must_use]
    pub fn may_run(&self, op: OpId, device: DeviceId) -> bool {
        if self.runs_anywhere {
            return true;
        }
        if self.compute_ns(op, device) < 0 {
            return false;
        }
        match usize::try_from(self.graph.columns.allowed_set[op as usize]) {
            Ok(set) => {
                self.cluster.columns.allowed[set * self.cluster.num_devices + device as usize] != 0
            }
            Err(_) => true,
        }
    }

    /// Whether two devices run the same ops, each in the same time.
    #[must_use]
    pub fn run_the_same(&self, one: DeviceId, other: DeviceId) -> bool {
        let num_devices = self.cluster.num_devices;
        let sets = self.cluster.columns.allowed.chunks(num_devices);
        let (at, beside) = (one as usize, other as usize);
        self.class_of[at] == self.class_of[beside]
            && sets.into_iter().all(|set| (set[at] != 0) == (set[beside] != 0))
    }

    /// Whether every member of the op's group may run on the device.
    #[must_use]
    pub fn group_may_run(&self, op: OpId, device: DeviceId) -> bool {
        match self.graph.group(op) {
            Some(group) => {
                self.graph.members().of(group).iter().all(|member| self.may_run(*member, device))
            }
            None => self.may_run(op, device),
        }
    }

    /// Transfer time of a tensor between two different devices.
    #[must_use]
    pub fn transfer_ns(&self, tensor: TensorId, source: DeviceId, destination: DeviceId) -> Ns {
        match self.uniform_ns.get(tensor as usize) {
            Some(duration) => *duration,
            None => self.link_transfer_ns(tensor, source, destination),
        }
    }

    /// Least transfer time of a tensor from a device to any other; 0 if there is no other.
    #[must_use]
    pub fn least_transfer_ns(&self, tensor: TensorId, source: DeviceId) -> Ns {
        if let Some(duration) = self.uniform_ns.get(tensor as usize) {
            return *duration;
        }
        let others = self.devices().filter(|device| *device != source);
        others.map(|device| self.transfer_ns(tensor, source, device)).min().unwrap_or(0)
    }

    /// Greatest transfer time of a tensor from a device to any other; 0 if there is no other.
    #[must_use]
    pub fn longest_transfer_ns(&self, tensor: TensorId, source: DeviceId) -> Ns {
        if let Some(duration) = self.uniform_ns.get(tensor as usize) {
            return *duration;
        }
        let others = self.devices().filter(|device| *device != source);
        others.map(|device| self.transfer_ns(tensor, source, device)).max().unwrap_or(0)
    }

    /// Least transfer time of a tensor between any two devices; 0 if there is only one.
    #[must_use]
    pub fn cheapest_transfer_ns(&self, tensor: TensorId) -> Ns {
        if let Some(duration) = self.uniform_ns.get(tensor as usize) {
            return *duration;
        }
        let times = self.best_links.iter().map(|(from, to)| self.transfer_ns(tensor, *from, *to));
        times.min().unwrap_or(0)
    }

    fn link_transfer_ns(&self, tensor: TensorId, source: DeviceId, destination: DeviceId) -> Ns {
        let given = self.graph.columns.tensor_transfer_ns[tensor as usize];
        if given >= 0 {
            return given.min(UNLIMITED);
        }
        self.cluster.transfer_ns(
            self.graph.columns.tensor_bytes[tensor as usize],
            source,
            destination,
        )
    }

    /// Channels of the link between two devices.
    #[must_use]
    pub fn channels(&self, source: DeviceId, destination: DeviceId) -> Channels {
        self.cluster.channels(source, destination)
    }

    /// Bytes of a tensor.
    #[must_use]
    pub fn tensor_bytes(&self, tensor: TensorId) -> Bytes {
        self.graph.columns.tensor_bytes[tensor as usize]
    }

    /// Persistent bytes of an op.
    #[must_use]
    pub fn persistent_bytes(&self, op: OpId) -> Bytes {
        self.graph.columns.persistent_bytes[op as usize]
    }

    /// Scratch bytes of an op.
    #[must_use]
    pub fn scratch_bytes(&self, op: OpId) -> Bytes {
        self.graph.columns.scratch_bytes[op as usize]
    }

    /// Whether a tensor stays on its producer's device to the end of the step.
    #[must_use]
    pub fn is_kept(&self, tensor: TensorId) -> bool {
        let role = self.graph.columns.role[self.graph.producer(tensor) as usize];
        self.graph.consumers(tensor).is_empty()
            || (self.retention == Retention::Training && role == FORWARD)
    }

    /// Stops a long call when the caller asked for it; cheap enough for every few hundred steps.
    ///
    /// # Errors
    /// [`Error::Cancelled`].
    pub fn check_cancelled(&self) -> Result<()> {
        if (self.cancelled)() { Err(Error::Cancelled) } else { Ok(()) }
    }

    /// Times that no schedule can beat: the longest path of compute times, and all of them spread evenly over the
    /// devices, each op on the fastest device that may run it.
    #[must_use]
    pub fn lower_bounds(&self) -> (Ns, Ns) {
        let mut begin = vec![0; self.graph.num_ops];
        let (mut path, mut work) = (0, 0);
        for op in self.graph.order().iter().copied() {
            let homes = self.devices().filter(|device| self.may_run(op, *device));
            let fastest = homes.map(|device| self.compute_ns(op, device)).min().unwrap_or(0);
            let end = begin[op as usize] + fastest;
            work += fastest;
            path = path.max(end);
            for child in self.graph.children(op) {
                begin[*child as usize] = end.max(begin[*child as usize]);
            }
        }
        let num_devices = i64::from(self.devices().end);
        (path, (work + num_devices - 1) / num_devices)
    }

    fn uniform_transfers(&self) -> Vec<Ns> {
        let num_devices = self.cluster.num_devices;
        let columns = &self.cluster.columns;
        let links = (0..num_devices * num_devices).filter(|link| link % (num_devices + 1) != 0);
        let mut figures = links.map(|link| (columns.latency_ns[link], columns.bytes_per_s[link]));
        let Some(first) = figures.next() else { return Vec::new() };
        if figures.any(|figure| figure != first) {
            return Vec::new();
        }
        let tensors = 0..u32::try_from(self.graph.num_tensors).expect("checked to fit 31 bits");
        tensors.map(|tensor| self.link_transfer_ns(tensor, 0, 1)).collect()
    }

    fn check_homes(&self) -> Result<()> {
        for op in 0..self.num_ops() {
            if !self.devices().any(|device| self.may_run(op, device)) {
                return Err(Error::NowhereToRun { op });
            }
        }
        let members = self.graph.members();
        for group in 0..u32::try_from(members.len()).expect("at most one group per op") {
            if let Some(first) = members.of(group).first()
                && !self.devices().any(|device| self.group_may_run(*first, device))
            {
                return Err(Error::GroupNowhereToRun { op: *first });
            }
        }
        Ok(())
    }

    /// All compute plus all transfers one after the other must fit.
    fn check_length(&self) -> Result<()> {
        let mut total: i128 = 0;
        for op in 0..self.graph.num_ops {
            total += i128::from(self.class_ns.iter().map(|ns| ns[op]).max().unwrap_or(0).max(0));
        }
        let columns = &self.cluster.columns;
        let latency = columns.latency_ns.iter().max().copied().unwrap_or(0);
        let slowest = columns.bytes_per_s.iter().filter(|rate| **rate > 0).min().copied();
        for tensor in 0..u32::try_from(self.graph.num_tensors).expect("checked to fit 31 bits") {
            let copies = self.graph.consumers(tensor).len().min(self.cluster.num_devices - 1);
            let given = self.graph.columns.tensor_transfer_ns[tensor as usize];
            let longest = match (self.uniform_ns.get(tensor as usize), given) {
                (Some(duration), _) => i128::from(*duration),
                (None, 0..) => i128::from(given),
                (None, _) => {
                    let bytes = i128::from(self.tensor_bytes(tensor)) * 1_000_000_000;
                    i128::from(latency) + slowest.map_or(0, |rate| bytes / i128::from(rate) + 1)
                }
            };
            total += longest * i128::try_from(copies).expect("a small count");
        }
        if total < i128::from(UNLIMITED) {
            Ok(())
        } else {
            Err(Error::Overflow { what: "compute and transfer times" })
        }
    }
}

fn check_indices(graph: &Graph, cluster: &Cluster) -> Result<()> {
    let num_kinds = graph.num_kinds;
    let kinds = &cluster.columns.kind;
    // Without ops there are no rows of compute times to miss.
    let end = if graph.num_ops == 0 { usize::MAX } else { num_kinds };
    let bad_kind = |kind: &i32| usize::try_from(*kind).map_or(true, |kind| kind >= end);
    if let Some(index) = kinds.iter().position(bad_kind) {
        return Err(Error::Value { what: "kind", index, value: i64::from(kinds[index]) });
    }
    let sets = &graph.columns.allowed_set;
    let bad_set = |set: &i32| usize::try_from(*set).is_ok_and(|set| set >= cluster.num_sets);
    if let Some(index) = sets.iter().position(bad_set) {
        return Err(Error::Value { what: "allowed_set", index, value: i64::from(sets[index]) });
    }
    Ok(())
}

fn compute_classes(graph: &Graph, cluster: &Cluster) -> (Vec<Vec<Ns>>, Vec<usize>) {
    let mut keys: Vec<(i32, u64)> = Vec::new();
    let mut class_ns = Vec::new();
    let mut class_of = Vec::new();
    for (kind, speed) in cluster.columns.kind.iter().zip(&cluster.columns.speed) {
        let key = (*kind, speed.to_bits());
        let class = keys.iter().position(|known| *known == key).unwrap_or_else(|| {
            keys.push(key);
            let row = usize::try_from(*kind).expect("checked") * graph.num_ops;
            let column = &graph.columns.compute_ns[row..row + graph.num_ops];
            class_ns.push(column.iter().map(|ns| scaled(*ns, *speed)).collect());
            keys.len() - 1
        });
        class_of.push(class);
    }
    (class_ns, class_of)
}

/// `ceil(ns / speed)` in IEEE doubles; exact for a speed of 1.
#[allow(clippy::cast_precision_loss, clippy::cast_possible_truncation)]
fn scaled(ns: Ns, speed: f64) -> Ns {
    if ns <= 0 || speed.to_bits() == 1.0_f64.to_bits() {
        return ns;
    }
    // The cast saturates; check_length refuses what is too long.
    (ns as f64 / speed).ceil() as i64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::tests::cluster;
    use crate::graph::tests::{columns, graph};

    #[test]
    fn compute_times_are_divided_by_speed_and_rounded_up() {
        assert_eq!(scaled(10, 3.0), 4);
        assert_eq!(scaled(9, 3.0), 3);
        assert_eq!(scaled(-1, 3.0), -1);
        assert_eq!(scaled(0, 0.5), 0);
        assert_eq!(scaled(10, 0.5), 20);
    }

    #[test]
    fn an_op_that_no_device_may_run_is_refused() {
        let graph = Graph::new(columns(&[1, -1], &[])).unwrap();
        let cluster = cluster(&[9], 0, 0, "serial");
        let problem = Problem::new(&graph, &cluster, Retention::Liveness, &|| false);
        assert_eq!(problem.err(), Some(Error::NowhereToRun { op: 1 }));
    }

    #[test]
    fn the_cheapest_transfer_is_that_of_the_best_link_for_its_bytes() {
        let graph = graph(&[1, 1, 1], &[(0, 1, 1), (0, 2, 1 << 20)]);
        let mut columns = cluster(&[9; 3], 50, 1_000_000, "serial").columns;
        (columns.latency_ns[1], columns.bytes_per_s[1]) = (5, 1_000_000_000);
        (columns.latency_ns[3], columns.bytes_per_s[3]) = (900, 0);
        let cluster = crate::cluster::Cluster::new(columns).unwrap();
        let problem = Problem::new(&graph, &cluster, Retention::Liveness, &|| false).unwrap();
        assert_eq!((problem.cheapest_transfer_ns(0), problem.cheapest_transfer_ns(1)), (6, 900));
        assert_eq!(problem.best_links, [(0, 1), (1, 0)]);
    }

    #[test]
    fn a_graph_without_ops_fits_any_kind() {
        let graph = graph(&[], &[]);
        let mut columns = cluster(&[9], 0, 0, "serial").columns;
        columns.kind = vec![7];
        let cluster = crate::cluster::Cluster::new(columns).unwrap();
        assert!(Problem::new(&graph, &cluster, Retention::Liveness, &|| false).is_ok());
    }

    #[test]
    fn a_transfer_that_a_single_device_never_makes_does_not_count() {
        let mut columns = columns(&[1, 1], &[(0, 1, 0)]);
        columns.tensor_transfer_ns = vec![i64::MAX];
        let graph = Graph::new(columns).unwrap();
        let (one, two) = (cluster(&[9], 0, 0, "serial"), cluster(&[9, 9], 0, 0, "serial"));
        assert!(Problem::new(&graph, &one, Retention::Liveness, &|| false).is_ok());
        assert!(Problem::new(&graph, &two, Retention::Liveness, &|| false).is_err());
    }

    #[test]
    fn a_schedule_beyond_64_bits_is_refused() {
        let graph = graph(&[1 << 61, 1 << 60, 5], &[]);
        let cluster = cluster(&[9], 0, 0, "serial");
        let problem = Problem::new(&graph, &cluster, Retention::Liveness, &|| false);
        assert!(matches!(problem.err(), Some(Error::Overflow { .. })));
    }
}
