//! Launching ops in a given order: the clocks of devices and channels, and what was sent where.

use crate::channels::ChannelClocks;
use crate::error::{Error, Placed, Result};
use crate::ledger::Ledger;
use crate::problem::Problem;
use crate::schedule::{Decision, Event, Transfer};
use crate::{Bytes, DeviceId, Ns, OpId, TensorId};

const NONE: u32 = u32::MAX;

/// Waits of a plan that is replayed: what each op, and each transfer in commit order, waits for.
#[derive(Debug, Clone, Default)]
pub struct Waits {
    /// Empty, or one entry per op.
    pub ops: Vec<Option<Event>>,
    /// Empty, or one entry per transfer.
    pub transfers: Vec<Option<Event>>,
}

/// Scheduling state: clocks, and what was sent where.
pub(crate) struct Run<'p> {
    problem: &'p Problem<'p>,
    decision: &'p Decision,
    channels: ChannelClocks,
    free_at: Vec<Ns>,
    pub(crate) order: Vec<u32>,
    pub(crate) start: Vec<Ns>,
    pub(crate) end: Vec<Ns>,
    pub(crate) wait: Vec<Option<Event>>,
    pub(crate) transfers: Vec<Transfer>,
    /// Latest transfer of each tensor, and the one before each transfer.
    last_transfer: Vec<u32>,
    before: Vec<u32>,
}

impl<'p> Run<'p> {
    pub(crate) fn new(problem: &'p Problem<'p>, decision: &'p Decision) -> Result<Self> {
        let num_ops = problem.graph.num_ops;
        let mut order = vec![NONE; num_ops];
        for (rank, op) in (0_u32..).zip(&decision.launch) {
            if *op as usize >= num_ops || order[*op as usize] != NONE {
                return Err(Error::LaunchOrder { op: *op });
            }
            order[*op as usize] = rank;
        }
        if let Some(op) = order.iter().position(|rank| *rank == NONE) {
            return Err(Error::LaunchOrder { op: u32::try_from(op).expect("31 bits") });
        }
        check_devices(problem, &decision.device)?;
        for op in 0..problem.num_ops() {
            let is_early = |tensor: &TensorId| {
                order[problem.graph.producer(*tensor) as usize] >= order[op as usize]
            };
            if problem.graph.inputs(op).iter().any(is_early) {
                return Err(Error::LaunchOrder { op });
            }
        }
        Ok(Self {
            problem,
            decision,
            channels: ChannelClocks::new(problem.cluster.num_channels),
            free_at: vec![0; problem.cluster.num_devices],
            order,
            start: vec![0; num_ops],
            end: vec![0; num_ops],
            wait: vec![None; num_ops],
            transfers: Vec::new(),
            last_transfer: vec![NONE; problem.graph.num_tensors],
            before: Vec::new(),
        })
    }

    pub(crate) fn run(mut self, mut ledger: Option<Ledger<'p>>, waits: &Waits) -> Result<Self> {
        let launch = &self.decision.launch;
        for (rank, op) in launch.iter().copied().enumerate() {
            self.launch(op, ledger.as_mut(), waits)?;
            if rank % 1024 == 0 {
                self.problem.check_cancelled()?;
            }
        }
        Ok(self)
    }

    fn launch(&mut self, op: OpId, ledger: Option<&mut Ledger<'p>>, waits: &Waits) -> Result<()> {
        let device = self.decision.device[op as usize];
        let first = self.transfers.len();
        let mut start = self.free_at[device as usize];
        let mut just_in_time = false;
        let mut ledger = ledger;
        for tensor in self.problem.graph.inputs(op).iter().copied() {
            let producer = self.problem.graph.producer(tensor);
            let source = self.decision.device[producer as usize];
            if source == device {
                start = start.max(self.end[producer as usize]);
            } else if let Some(sent) = self.sent(tensor, device) {
                start = start.max(self.transfers[sent as usize].end);
            } else {
                let at = u32::try_from(self.transfers.len()).expect("fewer than 32 bits");
                let given = waits.transfers.get(at as usize).copied().flatten();
                let mut transfer = Transfer {
                    tensor,
                    source,
                    destination: device,
                    start: self.end[producer as usize].max(self.end_of(given)),
                    end: 0,
                    consumer: op,
                    wait: given,
                };
                let duration = self.problem.transfer_ns(tensor, source, device);
                let channels = self.problem.channels(source, device);
                if channels.unlimited() {
                    just_in_time = true;
                } else {
                    transfer.start = self.channels.free_from(channels, transfer.start);
                    if let Some(ledger) = ledger.as_deref_mut() {
                        let bytes = self.problem.tensor_bytes(tensor);
                        let fit = ledger.fit(device, transfer.start, bytes);
                        let fit = fit.ok_or_else(|| self.no_room(op, device, bytes, ledger))?;
                        (transfer.start, transfer.wait) = fit;
                        ledger.profiles[device as usize].charge(transfer.start, bytes);
                    }
                    self.channels.hold(channels, transfer.start + duration);
                }
                transfer.end = transfer.start + duration;
                start = start.max(transfer.end);
                self.before.push(self.last_transfer[tensor as usize]);
                self.last_transfer[tensor as usize] = at;
                self.transfers.push(transfer);
            }
        }
        let given = waits.ops.get(op as usize).copied().flatten();
        self.wait[op as usize] = given;
        start = start.max(self.end_of(given));
        if let Some(ledger) = ledger.as_deref_mut() {
            start = self.wait_for_room(op, device, start, first, ledger)?;
        }
        if just_in_time {
            for transfer in &mut self.transfers[first..] {
                if self.problem.channels(transfer.source, device).unlimited() {
                    let duration = transfer.end - transfer.start;
                    transfer.end = start;
                    transfer.start = start - duration;
                }
            }
        }
        let end = start + self.problem.compute_ns(op, device);
        self.start[op as usize] = start;
        self.end[op as usize] = end;
        self.free_at[device as usize] = end;
        if let Some(ledger) = ledger {
            ledger.settle(self, op, device, first);
        }
        Ok(())
    }

