//! What must hold for any input.

use baechi_core::cluster::Cluster;
use baechi_core::curve;
use baechi_core::error::Error;
use baechi_core::evaluate::Evaluator;
use baechi_core::graph::{Columns, Graph};
use baechi_core::group;
use baechi_core::launch::Waits;
use baechi_core::list::GivenDevices;
use baechi_core::original::OpBytes;
use baechi_core::place::{self, favorites};
use baechi_core::problem::Problem;
use baechi_core::request::Request;
use baechi_core::rules::{Retention, Rules};
use baechi_core::schedule::{Decision, Event, Schedule};
use baechi_core::simulate;
use baechi_core::{OpId, UNLIMITED};

use super::{Numbers, Source, numbers};

const RULES: [Rules; 3] = [Rules::Physical, Rules::BaechiTf, Rules::BaechiTorch];

/// Builds a problem of the bytes and hands it over, if there is one.
fn with_problem(bytes: &[u8], check: impl FnOnce(&Problem, &mut Source)) {
    let source = &mut Source::new(bytes);
    let retention = if source.chance(4) { Retention::Training } else { Retention::Liveness };
    let Numbers { graph, cluster } = numbers(source);
    let (Ok(graph), Ok(cluster)) = (Graph::new(graph), Cluster::new(cluster)) else { return };
    if let Ok(problem) = Problem::new(&graph, &cluster, retention, &|| false) {
        check(&problem, source);
    }
}

fn request<'a>(problem: &'a Problem<'a>, rules: Rules) -> Request<'a> {
    Request { repair: false, ..Request::new(problem, rules) }
}

/// Every algorithm under every rule set.
pub fn place_everywhere(bytes: &[u8]) {
    with_problem(bytes, |problem, source| {
        let (path, work) = problem.lower_bounds();
        let seed = u64::from(source.byte());
        let colocation = source.chance(2);
        let given = given_favorites(problem, source);
        // A repair may take a second, so few inputs ask for one.
        let repair = source.byte() == 255 && source.byte() == 255;
        let counted = source.chance(8).then(|| counted(problem, source));
        for rules in RULES {
            let pairs = favorites::pairs(problem, rules);
            let greedy = favorites::greedy(problem, &pairs);
            let favorites = if given.is_empty() { &greedy } else { &given };
            let bytes = if rules == Rules::Physical { None } else { counted.as_ref() };
            for algorithm in &place::ALGORITHMS {
                let favorites = Some(&favorites[..]);
                let with = Request {
                    favorites,
                    seed,
                    colocation,
                    bytes,
                    repair: repair && algorithm.name == "m-etf",
                    ..request(problem, rules)
                };
                let Ok(schedule) = (algorithm.place)(&with) else { continue };
                check_schedule(problem, &schedule);
                assert!(schedule.makespan >= path.max(work) || rules != Rules::Physical);
                let reserve = algorithm.name.ends_with("reserve");
                let again = simulate::replay_schedule(&with, &schedule, reserve);
                // The originals' m-TOPO may leave an order that no runtime can launch.
                let Ok(again) = again else {
                    assert!(rules != Rules::Physical, "{} does not replay", algorithm.name);
                    continue;
                };
                if rules == Rules::Physical {
                    check_physical(problem, &schedule, algorithm.name);
                    let repaired = schedule.repaired;
                    assert_eq!(Schedule { repaired, ..again }, schedule, "{}", algorithm.name);
                } else if !algorithm.name.starts_with("m-topo") {
                    assert_eq!(again.start, schedule.start, "{} {rules:?}", algorithm.name);
                    assert_eq!(again.transfers, schedule.transfers);
                }
            }
        }
    });
}

/// Favorites that anyone might give; empty where the greedy rule is to be asked.
fn given_favorites(problem: &Problem, source: &mut Source) -> Vec<i32> {
    let num_ops = problem.graph.num_ops;
    if source.chance(2) {
        return Vec::new();
    }
    (0..num_ops).map(|_| i32::try_from(source.below(num_ops + 1)).expect("few") - 1).collect()
}

