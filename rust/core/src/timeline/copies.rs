//! Copies in the book: which device holds what, and when an op's missing inputs could be there.

use super::Book;
use crate::cluster::Channels;
use crate::{Bytes, DeviceId, Ns, OpId, TensorId};

/// What sending an op's missing inputs comes to.
pub(super) struct Copies {
    pub(super) arrival: Ns,
    pub(super) bytes: Bytes,
    /// The channel whose clock the arrival follows, and how long after it: exactly that, and never less later on.
    pub(super) behind: Option<(i32, Ns)>,
}

impl Book<'_> {
    pub(super) fn holds(&self, tensor: TensorId, device: DeviceId) -> bool {
        let word = match (device as usize / 64).checked_sub(1) {
            None => self.tensors[tensor as usize].holders,
            Some(far) => self.far_holders[tensor as usize * self.far_words + far],
        };
        word >> (device % 64) & 1 == 1
    }

    pub(super) fn hold(&mut self, tensor: TensorId, device: DeviceId) {
        let word = match (device as usize / 64).checked_sub(1) {
            None => &mut self.tensors[tensor as usize].holders,
            Some(far) => &mut self.far_holders[tensor as usize * self.far_words + far],
        };
        *word |= 1 << (device % 64);
    }

    /// When the inputs of an op that are not on a device could all be there, sent one after the other in edge
    /// order, and their bytes.
    pub(super) fn copies<const BEHIND: bool>(&mut self, op: OpId, device: DeviceId) -> Copies {
        let mut copies = Copies { arrival: 0, bytes: 0, behind: None };
        // Channels are held only when another transfer follows; then the clocks are put back.
        let mut sent: Option<(Channels, Ns)> = None;
        for tensor in self.problem.graph.inputs(op) {
            if self.holds(*tensor, device) {
                continue;
            }
            if let Some((channels, end)) = sent {
                for channel in [channels.send, channels.recv] {
                    if channel >= 0 {
                        self.undo.push((channel, self.channels.get(channel)));
                    }
                }
                self.channels.hold(channels, end);
            }
            let known = self.tensors[*tensor as usize];
            let duration = self.problem.transfer_ns(*tensor, known.source, device);
            let channels = self.problem.channels(known.source, device);
            let begin = self.channels.free_from(channels, known.end);
            if BEHIND {
                copies.behind = if begin == known.end {
                    None
                } else {
                    self.follows(copies.behind, sent, channels, begin, duration)
                };
            }
            sent = Some((channels, begin + duration));
            copies.arrival = copies.arrival.max(begin + duration);
            copies.bytes += known.bytes;
        }
        while let Some((channel, time)) = self.undo.pop() {
            self.channels.set(channel, time);
        }
        copies
    }

    /// Which channel's clock decides when a transfer that begins behind others ends, and how long after it.
    fn follows(
        &self,
        known: Option<(i32, Ns)>,
        sent: Option<(Channels, Ns)>,
        channels: Channels,
        begin: Ns,
        duration: Ns,
    ) -> Option<(i32, Ns)> {
        let Some((before, end)) = sent else {
            let is_recv = channels.recv >= 0 && self.channels.get(channels.recv) == begin;
            return Some((if is_recv { channels.recv } else { channels.send }, duration));
        };
        if before.recv < 0 || before.recv != channels.recv {
            return None;
        }
        if begin == end {
            return known.map(|(channel, after)| (channel, after + duration));
        }
        Some((channels.send, duration))
    }
}
