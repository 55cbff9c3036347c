//! The one ready-queue loop: it asks a timeline when each ready op could start where, and commits the earliest.
//!
//! Time moves from event to event. At each moment every op that ends is finished first; then, as long as some
//! idle device could start a ready op at this moment, the first such op (by the rule set's tie) is
//! committed. Scores are kept in queues per device as lower bounds and checked when they come to the top: a score can
//! rise unnoticed, and whatever lowers one is reported in [`Effects`], so every choice is what scoring
//! everything would give.

mod awake;
mod events;
mod given;
mod min_tree;
mod queue;

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap};

use crate::error::{Error, Placed, Result};
use crate::problem::Problem;
use crate::rules::{LoopRules, Tie, Urgency};
use crate::schedule::Decision;
use crate::{Bytes, DeviceId, Ns, OpId, TensorId};
pub use given::GivenDevices;
use queue::{NOTHING, Queue};

/// Whether an op may be started on a device, memory and groups considered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Room {
    Fits,
    /// Not now; perhaps when something is freed.
    Short {
        needed: Bytes,
        free: Bytes,
    },
    /// Never, for want of memory.
    Full {
        needed: Bytes,
        free: Bytes,
    },
    /// Never, for other reasons: another home, a kind that cannot run it.
    Never,
}

/// What the loop learns when it looks at an op on an idle device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Score {
    /// It could start at this time.
    Start(Ns),
    /// It needs so many free bytes.
    Short { needed: Bytes },
    /// It will never start there.
    Never,
}

/// What a commit or an end changed for others.
#[derive(Debug, Default)]
pub struct Effects {
    /// Devices where memory became free.
    pub roomier: Vec<DeviceId>,
    /// Tensors that got to a device.
    pub nearer: Vec<(TensorId, DeviceId)>,
    /// Ops that may have become startable on a device for another reason.
    pub reoffer: Vec<(OpId, DeviceId)>,
}

impl Effects {
    fn is_empty(&self) -> bool {
        self.roomier.is_empty() && self.nearer.is_empty() && self.reoffer.is_empty()
    }
}

/// A rule set's clocks and memory, as the loop sees them.
pub trait Timeline {
    /// When a device ends what it runs.
    fn free_at(&self, device: DeviceId) -> Ns;
    /// The device an op is already bound to, by itself or by its group.
    fn bound_to(&self, op: OpId) -> Option<DeviceId>;
    /// When all inputs of a ready op would be on the device, were it committed there now.
    fn arrival(&mut self, op: OpId, device: DeviceId) -> Ns;
    /// What a ready op's start on an idle device would be if it were committed at `now`.
    fn score(&mut self, op: OpId, device: DeviceId, now: Ns) -> Score {
        match self.room(op, device) {
            Room::Fits => Score::Start(self.arrival(op, device).max(now)),
            Room::Short { needed, .. } => Score::Short { needed },
            Room::Full { .. } | Room::Never => Score::Never,
        }
    }
    /// Whether the op may start on the device now.
    fn room(&self, op: OpId, device: DeviceId) -> Room;
    /// As `room`, without the test of the whole group's needs (which the originals' m-SCT skips).
    fn room_for_one(&self, op: OpId, device: DeviceId) -> Room {
        self.room(op, device)
    }
    /// The channel whose clock an op's start on a device follows, if there is one, and how long after it; it is
    /// never less than that, however long the channel will be held.
    fn behind(&mut self, _op: OpId, _device: DeviceId) -> Option<(u32, Ns)> {
        None
    }
    /// When a channel is free.
    fn channel_free_at(&self, _channel: u32) -> Ns {
        0
    }
    /// Bytes that a blocked op might find.
    fn free_bytes(&self, device: DeviceId) -> Bytes;
    /// Least time that the output of `producer`, which ended on `home` as the last of the op's producers, needs to
    /// get to another device; 0 if it may be there at once.
    fn time_away(&self, op: OpId, producer: OpId, home: DeviceId) -> Ns;
    /// When the inputs of a ready op could be anywhere.
    fn urgent(&self, op: OpId) -> Ns;
    /// Places the op and answers when it ends.
    ///
    /// # Errors
    /// The reason, where the originals' placers give up in the middle of a commit.
    fn commit(
        &mut self,
        op: OpId,
        device: DeviceId,
        now: Ns,
        effects: &mut Effects,
    ) -> std::result::Result<Ns, &'static str>;
    /// Ends the op that the device runs.
    fn finish(&mut self, op: OpId, device: DeviceId, effects: &mut Effects);
}

/// What the loop may decide and how.
#[derive(Debug, Clone, Copy)]
pub struct Policy<'r> {
    pub rules: LoopRules,
    /// Favorite child of each op, -1 for none: a device that ran an op may wait for its favorite (m-SCT).
    pub favorites: Option<&'r [i32]>,
    /// Devices given from outside; the loop then decides the order only.
    pub fixed: Option<&'r [DeviceId]>,
}

