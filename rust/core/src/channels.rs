//! Clocks of the channels that transfers hold.

use crate::Ns;
use crate::cluster::Channels;

/// Clocks of the channels; transfers over a link hold its channels over one interval, in call order.
#[derive(Debug, Clone)]
pub struct ChannelClocks {
    clock: Vec<Ns>,
}

impl ChannelClocks {
    /// All channels idle.
    #[must_use]
    pub fn new(num_channels: usize) -> Self {
        Self { clock: vec![0; num_channels] }
    }

    /// All channels idle again.
    pub(crate) fn restart(&mut self) {
        self.clock.fill(0);
    }

    /// The first moment at or after `from` when both channels are free.
    #[must_use]
    pub fn free_from(&self, channels: Channels, from: Ns) -> Ns {
        let clock = |channel: i32| usize::try_from(channel).map_or(0, |at| self.clock[at]);
        from.max(clock(channels.send)).max(clock(channels.recv))
    }

    /// Holds both channels until `end`.
    pub fn hold(&mut self, channels: Channels, end: Ns) {
        for channel in [channels.send, channels.recv] {
            if let Ok(at) = usize::try_from(channel) {
                self.clock[at] = end;
            }
        }
    }

    /// When a channel that there is becomes free.
    pub(crate) fn clock(&self, channel: u32) -> Ns {
        self.clock[channel as usize]
    }

    /// The clock of one channel, to be put back after a trial.
    pub(crate) fn get(&self, channel: i32) -> Ns {
        usize::try_from(channel).map_or(0, |at| self.clock[at])
    }

    /// Puts a clock back.
    pub(crate) fn set(&mut self, channel: i32, time: Ns) {
        if let Ok(at) = usize::try_from(channel) {
            self.clock[at] = time;
        }
    }
}
