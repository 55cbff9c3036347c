//! One step of a traced PyTorch model, and what a placement of its modules costs.
//!
//! `columns` checks what is given, `layout` finds where every step goes when the modules are placed, `replay` and
//! `backward` find the memory (docs/memory.md), `judge` asks all of them and the simulator for many placements.

pub mod backward;
pub mod blocks;
pub mod columns;
pub mod judge;
pub mod layout;
mod link;
mod regions;
pub mod replay;
mod uses;

use std::ops::Range;

use crate::lists::Lists;
use crate::{Bytes, DeviceId};

/// No step, storage, function, device: whatever the field is about.
pub const NONE: u32 = u32::MAX;

/// What a storage is to the step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Parameter,
    Buffer,
    Constant,
    Input,
    Made,
}

/// A block of memory that views share.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Storage {
    pub bytes: Bytes,
    pub kind: Kind,
    /// Position (see [`Program::position_of_function`]) up to which it is held from outside, or [`NONE`].
    pub until: u32,
}

/// A tensor that steps read.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Value {
    pub storage: u32,
    pub bytes: Bytes,
    pub step: u32,
    /// The gradient input that takes its gradient, or [`NONE`].
    pub input: u32,
}

/// An op of the forward pass; ranges are of the lists of [`Program`].
#[derive(Debug, Clone)]
pub(crate) struct Step {
    pub peak: Bytes,
    pub sequence: i64,
    pub reads: Range<usize>,
    pub makes: Range<usize>,
    pub born: Range<usize>,
    pub saved: Range<usize>,
}

/// A value that a step makes; `read` is the place among its reads of the last one with the same storage.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Make {
    pub value: u32,
    pub storage: u32,
    pub read: u32,
}

/// A storage that an autograd function keeps; `read` as in [`Make`].
#[derive(Debug, Clone, Copy)]
pub(crate) struct Saved {
    pub storage: u32,
    pub read: u32,
}

/// A node of autograd's graph.
#[derive(Debug, Clone)]
pub(crate) struct Function {
    pub step: u32,
    pub parameter: u32,
    pub sequence: i64,
    pub peak: Bytes,
    pub born: Range<usize>,
    pub edges: Range<usize>,
    /// Its gradient inputs, numbered over all functions.
    pub inputs: Range<u32>,
}

/// Where a gradient that is passed on comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Source {
    /// The gradient that came in under this number.
    Taken(u32),
    /// A storage.
    Held(u32),
}

/// A gradient from a function to another.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Edge {
    pub function: u32,
    pub input: u32,
    pub bytes: Bytes,
    pub source: Source,
    /// The entry of [`Program::reads`] whose gradient it is, or [`NONE`].
    pub read: u32,
}

/// Steps that are computed again in backward; ranges are of [`Program::region_steps`].
#[derive(Debug, Clone)]
pub(crate) struct Region {
    pub steps: Range<usize>,
    /// Those up to the last that saves something.
    pub again: Range<usize>,
    /// Whether the last of those has what it saves before it runs.
    pub stops: bool,
    /// How many functions something is saved for.
    pub num_functions: u32,
}

/// What the optimizer needs for one parameter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Updated {
    pub storage: u32,
    /// Kept between steps.
    pub state: Bytes,
    /// Needed while it is updated.
    pub peak: Bytes,
    /// Of those, what stays until the next parameter of the same device is being updated.
    pub kept: Bytes,
}

/// What the optimizer needs for all parameters, in their order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Updates {
    pub of: Vec<Updated>,
    /// Whether all parameters of a device are updated at once.
    pub together: bool,
}

/// A traced step, checked.
#[derive(Debug, Clone)]
pub struct Program {
    pub(crate) storages: Vec<Storage>,
    pub(crate) values: Vec<Value>,
    pub(crate) steps: Vec<Step>,
    pub(crate) functions: Vec<Function>,
    pub(crate) reads: Vec<u32>,
    pub(crate) makes: Vec<Make>,
    /// Storages born in steps, then in functions.
    pub(crate) born: Vec<u32>,
    pub(crate) saved: Vec<Saved>,
    pub(crate) edges: Vec<Edge>,
    /// Entries of `saved` of each function.
    pub(crate) saved_for: Lists,
    pub(crate) outputs: Vec<u32>,
    pub(crate) regions: Vec<Region>,
    pub(crate) region_steps: Vec<u32>,
    /// The region of each step, or [`NONE`].
    pub(crate) region_of_step: Vec<u32>,
    /// The region that has to be computed again for each function, or [`NONE`].
    pub(crate) region_of_function: Vec<u32>,
    pub(crate) num_inputs: usize,
    /// The function that backward starts with, [`NONE`] in inference.
    pub(crate) seed: u32,
    pub(crate) loss_bytes: Bytes,
    /// Whether a copy is cached as long as its source lives, as placed modules do it.
    pub(crate) follows: bool,
    /// The first step that reads something which a step makes, or [`NONE`].
    pub(crate) first_reader: Vec<u32>,
    /// Constants with the first step that reads them, or [`NONE`].
    pub(crate) constants: Vec<(u32, u32)>,
}

impl Program {
    /// Number of steps.
    #[must_use]
    pub fn num_steps(&self) -> usize {
        self.steps.len()
    }

    /// Number of storages.
    #[must_use]
    pub fn num_storages(&self) -> usize {
        self.storages.len()
    }

    /// A moment of the step: a step by its number, the end of the forward pass, or a function.
    pub(crate) fn position_of_function(&self, function: u32) -> u32 {
        self.end() + 1 + function
    }

    /// The position at the end of the forward pass.
    pub(crate) fn end(&self) -> u32 {
        u32::try_from(self.steps.len()).expect("checked to fit 30 bits")
    }

    /// The device on which a value is made or kept.
    pub(crate) fn home(
        &self,
        value: u32,
        device_of_step: &[DeviceId],
        homes: &[DeviceId],
    ) -> DeviceId {
        let one = &self.values[value as usize];
        match one.step {
            NONE => homes[one.storage as usize],
            step => device_of_step[step as usize],
        }
    }

    /// Whether weights, buffers and constants have this storage.
    pub(crate) fn is_kept(&self, storage: usize) -> bool {
        !matches!(self.storages[storage].kind, Kind::Made | Kind::Input)
    }
}
