//! Linking the parts of a program: what can be found once, whatever the placement.

use std::ops::Range;

use super::columns::wrong;
use super::{Kind, Make, NONE, Program, Region, Saved, Step};
use crate::error::{Error, Result};

/// Finds which read each made value and saved storage is part of; checks that nothing is used before it is there.
pub(super) fn parts(program: &mut Program, makes: &[u32], saved: &[u32]) -> Result<()> {
    let mut there: Vec<bool> = program.storages.iter().map(|one| one.kind != Kind::Made).collect();
    for at in 0..program.steps.len() {
        let step = &program.steps[at];
        for place in step.reads.clone() {
            let one = program.values[program.reads[place] as usize];
            if (one.step != NONE && one.step as usize >= at) || !there[one.storage as usize] {
                return Err(wrong("read", place, program.reads[place]));
            }
        }
        for storage in &program.born[step.born.clone()] {
            there[*storage as usize] = true;
        }
        let reads = &program.reads[step.reads.clone()];
        let read_of = |storage: u32| {
            let found = reads.iter().rposition(|v| program.values[*v as usize].storage == storage);
            found.map_or(NONE, |place| u32::try_from(place).expect("checked to fit 30 bits"))
        };
        for place in step.makes.clone() {
            let one = program.values[makes[place] as usize];
            if one.step as usize != at || !there[one.storage as usize] {
                return Err(wrong("make", place, makes[place]));
            }
            let read = read_of(one.storage);
            program.makes.push(Make { value: makes[place], storage: one.storage, read });
        }
        for place in step.saved.clone() {
            if !there[saved[place] as usize] {
                return Err(wrong("saved_storage", place, saved[place]));
            }
            program.saved.push(Saved { storage: saved[place], read: read_of(saved[place]) });
        }
    }
    Ok(())
}

/// Finds the first reader of what each step makes, and of constants.
pub(super) fn readers(program: &mut Program) {
    let mut of_value = vec![NONE; program.values.len()];
    let mut of_storage = vec![NONE; program.storages.len()];
    for (step, at) in program.steps.iter().zip(0..) {
        for value in &program.reads[step.reads.clone()] {
            let first = &mut of_value[*value as usize];
            *first = at.min(*first);
            let first = &mut of_storage[program.values[*value as usize].storage as usize];
            *first = at.min(*first);
        }
    }
    let first = |step: &Step| {
        let makes = program.makes[step.makes.clone()].iter();
        makes.map(|make| of_value[make.value as usize]).min().unwrap_or(NONE)
    };
    program.first_reader = program.steps.iter().map(first).collect();
    let constants = (0..).zip(&program.storages).filter(|(_, one)| one.kind == Kind::Constant);
    program.constants = constants.map(|(at, _)| (at, of_storage[at as usize])).collect();
}

/// Finds the read whose gradient each edge is: the last one of the function's step whose gradient arrives there.
pub(super) fn gradients(program: &mut Program) {
    for function in &program.functions {
        let Some(step) = program.steps.get(function.step as usize) else { continue };
        for edge in &mut program.edges[function.edges.clone()] {
            let is_its =
                |read: &usize| program.values[program.reads[*read] as usize].input == edge.input;
            let read = step.reads.clone().rev().find(is_its);
            edge.read = read.map_or(NONE, |at| u32::try_from(at).expect("checked to fit 30 bits"));
        }
    }
}

/// Finds what each checkpointed region computes again, and for which functions.
pub(super) fn regions(
    program: &mut Program,
    ranges: Vec<Range<usize>>,
    saved_function: &[u32],
) -> Result<()> {
    let mut seen = vec![NONE; program.functions.len()];
    for (number, range) in (0..).zip(ranges) {
        let steps = &program.region_steps[range.clone()];
        let is_wrong = |at: &usize| *at > 0 && steps[*at] <= steps[*at - 1];
        if let Some(at) = (0..steps.len()).find(is_wrong) {
            return Err(wrong("region_step", range.start + at, steps[at]));
        }
        let Some(first) = steps.first().copied() else {
            return Err(Error::Shape { what: "steps of a region", expected: 1, found: 0 });
        };
        for (place, at) in steps.iter().enumerate() {
            let region = &mut program.region_of_step[*at as usize];
            if *region != NONE {
                return Err(wrong("region_step", range.start + place, *at));
            }
            *region = number;
        }
        let (mut num_functions, mut again, mut is_before) = (0, range.start..range.start, false);
        for (place, at) in range.clone().zip(steps) {
            let step = &program.steps[*at as usize];
            for read in step.reads.clone() {
                let maker = program.values[program.reads[read] as usize].step;
                let is_inside = program.region_of_step.get(maker as usize) == Some(&number);
                if maker != NONE && maker > first && !is_inside {
                    return Err(wrong("region_step", place, *at));
                }
            }
            for function in &saved_function[step.saved.clone()] {
                if std::mem::replace(&mut seen[*function as usize], number) != number {
                    num_functions += 1;
                    let own = program.functions[*function as usize].step;
                    if program.region_of_step.get(own as usize) == Some(&number) {
                        program.region_of_function[*function as usize] = number;
                    }
                }
            }
            if !step.saved.is_empty() {
                again.end = place + 1;
                let born = &program.born[step.born.clone()];
                let saved = &program.saved[step.saved.clone()];
                is_before = !saved.iter().any(|one| born.contains(&one.storage));
            }
        }
        program.regions.push(Region { steps: range, again, stops: is_before, num_functions });
    }
    Ok(())
}
