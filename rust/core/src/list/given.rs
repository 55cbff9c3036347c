//! The loop for devices that are given and memory that is not limited, for one placement after the other.
//!
//! An op then has one device, nothing is ever full, and what counts is when its inputs are there. The choices are those of
//! [`super::run`] with [`crate::timeline::Book`]; tests hold the two equal. Time and space as there, for one device per op.

use super::queue::{NOTHING, Queue};
use super::{NEVER, Policy};
use crate::channels::ChannelClocks;
use crate::cluster::Channels;
use crate::error::{Error, Result};
use crate::inputs::{Input, Inputs};
use crate::problem::Problem;
use crate::rules::Rules;
use crate::timeline::Book;
use crate::{DeviceId, Ns, OpId, TensorId, UNLIMITED};

/// `Op::waiting` of one that was placed.
const PLACED: u32 = u32::MAX;
const IDLE: OpId = OpId::MAX;
/// Arrival of inputs that are on the device already.
const THERE: Ns = -1;
/// So many ops may wait for their inputs on one device.
const MOST_PUT_OFF: usize = 256;

/// Buffers for one placement after the other.
pub struct GivenDevices<'p> {
    problem: &'p Problem<'p>,
    inputs: Inputs,
    channels: ChannelClocks,
    undo: Vec<(i32, Ns)>,
    now: Ns,
    /// Whether so many ops wait that the loop for all, which then looks at few of them, is faster.
    crowded: bool,
    ops: Vec<Op>,
    /// Bit masks of the devices that each tensor was sent to, so many words per tensor.
    held: Vec<u64>,
    words: usize,
    queues: Vec<Queue>,
    /// As in the loop for all: the least rank that each device may start now, what comes next on it, what it runs.
    least: Vec<u32>,
    event: Vec<Ns>,
    running: Vec<OpId>,
    launch: Vec<OpId>,
}

#[derive(Clone, Copy)]
struct Op {
    end: Ns,
    device: DeviceId,
    /// Producers that have not ended yet.
    waiting: u32,
}

impl<'p> GivenDevices<'p> {
    /// Buffers for a problem.
    #[must_use]
    pub fn new(problem: &'p Problem<'p>) -> Self {
        let num_devices = problem.cluster.num_devices;
        let words = num_devices.div_ceil(64);
        Self {
            problem,
            inputs: Inputs::new(problem.graph),
            channels: ChannelClocks::new(problem.cluster.num_channels),
            undo: Vec::new(),
            now: 0,
            crowded: false,
            ops: Vec::new(),
            held: vec![0; problem.graph.num_tensors * words],
            words,
            queues: (0..num_devices).map(|_| Queue::new(problem.graph.num_ops)).collect(),
            least: vec![NOTHING; num_devices],
            event: vec![NEVER; num_devices],
            running: vec![IDLE; num_devices],
            launch: Vec::with_capacity(problem.graph.num_ops),
        }
    }

    /// The launch order of a placement.
    ///
    /// # Errors
    /// [`Error::WrongDevice`], [`Error::Cancelled`].
    pub fn launch_order(&mut self, device: &[i32]) -> Result<&[OpId]> {
        self.start_over(device)?;
        self.run()?;
        if self.crowded {
            let fixed: Vec<DeviceId> = self.ops.iter().map(|op| op.device).collect();
            let rules = Rules::Physical.for_loop();
            let policy = Policy { rules, favorites: None, fixed: Some(&fixed) };
            let caps = vec![UNLIMITED; self.problem.cluster.num_devices];
            let mut book = Book::of_given(self.problem, caps);
            self.launch = super::run(self.problem, &mut book, policy)?.launch;
        }
        Ok(&self.launch)
    }

    fn run(&mut self) -> Result<()> {
        for op in self.problem.graph.order() {
            if self.ops[*op as usize].waiting == 0 {
                self.offer(*op);
            }
        }
        loop {
            self.finish_ended();
            self.wake();
            while let Some((rank, device)) = self.first()
                && !self.crowded
            {
                self.look_at(rank, device);
                if self.launch.len().is_multiple_of(1024) {
                    self.problem.check_cancelled()?;
                }
            }
            match self.event.iter().copied().min() {
                Some(next) if next < NEVER && !self.crowded => self.now = next,
                _ => return Ok(()),
            }
        }
    }

    fn start_over(&mut self, device: &[i32]) -> Result<()> {
        let problem = self.problem;
        self.ops.clear();
        for ((op, home), waiting) in (0..).zip(device).zip(problem.graph.num_parents()) {
            let device = u32::try_from(*home).unwrap_or(u32::MAX);
            if device >= problem.devices().end || !problem.may_run(op, device) {
                return Err(Error::WrongDevice { op, device });
            }
            self.ops.push(Op { end: 0, device, waiting: *waiting });
        }
        self.now = 0;
        self.crowded = false;
        self.channels.restart();
        self.held.fill(0);
        self.queues.iter_mut().for_each(Queue::clear);
        self.least.fill(NOTHING);
        self.event.fill(NEVER);
        self.running.fill(IDLE);
        self.launch.clear();
        Ok(())
    }

    fn rank(&self, op: OpId) -> u32 {
        self.problem.graph.position()[op as usize]
    }

    fn offer(&mut self, op: OpId) {
        let (rank, at) = (self.rank(op), self.ops[op as usize].device as usize);
        self.queues[at].offer(rank);
        if self.running[at] == IDLE {
            self.least[at] = self.queues[at].least_now();
        }
    }

