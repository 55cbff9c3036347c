//! The backward half of the memory ledger: autograd's queue, with a copy on each crossing edge.
//!
//! Gradients arrive at slots: one for each input of a function and device. On the function's own device they go in;
//! elsewhere the copy's backward takes their sum across.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::blocks::{ACTIVATIONS, COPIES, Cause, GRADIENTS};
use super::replay::{Moved, Replay};
use super::{NONE, Program, Source};
use crate::error::{Error, Result};
use crate::{Bytes, DeviceId};

/// What runs next: the greatest rank, then the first function; then by input number and place of a crossing.
type Ready = (i64, Reverse<u32>, Reverse<u32>, Reverse<(DeviceId, u32)>, u32);

/// Ranks of autograd's sequence numbers leave room between two functions for the copies before a function's step.
const BETWEEN: i64 = 1000;

#[derive(Debug, Clone, Copy)]
struct Slot {
    device: DeviceId,
    /// The region of the copy whose backward takes the sum across, or [`NONE`].
    region: u32,
    function: u32,
    input: u32,
    /// Edges from this device that have not passed their gradient on yet.
    waiting: i32,
    /// The sum so far, or [`NONE`].
    buffer: u32,
    bytes: Bytes,
    /// When the copy to this device was made, [`i64::MIN`] if no step reads it here.
    rank: i64,
    /// The next slot of the same input.
    next: u32,
}

/// A gradient on its way.
#[derive(Debug, Clone, Copy)]
struct Passed {
    slot: u32,
    block: u32,
    bytes: Bytes,
}

/// Buffers for the backward pass of one replay after the other.
#[derive(Debug, Clone, Default)]
pub struct Backward {
    device: Vec<DeviceId>,
    missing: Vec<i64>,
    slots: Vec<Slot>,
    first_slot: Vec<u32>,
    slot_of_edge: Vec<u32>,
    ready: BinaryHeap<Ready>,
    taken: Vec<u32>,
    passed: Vec<Passed>,
}

impl Backward {
    /// Runs every function, beginning with the loss.
    pub(crate) fn run<const RECORD: bool>(&mut self, replay: &mut Replay) -> Result<()> {
        self.start_over(replay);
        let program = replay.program;
        let seed = program.seed;
        let here = self.device[seed as usize];
        let ones = replay.blocks.allocate::<RECORD>(here, program.loss_bytes, ACTIVATIONS, NONE);
        replay.blocks.hold(ones);
        replay.blocks.hold(ones); // Tensor.backward keeps it to the end
        let slot = self.own_slot(program.functions[seed as usize].inputs.start, seed);
        self.slots[slot as usize].buffer = ones;
        self.push(program, seed);
        while let Some((_, Reverse(function), _, _, slot)) = self.ready.pop() {
            if slot == NONE {
                self.call::<RECORD>(replay, function)?;
            } else {
                self.cross::<RECORD>(replay, slot);
            }
        }
        replay.blocks.drop::<RECORD>(ones);
        Ok(())
    }

    /// Counts what each function waits for.
    fn start_over(&mut self, replay: &Replay) {
        let program = replay.program;
        self.device.clear();
        self.device.extend(program.functions.iter().map(|one| match one.parameter {
            NONE => replay.device_of_step[one.step as usize],
            parameter => replay.homes[parameter as usize],
        }));
        self.missing.clear();
        self.missing.resize(program.functions.len(), 0);
        self.first_slot.clear();
        self.first_slot.resize(program.num_inputs, NONE);
        self.slots.clear();
        self.slot_of_edge.clear();
        self.ready.clear();
        for (function, one) in program.functions.iter().enumerate() {
            let here = self.device[function];
            for edge in &program.edges[one.edges.clone()] {
                let is_own = here == self.device[edge.function as usize];
                let num_slots = self.slots.len();
                let region = if is_own { NONE } else { replay.uses.region_of(edge.read) };
                let slot = self.slot(edge.input, here, region, edge.function);
                self.slot_of_edge.push(slot);
                self.slots[slot as usize].waiting += 1;
                if is_own || self.slots.len() > num_slots {
                    self.missing[edge.function as usize] += 1;
                }
            }
        }
        self.find_first_readers(replay);
    }

