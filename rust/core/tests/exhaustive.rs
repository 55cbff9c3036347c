//! The ready-queue loop against one that scores everything before every choice, on thousands of random graphs.

mod random_cases;

use baechi_core::graph::Graph;
use baechi_core::list::{self, Effects, GivenDevices, Policy, Room, Timeline};
use baechi_core::original::{OpBytes, PyTorch, TensorFlow};
use baechi_core::problem::Problem;
use baechi_core::rules::{Retention, Rules, Tie, Urgency};
use baechi_core::schedule::Decision;
use baechi_core::timeline::Book;
use baechi_core::{DeviceId, Ns, OpId, UNLIMITED};
use random_cases::{Draw, random_cluster, random_fan, random_favorites, random_graph};

/// Runs of each test on small graphs; five tests.
const RUNS: u64 = 12_000;
/// Runs on graphs with so many ready ops that those behind a channel are kept apart.
const WIDE_RUNS: u64 = 120;

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

/// Runs both loops on random cases; how many of them placed everything.
fn compare(seed: u64, rules: Rules, with_favorites: bool) -> u64 {
    compare_on(seed, RUNS, rules, with_favorites, |draw| {
        let least = if rules == Rules::Physical { draw.below(2) } else { 1 };
        random_graph(draw, least, rules != Rules::BaechiTorch)
    })
}

fn compare_on(
    seed: u64,
    runs: u64,
    rules: Rules,
    with_favorites: bool,
    make: impl Fn(&mut Draw) -> Graph,
) -> u64 {
    let mut draw = Draw(seed);
    let mut finished = 0;
    for run in 0..runs {
        let graph = make(&mut draw);
        let channels = match rules {
            Rules::Physical => draw.below(4),
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

#[test]
fn many_ready_ops_behind_a_channel_are_placed_as_scoring_everything_would() {
    assert!(compare_on(7, WIDE_RUNS, Rules::Physical, false, random_fan) > WIDE_RUNS / 3);
    assert!(compare_on(8, WIDE_RUNS, Rules::Physical, true, random_fan) > WIDE_RUNS / 3);
}

#[test]
fn given_devices_are_launched_as_in_the_loop_for_all() {
    let mut draw = Draw(9);
    for run in 0..RUNS {
        let graph = if run % 50 == 0 {
            random_fan(&mut draw)
        } else {
            let least = draw.below(2);
            random_graph(&mut draw, least, true)
        };
        let channels = draw.below(4);
        let cluster = random_cluster(&mut draw, &graph, channels);
        let problem = Problem::new(&graph, &cluster, Retention::Liveness, &|| false).unwrap();
        let mut given = GivenDevices::new(&problem);
        // One after the other, so that nothing is left of the one before.
        for _ in 0..3 {
            let end = i64::from(problem.devices().end);
            let device: Vec<DeviceId> =
                (0..graph.num_ops).map(|_| u32::try_from(draw.below(end)).unwrap()).collect();
            let rules = Rules::Physical.for_loop();
            let policy = Policy { rules, favorites: None, fixed: Some(&device) };
            let mut book = Book::of_given(&problem, vec![UNLIMITED; cluster.num_devices]);
            let expected = list::run(&problem, &mut book, policy).unwrap().launch;
            let signed: Vec<i32> = device.iter().map(|at| i32::try_from(*at).unwrap()).collect();
            assert_eq!(given.launch_order(&signed).unwrap(), expected, "run {run}");
        }
    }
}
