//! What comes out: a decision (devices and launch order) and the schedule it leads to.

use crate::{Bytes, DeviceId, Ns, OpId, TensorId};

/// What a placer decides.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decision {
    /// Device of each op.
    pub device: Vec<DeviceId>,
    /// Ops in launch order.
    pub launch: Vec<OpId>,
    /// When each launch was decided, in launch order; the originals' rules start nothing earlier.
    pub not_before: Vec<Ns>,
}

/// An event that another waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// The end of an op.
    Op(OpId),
    /// The end of a transfer, by its index in the schedule.
    Transfer(u32),
}

/// One transfer of a tensor to one device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Transfer {
    pub tensor: TensorId,
    pub source: DeviceId,
    pub destination: DeviceId,
    pub start: Ns,
    pub end: Ns,
    /// The op whose launch caused it: the tensor's first consumer on the destination.
    pub consumer: OpId,
    /// What freed the memory it waited for.
    pub wait: Option<Event>,
}

/// What runs a placement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Executor {
    /// Ops are launched in a given order; see docs/rules.md.
    Launch,
    /// First in, first out by ready time: the TensorFlow original's virtual scheduler.
    Fifo,
}

/// Times and bytes of one step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Schedule {
    pub executor: Executor,
    /// Whether the placer ran out of memory and this is the repair.
    pub repaired: bool,
    pub device: Vec<DeviceId>,
    /// Launch index of each op.
    pub order: Vec<u32>,
    pub start: Vec<Ns>,
    pub end: Vec<Ns>,
    pub transfers: Vec<Transfer>,
    /// What freed the memory each op waited for.
    pub wait: Vec<Option<Event>>,
    /// When the launch of each op was decided (originals' rules), or empty.
    pub not_before: Vec<Ns>,
    pub makespan: Ns,
    pub busy: Vec<Ns>,
    pub peak: Vec<Bytes>,
    /// The op whose launch reached the peak of each device, `u32::MAX` if none did.
    pub peak_op: Vec<OpId>,
}

impl Schedule {
    /// A schedule of nothing.
    #[must_use]
    pub fn empty(executor: Executor) -> Self {
        Self {
            executor,
            repaired: false,
            device: Vec::new(),
            order: Vec::new(),
            start: Vec::new(),
            end: Vec::new(),
            transfers: Vec::new(),
            wait: Vec::new(),
            not_before: Vec::new(),
            makespan: 0,
            busy: Vec::new(),
            peak: Vec::new(),
            peak_op: Vec::new(),
        }
    }

    /// The first device whose peak exceeds its cap.
    #[must_use]
    pub fn over_limit(&self, cap_bytes: &[Bytes]) -> Option<DeviceId> {
        let over = self.peak.iter().zip(cap_bytes).position(|(peak, cap)| peak > cap)?;
        u32::try_from(over).ok()
    }
}
