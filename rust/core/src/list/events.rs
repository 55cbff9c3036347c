//! When the loop has something to do next: what is put off until when, and the next moment of all.

use std::cmp::Reverse;

use super::{Loop, NEVER, Score, State, Timeline};
use crate::{DeviceId, Ns};

/// From so many ready ops on, those that wait for a channel are kept by what they need of it; for fewer, scoring them
/// again costs less.
const MANY_READY: usize = 64;

impl<T: Timeline> Loop<'_, T> {
    /// Puts off a ready op that was scored.
    pub(super) fn put_off_scored(&mut self, until: Ns, rank: u32, device: DeviceId) {
        if self.num_ready >= MANY_READY
            && let Some((channel, after)) = self.timeline.behind(self.op_of[rank as usize], device)
        {
            self.queues[device as usize].put_behind(channel, after, rank);
            self.next_is(until, device);
        } else {
            self.put_off(until, rank, device);
        }
    }

    pub(super) fn put_off(&mut self, until: Ns, rank: u32, device: DeviceId) {
        self.queues[device as usize].put_off(until, rank);
        self.next_is(until, device);
    }

    fn next_is(&mut self, until: Ns, device: DeviceId) {
        let at = device as usize;
        if !self.busy[at] {
            self.event[at] = self.event[at].min(until);
        }
    }

    /// Brings `event` up to date for one idle device.
    pub(super) fn look_ahead(&mut self, device: DeviceId) {
        let timeline = &*self.timeline;
        let first =
            self.queues[device as usize].earliest(|channel| timeline.channel_free_at(channel));
        self.event[device as usize] = first.unwrap_or(NEVER);
    }

    /// The next moment at which anything can change, if there is one.
    pub(super) fn next_event(&mut self) -> Option<Ns> {
        loop {
            let next = match self.policy.favorites {
                Some(_) => self.next_checked(),
                None => self.next_bound(),
            };
            // An op that others could have before that is put off there first: its time there may be earlier.
            match self.unspread.peek().copied() {
                Some(Reverse((time, rank))) if time < next => {
                    self.unspread.pop();
                    if !self.is_placed(rank) {
                        self.offer_to_all(rank, Some(time));
                    }
                }
                _ => return (next < NEVER).then_some(next),
            }
        }
    }

    /// The least of all events. Without favorites a lower bound will do where a device is idle, since nothing but a
    /// start happens at such a moment.
    fn next_bound(&mut self) -> Ns {
        loop {
            let Some(time) = self.event.iter().copied().min().filter(|time| *time < NEVER) else {
                return NEVER;
            };
            let at = self.event.iter().position(|event| *event == time).expect("the least");
            if self.busy[at] {
                return time;
            }
            // An op may have been placed, or a channel held, since it was put off.
            let (state, op_of) = (&self.state, &self.op_of);
            self.queues[at]
                .forget_first_later(|rank| state[op_of[rank as usize] as usize] == State::Placed);
            self.look_ahead(u32::try_from(at).expect("15 bits"));
            if self.event[at] == time {
                return time;
            }
        }
    }

    /// The least of all events with favorites: checked, since a device may begin to wait at any moment that is
    /// looked at.
    fn next_checked(&mut self) -> Ns {
        let mut next = NEVER;
        for device in self.problem.devices() {
            let event = match (self.busy[device as usize], self.waits[device as usize]) {
                (true, _) => self.event[device as usize],
                (false, Some(favorite)) => self.awake_event(device, favorite),
                (false, None) => self.free_event(device).unwrap_or(NEVER),
            };
            next = next.min(event);
        }
        next
    }

    /// When the first of a free device's ops could start.
    fn free_event(&mut self, device: DeviceId) -> Option<Ns> {
        loop {
            let timeline = &*self.timeline;
            let free_at = |channel| timeline.channel_free_at(channel);
            let (bound, rank) = self.queues[device as usize].take_earliest(free_at)?;
            let op = self.op_of[rank as usize];
            if self.state[op as usize] == State::Placed {
                continue;
            }
            match self.timeline.score(op, device, self.now) {
                Score::Start(start) => {
                    self.put_off_scored(start, rank, device);
                    if start <= bound {
                        return Some(start);
                    }
                }
                Score::Short { needed } => self.queues[device as usize].block(needed, rank),
                Score::Never => {}
            }
        }
    }
}
