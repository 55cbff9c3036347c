//! The one ready-queue loop: it asks a timeline when each ready op could start where, and commits the earliest.
//!
//! Time moves from event to event. At each moment every op that ends is finished first; then, as long as some
//! idle device could start a ready op at this moment, the first such op (by the rule set's tie) is
//! committed. Scores are kept in queues per device as lower bounds and checked when they come to the top: a score can
//! rise unnoticed, and whatever lowers one is reported in [`Effects`], so every choice is what scoring
//! everything would give.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap};

use crate::error::{Error, Placed, Result};
use crate::problem::Problem;
use crate::rules::{LoopRules, Tie, Urgency};
use crate::schedule::Decision;
use crate::{Bytes, DeviceId, Ns, OpId, TensorId};

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

/// A rule set's clocks and memory, as the loop sees them.
pub trait Timeline {
    /// When a device ends what it runs.
    fn free_at(&self, device: DeviceId) -> Ns;
    /// The device an op is already bound to, by itself or by its group.
    fn bound_to(&self, op: OpId) -> Option<DeviceId>;
    /// When all inputs of a ready op would be on the device, were it committed there now.
    fn arrival(&mut self, op: OpId, device: DeviceId) -> Ns;
    /// Whether the op may start on the device now.
    fn room(&self, op: OpId, device: DeviceId) -> Room;
    /// As `room`, without the test of the whole group's needs (which the originals' m-SCT skips).
    fn room_for_one(&self, op: OpId, device: DeviceId) -> Room {
        self.room(op, device)
    }
    /// Bytes that a blocked op might find.
    fn free_bytes(&self, device: DeviceId) -> Bytes;
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

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Waiting,
    Ready,
    Placed,
}

