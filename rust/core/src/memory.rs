//! The use of one device's memory over time: what is held when, and the first moment from which more fits.

use crate::schedule::Event;
use crate::{Bytes, Ns};

/// Use of one device over time, as a step function.
///
/// Charges are made in launch order and may lie in the past: a transfer can begin before the op that wants
/// it. Space and time of a call grow with the number of steps after the moment it is about.
#[derive(Debug, Clone)]
pub struct Profile {
    cap: Bytes,
    steps: Vec<Step>,
}

#[derive(Debug, Clone, Copy)]
struct Step {
    time: Ns,
    /// The most held at any point of this instant from its first charge on; far below 0 without one.
    peak: Bytes,
    /// Held after this instant.
    after: Bytes,
    /// The last event at this instant that freed something.
    freed_by: Option<Event>,
}

impl Profile {
    /// A device that may hold `cap` bytes and holds `base` from time 0 to the end of the step.
    #[must_use]
    pub fn new(cap: Bytes, base: Bytes) -> Self {
        let first = Step { time: 0, peak: base, after: base, freed_by: None };
        Self { cap, steps: vec![first] }
    }

    /// The first moment at or after `from` from which `bytes` more fit for good, and the event that made
    /// the room if that is later than `from`. `None` if they never fit.
    #[must_use]
    pub fn earliest_fit(&self, from: Ns, bytes: Bytes) -> Option<(Ns, Option<Event>)> {
        let room = self.cap - bytes;
        let (last, rest) = self.steps.split_last()?;
        if last.after > room {
            return None;
        }
        let mut later = last;
        for step in rest.iter().rev() {
            if later.time <= from {
                break;
            }
            if later.peak > room || step.after > room {
                return Some((later.time, later.freed_by));
            }
            later = step;
        }
        Some((from, None))
    }

    /// Bytes that are free after everything known has ended.
    #[must_use]
    pub fn free_at_the_end(&self) -> Bytes {
        self.cap - self.steps.last().map_or(0, |step| step.after)
    }

    /// Holds `bytes` from `from` on.
    pub fn charge(&mut self, from: Ns, bytes: Bytes) {
        if bytes == 0 {
            return;
        }
        let at = self.step_at(from);
        self.steps[at].after += bytes;
        self.steps[at].peak = self.steps[at].peak.max(self.steps[at].after);
        for step in &mut self.steps[at + 1..] {
            step.after += bytes;
            step.peak += bytes;
        }
    }

    /// Frees `bytes` at the end of `event`, which is at `from`. Frees come before the charges of their instant,
    /// unless they end something that took no time.
    pub fn release(&mut self, from: Ns, bytes: Bytes, event: Event, took_time: bool) {
        if bytes == 0 {
            return;
        }
        let at = self.step_at(from);
        self.steps[at].after -= bytes;
        self.steps[at].freed_by = Some(event);
        if took_time {
            self.steps[at].peak -= bytes;
        }
        for step in &mut self.steps[at + 1..] {
            step.after -= bytes;
            step.peak -= bytes;
        }
    }

    /// Index of the step at exactly that time, made if needed.
    fn step_at(&mut self, time: Ns) -> usize {
        let mut at = self.steps.len() - 1;
        while self.steps[at].time > time {
            at -= 1;
        }
        if self.steps[at].time < time {
            let after = self.steps[at].after;
            at += 1;
            // A new instant has seen no charge yet; its peak is raised by the first one.
            self.steps.insert(at, Step { time, peak: Bytes::MIN / 2, after, freed_by: None });
        }
        at
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_charge_waits_for_the_last_over_full_moment() {
        let mut profile = Profile::new(10, 2);
        profile.charge(0, 3);
        profile.charge(5, 4);
        profile.release(8, 4, Event::Op(7), true);
        assert_eq!(profile.earliest_fit(0, 1), Some((0, None)));
        assert_eq!(profile.earliest_fit(0, 2), Some((8, Some(Event::Op(7)))));
        assert_eq!(profile.earliest_fit(9, 5), Some((9, None)));
        assert_eq!(profile.earliest_fit(0, 6), None);
        assert_eq!(profile.free_at_the_end(), 5);
    }

    #[test]
    fn frees_come_before_charges_at_the_same_moment() {
        let mut profile = Profile::new(10, 0);
        profile.charge(0, 6);
        profile.release(5, 6, Event::Op(0), true);
        assert_eq!(profile.earliest_fit(5, 10), Some((5, None)));
        profile.charge(5, 10);
        assert_eq!(profile.earliest_fit(5, 1), None);
    }

    #[test]
    fn an_op_of_zero_time_counts_within_its_instant() {
        let mut profile = Profile::new(10, 0);
        profile.charge(5, 9);
        profile.release(5, 9, Event::Op(0), false);
        // Before the instant the op of zero time is in the way, after it there is room.
        assert_eq!(profile.earliest_fit(3, 2), Some((5, Some(Event::Op(0)))));
        assert_eq!(profile.earliest_fit(5, 10), Some((5, None)));
    }

    #[test]
    fn what_is_freed_at_an_instant_makes_room_for_what_was_charged_there_before() {
        let mut profile = Profile::new(10, 0);
        profile.charge(0, 4);
        profile.charge(5, 5);
        profile.release(5, 4, Event::Op(0), true);
        assert_eq!(profile.earliest_fit(3, 5), Some((3, None)));
    }
}