/// Runs the loop to the end.
///
/// O(ops x devices x log ops) plus one scoring per (op, device) and per change that concerns it.
///
/// # Errors
/// [`Error::OutOfMemory`] or [`Error::Stuck`] when ops remain that no device can take,
/// [`Error::Cancelled`].
pub fn run<T: Timeline>(problem: &Problem, timeline: &mut T, policy: Policy) -> Result<Decision> {
    Loop::new(problem, timeline, policy).run()
}

/// No event.
const NEVER: Ns = Ns::MAX;

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Waiting,
    Ready,
    Placed,
}

/// A candidate to be committed now; `timeless` where the originals' m-SCT lost its start time.
#[derive(Clone, Copy)]
struct Choice {
    rank: u32,
    device: DeviceId,
    timeless: bool,
}

struct Loop<'a, T> {
    problem: &'a Problem<'a>,
    timeline: &'a mut T,
    policy: Policy<'a>,
    now: Ns,
    waiting: Vec<u32>,
    state: Vec<State>,
    num_ready: usize,
    rank_of: Vec<u32>,
    op_of: Vec<OpId>,
    queues: Vec<Queue>,
    /// The least rank that each device may start now; `NOTHING` for one that is busy or waits for a favorite.
    least: Vec<u32>,
    /// Ready ops that so far only the device of their last producer was offered: nobody else could have them
    /// before the given time.
    unspread: BinaryHeap<Reverse<(Ns, u32)>>,
    /// What comes next on each device: the end of what a busy one runs, the least time that something was put
    /// off to on an idle one, or `NEVER`.
    event: Vec<Ns>,
    busy: Vec<bool>,
    last: Vec<Option<OpId>>,
    /// For each idle device the favorite child it waits for; all `None` without favorites.
    waits: Vec<Option<OpId>>,
    /// Ready ops by (urgent time, rank); kept only with favorites.
    urgent: BTreeSet<(Ns, u32)>,
    device: Vec<DeviceId>,
    launch: Vec<OpId>,
    not_before: Vec<Ns>,
    effects: Effects,
}

impl<'a, T: Timeline> Loop<'a, T> {
    fn new(problem: &'a Problem<'a>, timeline: &'a mut T, policy: Policy<'a>) -> Self {
        let num_ops = problem.graph.num_ops;
        let num_devices = problem.cluster.num_devices;
        let by_position = policy.rules.tie == Tie::PositionThenDevice;
        let rank_of =
            if by_position { problem.graph.position().to_vec() } else { vec![u32::MAX; num_ops] };
        let op_of = if by_position { problem.graph.order().to_vec() } else { Vec::new() };
        Self {
            problem,
            timeline,
            policy,
            now: 0,
            waiting: problem.graph.num_parents().to_vec(),
            state: vec![State::Waiting; num_ops],
            num_ready: 0,
            rank_of,
            op_of,
            queues: (0..num_devices).map(|_| Queue::new(num_ops)).collect(),
            least: vec![NOTHING; num_devices],
            unspread: BinaryHeap::new(),
            event: vec![NEVER; num_devices],
            busy: vec![false; num_devices],
            last: vec![None; num_devices],
            waits: vec![None; num_devices],
            urgent: BTreeSet::new(),
            device: vec![DeviceId::MAX; num_ops],
            launch: Vec::with_capacity(num_ops),
            not_before: Vec::with_capacity(num_ops),
            effects: Effects::default(),
        }
    }

    fn run(mut self) -> Result<Decision> {
        for op in 0..self.problem.num_ops() {
            if self.waiting[op as usize] == 0 {
                let rank = self.make_ready(op);
                self.offer_to_all(rank, None);
            }
        }
        loop {
            self.finish_ended();
            self.wake();
            while let Some(choice) = self.choose()? {
                let end = self.commit(choice)?;
                if end <= self.now {
                    // What takes no time ends before the next choice.
                    self.finish_ended();
                }
                if self.launch.len().is_multiple_of(1024) {
                    self.problem.check_cancelled()?;
                }
            }
            let Some(next) = self.next_event() else { break };
            debug_assert!(next >= self.now, "time moves forward");
            self.now = next;
        }
        if self.launch.len() < self.problem.graph.num_ops {
            return Err(self.dead_end());
        }
        Ok(Decision { device: self.device, launch: self.launch, not_before: self.not_before })
    }

    fn make_ready(&mut self, op: OpId) -> u32 {
        if self.policy.rules.tie == Tie::DeviceThenReady {
            self.rank_of[op as usize] = u32::try_from(self.op_of.len()).expect("31 bits");
            self.op_of.push(op);
        }
        self.state[op as usize] = State::Ready;
        self.num_ready += 1;
        let rank = self.rank_of[op as usize];
        if self.policy.favorites.is_some() {
            self.urgent.insert((self.urgent_time(op), rank));
        }
        rank
    }

