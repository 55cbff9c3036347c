//! The ready-queue loop against one that scores everything before every choice, on thousands of random graphs.

use baechi_core::cluster::{self, Cluster};
use baechi_core::graph::{self, Graph};
use baechi_core::list::{self, Effects, Policy, Room, Timeline};
use baechi_core::original::{OpBytes, PyTorch, TensorFlow};
use baechi_core::problem::Problem;
use baechi_core::rules::{Retention, Rules, Tie, Urgency};
use baechi_core::schedule::Decision;
use baechi_core::timeline::Book;
use baechi_core::{Bytes, DeviceId, Ns, OpId, UNLIMITED};

/// Runs of each test; five tests.
const RUNS: u64 = 12_000;

/// A choice: rank, device, and whether the originals' m-SCT lost its time.
type Choice = (u32, DeviceId, bool);

/// Scores every ready op on every idle device before every choice.
struct Exhaustive<'a, T> {
    problem: &'a Problem<'a>,
    timeline: &'a mut T,
    policy: Policy<'a>,
    now: Ns,
    waiting: Vec<u32>,
    /// Ready ops in the order in which they became ready.
    ready: Vec<OpId>,
    rank: Vec<u32>,
    next_rank: u32,
    running: Vec<Option<(Ns, OpId)>>,
    last: Vec<Option<OpId>>,
    decision: Decision,
}

