//! Blocks of memory on devices, who holds them, and the peak of what is held.

use super::NONE;
use crate::{Bytes, DeviceId};

/// Where user inputs are.
pub const HOST: DeviceId = NONE;

/// Classes of what a device holds, in the order of `baechi.torch.memory.CLASSES`.
pub const NUM_CLASSES: usize = 7;
pub(crate) const WEIGHTS: u8 = 0;
pub(crate) const BUFFERS: u8 = 1;
pub(crate) const GRADIENTS: u8 = 2;
pub(crate) const OPTIMIZER: u8 = 3;
pub(crate) const ACTIVATIONS: u8 = 4;
pub(crate) const COPIES: u8 = 5;
pub(crate) const SCRATCH: u8 = 6;

/// What reached a peak.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cause {
    Nothing,
    Weights,
    Optimizer,
    Gradient,
    GradientCopy,
    Step(u32),
    Function(u32),
}

/// The peak of one device; classes are filled when a replay records.
#[derive(Debug, Clone, Copy)]
pub struct Peak {
    pub bytes: Bytes,
    pub cause: Cause,
    pub by_class: [Bytes; NUM_CLASSES],
}

/// A block of memory on a device; the last of its holders frees it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Block {
    pub device: DeviceId,
    pub class: u8,
    pub holders: i32,
    pub bytes: Bytes,
    /// The storage whose own block it is, [`NONE`] for copies and sums.
    pub storage: u32,
    /// The next block that is held up to the same position.
    pub next: u32,
    /// A cached copy that is dropped with this block, and the next that is dropped with the same block.
    follower: u32,
    next_follower: u32,
}

/// All blocks of one replay. With `RECORD` it is also known what a peak is made of, and when storages go.
#[derive(Debug, Clone, Default)]
pub(crate) struct Blocks {
    pub peaks: Vec<Peak>,
    /// Position at which each storage was dropped on its own device, or [`NONE`].
    pub deaths: Vec<u32>,
    /// The moment of the replay, see [`super::Program::position_of_function`].
    pub position: u32,
    all: Vec<Block>,
    total: Vec<Bytes>,
    held: Vec<[Bytes; NUM_CLASSES]>,
    /// Blocks that copies follow, the first copy that follows the host, and what is yet to be dropped.
    followed: Vec<u32>,
    follower_of_host: u32,
    following: Vec<u32>,
}

impl Blocks {
    pub fn start_over(&mut self, num_devices: usize, num_storages: usize) {
        self.all.clear();
        self.followed.clear();
        self.follower_of_host = NONE;
        refill(&mut self.deaths, num_storages, NONE);
        refill(&mut self.total, num_devices, 0);
        refill(&mut self.held, num_devices, [0; NUM_CLASSES]);
        let nothing = Peak { bytes: 0, cause: Cause::Nothing, by_class: [0; NUM_CLASSES] };
        refill(&mut self.peaks, num_devices, nothing);
    }

    pub fn get(&self, block: u32) -> &Block {
        &self.all[block as usize]
    }

    pub fn get_mut(&mut self, block: u32) -> &mut Block {
        &mut self.all[block as usize]
    }

    /// A new block, which nobody holds yet.
    pub fn allocate<const RECORD: bool>(
        &mut self,
        device: DeviceId,
        bytes: Bytes,
        class: u8,
        storage: u32,
    ) -> u32 {
        let at = count(&self.all);
        self.all.push(Block {
            device,
            class,
            holders: 0,
            bytes,
            storage,
            next: NONE,
            follower: NONE,
            next_follower: NONE,
        });
        if device != HOST {
            self.total[device as usize] += bytes;
            if RECORD {
                self.held[device as usize][class as usize] += bytes;
            }
        }
        at
    }

    /// One more holder.
    pub fn hold(&mut self, block: u32) {
        self.all[block as usize].holders += 1;
    }

    /// One holder less; the last one frees it, and drops the copies that follow it.
    pub fn drop<const RECORD: bool>(&mut self, block: u32) {
        let mut follower = self.release::<RECORD>(block);
        while follower != NONE || !self.following.is_empty() {
            if follower == NONE {
                follower = self.following.pop().unwrap_or(NONE);
                continue;
            }
            let next = self.all[follower as usize].next_follower;
            if next != NONE {
                self.following.push(next);
            }
            follower = self.release::<RECORD>(follower);
        }
    }

    /// Takes a holder away; where that frees the block, answers the first copy that follows it.
    fn release<const RECORD: bool>(&mut self, block: u32) -> u32 {
        let one = &mut self.all[block as usize];
        one.holders -= 1;
        if one.holders > 0 {
            return NONE;
        }
        if one.device != HOST {
            self.total[one.device as usize] -= one.bytes;
            if RECORD {
                self.held[one.device as usize][one.class as usize] -= one.bytes;
            }
        }
        if RECORD && one.storage != NONE {
            self.deaths[one.storage as usize] = self.position;
        }
        std::mem::replace(&mut one.follower, NONE)
    }

    /// A copy is held as long as its source lives; `HOST` for inputs.
    pub fn follow(&mut self, copy: u32, source: u32) {
        self.hold(copy);
        let first = match self.all.get_mut(source as usize) {
            Some(one) => {
                if one.follower == NONE {
                    self.followed.push(source);
                }
                &mut one.follower
            }
            None => &mut self.follower_of_host,
        };
        let next = std::mem::replace(first, copy);
        self.all[copy as usize].next_follower = next;
    }

    /// All copies that follow something are dropped.
    pub fn end_following<const RECORD: bool>(&mut self) {
        let mut sources = std::mem::take(&mut self.followed);
        let mut copy = std::mem::replace(&mut self.follower_of_host, NONE);
        loop {
            while copy != NONE {
                let next = self.all[copy as usize].next_follower;
                self.drop::<RECORD>(copy);
                copy = next;
            }
            let Some(source) = sources.pop() else { break };
            copy = std::mem::replace(&mut self.all[source as usize].follower, NONE);
        }
    }

    /// Bytes of a block change their class.
    pub fn reclass<const RECORD: bool>(&mut self, block: u32, device: DeviceId, class: u8) {
        let one = &mut self.all[block as usize];
        if RECORD {
            let held = &mut self.held[device as usize];
            held[one.class as usize] -= one.bytes;
            held[class as usize] += one.bytes;
        }
        one.class = class;
    }

    /// Notes a peak of what is held and `extra` bytes of scratch.
    pub fn mark<const RECORD: bool>(&mut self, device: DeviceId, extra: Bytes, at: Cause) {
        let bytes = self.total[device as usize] + extra;
        let peak = &mut self.peaks[device as usize];
        if bytes > peak.bytes {
            peak.bytes = bytes;
            if RECORD {
                peak.cause = at;
                peak.by_class = self.held[device as usize];
                peak.by_class[SCRATCH as usize] += extra;
            }
        }
    }

    /// Frees a block that nobody ever held.
    pub fn forget<const RECORD: bool>(&mut self, block: u32) {
        let one = &mut self.all[block as usize];
        if one.holders == 0 {
            one.holders = 1;
            self.drop::<RECORD>(block);
        }
    }
}

pub(crate) fn count<T>(items: &[T]) -> u32 {
    u32::try_from(items.len()).expect("one block per use of a value or edge, fewer than 32 bits")
}

pub(crate) fn refill<T: Clone>(buffer: &mut Vec<T>, len: usize, value: T) {
    buffer.clear();
    buffer.resize(len, value);
}