/// What an original might count as bytes; not always possible.
fn counted(problem: &Problem, source: &mut Source) -> OpBytes {
    let mut column = || (0..problem.graph.num_ops).map(|_| source.amount(false)).collect();
    OpBytes { held: column(), persistent: column(), scratch: column(), peak: column() }
}

fn check_schedule(problem: &Problem, schedule: &Schedule) {
    for op in 0..problem.num_ops() {
        let at = op as usize;
        assert!(problem.may_run(op, schedule.device[at]), "op {op} may not run there");
        assert!(0 <= schedule.start[at] && schedule.start[at] <= schedule.end[at]);
    }
    assert!((0..UNLIMITED).contains(&schedule.makespan));
    let mut order = schedule.order.clone();
    order.sort_unstable();
    assert!(order.into_iter().eq(0..problem.num_ops()), "a launch index is missing");
}

fn check_physical(problem: &Problem, schedule: &Schedule, name: &str) {
    check_limits(problem, schedule, name);
    let members = problem.graph.members();
    for group in 0..u32::try_from(members.len()).expect("few") {
        let mut homes = members.of(group).iter().map(|op| schedule.device[*op as usize]);
        if let Some(first) = homes.next() {
            assert!(homes.all(|home| home == first), "{name} splits group {group}");
        }
    }
    for (curve, peak) in curve::memory_curves(problem, schedule).iter().zip(&schedule.peak) {
        assert_eq!(curve.bytes.iter().max(), Some(peak));
        assert!(curve.bytes.iter().all(|bytes| *bytes >= 0));
        assert!(curve.time.is_sorted());
    }
}

/// A device with a negative cap may hold nothing.
fn check_limits(problem: &Problem, schedule: &Schedule, name: &str) {
    for (peak, cap) in schedule.peak.iter().zip(&problem.cluster.cap_bytes) {
        assert!(*peak <= 0.max(*cap), "{name}: {peak} of {cap} bytes");
    }
}

/// Given placements, launch orders and waits.
pub fn simulate_anything(bytes: &[u8]) {
    with_problem(bytes, |problem, source| {
        let num_devices = problem.cluster.num_devices;
        let raw = source.chance(8);
        let device: Vec<u32> = (0..problem.num_ops())
            .map(|op| {
                let wish =
                    u32::try_from(source.below(num_devices + usize::from(raw))).expect("few");
                let homes = || problem.devices().filter(|at| problem.may_run(op, *at));
                if raw || problem.may_run(op, wish) { wish } else { homes().next().unwrap_or(0) }
            })
            .collect();
        for rules in RULES {
            let _ = simulate::simulate_given(&request(problem, rules), &device);
        }
        check_listed(problem, &device);
        let launch = launch_order(problem, source);
        let not_before = if source.chance(4) {
            (0..launch.len()).map(|_| source.amount(false)).collect()
        } else {
            Vec::new()
        };
        let decision = Decision { device, launch, not_before };
        let Ok(free) = simulate::replay(problem, &decision, &Waits::default()) else { return };
        check_schedule(problem, &free);
        check_evaluator(problem, &decision, &free);
        if let Ok(within) = simulate::schedule_within_caps(problem, &decision) {
            check_schedule(problem, &within);
            check_limits(problem, &within, "a given order");
            assert!(within.makespan >= free.makespan);
            let waits = Waits {
                ops: within.wait.clone(),
                transfers: within.transfers.iter().map(|transfer| transfer.wait).collect(),
            };
            simulate::check_waits(problem, &decision, &waits).expect("its own waits");
            assert_eq!(simulate::replay(problem, &decision, &waits).expect("as before"), within);
        }
        let waits = any_waits(problem, &free, source);
        if simulate::check_waits(problem, &decision, &waits).is_ok() {
            for rules in RULES {
                let reserve = source.chance(2);
                let _ = simulate::simulate_launched(
                    &request(problem, rules),
                    &decision,
                    &waits,
                    reserve,
                );
            }
        }
    });
}