impl<T: Timeline> Exhaustive<'_, T> {
    fn run(mut self) -> Option<Decision> {
        let ops = 0..self.problem.num_ops();
        for op in ops.filter(|op| self.problem.graph.num_parents()[*op as usize] == 0) {
            self.make_ready(op);
        }
        let mut effects = Effects::default();
        loop {
            self.finish(&mut effects);
            while let Some((rank, device, _)) = self.choose()? {
                let op = *self.ready.iter().find(|op| self.rank[**op as usize] == rank)?;
                self.ready.retain(|other| *other != op);
                self.decision.device[op as usize] = device;
                self.decision.launch.push(op);
                let end = self.timeline.commit(op, device, self.now, &mut effects).ok()?;
                self.last[device as usize] = Some(op);
                if end > self.now || !self.policy.rules.misses_instant_ends {
                    self.running[device as usize] = Some((end, op));
                }
                self.finish(&mut effects);
            }
            let Some(next) = self.next() else { break };
            self.now = next;
        }
        let all = self.decision.launch.len() == self.problem.graph.num_ops;
        all.then_some(self.decision)
    }

    fn make_ready(&mut self, op: OpId) {
        if self.policy.rules.tie == Tie::DeviceThenReady {
            self.rank[op as usize] = self.next_rank;
            self.next_rank += 1;
        }
        self.ready.push(op);
    }

    fn finish(&mut self, effects: &mut Effects) {
        loop {
            let ended = self.problem.devices().filter_map(|device| {
                let (end, op) = self.running[device as usize]?;
                (end <= self.now).then_some((end, device, op))
            });
            let Some((_, device, op)) = ended.min() else { return };
            self.running[device as usize] = None;
            self.timeline.finish(op, device, effects);
            *effects = Effects::default();
            for child in self.problem.graph.children(op) {
                self.waiting[*child as usize] -= 1;
                if self.waiting[*child as usize] == 0 {
                    self.make_ready(*child);
                }
            }
        }
    }

    fn start(&mut self, op: OpId, device: DeviceId) -> Ns {
        let arrival = self.timeline.arrival(op, device);
        arrival.max(self.timeline.free_at(device)).max(self.now)
    }

    fn offered(&self, op: OpId, device: DeviceId) -> bool {
        match self.policy.fixed {
            Some(fixed) => fixed[op as usize] == device,
            None => self.problem.may_run(op, device),
        }
    }

    fn score(&mut self, op: OpId, device: DeviceId) -> Option<Ns> {
        let fits = self.offered(op, device) && self.timeline.room(op, device) == Room::Fits;
        fits.then(|| self.start(op, device))
    }

    fn favorite(&mut self, device: DeviceId) -> Option<OpId> {
        let last = self.last[device as usize]?;
        let favorite = u32::try_from(self.policy.favorites?[last as usize]).ok()?;
        if !self.ready.contains(&favorite) || self.timeline.bound_to(favorite).is_some() {
            return None;
        }
        let own = self.score(favorite, device)?;
        let devices = self.problem.devices();
        let earliest = devices.filter_map(|other| self.score(favorite, other)).min()?;
        (own == earliest).then_some(favorite)
    }

    /// Least (urgent time, rank) of the ready ops that the device could take, as the rules have it.
    fn urgent(&mut self, device: DeviceId) -> Option<(Ns, u32, OpId)> {
        let mut all = Vec::new();
        for op in self.ready.clone() {
            match self.policy.rules.urgency {
                Urgency::Data => {
                    if self.score(op, device).is_some() {
                        all.push((self.timeline.urgent(op), self.rank[op as usize], op));
                    }
                }
                Urgency::Devices => {
                    let fits = |this: &Self, at: DeviceId| {
                        this.offered(op, at) && this.timeline.room_for_one(op, at) == Room::Fits
                    };
                    if !fits(self, device) {
                        continue;
                    }
                    let homes = self.problem.devices().filter(|at| fits(self, *at));
                    let homes: Vec<DeviceId> = homes.collect();
                    let time = homes.into_iter().map(|at| self.start(op, at)).max()?;
                    all.push((time, self.rank[op as usize], op));
                }
            }
        }
        all.into_iter().min()
    }

    fn candidate(&mut self, device: DeviceId) -> Option<Choice> {
        if let Some(favorite) = self.favorite(device) {
            if self.policy.rules.urgency == Urgency::Data {
                // The first urgent op that can start here now.
                let mut due: Vec<(Ns, u32)> = Vec::new();
                for op in self.ready.clone() {
                    let urgent = self.timeline.urgent(op);
                    let starts = self.score(op, device).is_some_and(|start| start <= self.now);
                    if urgent <= self.now && starts {
                        due.push((urgent, self.rank[op as usize]));
                    }
                }
                if let Some((_, rank)) = due.into_iter().min() {
                    return Some((rank, device, false));
                }
            } else if let Some((time, rank, op)) = self.urgent(device)
                && time <= self.now
            {
                let timeless = self.timeline.room(op, device) != Room::Fits;
                return Some((rank, device, timeless));
            }
            let rank = self.rank[favorite as usize];
            let start = self.score(favorite, device)?;
            return (start <= self.now).then_some((rank, device, false));
        }
        let mut best: Option<(Ns, u32)> = None;
        for op in self.ready.clone() {
            if let Some(start) = self.score(op, device) {
                let found = (start, self.rank[op as usize]);
                best = Some(best.map_or(found, |known| known.min(found)));
            }
        }
        best.filter(|(start, _)| *start <= self.now).map(|(_, rank)| (rank, device, false))
    }

    /// `None`: the original would give up here.
    #[allow(clippy::option_option)] // giving up is not the same as finding nothing
    fn choose(&mut self) -> Option<Option<Choice>> {
        let idle = self.problem.devices().filter(|d| self.running[*d as usize].is_none());
        let idle: Vec<DeviceId> = idle.collect();
        let found: Vec<Choice> =
            idle.into_iter().filter_map(|device| self.candidate(device)).collect();
        if self.policy.rules.tie == Tie::DeviceThenReady {
            return Some(found.first().copied());
        }
        if found.iter().any(|(_, _, timeless)| *timeless != found[0].2) {
            return None;
        }
        Some(found.into_iter().min())
    }

    fn next(&mut self) -> Option<Ns> {
        let mut events: Vec<Ns> = self.running.iter().flatten().map(|(end, _)| *end).collect();
        for device in self.problem.devices() {
            if self.running[device as usize].is_some() {
                continue;
            }
            let Some(favorite) = self.favorite(device) else {
                for op in self.ready.clone() {
                    events.extend(self.score(op, device));
                }
                continue;
            };
            events.extend(self.score(favorite, device));
            if self.policy.rules.urgency == Urgency::Devices {
                events.extend(self.urgent(device).map(|(time, ..)| time));
                continue;
            }
            for op in self.ready.clone() {
                let urgent = self.timeline.urgent(op);
                if urgent > self.now {
                    events.push(urgent);
                } else {
                    events.extend(self.score(op, device));
                }
            }
        }
        events.into_iter().filter(|time| *time > self.now).min()
    }
}

