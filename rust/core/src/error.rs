//! The one error type. It speaks in indices; the caller adds names.

use crate::{Bytes, DeviceId, OpId};

/// What can go wrong in the core.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Error {
    /// A column has the wrong length or an index out of range.
    Shape { what: &'static str, expected: usize, found: usize },
    /// A column holds a value that is not allowed there.
    Value { what: &'static str, index: usize, value: i64 },
    /// The sum of a column, or the length of the schedule, does not fit 64-bit integers.
    Overflow { what: &'static str },
    /// The graph has a cycle; these ops are on it, in order.
    Cycle { ops: Vec<OpId> },
    /// No device of the cluster may run the op.
    NowhereToRun { op: OpId },
    /// The members of a colocation group have no device in common.
    GroupNowhereToRun { op: OpId },
    /// A placer found no room for the op; `device` is the one that came closest.
    OutOfMemory { op: OpId, device: DeviceId, needed: Bytes, free: Bytes, placed: Placed },
    /// A placer cannot go on for a reason other than memory (the originals' rules only).
    Stuck { op: OpId, device: DeviceId, reason: &'static str, placed: Placed },
    /// A given launch order launches an op before one of its producers, or twice.
    LaunchOrder { op: OpId },
    /// A given placement puts the op on a device that cannot run it.
    WrongDevice { op: OpId, device: DeviceId },
    /// No such algorithm, or not under these rules.
    Unsupported { what: String },
    /// The caller asked to stop.
    Cancelled,
}

/// What was placed before a placer gave up, in launch order.
pub type Placed = Vec<(OpId, DeviceId)>;

/// Shorthand for results of the core.
pub type Result<T> = std::result::Result<T, Error>;
