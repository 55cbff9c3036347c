//! Random graphs, clusters and favorites from a seed.

use baechi_core::cluster::{self, Cluster};
use baechi_core::graph::{self, Graph};
use baechi_core::{Bytes, Ns};

/// A linear congruential generator: these draws need no quality.
pub struct Draw(pub u64);

impl Draw {
    pub fn below(&mut self, end: i64) -> i64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        i64::try_from(self.0 >> 33).unwrap() % end
    }

    pub fn one_in(&mut self, count: i64) -> bool {
        self.below(count) == 0
    }
}

pub fn random_graph(draw: &mut Draw, least_ns: Ns, groups: bool) -> Graph {
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

/// A few ops with an output for each of many, which are ready at once; then one that wants them all.
pub fn random_fan(draw: &mut Draw) -> Graph {
    let (num_sources, num_ops) = (1 + draw.below(3), 80 + draw.below(60));
    let length = usize::try_from(num_ops).unwrap();
    let (least, most) = (draw.below(3), 1 + draw.below(9));
    let (most_bytes, most_ns) = (1 + draw.below(9), 1 + draw.below(5));
    let mut columns = graph::Columns {
        compute_ns: (0..num_ops).map(|_| least + draw.below(most)).collect(),
        persistent_bytes: (0..num_ops).map(|_| draw.below(2)).collect(),
        scratch_bytes: vec![0; length],
        group: vec![-1; length],
        allowed_set: vec![-1; length],
        role: vec![0; length],
        forward_op: vec![-1; length],
        ..graph::Columns::default()
    };
    let index = |at: i64| i32::try_from(at).unwrap();
    for op in num_sources..num_ops - 1 {
        for source in 0..num_sources {
            if source == op % num_sources || draw.one_in(4) {
                let tensor = if draw.one_in(5) && !columns.tensor_producer.is_empty() {
                    columns.tensor_producer.len() - 1
                } else {
                    columns.tensor_producer.push(index(source));
                    columns.tensor_producer.len() - 1
                };
                columns.edge_tensor.push(i32::try_from(tensor).unwrap());
                columns.edge_consumer.push(index(op));
            }
        }
    }
    for op in num_sources..num_ops - 1 {
        columns.edge_tensor.push(i32::try_from(columns.tensor_producer.len()).unwrap());
        columns.edge_consumer.push(index(num_ops - 1));
        columns.tensor_producer.push(index(op));
    }
    for _ in 0..columns.tensor_producer.len() {
        columns.tensor_bytes.push(draw.below(most_bytes));
        columns.tensor_transfer_ns.push(draw.below(most_ns));
        columns.tensor_class.push(4);
    }
    Graph::new(columns).unwrap()
}

pub fn random_cluster(draw: &mut Draw, graph: &Graph, channels: i64) -> Cluster {
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
    let mut any = || i32::try_from(draw.below(4) - 1).unwrap();
    let (send_channel, recv_channel) = (0..pairs)
        .map(|pair| (pair / num_devices, pair % num_devices))
        .map(|(source, to)| match channels {
            0 => (channel(source), channel(to)),
            1 => (channel(2 * source), channel(2 * to + 1)),
            3 => (any(), any()),
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

pub fn random_favorites(draw: &mut Draw, graph: &Graph) -> Vec<i32> {
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