fn exhaustive<T: Timeline>(
    problem: &Problem,
    timeline: &mut T,
    policy: Policy,
) -> Option<Decision> {
    let num_ops = problem.graph.num_ops;
    let by_position = policy.rules.tie == Tie::PositionThenDevice;
    let position = problem.graph.position();
    let run = Exhaustive {
        problem,
        timeline,
        policy,
        now: 0,
        waiting: problem.graph.num_parents().to_vec(),
        ready: Vec::new(),
        rank: if by_position { position.to_vec() } else { vec![0; num_ops] },
        next_rank: 0,
        running: vec![None; problem.cluster.num_devices],
        last: vec![None; problem.cluster.num_devices],
        decision: Decision { device: vec![0; num_ops], launch: Vec::new(), not_before: Vec::new() },
    };
    run.run()
}

/// A linear congruential generator: these draws need no quality.
struct Draw(u64);

impl Draw {
    fn below(&mut self, end: i64) -> i64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        i64::try_from(self.0 >> 33).unwrap() % end
    }

    fn one_in(&mut self, count: i64) -> bool {
        self.below(count) == 0
    }
}

fn random_graph(draw: &mut Draw, least_ns: Ns, groups: bool) -> Graph {
    let num_ops = 2 + draw.below(14);
    let length = usize::try_from(num_ops).unwrap();
    let num_groups = if groups && draw.one_in(2) { 1 + draw.below(num_ops) } else { 0 };
    let mut columns = graph::Columns {
        compute_ns: (0..num_ops).map(|_| least_ns + draw.below(9)).collect(),
        persistent_bytes: (0..num_ops).map(|_| draw.below(3) * draw.below(4)).collect(),
        scratch_bytes: (0..num_ops).map(|_| draw.below(2) * draw.below(4)).collect(),
        group: vec![-1; length],
        allowed_set: vec![-1; length],
        role: vec![0; length],
        forward_op: vec![-1; length],
        ..graph::Columns::default()
    };
    if num_groups > 0 {
        for group in &mut columns.group {
            *group = i32::try_from(draw.below(num_groups + 1) - 1).unwrap();
        }
    }
    let near = [3, 6, 20][usize::try_from(draw.below(3)).unwrap()];
    let mut edges = Vec::new();
    for op in 0..num_ops {
        for _ in 0..=draw.below(2) {
            let tensor = i32::try_from(columns.tensor_producer.len()).unwrap();
            columns.tensor_producer.push(i32::try_from(op).unwrap());
            columns.tensor_bytes.push(draw.below(7));
            columns.tensor_transfer_ns.push(if draw.one_in(4) { draw.below(4) } else { -1 });
            columns.tensor_class.push(4);
            for consumer in op + 1..num_ops.min(op + near) {
                if draw.one_in(3) {
                    edges.push((tensor, i32::try_from(consumer).unwrap()));
                }
            }
        }
    }
    for at in 1..edges.len() {
        let other = usize::try_from(draw.below(i64::try_from(at + 1).unwrap())).unwrap();
        edges.swap(at, other);
    }
    columns.edge_tensor = edges.iter().map(|edge| edge.0).collect();
    columns.edge_consumer = edges.iter().map(|edge| edge.1).collect();
    Graph::new(columns).unwrap()
}

fn random_cluster(draw: &mut Draw, graph: &Graph, channels: i64) -> Cluster {
    let side = 1 + draw.below(4);
    let num_devices = usize::try_from(side).unwrap();
    let pairs = num_devices * num_devices;
    let outputs: Bytes = graph.output_bytes.iter().sum();
    let total = graph.columns.persistent_bytes.iter().sum::<Bytes>() + outputs + 5;
    let tightness = [40, 60, 80, 120, 200, 1000][usize::try_from(draw.below(6)).unwrap()];
    let mut memory = || total * tightness / 100 / side * (60 + draw.below(60)) / 100 + 1;
    let memory_bytes: Vec<Bytes> = (0..num_devices).map(|_| memory()).collect();
    let uniform = draw.one_in(2);
    let figures =
        (draw.below(4), [0, 1_000_000_000, 300_000_000][usize::try_from(draw.below(3)).unwrap()]);
    let mut links =
        || if uniform { figures } else { (draw.below(5), 1_000_000_000 * draw.below(2)) };
    let (latency_ns, bytes_per_s) = (0..pairs).map(|_| links()).unzip();
    let channel = |at: usize| i32::try_from(at).unwrap();
    let (send_channel, recv_channel) = (0..pairs)
        .map(|pair| (pair / num_devices, pair % num_devices))
        .map(|(source, to)| match channels {
            0 => (channel(source), channel(to)),
            1 => (channel(2 * source), channel(2 * to + 1)),
            _ => (-1, -1),
        })
        .unzip();
    Cluster::new(cluster::Columns {
        memory_bytes,
        reserve_bytes: vec![0; num_devices],
        kind: vec![0; num_devices],
        speed: vec![1.0; num_devices],
        latency_ns,
        bytes_per_s,
        send_channel,
        recv_channel,
        allowed: Vec::new(),
    })
    .unwrap()
}