    /// Offers an op whose last producer just ended on `home`. Its data needs time to get anywhere else.
    fn offer_near(&mut self, rank: u32, producer: OpId, home: DeviceId) {
        let op = self.op_of[rank as usize];
        let away = self.timeline.time_away(op, producer, home);
        if let Some(fixed) = self.policy.fixed
            && away > 0
        {
            let device = fixed[op as usize];
            if device == home {
                self.offer(rank, device);
            } else {
                self.put_off(self.now + away, rank, device);
            }
            return;
        }
        if away == 0 {
            return self.offer_to_all(rank, None);
        }
        if self.is_offered(op, home) {
            self.offer(rank, home);
        }
        if self.queues.len() > 1 {
            self.unspread.push(Reverse((self.now + away, rank)));
        }
    }

    /// Offers an op to all devices, or puts it off on all of them until a time.
    fn offer_to_all(&mut self, rank: u32, until: Option<Ns>) {
        let op = self.op_of[rank as usize];
        for device in self.problem.devices() {
            if self.is_offered(op, device) {
                match until {
                    Some(until) => self.put_off(until, rank, device),
                    None => self.offer(rank, device),
                }
            }
        }
    }

    fn offer(&mut self, rank: u32, device: DeviceId) {
        self.queues[device as usize].offer(rank);
        self.look_at(device);
    }

    /// Takes back an offer.
    fn withdraw(&mut self, rank: u32, device: DeviceId) {
        let timeline = &*self.timeline;
        let free_at = |channel| timeline.channel_free_at(channel);
        self.queues[device as usize].withdraw(rank, self.now, free_at);
    }

    /// Brings `least` up to date for one device.
    fn look_at(&mut self, device: DeviceId) {
        let at = device as usize;
        let is_open = !self.busy[at] && self.waits[at].is_none();
        self.least[at] = if is_open { self.queues[at].least_now() } else { NOTHING };
    }

    fn is_offered(&self, op: OpId, device: DeviceId) -> bool {
        match self.policy.fixed {
            Some(fixed) => fixed[op as usize] == device,
            None => self.problem.may_run(op, device),
        }
    }

    fn is_placed(&self, rank: u32) -> bool {
        self.state[self.op_of[rank as usize] as usize] == State::Placed
    }

    fn finish_ended(&mut self) {
        for device in self.problem.devices() {
            if self.busy[device as usize] && self.event[device as usize] <= self.now {
                self.finish(device);
            }
        }
    }

    fn finish(&mut self, device: DeviceId) {
        self.busy[device as usize] = false;
        self.look_ahead(device);
        self.look_at(device);
        let op = self.last[device as usize].expect("a running device runs something");
        self.timeline.finish(op, device, &mut self.effects);
        self.apply_effects();
        let graph = self.problem.graph;
        for child in graph.children(op) {
            let waiting = &mut self.waiting[*child as usize];
            *waiting -= 1;
            if *waiting == 0 {
                let rank = self.make_ready(*child);
                self.offer_near(rank, op, device);
            }
        }
    }

    fn apply_effects(&mut self) {
        if self.effects.is_empty() {
            return;
        }
        let mut effects = std::mem::take(&mut self.effects);
        for (tensor, device) in effects.nearer.drain(..) {
            for op in self.problem.graph.consumers(tensor) {
                self.reoffer(*op, device);
            }
        }
        for (op, device) in effects.reoffer.drain(..) {
            self.reoffer(op, device);
        }
        for device in effects.roomier.drain(..) {
            let free = self.timeline.free_bytes(device);
            if self.queues[device as usize].unblock(free) {
                self.look_at(device);
            }
        }
        self.effects = effects;
    }

    fn reoffer(&mut self, op: OpId, device: DeviceId) {
        if self.state[op as usize] == State::Ready && self.is_offered(op, device) {
            self.offer(self.rank_of[op as usize], device);
        }
    }

    fn wake(&mut self) {
        while let Some(Reverse((time, rank))) = self.unspread.peek().copied() {
            if time > self.now {
                break;
            }
            self.unspread.pop();
            if !self.is_placed(rank) {
                self.offer_to_all(rank, None);
            }
        }
        for device in self.problem.devices() {
            let at = device as usize;
            if self.event[at] <= self.now && !self.busy[at] {
                let timeline = &*self.timeline;
                self.queues[at].wake(self.now, |channel| timeline.channel_free_at(channel));
                self.look_ahead(device);
                self.look_at(device);
            }
        }
    }

    fn start_on(&mut self, op: OpId, device: DeviceId) -> Ns {
        let arrival = self.timeline.arrival(op, device);
        arrival.max(self.timeline.free_at(device)).max(self.now)
    }