    /// When each value was copied to the devices that read it: copies run their backward in that order, too.
    fn find_first_readers(&mut self, replay: &Replay) {
        let program = replay.program;
        for (at, step) in program.steps.iter().enumerate() {
            let here = replay.device_of_step[at];
            for (place, read) in (0..).zip(step.reads.clone()) {
                let input = program.values[program.reads[read] as usize].input;
                if input == NONE {
                    continue;
                }
                let region = replay.uses.region_of(count(read));
                let slot = self.find_slot(input, here, region);
                if let Some(slot) = self.slots.get_mut(slot as usize)
                    && slot.rank == i64::MIN
                {
                    slot.rank = step.sequence * BETWEEN - BETWEEN / 2 + place;
                }
            }
        }
    }

    fn find_slot(&self, input: u32, device: DeviceId, region: u32) -> u32 {
        let mut at = self.first_slot[input as usize];
        while let Some(one) = self.slots.get(at as usize)
            && (one.device, one.region) != (device, region)
        {
            at = one.next;
        }
        at
    }

    fn slot(&mut self, input: u32, device: DeviceId, region: u32, function: u32) -> u32 {
        let found = self.find_slot(input, device, region);
        if found != NONE {
            return found;
        }
        let at = u32::try_from(self.slots.len()).expect("at most two slots per edge");
        let next = std::mem::replace(&mut self.first_slot[input as usize], at);
        let (waiting, buffer, bytes, rank) = (0, NONE, 0, i64::MIN);
        self.slots.push(Slot {
            device,
            region,
            function,
            input,
            waiting,
            buffer,
            bytes,
            rank,
            next,
        });
        at
    }

    fn own_slot(&mut self, input: u32, function: u32) -> u32 {
        self.slot(input, self.device[function as usize], NONE, function)
    }

    fn push(&mut self, program: &Program, function: u32) {
        let rank = program.functions[function as usize].sequence * BETWEEN;
        self.ready.push((rank, Reverse(function), Reverse(0), Reverse((0, 0)), NONE));
    }

    /// Runs a function: takes its gradients, allocates, passes on, forgets what it saved.
    fn call<const RECORD: bool>(&mut self, replay: &mut Replay, function: u32) -> Result<()> {
        let program = replay.program;
        let one = &program.functions[function as usize];
        let here = self.device[function as usize];
        replay.blocks.position = program.position_of_function(function);
        if RECORD {
            replay.record.order.push(function);
        }
        self.take(program, function);
        replay.need_region::<RECORD>(function);
        if one.parameter != NONE {
            return self.accumulate::<RECORD>(replay, function);
        }
        replay.bear::<RECORD>(one.born.clone(), here, one.peak, Cause::Function(function));
        self.passed.clear();
        for place in one.edges.clone() {
            let edge = program.edges[place];
            let block = match edge.source {
                Source::Taken(number) => self.taken[number as usize],
                Source::Held(storage) => replay.own[storage as usize],
            };
            if block == NONE {
                let value = i64::try_from(place).unwrap_or(i64::MAX);
                return Err(Error::Value { what: "edge_at", index: place, value });
            }
            replay.blocks.hold(block);
            let slot = self.slot_of_edge[place];
            self.passed.push(Passed { slot, block, bytes: edge.bytes });
        }
        for block in self.taken.iter().filter(|block| **block != NONE) {
            replay.blocks.drop::<RECORD>(*block);
        }
        for saved in program.saved_for.of(function) {
            let block = std::mem::replace(&mut replay.saved[*saved as usize], NONE);
            if block != NONE {
                replay.blocks.drop::<RECORD>(block);
            }
        }
        replay.ran_in_region::<RECORD>(function);
        replay.forget::<RECORD>(one.born.clone());
        for at in 0..self.passed.len() {
            let Passed { slot, block, bytes } = self.passed[at];
            self.give::<RECORD>(replay, slot, block, bytes, Cause::Function(function));
        }
        replay.expire::<RECORD>();
        Ok(())
    }

