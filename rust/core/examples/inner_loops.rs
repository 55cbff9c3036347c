//! Runs one inner loop a given number of times, for `benches/instructions.py` to count its instructions.
//!
//! `inner_loops LOOP REPEATS [OPS]`, LOOP one of m-etf, schedule, makespan, peaks, listed, given.

use baechi_core::cluster::{self, Cluster};
use baechi_core::evaluate::Evaluator;
use baechi_core::graph::{self, Graph};
use baechi_core::list::{self, GivenDevices, Policy};
use baechi_core::problem::Problem;
use baechi_core::rules::{Retention, Rules};
use baechi_core::simulate;
use baechi_core::timeline::Book;

/// Blocks of four branches of three ops and a join, forward, then the same mirrored, backward.
fn training_blocks(num_ops: i32) -> Graph {
    let forward = num_ops / 2;
    let mut edges = Vec::new();
    for op in 0..forward {
        let (block, within) = (op / 13, op % 13);
        let before = block * 13 - 1;
        if within == 12 {
            edges.extend([2, 5, 8, 11].map(|end| (block * 13 + end, op)));
        } else if within % 3 != 0 {
            edges.push((op - 1, op));
        } else if before >= 0 {
            edges.push((before, op));
        }
    }
    let mirrored = |op: i32| num_ops - 1 - op;
    let backward = edges.iter().map(|(from, to)| (mirrored(*to), mirrored(*from)));
    let own = (0..forward).map(|op| (op, mirrored(op)));
    let edges: Vec<(i32, i32)> = edges.iter().copied().chain(backward).chain(own).collect();
    let length = usize::try_from(num_ops).expect("a positive count");
    let drawn = |op: i32, most: i64| 1 + i64::from(op).wrapping_mul(0x9E37_79B9).rem_euclid(most);
    let columns = graph::Columns {
        compute_ns: (0..num_ops).map(|op| drawn(op, 500_000)).collect(),
        persistent_bytes: (0..num_ops).map(|op| drawn(op, 9) * i64::from(op < forward)).collect(),
        scratch_bytes: vec![0; length],
        group: vec![-1; length],
        allowed_set: vec![-1; length],
        role: vec![0; length],
        forward_op: vec![-1; length],
        tensor_producer: (0..num_ops).collect(),
        tensor_bytes: (0..num_ops).map(|op| drawn(op, 900_000)).collect(),
        tensor_transfer_ns: vec![-1; length],
        tensor_class: vec![4; length],
        edge_tensor: edges.iter().map(|edge| edge.0).collect(),
        edge_consumer: edges.iter().map(|edge| edge.1).collect(),
    };
    Graph::new(columns).expect("a valid graph")
}

/// Eight roomy devices with one channel each.
fn serial_devices() -> Cluster {
    let pairs = || (0..8).flat_map(|source| (0..8).map(move |to| (source, to)));
    Cluster::new(cluster::Columns {
        memory_bytes: vec![1 << 50; 8],
        reserve_bytes: vec![0; 8],
        kind: vec![0; 8],
        speed: vec![1.0; 8],
        latency_ns: vec![10_000; 64],
        bytes_per_s: vec![12_000_000_000; 64],
        send_channel: pairs().map(|(source, _)| source).collect(),
        recv_channel: pairs().map(|(_, to)| to).collect(),
        allowed: Vec::new(),
    })
    .expect("a valid cluster")
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let what = arguments.next().expect("the name of a loop");
    let repeats: usize = arguments.next().and_then(|n| n.parse().ok()).expect("a count");
    let num_ops = arguments.next().map_or(10_000, |ops| ops.parse().expect("a count of ops"));
    let graph = training_blocks(num_ops);
    let cluster = serial_devices();
    let never = || false;
    let problem = Problem::new(&graph, &cluster, Retention::Liveness, &never).expect("it suits");
    let policy = Policy { rules: Rules::Physical.for_loop(), favorites: None, fixed: None };
    let place = |policy| {
        let mut book = Book::of_given(&problem, cluster.cap_bytes.clone());
        list::run(&problem, &mut book, policy).expect("there is room")
    };
    let decision = place(policy);
    let signed = |index: &u32| i32::try_from(*index).expect("31 bits");
    let device: Vec<i32> = decision.device.iter().map(signed).collect();
    let mut order = vec![0; graph.num_ops];
    for (rank, op) in (0..).zip(&decision.launch) {
        order[*op as usize] = rank;
    }
    let mut evaluator = Evaluator::new(&problem);
    let mut given = GivenDevices::new(&problem);
    let mut sum = 0;
    for _ in 0..repeats {
        sum += match what.as_str() {
            "m-etf" => i64::from(place(policy).launch[0]),
            "listed" => {
                i64::from(place(Policy { fixed: Some(&decision.device), ..policy }).launch[0])
            }
            "schedule" => {
                simulate::schedule_within_caps(&problem, &decision).expect("it fits").makespan
            }
            "given" => i64::from(given.launch_order(&device).expect("known devices")[0]),
            "makespan" => evaluator.makespan(&device, &order).expect("a valid order"),
            "peaks" => {
                let mut peaks = Vec::new();
                evaluator.makespan_and_peaks(&device, &order, &mut peaks).expect("a valid order")
            }
            _ => panic!("no such loop"),
        };
    }
    assert!(repeats == 0 || sum >= 0);
}