/// Listing given devices is what the loop for all does, and refuses the same.
fn check_listed(problem: &Problem, device: &[u32]) {
    let signed: Vec<i32> = device.iter().map(|at| i32::try_from(*at).unwrap_or(-1)).collect();
    let mut given = GivenDevices::new(problem);
    let listed = simulate::list_scheduled(&request(problem, Rules::Physical), device);
    match (given.launch_order(&signed), listed) {
        (Ok(launch), Ok(decision)) => assert_eq!(launch, decision.launch),
        (Err(_), Err(_)) => {}
        (given, listed) => panic!("{:?} but {:?}", given.err(), listed.err()),
    }
}

/// Mostly a topological order.
fn launch_order(problem: &Problem, source: &mut Source) -> Vec<OpId> {
    let graph = problem.graph;
    let mut waiting = graph.num_parents().to_vec();
    let mut ready: Vec<OpId> =
        (0..problem.num_ops()).filter(|op| waiting[*op as usize] == 0).collect();
    let mut launch = Vec::new();
    while !ready.is_empty() {
        let op = ready.swap_remove(source.below(ready.len()));
        launch.push(op);
        for child in graph.children(op) {
            waiting[*child as usize] -= 1;
            if waiting[*child as usize] == 0 {
                ready.push(*child);
            }
        }
    }
    if source.chance(16) && !launch.is_empty() {
        let (one, other) = (source.below(launch.len()), source.below(launch.len()));
        launch.swap(one, other);
    }
    launch
}

fn check_evaluator(problem: &Problem, decision: &Decision, free: &Schedule) {
    let column = |values: &[u32]| -> Vec<i32> {
        values.iter().map(|value| i32::try_from(*value).expect("few")).collect()
    };
    let (device, order) = (column(&decision.device), column(&free.order));
    let mut evaluator = Evaluator::new(problem);
    assert_eq!(evaluator.makespan(&device, &order), Ok(free.makespan));
    let mut peaks = Vec::new();
    assert_eq!(evaluator.makespan_and_peaks(&device, &order, &mut peaks), Ok(free.makespan));
    assert_eq!(peaks, free.peak);
}

fn any_waits(problem: &Problem, free: &Schedule, source: &mut Source) -> Waits {
    let mut any = |count: usize| -> Vec<Option<Event>> {
        let one = |source: &mut Source| match source.below(6) {
            0 => Some(Event::Op(u32::try_from(source.below(problem.graph.num_ops + 1)).ok()?)),
            1 => Some(Event::Transfer(u32::try_from(source.below(free.transfers.len() + 1)).ok()?)),
            _ => None,
        };
        (0..count).map(|_| one(source)).collect()
    };
    Waits { ops: any(problem.graph.num_ops), transfers: any(free.transfers.len()) }
}

/// Co-placement and fusion.
pub fn group_anything(bytes: &[u8]) {
    let source = &mut Source::new(bytes);
    let Numbers { graph, .. } = numbers(source);
    let Ok(graph) = Graph::new(graph) else { return };
    let labels: Vec<i32> = (0..graph.num_ops)
        .map(|_| i32::try_from(source.below(graph.num_ops.min(4) + 1)).expect("few") - 1)
        .collect();
    let most = source.amount(true);
    let together = group::coplace(&graph, &labels, most);
    for labels in [&labels, &together] {
        for retention in [Retention::Liveness, Retention::Training] {
            let fusion = group::fuse(&graph, labels, retention);
            let sum = |column: &[i64]| column.iter().sum::<i64>();
            assert_eq!(sum(&fusion.columns.persistent_bytes), sum(&graph.columns.persistent_bytes));
            for (op, node) in fusion.node_of.iter().enumerate() {
                let first = fusion.first_of[*node as usize] as usize;
                assert!(first == op || labels[op] >= 0 && labels[op] == labels[first]);
            }
            // The border numbers groups anew.
            let group = vec![-1; fusion.first_of.len()];
            match Graph::new(Columns { group, ..fusion.columns }) {
                Ok(_) | Err(Error::Overflow { .. }) => {}
                Err(error) => panic!("a fused graph is no graph: {error:?}"),
            }
        }
    }
}
