//! Evaluating many placements of one graph: makespans, and peaks on request, without allocating for each.
//!
//! The rules are those of `launch`, less what only a plan needs (waits, limits); tests hold the two equal.

use crate::channels::ChannelClocks;
use crate::cluster::Channels;
use crate::curve::Events;
use crate::error::{Error, Result};
use crate::inputs::{Input, Inputs};
use crate::problem::Problem;
use crate::schedule::{Executor, Schedule, Transfer};
use crate::{Bytes, DeviceId, Ns, OpId};

const NONE: u32 = u32::MAX;
/// End of an op that was not launched yet.
const UNKNOWN: Ns = -1;

/// Buffers for one placement after the other.
pub struct Evaluator<'p> {
    problem: &'p Problem<'p>,
    inputs: Inputs,
    /// Compute times by device, channels by link.
    compute: Vec<&'p [Ns]>,
    links: Vec<Channels>,
    channels: ChannelClocks,
    free_at: Vec<Ns>,
    /// The latest launch order, as it was given and by rank.
    order: Vec<i32>,
    launch: Vec<OpId>,
    ops: Vec<Launched>,
    /// Latest copy of each tensor that was sent anywhere.
    latest: Vec<u32>,
    copies: Vec<Copy>,
    schedule: Schedule,
    events: Events,
}

#[derive(Clone, Copy)]
struct Launched {
    end: Ns,
    device: DeviceId,
}

#[derive(Clone, Copy)]
struct Copy {
    arrival: Ns,
    destination: DeviceId,
    before: u32,
}

impl<'p> Evaluator<'p> {
    /// Buffers for a problem.
    #[must_use]
    pub fn new(problem: &'p Problem<'p>) -> Self {
        let graph = problem.graph;
        let links = |source| problem.devices().map(move |to| problem.channels(source, to));
        Self {
            problem,
            inputs: Inputs::new(graph),
            compute: problem.devices().map(|device| problem.compute_column(device)).collect(),
            links: problem.devices().flat_map(links).collect(),
            channels: ChannelClocks::new(problem.cluster.num_channels),
            free_at: vec![0; problem.cluster.num_devices],
            order: Vec::new(),
            launch: Vec::new(),
            ops: Vec::new(),
            latest: vec![NONE; graph.num_tensors],
            copies: Vec::new(),
            schedule: Schedule::empty(Executor::Launch),
            events: Events::default(),
        }
    }

    /// Length of the step of a placement with a launch order.
    ///
    /// # Errors
    /// [`Error::WrongDevice`] or [`Error::LaunchOrder`].
    pub fn makespan(&mut self, device: &[i32], order: &[i32]) -> Result<Ns> {
        self.run::<false>(device, order)
    }

    /// The same, and appends the exact peak of every device.
    ///
    /// # Errors
    /// As `makespan`.
    pub fn makespan_and_peaks(
        &mut self,
        device: &[i32],
        order: &[i32],
        peaks: &mut Vec<Bytes>,
    ) -> Result<Ns> {
        let makespan = self.run::<true>(device, order)?;
        self.events.fill(self.problem, &self.schedule);
        for device in self.problem.devices() {
            peaks.push(self.events.peak(self.problem, &self.schedule, device).bytes);
        }
        Ok(makespan)
    }

    fn start_over(&mut self, device: &[i32], order: &[i32]) -> Result<()> {
        let problem = self.problem;
        // A search keeps its order for many placements.
        if self.order != order {
            self.order.clear();
            self.launch.clear();
            self.launch.resize(problem.graph.num_ops, NONE);
            for (op, rank) in (0_u32..).zip(order) {
                match usize::try_from(*rank).ok().and_then(|rank| self.launch.get_mut(rank)) {
                    Some(slot) if *slot == NONE => *slot = op,
                    _ => return Err(Error::LaunchOrder { op }),
                }
            }
            self.order.extend_from_slice(order);
        }
        let end = problem.devices().end;
        let launched = device
            .iter()
            .map(|home| Launched { end: UNKNOWN, device: u32::try_from(*home).unwrap_or(NONE) });
        self.ops.clear();
        self.ops.extend(launched);
        let is_wrong = |(op, home): &(u32, &Launched)| {
            home.device >= end || !problem.may_run(*op, home.device)
        };
        if let Some((op, home)) = (0_u32..).zip(&self.ops).find(is_wrong) {
            return Err(Error::WrongDevice { op, device: home.device });
        }
        self.free_at.fill(0);
        self.latest.fill(NONE);
        self.copies.clear();
        self.channels.restart();
        Ok(())
    }

    fn run<const RECORD: bool>(&mut self, device: &[i32], order: &[i32]) -> Result<Ns> {
        self.start_over(device, order)?;
        if RECORD {
            let schedule = &mut self.schedule;
            schedule.transfers.clear();
            schedule.device.clear();
            schedule.device.extend(self.ops.iter().map(|op| op.device));
            schedule.order.clear();
            schedule.order.extend(order.iter().map(|rank| u32::try_from(*rank).unwrap_or(NONE)));
            schedule.start.resize(self.ops.len(), 0);
            schedule.end.resize(self.ops.len(), 0);
        }
        self.launch_all::<RECORD>()
    }

    fn launch_all<const RECORD: bool>(&mut self) -> Result<Ns> {
        let Self {
            problem,
            inputs,
            compute,
            links,
            channels,
            free_at,
            launch,
            ops,
            latest,
            copies,
            schedule,
            ..
        } = self;
        let num_devices = problem.cluster.num_devices;
        let mut makespan = 0;
        for op in launch.iter().copied() {
            let at = op as usize;
            let device = ops[at].device;
            let mut start = free_at[device as usize];
            let first_copy = copies.len();
            let mut just_in_time = false;
            for Input { producer, tensor } in inputs.of(op) {
                let Launched { end, device: source } = ops[*producer as usize];
                if end == UNKNOWN {
                    return Err(Error::LaunchOrder { op });
                }
                if source == device {
                    start = start.max(end);
                    continue;
                }
                let newest = latest[*tensor as usize];
                let mut known = newest;
                while known != NONE && copies[known as usize].destination != device {
                    known = copies[known as usize].before;
                }
                if known != NONE {
                    start = start.max(copies[known as usize].arrival);
                    continue;
                }
                let link = links[source as usize * num_devices + device as usize];
                let sent = channels.free_from(link, end);
                let arrival = sent + problem.transfer_ns(*tensor, source, device);
                channels.hold(link, arrival);
                just_in_time |= link.unlimited();
                start = start.max(arrival);
                latest[*tensor as usize] = u32::try_from(copies.len()).unwrap_or(NONE);
                copies.push(Copy { arrival, destination: device, before: newest });
                if RECORD {
                    schedule.transfers.push(Transfer {
                        tensor: *tensor,
                        source,
                        destination: device,
                        start: sent,
                        end: arrival,
                        consumer: op,
                        wait: None,
                    });
                }
            }
            if RECORD && just_in_time {
                for transfer in &mut schedule.transfers[first_copy..] {
                    if problem.channels(transfer.source, device).unlimited() {
                        transfer.start += start - transfer.end;
                        transfer.end = start;
                    }
                }
            }
            if just_in_time {
                for copy in &mut copies[first_copy..] {
                    copy.arrival = start.max(copy.arrival);
                }
            }
            let end = start + compute[device as usize][at];
            ops[at].end = end;
            free_at[device as usize] = end;
            makespan = makespan.max(end);
            if RECORD {
                schedule.start[at] = start;
                schedule.end[at] = end;
            }
        }
        Ok(makespan)
    }
}