    fn choose(&mut self) -> Result<Option<Choice>> {
        if self.policy.favorites.is_some() {
            return self.choose_with_favorites();
        }
        Ok(match self.policy.rules.tie {
            Tie::PositionThenDevice => self.choose_free(self.problem.devices()),
            Tie::DeviceThenReady => {
                self.problem.devices().find_map(|device| self.choose_free(device..device + 1))
            }
        })
    }

    /// The first startable op of the devices that are idle and wait for nothing, by rank and then device.
    fn choose_free(&mut self, devices: std::ops::Range<DeviceId>) -> Option<Choice> {
        loop {
            let least = &self.least[devices.start as usize..devices.end as usize];
            let (mut rank, mut device) = (NOTHING, devices.start);
            for (least, at) in least.iter().zip(devices.clone()) {
                if *least < rank {
                    (rank, device) = (*least, at);
                }
            }
            if rank == NOTHING {
                return None;
            }
            let op = self.op_of[rank as usize];
            if self.state[op as usize] != State::Placed {
                match self.timeline.score(op, device, self.now) {
                    Score::Start(start) if start <= self.now => {
                        return Some(Choice { rank, device, timeless: false });
                    }
                    Score::Start(start) => self.put_off_scored(start, rank, device),
                    Score::Short { needed } => self.queues[device as usize].block(needed, rank),
                    Score::Never => {}
                }
            }
            self.withdraw(rank, device);
            self.least[device as usize] = self.queues[device as usize].least_now();
        }
    }

    /// Places an op and answers when it ends.
    fn commit(&mut self, choice: Choice) -> Result<Ns> {
        let Choice { rank, device, .. } = choice;
        let op = self.op_of[rank as usize];
        self.state[op as usize] = State::Placed;
        self.num_ready -= 1;
        self.device[op as usize] = device;
        self.launch.push(op);
        if self.policy.favorites.is_some() {
            let urgent = self.urgent_time(op);
            self.urgent.remove(&(urgent, rank));
        }
        let end = match self.timeline.commit(op, device, self.now, &mut self.effects) {
            Ok(end) => end,
            Err(reason) => {
                let placed = self.placed();
                return Err(Error::Stuck { op, device, reason, placed });
            }
        };
        self.not_before.push(self.now);
        self.last[device as usize] = Some(op);
        if end > self.now || !self.policy.rules.misses_instant_ends {
            self.busy[device as usize] = true;
            self.event[device as usize] = end;
        }
        self.withdraw(rank, device);
        let queue = &mut self.queues[device as usize];
        let (state, op_of) = (&self.state, &self.op_of);
        queue.compact(self.num_ready, |rank| state[op_of[rank as usize] as usize] == State::Placed);
        if !self.busy[device as usize] {
            self.look_ahead(device);
        }
        self.look_at(device);
        self.apply_effects();
        Ok(end)
    }

    fn urgent_time(&self, op: OpId) -> Ns {
        match self.policy.rules.urgency {
            Urgency::Data => self.timeline.urgent(op),
            Urgency::Devices => 0,
        }
    }

    fn lost_time(&self, choice: Choice) -> Error {
        Error::Stuck {
            op: self.op_of[choice.rank as usize],
            device: choice.device,
            reason: "two candidates, one of them without a start time",
            placed: self.placed(),
        }
    }

    fn placed(&self) -> Placed {
        self.launch.iter().map(|op| (*op, self.device[*op as usize])).collect()
    }

    /// Names the first op that is ready and the device that came closest to taking it.
    fn dead_end(&self) -> Error {
        let placed = self.placed();
        let ready = |op: &OpId| self.state[*op as usize] == State::Ready;
        let order = self.problem.graph.order();
        let Some(op) = order.iter().copied().find(ready) else {
            let waiting = |op: &&OpId| self.state[**op as usize] == State::Waiting;
            let op = *order.iter().find(waiting).expect("an op that was not placed");
            let reason = "the end of a producer that takes no time was missed";
            return Error::Stuck { op, device: 0, reason, placed };
        };
        let mut closest: Option<(Bytes, DeviceId, Bytes, Bytes)> = None;
        for device in self.problem.devices().filter(|device| self.is_offered(op, *device)) {
            if let Room::Short { needed, free } | Room::Full { needed, free } =
                self.timeline.room(op, device)
                && closest.is_none_or(|known| (needed - free, device) < (known.0, known.1))
            {
                closest = Some((needed - free, device, needed, free));
            }
        }
        match closest {
            Some((_, device, needed, free)) => {
                Error::OutOfMemory { op, device, needed, free, placed }
            }
            None => Error::Stuck {
                op,
                device: self.timeline.bound_to(op).unwrap_or(0),
                reason: "no device can take it",
                placed,
            },
        }
    }
}