/// Candidates of one device, by rank.
#[derive(Default)]
struct Queue {
    /// Perhaps startable now.
    now: BinaryHeap<Reverse<u32>>,
    /// Not startable before the given time.
    later: BinaryHeap<Reverse<(Ns, u32)>>,
    /// Not startable before so many bytes are free.
    blocked: BinaryHeap<Reverse<(Bytes, u32)>>,
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
    rank_of: Vec<u32>,
    op_of: Vec<OpId>,
    queues: Vec<Queue>,
    running: BinaryHeap<Reverse<(Ns, DeviceId)>>,
    busy: Vec<bool>,
    last: Vec<Option<OpId>>,
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
            rank_of,
            op_of,
            queues: (0..num_devices).map(|_| Queue::default()).collect(),
            running: BinaryHeap::new(),
            busy: vec![false; num_devices],
            last: vec![None; num_devices],
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
                self.make_ready(op);
            }
        }
        let mut steps = 0_u32;
        loop {
            self.finish_ended();
            self.wake_later();
            if let Some(choice) = self.choose()? {
                self.commit(choice)?;
            } else if let Some(next) = self.next_event() {
                debug_assert!(next >= self.now, "time moves forward");
                self.now = next;
            } else {
                break;
            }
            steps = steps.wrapping_add(1);
            if steps.is_multiple_of(1024) {
                self.problem.check_cancelled()?;
            }
        }
        if self.launch.len() < self.problem.graph.num_ops {
            return Err(self.dead_end());
        }
        Ok(Decision { device: self.device, launch: self.launch, not_before: self.not_before })
    }

    fn make_ready(&mut self, op: OpId) {
        if self.policy.rules.tie == Tie::DeviceThenReady {
            self.rank_of[op as usize] = u32::try_from(self.op_of.len()).expect("31 bits");
            self.op_of.push(op);
        }
        self.state[op as usize] = State::Ready;
        let rank = self.rank_of[op as usize];
        for device in self.problem.devices() {
            if self.is_offered(op, device) {
                self.queues[device as usize].now.push(Reverse(rank));
            }
        }
        if self.policy.favorites.is_some() {
            let urgent = match self.policy.rules.urgency {
                Urgency::Data => self.timeline.urgent(op),
                Urgency::Devices => 0,
            };
            self.urgent.insert((urgent, rank));
        }
    }

    fn is_offered(&self, op: OpId, device: DeviceId) -> bool {
        match self.policy.fixed {
            Some(fixed) => fixed[op as usize] == device,
            None => self.problem.may_run(op, device),
        }
    }

    fn finish_ended(&mut self) {
        while let Some(Reverse((end, device))) = self.running.peek().copied() {
            if end > self.now {
                break;
            }
            self.running.pop();
            self.busy[device as usize] = false;
            let op = self.last[device as usize].expect("a running device runs something");
            self.timeline.finish(op, device, &mut self.effects);
            self.apply_effects();
            for child in self.problem.graph.children(op) {
                self.waiting[*child as usize] -= 1;
                if self.waiting[*child as usize] == 0 {
                    self.make_ready(*child);
                }
            }
        }
    }

    fn apply_effects(&mut self) {
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
            let queue = &mut self.queues[device as usize];
            while let Some(Reverse((needed, rank))) = queue.blocked.peek().copied() {
                if needed > free {
                    break;
                }
                queue.blocked.pop();
                queue.now.push(Reverse(rank));
            }
        }
        self.effects = effects;
    }

    fn reoffer(&mut self, op: OpId, device: DeviceId) {
        if self.state[op as usize] == State::Ready && self.is_offered(op, device) {
            self.queues[device as usize].now.push(Reverse(self.rank_of[op as usize]));
        }
    }

    fn wake_later(&mut self) {
        for (queue, busy) in self.queues.iter_mut().zip(&self.busy) {
            while let Some(Reverse((bound, rank))) = queue.later.peek().copied() {
                if *busy || bound > self.now {
                    break;
                }
                queue.later.pop();
                queue.now.push(Reverse(rank));
            }
        }
    }

    fn start_on(&mut self, op: OpId, device: DeviceId) -> Ns {
        let arrival = self.timeline.arrival(op, device);
        arrival.max(self.timeline.free_at(device)).max(self.now)
    }

    fn choose(&mut self) -> Result<Option<Choice>> {
        let waits = self.waits();
        let mut awake: Option<Choice> = None;
        let by_device = self.policy.rules.tie == Tie::DeviceThenReady;
        for device in self.problem.devices() {
            if self.busy[device as usize] {
                continue;
            }
            let found = match waits.get(device as usize).copied().flatten() {
                Some(favorite) => self.choose_awake(device, favorite),
                None if by_device => self.choose_free(std::slice::from_ref(&device)),
                None => None,
            };
            let Some(found) = found else { continue };
            if by_device {
                return Ok(Some(found));
            }
            if let Some(other) = awake
                && other.timeless != found.timeless
            {
                return Err(self.lost_time(found));
            }
            let order = |choice: Choice| (choice.rank, choice.device);
            awake = Some(awake.filter(|other| order(*other) < order(found)).unwrap_or(found));
        }
        if by_device {
            return Ok(None);
        }
        let idle = |device: &DeviceId| {
            !self.busy[*device as usize] && waits.get(*device as usize).copied().flatten().is_none()
        };
        let free: Vec<DeviceId> = self.problem.devices().filter(idle).collect();
        let free = self.choose_free(&free);
        match (awake, free) {
            (Some(waited), Some(_)) if waited.timeless => Err(self.lost_time(waited)),
            (Some(waited), Some(free)) => {
                let first = (waited.rank, waited.device) < (free.rank, free.device);
                Ok(Some(if first { waited } else { free }))
            }
            (waited, free) => Ok(waited.or(free)),
        }
    }

    /// The first startable op of the given idle devices, by rank and then device.
    fn choose_free(&mut self, devices: &[DeviceId]) -> Option<Choice> {
        loop {
            let mut best: Option<(u32, DeviceId)> = None;
            for device in devices {
                let now = &mut self.queues[*device as usize].now;
                while let Some(Reverse(rank)) = now.peek().copied() {
                    if self.state[self.op_of[rank as usize] as usize] == State::Placed {
                        now.pop();
                        continue;
                    }
                    if best.is_none_or(|known| (rank, *device) < known) {
                        best = Some((rank, *device));
                    }
                    break;
                }
            }
            let (rank, device) = best?;
            let op = self.op_of[rank as usize];
            let room = self.timeline.room(op, device);
            if room == Room::Fits {
                let start = self.start_on(op, device);
                if start <= self.now {
                    return Some(Choice { rank, device, timeless: false });
                }
                self.queues[device as usize].later.push(Reverse((start, rank)));
            } else if let Room::Short { needed, .. } = room {
                self.queues[device as usize].blocked.push(Reverse((needed, rank)));
            }
            self.queues[device as usize].now.pop();
        }
    }

    /// For each idle device the favorite child it waits for, if it does.
    fn waits(&mut self) -> Vec<Option<OpId>> {
        let Some(favorites) = self.policy.favorites else {
            return Vec::new();
        };
        let mut waits = vec![None; self.problem.cluster.num_devices];
        for device in self.problem.devices() {
            if self.busy[device as usize] {
                continue;
            }
            let Some(last) = self.last[device as usize] else {
                continue;
            };
            let Ok(favorite) = u32::try_from(favorites[last as usize]) else {
                continue;
            };
            if self.state[favorite as usize] == State::Ready
                && self.timeline.bound_to(favorite).is_none()
                && self.is_offered(favorite, device)
                && self.timeline.room(favorite, device) == Room::Fits
                && self.is_earliest(favorite, device)
            {
                waits[device as usize] = Some(favorite);
            }
        }
        waits
    }

    fn is_earliest(&mut self, op: OpId, device: DeviceId) -> bool {
        let start = self.start_on(op, device);
        for other in self.problem.devices() {
            if other != device
                && self.is_offered(op, other)
                && self.timeline.room(op, other) == Room::Fits
                && self.start_on(op, other) < start
            {
                return false;
            }
        }
        true
    }

    /// What a device that waits for a favorite starts now: an urgent op, or the favorite.
    fn choose_awake(&mut self, device: DeviceId, favorite: OpId) -> Option<Choice> {
        match self.policy.rules.urgency {
            Urgency::Data => {
                let due = self.urgent.range(..=(self.now, u32::MAX)).copied().collect::<Vec<_>>();
                for (_, rank) in due {
                    let op = self.op_of[rank as usize];
                    if self.is_offered(op, device)
                        && self.timeline.room(op, device) == Room::Fits
                        && self.start_on(op, device) <= self.now
                    {
                        return Some(Choice { rank, device, timeless: false });
                    }
                }
            }
            Urgency::Devices => {
                if let Some((urgent, rank)) = self.most_urgent(device)
                    && urgent <= self.now
                {
                    let op = self.op_of[rank as usize];
                    let timeless = self.timeline.room(op, device) != Room::Fits;
                    return Some(Choice { rank, device, timeless });
                }
            }
        }
        let rank = self.rank_of[favorite as usize];
        let start = self.start_on(favorite, device);
        (start <= self.now).then_some(Choice { rank, device, timeless: false })
    }

    /// Least (urgent time, rank) of the ready ops that fit the device; urgent means that every device
    /// with room could start it (the originals' rule).
    fn most_urgent(&mut self, device: DeviceId) -> Option<(Ns, u32)> {
        let mut best: Option<(Ns, u32)> = None;
        let ready: Vec<u32> = self.urgent.iter().map(|(_, rank)| *rank).collect();
        for rank in ready {
            let op = self.op_of[rank as usize];
            if !self.is_offered(op, device) || self.timeline.room_for_one(op, device) != Room::Fits
            {
                continue;
            }
            let mut urgent = 0;
            for other in self.problem.devices() {
                if self.is_offered(op, other) && self.timeline.room_for_one(op, other) == Room::Fits
                {
                    urgent = urgent.max(self.start_on(op, other));
                }
            }
            if best.is_none_or(|known| (urgent, rank) < known) {
                best = Some((urgent, rank));
            }
        }
        best
    }

    fn commit(&mut self, choice: Choice) -> Result<()> {
        let Choice { rank, device, .. } = choice;
        let op = self.op_of[rank as usize];
        self.state[op as usize] = State::Placed;
        self.device[op as usize] = device;
        self.launch.push(op);
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
            self.running.push(Reverse((end, device)));
        }
        if self.policy.favorites.is_some() {
            self.forget_urgent(op, rank);
        }
        self.apply_effects();
        Ok(())
    }

    fn forget_urgent(&mut self, op: OpId, rank: u32) {
        let urgent = match self.policy.rules.urgency {
            Urgency::Data => self.timeline.urgent(op),
            Urgency::Devices => 0,
        };
        self.urgent.remove(&(urgent, rank));
    }

    /// The next moment at which anything can change, if there is one.
    fn next_event(&mut self) -> Option<Ns> {
        let mut next = self.running.peek().map(|Reverse((end, _))| *end);
        let waits = self.waits();
        for device in self.problem.devices() {
            if self.busy[device as usize] {
                continue;
            }
            let event = match waits.get(device as usize).copied().flatten() {
                Some(favorite) => Some(self.awake_event(device, favorite)),
                None => self.free_event(device),
            };
            next = [next, event].into_iter().flatten().min();
        }
        next
    }

    /// When the first of a free device's ops could start: the least score, checked.
    fn free_event(&mut self, device: DeviceId) -> Option<Ns> {
        loop {
            let Reverse((bound, rank)) = self.queues[device as usize].later.peek().copied()?;
            let op = self.op_of[rank as usize];
            if self.state[op as usize] == State::Placed {
                self.queues[device as usize].later.pop();
                continue;
            }
            match self.timeline.room(op, device) {
                Room::Fits => {
                    let start = self.start_on(op, device);
                    if start <= bound {
                        return Some(start);
                    }
                    self.queues[device as usize].later.pop();
                    self.queues[device as usize].later.push(Reverse((start, rank)));
                }
                Room::Short { needed, .. } => {
                    self.queues[device as usize].later.pop();
                    self.queues[device as usize].blocked.push(Reverse((needed, rank)));
                }
                Room::Full { .. } | Room::Never => {
                    self.queues[device as usize].later.pop();
                }
            }
        }
    }

    fn awake_event(&mut self, device: DeviceId, favorite: OpId) -> Ns {
        let favorite_start = self.start_on(favorite, device);
        match self.policy.rules.urgency {
            Urgency::Devices => {
                let urgent = self.most_urgent(device).map(|(urgent, _)| urgent);
                urgent.map_or(favorite_start, |urgent| urgent.min(favorite_start))
            }
            Urgency::Data => {
                let mut event = favorite_start;
                for (urgent, rank) in self.urgent.iter().copied().collect::<Vec<_>>() {
                    if urgent > self.now {
                        event = event.min(urgent);
                        break;
                    }
                    let op = self.op_of[rank as usize];
                    if self.is_offered(op, device) && self.timeline.room(op, device) == Room::Fits {
                        event = event.min(self.start_on(op, device));
                    }
                }
                event
            }
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
