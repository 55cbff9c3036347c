//! The TensorFlow original's `VirtualScheduler`: a finished placement run first in, first out.
//!
//! Every op runs on its device in the order of its ready time, outputs are pushed when their producer is taken from the queue, and no memory limit is
//! enforced; only a peak is recorded.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::error::{Error, Result};
use crate::lists::Lists;
use crate::original::{OpBytes, finished, is_order_only};
use crate::problem::Problem;
use crate::schedule::{Decision, Executor, Schedule, Transfer};
use crate::{DeviceId, Ns, OpId, TensorId};

/// Runs a placement. Ties in ready time go by topological position.
///
/// # Errors
/// [`Error::WrongDevice`], [`Error::Cancelled`].
#[allow(clippy::too_many_lines)] // one loop, as in the original
pub fn run(problem: &Problem, bytes: &OpBytes, device: &[DeviceId]) -> Result<Schedule> {
    let graph = problem.graph;
    let num_devices = problem.cluster.num_devices;
    for op in 0..problem.num_ops() {
        let home = device[op as usize];
        if home as usize >= num_devices || !problem.may_run(op, home) {
            return Err(Error::WrongDevice { op, device: home });
        }
    }
    let children = |op| u32::try_from(graph.children(op).len()).expect("31 bits");
    let mut waiting = graph.num_parents().to_vec();
    let mut unrun: Vec<u32> = (0..problem.num_ops()).map(children).collect();
    let mut ready_at = vec![0; graph.num_ops];
    let mut received: Vec<Ns> = vec![-1; graph.num_tensors * num_devices];
    let mut channel = vec![0; num_devices];
    let mut free_at = vec![0; num_devices];
    let mut used = vec![0; num_devices];
    let mut peak = vec![0; num_devices];
    let mut peak_op = vec![OpId::MAX; num_devices];
    let mut start = vec![0; graph.num_ops];
    let mut end = vec![0; graph.num_ops];
    let mut transfers = Vec::new();
    let mut launch = Vec::with_capacity(graph.num_ops);
    let mut counted_for = vec![OpId::MAX; graph.num_ops];
    let mut out_edges = OutEdges::new(problem);
    let mut queue: BinaryHeap<Reverse<(Ns, u32)>> = BinaryHeap::new();
    for op in (0..problem.num_ops()).filter(|op| waiting[*op as usize] == 0) {
        queue.push(Reverse((0, graph.position()[op as usize])));
    }
    while let Some(Reverse((ready, position))) = queue.pop() {
        let op = graph.order()[position as usize];
        let home = device[op as usize];
        let at = home as usize;
        start[op as usize] = ready.max(free_at[at]);
        end[op as usize] = start[op as usize] + problem.compute_ns(op, home);
        free_at[at] = end[op as usize];
        launch.push(op);
        if launch.len() % 1024 == 0 {
            problem.check_cancelled()?;
        }
        used[at] += bytes.held[op as usize];
        if used[at] + bytes.scratch[op as usize] > peak[at] {
            peak[at] = used[at] + bytes.scratch[op as usize];
            peak_op[at] = op;
        }
        for tensor in graph.inputs(op) {
            let parent = graph.producer(*tensor) as usize;
            if counted_for[parent] == op {
                continue;
            }
            counted_for[parent] = op;
            unrun[parent] -= 1;
            if unrun[parent] == 0 {
                used[device[parent] as usize] -= bytes.held[parent] - bytes.persistent[parent];
            }
        }
        for (tensor, consumer) in out_edges.of(op).iter().copied() {
            let destination = device[consumer as usize];
            let mut arrival = end[op as usize];
            if destination != home && !is_order_only(problem, tensor) {
                let slot = tensor as usize * num_devices + destination as usize;
                if received[slot] < 0 {
                    let duration = problem.transfer_ns(tensor, home, destination);
                    let sent = end[op as usize].max(channel[at]);
                    channel[at] = sent + duration;
                    let arrive = sent.max(channel[destination as usize]);
                    channel[destination as usize] = arrive + duration;
                    received[slot] = arrive + duration;
                    transfers.push(Transfer {
                        tensor,
                        source: home,
                        destination,
                        start: sent,
                        end: arrive + duration,
                        consumer,
                        wait: None,
                    });
                }
                arrival = received[slot];
            }
            let ready = &mut ready_at[consumer as usize];
            *ready = arrival.max(*ready);
        }
        for child in graph.children(op) {
            waiting[*child as usize] -= 1;
            if waiting[*child as usize] == 0 {
                let position = graph.position()[*child as usize];
                queue.push(Reverse((ready_at[*child as usize], position)));
            }
        }
    }
    let decision = Decision { device: device.to_vec(), launch, not_before: Vec::new() };
    let schedule = finished(problem, &decision, start, end, transfers, peak, peak_op);
    Ok(Schedule { executor: Executor::Fifo, ..schedule })
}

/// Edges that leave an op, child by child in the order of the originals' out-edges.
struct OutEdges<'p> {
    problem: &'p Problem<'p>,
    /// Indices of the edges of each producer, in insertion order.
    edges: Lists,
    /// For the op that was asked for last: the place of each child among its children.
    place: Vec<u32>,
    found: Vec<(TensorId, OpId)>,
}

impl<'p> OutEdges<'p> {
    fn new(problem: &'p Problem<'p>) -> Self {
        let graph = problem.graph;
        let tensors = graph.columns.edge_tensor.iter();
        let producers = tensors.map(|tensor| graph.producer(index(*tensor)));
        let edges = Lists::group(graph.num_ops, producers.zip(0_u32..));
        Self { problem, edges, place: vec![0; graph.num_ops], found: Vec::new() }
    }

    fn of(&mut self, op: OpId) -> &[(TensorId, OpId)] {
        let graph = self.problem.graph;
        let children = graph.children(op);
        for (place, child) in (0_u32..).zip(children) {
            self.place[*child as usize] = place;
        }
        let (tensor, consumer) = (&graph.columns.edge_tensor, &graph.columns.edge_consumer);
        let ends = |edge: &u32| (index(tensor[*edge as usize]), index(consumer[*edge as usize]));
        self.found.clear();
        self.found.extend(self.edges.of(op).iter().map(ends));
        if children.len() < self.found.len() {
            let place = &self.place;
            self.found.sort_by_key(|(_, child)| place[*child as usize]);
        }
        &self.found
    }
}

fn index(value: i32) -> u32 {
    u32::try_from(value).expect("checked when the graph was made")
}
