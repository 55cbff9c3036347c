//! The memory of all devices while a decided order is scheduled within the caps.

use crate::launch::Run;
use crate::memory::Profile;
use crate::problem::Problem;
use crate::schedule::{Decision, Event};
use crate::{Bytes, DeviceId, Ns, OpId, TensorId};

const NONE: u32 = u32::MAX;

/// Memory of all devices over time, with everything launched so far.
pub(crate) struct Ledger<'p> {
    problem: &'p Problem<'p>,
    device: &'p [DeviceId],
    pub(crate) profiles: Vec<Profile>,
    /// Uses of each tensor on its producer's device that are not launched yet: local consumers and sends.
    uses: Vec<u32>,
    last_use: Vec<LastUse>,
    /// The same for the copy that each transfer makes.
    copy_uses: Vec<u32>,
    copy_last_use: Vec<LastUse>,
}

/// The event that ends the last use so far.
#[derive(Clone, Copy, Default)]
struct LastUse {
    end: Ns,
    /// Among uses that end together, those that took no time end last.
    took_no_time: bool,
    event: Option<Event>,
}

impl LastUse {
    fn add(&mut self, start: Ns, end: Ns, event: Event) {
        let took_no_time = start == end;
        if self.event.is_none() || (end, took_no_time) >= (self.end, self.took_no_time) {
            *self = Self { end, took_no_time, event: Some(event) };
        }
    }

    fn release(self, profile: &mut Profile, bytes: Bytes) {
        let event = self.event.expect("something that was used");
        profile.release(self.end, bytes, event, !self.took_no_time);
    }
}

impl<'p> Ledger<'p> {
    pub(crate) fn new(problem: &'p Problem<'p>, decision: &'p Decision) -> Self {
        let mut persistent = vec![0; problem.cluster.num_devices];
        for op in 0..problem.num_ops() {
            persistent[decision.device[op as usize] as usize] += problem.persistent_bytes(op);
        }
        let caps = &problem.cluster.cap_bytes;
        let profiles = caps.iter().zip(persistent).map(|(cap, base)| Profile::new(*cap, base));
        let mut ledger = Self {
            problem,
            device: &decision.device,
            profiles: profiles.collect(),
            uses: Vec::with_capacity(problem.graph.num_tensors),
            last_use: vec![LastUse::default(); problem.graph.num_tensors],
            copy_uses: Vec::new(),
            copy_last_use: Vec::new(),
        };
        let mut destinations: Vec<DeviceId> = Vec::new();
        for tensor in 0..u32::try_from(problem.graph.num_tensors).expect("31 bits") {
            let home = ledger.device[problem.graph.producer(tensor) as usize];
            destinations.clear();
            let mut uses = 0;
            for consumer in problem.graph.consumers(tensor) {
                let device = ledger.device[*consumer as usize];
                if device == home {
                    uses += 1;
                } else if !destinations.contains(&device) {
                    destinations.push(device);
                    uses += 1;
                }
            }
            ledger.uses.push(if problem.is_kept(tensor) { NONE } else { uses });
        }
        ledger
    }

    pub(crate) fn fit(
        &self,
        device: DeviceId,
        from: Ns,
        bytes: Bytes,
    ) -> Option<(Ns, Option<Event>)> {
        self.profiles[device as usize].earliest_fit(from, bytes)
    }

    /// Books a launched op: charges it and its just-in-time copies, frees what it used last.
    pub(crate) fn settle(&mut self, run: &Run, op: OpId, device: DeviceId, first: usize) {
        let graph = self.problem.graph;
        let (start, end) = (run.start[op as usize], run.end[op as usize]);
        for at in first..run.transfers.len() {
            let transfer = &run.transfers[at];
            let bytes = self.problem.tensor_bytes(transfer.tensor);
            if self.problem.channels(transfer.source, device).unlimited() {
                self.profiles[device as usize].charge(transfer.start, bytes);
            }
            let consumers = graph.consumers(transfer.tensor).iter();
            let here = consumers.filter(|op| self.device[**op as usize] == device).count();
            self.copy_uses.push(u32::try_from(here).expect("fewer than the edges"));
            self.copy_last_use.push(LastUse::default());
            let event = Event::Transfer(u32::try_from(at).expect("32 bits"));
            let (tensor, source) = (transfer.tensor, transfer.source);
            self.use_original(tensor, source, transfer.start, transfer.end, event);
        }
        let scratch = self.problem.scratch_bytes(op);
        let profile = &mut self.profiles[device as usize];
        profile.charge(start, graph.output_bytes[op as usize] + scratch);
        profile.release(end, scratch, Event::Op(op), start < end);
        for tensor in graph.inputs(op).iter().copied() {
            let home = self.device[graph.producer(tensor) as usize];
            if home == device {
                self.use_original(tensor, device, start, end, Event::Op(op));
                continue;
            }
            let at = run.sent(tensor, device).expect("sent before it is used") as usize;
            self.copy_uses[at] -= 1;
            self.copy_last_use[at].add(start, end, Event::Op(op));
            if self.copy_uses[at] == 0 {
                let profile = &mut self.profiles[device as usize];
                self.copy_last_use[at].release(profile, self.problem.tensor_bytes(tensor));
            }
        }
    }

    fn use_original(&mut self, tensor: TensorId, home: DeviceId, start: Ns, end: Ns, event: Event) {
        let at = tensor as usize;
        if self.uses[at] == NONE {
            return;
        }
        self.uses[at] -= 1;
        self.last_use[at].add(start, end, event);
        if self.uses[at] == 0 {
            let profile = &mut self.profiles[home as usize];
            self.last_use[at].release(profile, self.problem.tensor_bytes(tensor));
        }
    }
}