fn random_favorites(draw: &mut Draw, graph: &Graph) -> Vec<i32> {
    let ops = 0..u32::try_from(graph.num_ops).unwrap();
    ops.map(|op| match graph.children(op) {
        [] => -1,
        children => {
            let at =
                usize::try_from(draw.below(i64::try_from(children.len()).unwrap() + 1)).unwrap();
            children.get(at).map_or(-1, |child| i32::try_from(*child).unwrap())
        }
    })
    .collect()
}

/// Runs both loops on random cases; how many of them placed everything.
fn compare(seed: u64, rules: Rules, with_favorites: bool) -> u64 {
    let mut draw = Draw(seed);
    let mut finished = 0;
    for run in 0..RUNS {
        let least = if rules == Rules::Physical { draw.below(2) } else { 1 };
        let graph = random_graph(&mut draw, least, rules != Rules::BaechiTorch);
        let channels = match rules {
            Rules::Physical => draw.below(3),
            Rules::BaechiTf => 0,
            Rules::BaechiTorch => 2,
        };
        let cluster = random_cluster(&mut draw, &graph, channels);
        let Ok(problem) = Problem::new(&graph, &cluster, Retention::Liveness, &|| false) else {
            continue;
        };
        let favorites = random_favorites(&mut draw, &graph);
        let favorites = with_favorites.then_some(favorites.as_slice());
        let reserve = draw.one_in(3);
        let policy = Policy { rules: rules.for_loop(), favorites, fixed: None };
        let caps = if draw.one_in(4) {
            vec![UNLIMITED; cluster.num_devices]
        } else {
            cluster.cap_bytes.clone()
        };
        let (fast, slow) = match rules {
            Rules::Physical => {
                let Ok(mut book) = Book::new(&problem, caps.clone(), reserve) else { continue };
                let mut again = Book::new(&problem, caps, reserve).unwrap();
                let fast = list::run(&problem, &mut book, policy);
                (fast.ok(), exhaustive(&problem, &mut again, policy))
            }
            Rules::BaechiTf => {
                let colocation = !graph.members().is_empty();
                let devices = || {
                    let bytes = OpBytes::of(&problem);
                    TensorFlow::new(
                        &problem,
                        bytes,
                        caps.clone(),
                        colocation,
                        reserve && colocation,
                    )
                };
                let fast = list::run(&problem, &mut devices(), policy);
                (fast.ok(), exhaustive(&problem, &mut devices(), policy))
            }
            Rules::BaechiTorch => {
                let devices = || PyTorch::new(&problem, OpBytes::of(&problem), caps.clone());
                let fast = list::run(&problem, &mut devices(), policy);
                (fast.ok(), exhaustive(&problem, &mut devices(), policy))
            }
        };
        let decided = |found: &Option<Decision>| {
            found.as_ref().map(|decision| (decision.device.clone(), decision.launch.clone()))
        };
        assert_eq!(decided(&fast), decided(&slow), "seed {seed}, run {run}, {rules:?}");
        finished += u64::from(fast.is_some());
    }
    finished
}

#[test]
fn m_etf_under_physical_rules_is_what_scoring_everything_gives() {
    assert!(compare(1, Rules::Physical, false) > RUNS / 3);
}

#[test]
fn m_sct_under_physical_rules_is_what_scoring_everything_gives() {
    assert!(compare(2, Rules::Physical, true) > RUNS / 3);
}

#[test]
fn m_etf_under_tensorflow_rules_is_what_scoring_everything_gives() {
    assert!(compare(3, Rules::BaechiTf, false) > RUNS / 3);
}

#[test]
fn m_sct_under_tensorflow_rules_is_what_scoring_everything_gives() {
    assert!(compare(4, Rules::BaechiTf, true) > RUNS / 3);
}

#[test]
fn both_under_torch_rules_are_what_scoring_everything_gives() {
    assert!(compare(5, Rules::BaechiTorch, false) > RUNS / 10);
    assert!(compare(6, Rules::BaechiTorch, true) > RUNS / 10);
}