    /// Delays an op until it and its just-in-time copies fit for good, each from its own start on.
    fn wait_for_room(
        &mut self,
        op: OpId,
        device: DeviceId,
        start: Ns,
        first: usize,
        ledger: &Ledger,
    ) -> Result<Ns> {
        let length = |transfer: &Transfer| transfer.end - transfer.start;
        let unlimited =
            |at: &usize| self.problem.channels(self.transfers[*at].source, device).unlimited();
        let mut copies: Vec<usize> = (first..self.transfers.len()).filter(unlimited).collect();
        copies.sort_by_key(|at| std::cmp::Reverse(length(&self.transfers[*at])));
        let mut bytes = 0;
        let (mut latest, mut waits_for, mut waiting) = (start, None, None);
        let own = self.problem.graph.output_bytes[op as usize] + self.problem.scratch_bytes(op);
        // What started longer before is held as well when the next one starts; the op comes last.
        for at in copies.into_iter().map(Some).chain([None]) {
            let lead = at.map_or(0, |at| length(&self.transfers[at]));
            bytes += at.map_or(own, |at| self.problem.tensor_bytes(self.transfers[at].tensor));
            let fit = ledger.fit(device, start - lead, bytes);
            let (from, event) = fit.ok_or_else(|| self.no_room(op, device, bytes, ledger))?;
            if from + lead > latest {
                (latest, waits_for, waiting) = (from + lead, event, at);
            }
        }
        match waiting {
            Some(at) => self.transfers[at].wait = waits_for,
            None if waits_for.is_some() => self.wait[op as usize] = waits_for,
            None => {}
        }
        Ok(latest)
    }

    pub(crate) fn sent(&self, tensor: TensorId, device: DeviceId) -> Option<u32> {
        let mut at = self.last_transfer[tensor as usize];
        while at != NONE && self.transfers[at as usize].destination != device {
            at = self.before[at as usize];
        }
        (at != NONE).then_some(at)
    }

    fn end_of(&self, event: Option<Event>) -> Ns {
        match event {
            Some(Event::Op(op)) => self.end[op as usize],
            Some(Event::Transfer(at)) => self.transfers[at as usize].end,
            None => 0,
        }
    }

    fn no_room(&self, op: OpId, device: DeviceId, needed: Bytes, ledger: &Ledger) -> Error {
        let free = ledger.profiles[device as usize].free_at_the_end();
        let rank = self.order[op as usize] as usize;
        let placed: Placed = self.decision.launch[..rank]
            .iter()
            .map(|op| (*op, self.decision.device[*op as usize]))
            .collect();
        Error::OutOfMemory { op, device, needed, free, placed }
    }
}

/// Checks that every op has a device that may run it.
///
/// # Errors
/// [`Error::Shape`], [`Error::WrongDevice`].
pub fn check_devices(problem: &Problem, device: &[DeviceId]) -> Result<()> {
    if device.len() != problem.graph.num_ops {
        let (expected, found) = (problem.graph.num_ops, device.len());
        return Err(Error::Shape { what: "devices of the placement", expected, found });
    }
    for op in 0..problem.num_ops() {
        let device = device[op as usize];
        if device as usize >= problem.cluster.num_devices || !problem.may_run(op, device) {
            return Err(Error::WrongDevice { op, device });
        }
    }
    Ok(())
}
