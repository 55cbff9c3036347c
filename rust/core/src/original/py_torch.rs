//! The PyTorch original's devices: unlimited channels, and a book that frees nothing.

use super::{NOWHERE, OpBytes, finished, time_away};
use crate::list::{Effects, Room, Timeline};
use crate::problem::Problem;
use crate::schedule::{Decision, Schedule, Transfer};
use crate::{Bytes, DeviceId, Ns, OpId, TensorId};

/// The PyTorch original: unlimited channels, every edge its own copy, nothing ever freed.
pub struct PyTorch<'p> {
    problem: &'p Problem<'p>,
    bytes: OpBytes,
    limit: Vec<Bytes>,
    used: Vec<Bytes>,
    peak: Vec<Bytes>,
    peak_op: Vec<OpId>,
    free_at: Vec<Ns>,
    device: Vec<DeviceId>,
    end: Vec<Ns>,
    start: Vec<Ns>,
    transfers: Vec<Transfer>,
}

impl<'p> PyTorch<'p> {
    /// Idle devices with these limits. In `bytes`, `persistent` are the parameters with their gradients.
    #[must_use]
    pub fn new(problem: &'p Problem<'p>, bytes: OpBytes, limit: Vec<Bytes>) -> Self {
        let num_ops = problem.graph.num_ops;
        let num_devices = problem.cluster.num_devices;
        Self {
            problem,
            bytes,
            limit,
            used: vec![0; num_devices],
            peak: vec![0; num_devices],
            peak_op: vec![OpId::MAX; num_devices],
            free_at: vec![0; num_devices],
            device: vec![NOWHERE; num_ops],
            end: vec![0; num_ops],
            start: vec![0; num_ops],
            transfers: Vec::new(),
        }
    }

    /// The schedule of what was committed in this launch order.
    #[must_use]
    pub fn into_schedule(self, decision: &Decision) -> Schedule {
        finished(
            self.problem,
            decision,
            self.start,
            self.end,
            self.transfers,
            self.peak,
            self.peak_op,
        )
    }

    /// Peak of each device in the placer's own book.
    #[must_use]
    pub fn peaks(&self) -> &[Bytes] {
        &self.peak
    }

    /// Charges an op as m-TOPO does: without clocks and without the receive test.
    pub fn charge(&mut self, op: OpId, device: DeviceId) {
        let at = device as usize;
        let before = self.used[at];
        let held = self.bytes.held[op as usize];
        self.used[at] += held + self.remote_bytes(op, device);
        let running = before + held + self.bytes.scratch[op as usize];
        let peak = running.max(self.used[at]);
        if peak > self.peak[at] {
            self.peak[at] = peak;
            self.peak_op[at] = op;
        }
        self.device[op as usize] = device;
    }

    /// Bytes in use on a device.
    #[must_use]
    pub fn used(&self, device: DeviceId) -> Bytes {
        self.used[device as usize]
    }

    fn remote_inputs(&self, op: OpId, device: DeviceId) -> impl Iterator<Item = TensorId> {
        let inputs = self.problem.graph.inputs(op).iter().copied();
        inputs.filter(move |tensor| {
            self.device[self.problem.graph.producer(*tensor) as usize] != device
        })
    }

    fn remote_bytes(&self, op: OpId, device: DeviceId) -> Bytes {
        self.remote_inputs(op, device).map(|tensor| self.problem.tensor_bytes(tensor)).sum()
    }
}

impl Timeline for PyTorch<'_> {
    fn free_at(&self, device: DeviceId) -> Ns {
        self.free_at[device as usize]
    }

    fn bound_to(&self, op: OpId) -> Option<DeviceId> {
        let device = self.device[op as usize];
        (device != NOWHERE).then_some(device)
    }

    fn arrival(&mut self, op: OpId, device: DeviceId) -> Ns {
        let mut ready = 0;
        for tensor in self.problem.graph.inputs(op).iter().copied() {
            let producer = self.problem.graph.producer(tensor) as usize;
            let source = self.device[producer];
            let transfer =
                if source == device { 0 } else { self.problem.transfer_ns(tensor, source, device) };
            ready = ready.max(self.end[producer] + transfer);
        }
        ready
    }

    fn room(&self, op: OpId, device: DeviceId) -> Room {
        let at = device as usize;
        let remote = self.remote_bytes(op, device);
        let tests = [
            (remote + self.bytes.peak[op as usize], self.limit[at] - self.used[at]),
            (remote + self.bytes.persistent[op as usize], self.limit[at] - self.peak[at]),
        ];
        match tests.into_iter().find(|(needed, free)| needed > free) {
            Some((needed, free)) => Room::Full { needed, free },
            None => Room::Fits,
        }
    }

    fn free_bytes(&self, device: DeviceId) -> Bytes {
        self.limit[device as usize] - self.used[device as usize]
    }

    fn time_away(&self, op: OpId, producer: OpId, home: DeviceId) -> Ns {
        time_away(self.problem, op, producer, home)
    }

    fn urgent(&self, _op: OpId) -> Ns {
        0
    }

    fn commit(
        &mut self,
        op: OpId,
        device: DeviceId,
        now: Ns,
        _effects: &mut Effects,
    ) -> Result<Ns, &'static str> {
        let ready = self.arrival(op, device);
        self.charge(op, device);
        let at = device as usize;
        let remote: Vec<TensorId> = self.remote_inputs(op, device).collect();
        for tensor in remote {
            let bytes = self.problem.tensor_bytes(tensor);
            if bytes > self.limit[at] - self.used[at] {
                return Err("not enough memory to receive a tensor");
            }
            let producer = self.problem.graph.producer(tensor) as usize;
            let source = self.device[producer];
            let start = self.end[producer];
            let end = start + self.problem.transfer_ns(tensor, source, device);
            let destination = device;
            let transfer =
                Transfer { tensor, source, destination, start, end, consumer: op, wait: None };
            self.transfers.push(transfer);
        }
        let start = ready.max(self.free_at[at]).max(now);
        let end = start + self.problem.compute_ns(op, device);
        self.start[op as usize] = start;
        self.end[op as usize] = end;
        self.free_at[at] = end;
        Ok(end)
    }

    fn finish(&mut self, _op: OpId, _device: DeviceId, _effects: &mut Effects) {}
}
