//! Problems from a fuzzer's bytes: mostly well-formed, sometimes raw, with numbers that sit on edges.

pub mod checks;

use baechi_core::cluster;
use baechi_core::graph;

/// Reads numbers off the front of a fuzzer's input; an exhausted input gives zeros.
pub struct Source<'a> {
    bytes: &'a [u8],
}

/// Amounts near the limits of 64-bit sums.
const EDGES: [i64; 12] = [
    0,
    1,
    -1,
    1 << 31,
    (1 << 60) - 1,
    1 << 60,
    (1 << 61) - 1,
    1 << 61,
    1 << 62,
    i64::MAX / 2,
    i64::MAX,
    i64::MIN,
];

impl<'a> Source<'a> {
    #[must_use]
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { bytes }
    }

    pub fn byte(&mut self) -> u8 {
        match self.bytes.split_first() {
            Some((first, rest)) => {
                self.bytes = rest;
                *first
            }
            None => 0,
        }
    }

    /// A number below `end` (0 if that is 0).
    pub fn below(&mut self, end: usize) -> usize {
        usize::from(self.byte()) % end.max(1)
    }

    pub fn chance(&mut self, one_in: u8) -> bool {
        self.byte() % one_in == one_in - 1
    }

    /// A small amount, or rarely one of a few large legal ones.
    pub fn amount(&mut self, extreme: bool) -> i64 {
        let byte = self.byte();
        match byte {
            250.. if extreme => EDGES[self.below(EDGES.len())],
            240.. => 1 << (byte % 40),
            200.. => i64::from(byte) * 7,
            _ => i64::from(byte % 12),
        }
    }

    fn index(&mut self, end: usize, extreme: bool) -> i32 {
        if extreme && self.chance(64) {
            return [-1, -2, i32::MIN, i32::MAX, i32::try_from(end).unwrap_or(0)][self.below(5)];
        }
        i32::try_from(self.below(end)).unwrap_or(0)
    }

    fn maybe(&mut self, end: usize, one_in: u8, extreme: bool) -> i32 {
        if end > 0 && self.chance(one_in) { self.index(end, extreme) } else { -1 }
    }
}

/// The numbers of a graph; with `extreme`, also what [`graph::Graph::new`] must refuse.
pub fn graph_columns(
    source: &mut Source,
    num_kinds: usize,
    num_sets: usize,
    extreme: bool,
) -> graph::Columns {
    let num_ops = source.below(20);
    let num_groups = source.below(4);
    let mut columns = graph::Columns::default();
    for _ in 0..num_ops * num_kinds {
        let time = source.amount(extreme);
        columns.compute_ns.push(if source.chance(24) { -1 } else { time });
    }
    for op in 0..num_ops {
        columns.persistent_bytes.push(source.amount(extreme));
        columns.scratch_bytes.push(source.amount(extreme));
        columns.group.push(source.maybe(num_groups.min(num_ops), 4, extreme));
        columns.allowed_set.push(source.maybe(num_sets, 8, extreme));
        columns.role.push(source.byte() % 3);
        columns.forward_op.push(source.maybe(op, 8, extreme));
    }
    let num_tensors = if num_ops == 0 { 0 } else { source.below(2 * num_ops + 1) };
    let mut edges = Vec::new();
    for tensor in 0..num_tensors {
        let producer = source.index(num_ops, extreme);
        columns.tensor_producer.push(producer);
        let control = source.chance(10);
        columns.tensor_bytes.push(if control { 0 } else { source.amount(extreme) });
        let given = source.chance(6);
        columns.tensor_transfer_ns.push(if given { source.amount(extreme) } else { -1 });
        columns.tensor_class.push(if control { 6 } else { source.byte() % 6 });
        for _ in 0..source.below(4) {
            // Mostly forward in the numbering, so that most graphs have no cycle.
            let consumer = if extreme && source.chance(32) {
                source.index(num_ops, true)
            } else {
                let after = usize::try_from(producer).map_or(0, |op| op.saturating_add(1));
                if after >= num_ops {
                    continue;
                }
                i32::try_from(after + source.below(num_ops - after)).unwrap_or(0)
            };
            let edge = (i32::try_from(tensor).unwrap_or(0), consumer);
            if !edges.contains(&edge) {
                edges.push(edge);
            }
        }
    }
    if source.chance(2) && !edges.is_empty() {
        let turn = source.below(edges.len());
        edges.rotate_left(turn);
    }
    (columns.edge_tensor, columns.edge_consumer) = edges.into_iter().unzip();
    if extreme && source.chance(16) {
        shorten(source, &mut columns);
    }
    columns
}