    /// The gradients that have come in, by input number.
    fn take(&mut self, program: &Program, function: u32) {
        self.taken.clear();
        for input in program.functions[function as usize].inputs.clone() {
            let slot = self.find_slot(input, self.device[function as usize], NONE);
            let slot = self.slots.get_mut(slot as usize);
            let buffer = slot.map_or(NONE, |slot| std::mem::replace(&mut slot.buffer, NONE));
            self.taken.push(buffer);
        }
    }

    /// A parameter's gradient: kept as it is, or cloned where its layout does not fit.
    fn accumulate<const RECORD: bool>(&mut self, replay: &mut Replay, function: u32) -> Result<()> {
        let program = replay.program;
        let one = &program.functions[function as usize];
        let here = self.device[function as usize];
        let mut kept = self.taken[0];
        if kept == NONE {
            let index = function as usize;
            return Err(Error::Value { what: "function_parameter", index, value: -1 });
        }
        if !one.born.is_empty() {
            replay.bear::<RECORD>(one.born.clone(), here, one.peak, Cause::Gradient);
            let clone = replay.own[program.born[one.born.end - 1] as usize];
            replay.blocks.hold(clone);
            replay.blocks.drop::<RECORD>(kept);
            kept = clone;
        }
        replay.blocks.reclass::<RECORD>(kept, here, GRADIENTS);
        Ok(())
    }

    /// A gradient arrives at a slot; the last one there makes it ready.
    fn give<const RECORD: bool>(
        &mut self,
        replay: &mut Replay,
        slot: u32,
        block: u32,
        bytes: Bytes,
        at: Cause,
    ) {
        let one = &mut self.slots[slot as usize];
        one.bytes = bytes;
        let old = one.buffer;
        if old == NONE {
            one.buffer = block;
        } else if replay.in_place && replay.blocks.get(old).holders == 1 {
            replay.blocks.drop::<RECORD>(block);
        } else {
            let sum = replay.blocks.allocate::<RECORD>(one.device, bytes, ACTIVATIONS, NONE);
            replay.blocks.hold(sum);
            replay.blocks.mark::<RECORD>(one.device, 0, at);
            replay.blocks.drop::<RECORD>(old);
            replay.blocks.drop::<RECORD>(block);
            one.buffer = sum;
        }
        let Slot { device, function, input, .. } = *one;
        if device == self.device[function as usize] {
            let missing = &mut self.missing[function as usize];
            *missing -= 1;
            if *missing == 0 {
                self.push(replay.program, function);
            }
            return;
        }
        one.waiting -= 1;
        if one.waiting == 0 {
            let otherwise = replay.program.functions[function as usize].sequence * BETWEEN;
            let rank = if one.rank == i64::MIN { otherwise + BETWEEN / 2 } else { one.rank };
            // No region comes before the first one.
            let place = (device, one.region.wrapping_add(1));
            self.ready.push((rank, Reverse(function), Reverse(input), Reverse(place), slot));
        }
    }

    /// The backward of a copy: the sum goes to the device of the function that takes it.
    fn cross<const RECORD: bool>(&mut self, replay: &mut Replay, slot: u32) {
        let Slot { device: source, function, input, buffer, bytes, .. } = self.slots[slot as usize];
        self.slots[slot as usize].buffer = NONE;
        let here = self.device[function as usize];
        // A view is copied, not all that it looks at.
        let copy = replay.blocks.allocate::<RECORD>(here, bytes, COPIES, NONE);
        replay.blocks.hold(copy);
        if RECORD {
            let (destination, backward, value) = (here, true, NONE);
            replay.record.moved.push(Moved { source, destination, bytes, backward, value });
        }
        replay.blocks.mark::<RECORD>(here, 0, Cause::GradientCopy);
        replay.blocks.drop::<RECORD>(buffer);
        let own = self.own_slot(input, function);
        self.give::<RECORD>(replay, own, copy, bytes, Cause::GradientCopy);
    }
}

fn count(read: usize) -> u32 {
    u32::try_from(read).expect("checked to fit 30 bits")
}
