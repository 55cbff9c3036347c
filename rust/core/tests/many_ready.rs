//! How often the loop scores where thousands of ready ops wait for one channel: a few times per op, however many.

use std::result::Result;

use baechi_core::cluster::{self, Cluster};
use baechi_core::graph::{self, Graph};
use baechi_core::list::{self, Effects, Policy, Room, Score, Timeline};
use baechi_core::problem::Problem;
use baechi_core::rules::{Retention, Rules};
use baechi_core::timeline::Book;
use baechi_core::{Bytes, DeviceId, Ns, OpId, UNLIMITED};

/// A book that counts its scores.
struct Counted<'p> {
    book: Book<'p>,
    num_scores: u64,
}

impl Timeline for Counted<'_> {
    fn free_at(&self, device: DeviceId) -> Ns {
        self.book.free_at(device)
    }
    fn bound_to(&self, op: OpId) -> Option<DeviceId> {
        self.book.bound_to(op)
    }
    fn arrival(&mut self, op: OpId, device: DeviceId) -> Ns {
        self.book.arrival(op, device)
    }
    fn score(&mut self, op: OpId, device: DeviceId, now: Ns) -> Score {
        self.num_scores += 1;
        self.book.score(op, device, now)
    }
    fn room(&self, op: OpId, device: DeviceId) -> Room {
        self.book.room(op, device)
    }
    fn behind(&mut self, op: OpId, device: DeviceId) -> Option<(u32, Ns)> {
        self.book.behind(op, device)
    }
    fn channel_free_at(&self, channel: u32) -> Ns {
        self.book.channel_free_at(channel)
    }
    fn free_bytes(&self, device: DeviceId) -> Bytes {
        self.book.free_bytes(device)
    }
    fn time_away(&self, op: OpId, producer: OpId, home: DeviceId) -> Ns {
        self.book.time_away(op, producer, home)
    }
    fn urgent(&self, op: OpId) -> Ns {
        self.book.urgent(op)
    }
    fn commit(
        &mut self,
        op: OpId,
        device: DeviceId,
        now: Ns,
        effects: &mut Effects,
    ) -> Result<Ns, &'static str> {
        self.book.commit(op, device, now, effects)
    }
    fn finish(&mut self, op: OpId, device: DeviceId, effects: &mut Effects) {
        self.book.finish(op, device, effects);
    }
}

/// One op with an output for each of many others, of equal or different sizes.
fn fan(num_outputs: i32, equal: bool) -> Graph {
    let length = usize::try_from(num_outputs).unwrap();
    let drawn = |at: i32, most: i64| 1 + i64::from(at).wrapping_mul(0x9E37_79B9).rem_euclid(most);
    Graph::new(graph::Columns {
        compute_ns: (0..=num_outputs).map(|op| 1_000 + drawn(op, 20_000)).collect(),
        persistent_bytes: vec![0; length + 1],
        scratch_bytes: vec![0; length + 1],
        group: vec![-1; length + 1],
        allowed_set: vec![-1; length + 1],
        role: vec![0; length + 1],
        forward_op: vec![-1; length + 1],
        tensor_producer: vec![0; length],
        tensor_bytes: (0..num_outputs).map(|at| if equal { 9 } else { drawn(at, 9_000) }).collect(),
        tensor_transfer_ns: vec![-1; length],
        tensor_class: vec![4; length],
        edge_tensor: (0..num_outputs).collect(),
        edge_consumer: (1..=num_outputs).collect(),
    })
    .unwrap()
}

/// Four devices whose transfers all hold the sender's channel.
fn serial_devices() -> Cluster {
    let pairs = || (0..4).flat_map(|source| (0..4).map(move |to| (source, to)));
    Cluster::new(cluster::Columns {
        memory_bytes: vec![UNLIMITED; 4],
        reserve_bytes: vec![0; 4],
        kind: vec![0; 4],
        speed: vec![1.0; 4],
        latency_ns: vec![10_000; 16],
        bytes_per_s: vec![1_000_000_000; 16],
        send_channel: pairs().map(|(source, _)| source).collect(),
        recv_channel: pairs().map(|(_, to)| to).collect(),
        allowed: Vec::new(),
    })
    .unwrap()
}

#[test]
fn scores_grow_with_the_ops_and_not_with_their_square() {
    let cluster = serial_devices();
    for equal in [true, false] {
        for num_outputs in [1_000, 20_000] {
            let graph = fan(num_outputs, equal);
            let problem = Problem::new(&graph, &cluster, Retention::Liveness, &|| false).unwrap();
            let book = Book::new(&problem, cluster.cap_bytes.clone(), false).unwrap();
            let mut counted = Counted { book, num_scores: 0 };
            let rules = Rules::Physical.for_loop();
            let policy = Policy { rules, favorites: None, fixed: None };
            list::run(&problem, &mut counted, policy).unwrap();
            let per_op = counted.num_scores / u64::try_from(num_outputs).unwrap();
            assert!(per_op <= 12, "{equal} {per_op} scores per op for {num_outputs} outputs");
        }
    }
}