fn shorten(source: &mut Source, columns: &mut graph::Columns) {
    match source.below(6) {
        0 => drop(columns.compute_ns.pop()),
        1 => drop(columns.scratch_bytes.pop()),
        2 => drop(columns.role.pop()),
        3 => drop(columns.tensor_bytes.pop()),
        4 => drop(columns.edge_consumer.pop()),
        _ => drop(columns.forward_op.pop()),
    }
}

/// The numbers of a cluster; `roomy` devices hold any graph of small numbers.
pub fn cluster_columns(
    source: &mut Source,
    num_kinds: usize,
    num_sets: usize,
    extreme: bool,
) -> cluster::Columns {
    const SPEEDS: [f64; 8] = [1.0, 1.0, 1.0, 2.0, 0.5, 0.7, 3.0, 1e-3];
    const ODD: [f64; 6] = [0.0, -1.0, f64::NAN, f64::INFINITY, 5e-324, 1e300];
    let num_devices = source.below(6).max(usize::from(!extreme));
    let roomy = source.chance(2);
    let mut columns = cluster::Columns::default();
    for _ in 0..num_devices {
        let memory = source.amount(extreme);
        let base = if roomy { 1 << 50 } else { 8 + i64::from(source.byte()) };
        columns.memory_bytes.push(if extreme { memory } else { memory.saturating_add(base) });
        columns.reserve_bytes.push(if source.chance(8) { source.amount(extreme) } else { 0 });
        columns.kind.push(source.index(num_kinds, extreme));
        let odd = extreme && source.chance(16);
        columns.speed.push(if odd { ODD[source.below(6)] } else { SPEEDS[source.below(8)] });
    }
    let rule = source.below(5);
    let same = source.chance(2).then(|| (source.amount(extreme), source.amount(extreme)));
    for from in 0..num_devices {
        for to in 0..num_devices {
            let figure = same.unwrap_or_else(|| (source.amount(extreme), source.amount(extreme)));
            columns.latency_ns.push(if from == to { 0 } else { figure.0 });
            // Rates that make small tensors take a while, or nothing at all.
            let rate = figure.1.saturating_mul(300_000_000);
            columns.bytes_per_s.push(if from == to { 0 } else { rate });
            let id = |at: usize| i32::try_from(at).unwrap_or(0);
            let (send, recv) = match rule {
                _ if from == to => (-1, -1),
                0 => (id(from), id(to)),
                1 => (id(2 * from), id(2 * to + 1)),
                2 => (0, 0),
                3 => (source.maybe(8, 2, extreme), source.maybe(8, 2, extreme)),
                _ => (-1, -1),
            };
            columns.send_channel.push(send);
            columns.recv_channel.push(recv);
        }
    }
    for _ in 0..num_sets * num_devices {
        columns.allowed.push(u8::from(!source.chance(3)));
    }
    columns
}

/// What a target starts from.
pub struct Numbers {
    pub graph: graph::Columns,
    pub cluster: cluster::Columns,
}

/// Both sides of a problem.
pub fn numbers(source: &mut Source) -> Numbers {
    let extreme = source.chance(3);
    let (num_kinds, num_sets) = (1 + source.below(3), source.below(3));
    let cluster = cluster_columns(source, num_kinds, num_sets, extreme);
    Numbers { graph: graph_columns(source, num_kinds, num_sets, extreme), cluster }
}
