//! What m-SCT adds to the loop: a device may stay idle for the favorite child of the op it ran last.

use super::{Choice, Loop, State, Timeline};
use crate::error::Result;
use crate::list::Room;
use crate::rules::{Tie, Urgency};
use crate::{DeviceId, Ns, OpId};

impl<T: Timeline> Loop<'_, T> {
    pub(super) fn choose_with_favorites(&mut self) -> Result<Option<Choice>> {
        self.find_waits();
        let by_device = self.policy.rules.tie == Tie::DeviceThenReady;
        let mut awake: Option<Choice> = None;
        for device in self.problem.devices() {
            let found = match self.waits[device as usize] {
                Some(favorite) => self.choose_awake(device, favorite),
                None if by_device => self.choose_free(device..device + 1),
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
        match (awake, self.choose_free(self.problem.devices())) {
            (Some(waited), Some(_)) if waited.timeless => Err(self.lost_time(waited)),
            (Some(waited), Some(free)) => {
                let first = (waited.rank, waited.device) < (free.rank, free.device);
                Ok(Some(if first { waited } else { free }))
            }
            (waited, free) => Ok(waited.or(free)),
        }
    }

    /// Finds for each idle device the favorite child it waits for, if it does.
    fn find_waits(&mut self) {
        let Some(favorites) = self.policy.favorites else { return };
        for device in self.problem.devices() {
            let at = device as usize;
            self.waits[at] = None;
            self.look_at(device);
            if self.busy[at] {
                continue;
            }
            let Some(last) = self.last[at] else { continue };
            let Ok(favorite) = u32::try_from(favorites[last as usize]) else { continue };
            if self.state[favorite as usize] == State::Ready
                && self.timeline.bound_to(favorite).is_none()
                && self.is_offered(favorite, device)
                && self.timeline.room(favorite, device) == Room::Fits
                && self.is_earliest(favorite, device)
            {
                self.waits[at] = Some(favorite);
                self.look_at(device);
            }
        }
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
                if let Some(rank) = self.first_due(device) {
                    return Some(Choice { rank, device, timeless: false });
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

    /// The first op by (urgent time, rank) that is urgent by now and can start on the device.
    fn first_due(&mut self, device: DeviceId) -> Option<u32> {
        let urgent = std::mem::take(&mut self.urgent);
        let found = urgent.range(..=(self.now, u32::MAX)).map(|(_, rank)| *rank).find(|rank| {
            let op = self.op_of[*rank as usize];
            self.is_offered(op, device)
                && self.timeline.room(op, device) == Room::Fits
                && self.start_on(op, device) <= self.now
        });
        self.urgent = urgent;
        found
    }

    /// Least (urgent time, rank) of the ready ops that fit the device; urgent means that every device
    /// with room could start it (the originals' rule).
    fn most_urgent(&mut self, device: DeviceId) -> Option<(Ns, u32)> {
        let ready = std::mem::take(&mut self.urgent);
        let mut best: Option<(Ns, u32)> = None;
        for (_, rank) in &ready {
            let op = self.op_of[*rank as usize];
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
            if best.is_none_or(|known| (urgent, *rank) < known) {
                best = Some((urgent, *rank));
            }
        }
        self.urgent = ready;
        best
    }

    /// When a device that waits for a favorite next has something to start.
    pub(super) fn awake_event(&mut self, device: DeviceId, favorite: OpId) -> Ns {
        let favorite_start = self.start_on(favorite, device);
        if self.policy.rules.urgency == Urgency::Devices {
            let urgent = self.most_urgent(device).map(|(urgent, _)| urgent);
            return urgent.map_or(favorite_start, |urgent| urgent.min(favorite_start));
        }
        let mut event = favorite_start;
        let waiting = std::mem::take(&mut self.urgent);
        for (urgent, rank) in &waiting {
            if *urgent > self.now {
                event = event.min(*urgent);
                break;
            }
            let op = self.op_of[*rank as usize];
            if self.is_offered(op, device) && self.timeline.room(op, device) == Room::Fits {
                event = event.min(self.start_on(op, device));
            }
        }
        self.urgent = waiting;
        event
    }
}
