//! Placing and simulating operator graphs.
//!
//! Reading order: `graph` and `cluster` (what is given), `problem` (both together), `schedule` (what
//! comes out), `memory`, `timeline` and `list` (how physical rules place), `simulate` (how a decision
//! becomes a schedule), `original` (the two original placers' rules), `place` (the algorithms).
//!
//! The crate knows no Python, no clock and no randomness but a seed that is an argument. It speaks in
//! indices; names stay with the caller.

pub mod channels;
pub mod cluster;
pub mod curve;
pub mod error;
pub mod evaluate;
pub mod fifo;
pub mod graph;
mod graph_columns;
pub mod group;
mod inputs;
pub mod launch;
mod ledger;
pub mod list;
pub mod lists;
pub mod memory;
pub mod original;
pub mod place;
pub mod problem;
pub mod program;
mod random;
pub mod relax;
pub mod request;
pub mod rules;
pub mod schedule;
pub mod simulate;
pub mod timeline;

/// Index of an op, in the graph's insertion order.
pub type OpId = u32;
/// Index of a tensor.
pub type TensorId = u32;
/// Index of a device.
pub type DeviceId = u32;
/// A moment or a duration in integer nanoseconds (under the originals' rules: in their own unit).
pub type Ns = i64;
/// An amount of memory in bytes.
pub type Bytes = i64;

/// Asked now and then by long calls; `true` means stop with `Error::Cancelled`.
pub type Cancelled<'a> = &'a dyn Fn() -> bool;

/// A limit that is never reached, and far enough from overflow to be added to: all bytes of a graph, with a copy of
/// each tensor per consumer, stay below it, and so does the length of any schedule.
pub const UNLIMITED: i64 = 1 << 61;