    fn finish_ended(&mut self) {
        for device in self.problem.devices() {
            if self.running[device as usize] != IDLE && self.event[device as usize] <= self.now {
                self.finish(device);
            }
        }
    }

    fn finish(&mut self, device: DeviceId) {
        let at = device as usize;
        let op = std::mem::replace(&mut self.running[at], IDLE);
        self.look_ahead(device);
        self.least[at] = self.queues[at].least_now();
        let graph = self.problem.graph;
        for child in graph.children(op) {
            let known = &mut self.ops[*child as usize];
            known.waiting -= 1;
            if known.waiting > 0 {
                continue;
            }
            let home = known.device;
            let arrival = if home == device { THERE } else { self.arrival(*child, home) };
            if arrival > self.now {
                self.put_off(arrival, self.rank(*child), home);
            } else {
                self.offer(*child);
            }
        }
    }

    fn wake(&mut self) {
        for device in self.problem.devices() {
            let at = device as usize;
            if self.event[at] <= self.now && self.running[at] == IDLE {
                self.queues[at].wake(self.now, |_| 0);
                self.look_ahead(device);
                self.least[at] = self.queues[at].least_now();
            }
        }
    }

    fn look_ahead(&mut self, device: DeviceId) {
        let graph = self.problem.graph;
        let queue = &mut self.queues[device as usize];
        queue.forget_first_later(|rank| {
            self.ops[graph.order()[rank as usize] as usize].waiting == PLACED
        });
        self.event[device as usize] = queue.earliest(|_| 0).unwrap_or(NEVER);
    }

    fn put_off(&mut self, until: Ns, rank: u32, device: DeviceId) {
        let at = device as usize;
        self.queues[at].put_off(until, rank);
        self.crowded |= self.queues[at].num_later() > MOST_PUT_OFF;
        if self.running[at] == IDLE {
            self.event[at] = self.event[at].min(until);
        }
    }

    /// The least rank that may start now, and its device.
    fn first(&self) -> Option<(u32, DeviceId)> {
        let (mut rank, mut device) = (NOTHING, 0);
        for (least, at) in self.least.iter().zip(0..) {
            if *least < rank {
                (rank, device) = (*least, at);
            }
        }
        (rank != NOTHING).then_some((rank, device))
    }

    /// Starts an op on its idle device if its inputs can be there by now, else puts it off.
    fn look_at(&mut self, rank: u32, device: DeviceId) {
        let op = self.problem.graph.order()[rank as usize];
        let at = device as usize;
        self.queues[at].withdraw(rank, self.now, |_| 0);
        self.least[at] = self.queues[at].least_now();
        if self.ops[op as usize].waiting == PLACED {
            return;
        }
        let arrival = self.arrival(op, device);
        if arrival > self.now {
            return self.put_off(arrival, rank, device);
        }
        self.least[at] = NOTHING;
        let end = self.now + self.problem.compute_ns(op, device);
        self.ops[op as usize] = Op { end, device, waiting: PLACED };
        self.running[at] = op;
        self.event[at] = end;
        self.launch.push(op);
        if arrival != THERE {
            self.send(op, device);
        }
        if end <= self.now {
            // What takes no time ends before the next choice.
            self.finish(device);
        }
    }

    /// When the inputs of an op could be on its device, sent one after the other in edge order; `THERE` if none has
    /// to be sent.
    fn arrival(&mut self, op: OpId, device: DeviceId) -> Ns {
        let mut arrival = THERE;
        for input in self.inputs.of(op) {
            if self.is_there(*input, device) {
                continue;
            }
            let (channels, sent) = self.sending(*input, device);
            for channel in [channels.send, channels.recv] {
                if channel >= 0 {
                    self.undo.push((channel, self.channels.get(channel)));
                }
            }
            self.channels.hold(channels, sent);
            arrival = arrival.max(sent);
        }
        while let Some((channel, time)) = self.undo.pop() {
            self.channels.set(channel, time);
        }
        arrival
    }

    /// Sends the inputs of an op to its device, and offers what else waits for them there.
    fn send(&mut self, op: OpId, device: DeviceId) {
        for at in self.inputs.range(op) {
            let input = self.inputs.all[at];
            if self.is_there(input, device) {
                continue;
            }
            let (channels, sent) = self.sending(input, device);
            self.channels.hold(channels, sent);
            let word = input.tensor as usize * self.words + device as usize / 64;
            self.held[word] |= 1 << (device % 64);
            self.reoffer_consumers(input.tensor, device);
        }
    }

    fn is_there(&self, input: Input, device: DeviceId) -> bool {
        let word = input.tensor as usize * self.words + device as usize / 64;
        self.ops[input.producer as usize].device == device
            || self.held[word] >> (device % 64) & 1 == 1
    }

    /// The channels of an input's way to a device, and when it would be there.
    fn sending(&self, input: Input, device: DeviceId) -> (Channels, Ns) {
        let Op { end, device: source, .. } = self.ops[input.producer as usize];
        let channels = self.problem.channels(source, device);
        let begin = self.channels.free_from(channels, end);
        (channels, begin + self.problem.transfer_ns(input.tensor, source, device))
    }

    fn reoffer_consumers(&mut self, tensor: TensorId, device: DeviceId) {
        let consumers = self.problem.graph.consumers(tensor);
        if consumers.len() == 1 {
            return;
        }
        for op in consumers {
            let known = self.ops[*op as usize];
            if known.device == device && known.waiting == 0 {
                self.offer(*op);
            }
        }
    }
}
