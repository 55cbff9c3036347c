//! The columns of a traced step, and what makes them fit to be one: lengths, indices, and sums that 64 bits hold.

use std::ops::Range;

use super::{Edge, Function, Kind, NONE, Program, Source, Step, Storage, Updates, Value, link};
use crate::UNLIMITED;
use crate::error::{Error, Result};
use crate::lists::Lists;

/// Most entries that any column may have: positions of steps and functions fit 32 bits together.
const MOST: usize = 1 << 30;
/// Greatest sequence number; autograd's own mark for accumulations is above and taken for it.
const LAST_SEQUENCE: i64 = 1 << 48;

/// What a trace is made of. A list of each item (reads of each step) is its starts, one more than there are items,
/// and all entries in one column.
#[derive(Debug, Clone, Default)]
pub struct Columns {
    pub storage_bytes: Vec<i64>,
    /// 0 parameter, 1 buffer, 2 constant, 3 input, 4 made.
    pub storage_kind: Vec<i64>,
    /// A step, the number of steps for the end of forward, or that plus 1 plus a function; -1 none.
    pub storage_until: Vec<i64>,
    pub value_storage: Vec<i64>,
    pub value_bytes: Vec<i64>,
    /// The step that makes it, -1 for weights and inputs.
    pub value_step: Vec<i64>,
    /// The function and its input number that take the gradient, -1 none.
    pub value_function: Vec<i64>,
    pub value_number: Vec<i64>,
    pub step_sequence: Vec<i64>,
    pub step_peak: Vec<i64>,
    pub read_start: Vec<i64>,
    pub read: Vec<i64>,
    pub make_start: Vec<i64>,
    pub make: Vec<i64>,
    pub born_start: Vec<i64>,
    pub born: Vec<i64>,
    pub saved_start: Vec<i64>,
    pub saved_function: Vec<i64>,
    pub saved_storage: Vec<i64>,
    /// The step whose backward it is, -1 for an accumulation into a parameter's gradient.
    pub function_step: Vec<i64>,
    /// The storage of that parameter, else -1.
    pub function_parameter: Vec<i64>,
    pub function_sequence: Vec<i64>,
    pub function_peak: Vec<i64>,
    pub function_born_start: Vec<i64>,
    pub function_born: Vec<i64>,
    pub edge_start: Vec<i64>,
    pub edge_function: Vec<i64>,
    pub edge_number: Vec<i64>,
    pub edge_bytes: Vec<i64>,
    /// Whether it is the gradient that came in under number `edge_at`; else storage `edge_at`.
    pub edge_taken: Vec<i64>,
    pub edge_at: Vec<i64>,
    pub output: Vec<i64>,
    pub region_start: Vec<i64>,
    pub region_step: Vec<i64>,
    /// The function that backward starts with and the bytes of the loss; empty in inference.
    pub seed: Vec<i64>,
    /// Whether a copy is cached as long as its source lives; empty for no.
    pub follows: Vec<i64>,
}

impl Program {
    /// Checks columns.
    ///
    /// # Errors
    /// [`Error::Shape`], [`Error::Value`] or [`Error::Overflow`], with the name of the column.
    pub fn new(columns: &Columns) -> Result<Self> {
        let c = columns;
        check_bytes(c)?;
        let storages = storages(c)?;
        let num_steps = c.step_sequence.len();
        let numbers = input_numbers(c)?;
        let functions = functions(c, &numbers)?;
        let values = values(c, storages.len(), num_steps, &functions)?;
        let reads = indices("read", &c.read, values.len())?;
        let saved_function = indices("saved_function", &c.saved_function, functions.len())?;
        let saved_storage = indices("saved_storage", &c.saved_storage, storages.len())?;
        same("saved_storage", &saved_storage, saved_function.len())?;
        let mut born = indices("born", &c.born, storages.len())?;
        born.extend(indices("function_born", &c.function_born, storages.len())?);
        let mut program = Self {
            edges: edges(c, &functions, storages.len())?,
            steps: steps(c)?,
            makes: Vec::new(),
            saved: Vec::new(),
            saved_for: Lists::group(
                functions.len(),
                saved_function.iter().zip(0..).map(|(function, at)| (*function, at)),
            ),
            num_inputs: functions.last().map_or(0, |last| last.inputs.end as usize),
            regions: Vec::new(),
            region_steps: indices("region_step", &c.region_step, num_steps)?,
            region_of_step: vec![NONE; num_steps],
            region_of_function: vec![NONE; c.function_step.len()],
            outputs: indices("output", &c.output, values.len())?,
            seed: NONE,
            loss_bytes: 0,
            follows: c.follows.first().is_some_and(|follows| *follows != 0),
            first_reader: Vec::new(),
            constants: Vec::new(),
            storages,
            values,
            functions,
            reads,
            born,
        };
        if let [seed, bytes] = c.seed[..] {
            program.seed = index("seed", 0, seed, program.functions.len())?;
            program.loss_bytes = bytes;
        } else if !c.seed.is_empty() {
            return Err(Error::Shape { what: "seed", expected: 2, found: c.seed.len() });
        }
        let makes = indices("make", &c.make, program.values.len())?;
        link::parts(&mut program, &makes, &saved_storage)?;
        let starts = c.region_start.len().max(1) - 1;
        let regions = ranges("region_start", &c.region_start, starts, program.region_steps.len())?;
        link::regions(&mut program, regions, &saved_function)?;
        link::readers(&mut program);
        link::gradients(&mut program);
        Ok(program)
    }

    /// Checks what the optimizer needs.
    ///
    /// # Errors
    /// [`Error::Value`] or [`Error::Overflow`].
    pub fn check_updates(&self, updates: &Updates) -> Result<()> {
        let mut total = 0_i128;
        for (index, one) in updates.of.iter().enumerate() {
            if !self.storages.get(one.storage as usize).is_some_and(|s| s.kind == Kind::Parameter) {
                return Err(wrong("updated storage", index, one.storage));
            }
            for value in [one.state, one.peak, one.kept] {
                if value < 0 {
                    return Err(Error::Value { what: "bytes of an update", index, value });
                }
                total += i128::from(value);
            }
        }
        if total >= i128::from(UNLIMITED) {
            return Err(Error::Overflow { what: "bytes of updates" });
        }
        Ok(())
    }
}

pub(super) fn wrong(what: &'static str, index: usize, value: u32) -> Error {
    Error::Value { what, index, value: i64::from(value) }
}

fn index(what: &'static str, index: usize, value: i64, end: usize) -> Result<u32> {
    match u32::try_from(value) {
        Ok(found) if (found as usize) < end => Ok(found),
        _ => Err(Error::Value { what, index, value }),
    }
}

fn indices(what: &'static str, column: &[i64], end: usize) -> Result<Vec<u32>> {
    if column.len() > MOST {
        return Err(Error::Overflow { what });
    }
    column.iter().enumerate().map(|(at, value)| index(what, at, *value, end)).collect()
}

fn optional(what: &'static str, at: usize, value: i64, end: usize) -> Result<u32> {
    if value == -1 { Ok(NONE) } else { index(what, at, value, end) }
}

fn same<T>(what: &'static str, column: &[T], expected: usize) -> Result<()> {
    let found = column.len();
    if found == expected && found <= MOST {
        return Ok(());
    }
    Err(Error::Shape { what, expected, found })
}

/// The entries of each item.
pub(super) fn ranges(
    what: &'static str,
    starts: &[i64],
    num_items: usize,
    end: usize,
) -> Result<Vec<Range<usize>>> {
    same(what, starts, num_items + 1)?;
    let is_wrong = |at: &usize| {
        let least = if *at == 0 { 0 } else { starts[*at - 1] };
        starts[*at] < least || usize::try_from(starts[*at]).is_ok_and(|start| start > end)
    };
    if let Some(index) = (0..starts.len()).find(is_wrong) {
        return Err(Error::Value { what, index, value: starts[index] });
    }
    let found: Vec<usize> =
        starts.iter().map(|start| usize::try_from(*start).expect("not negative")).collect();
    if found[0] != 0 || found[num_items] != end {
        return Err(Error::Shape { what, expected: end, found: found[num_items] - found[0] });
    }
    Ok(found.windows(2).map(|pair| pair[0]..pair[1]).collect())
}

/// A copy of a value may be held by every device, and a gradient be added up on each.
fn check_bytes(c: &Columns) -> Result<()> {
    let mut total = 0_i128;
    for (what, column, times) in [
        ("storage_bytes", &c.storage_bytes, 1),
        ("value_bytes", &c.value_bytes, 1 << 16),
        ("step_peak", &c.step_peak, 2),
        ("function_peak", &c.function_peak, 2),
        ("edge_bytes", &c.edge_bytes, 8),
    ] {
        if let Some(index) = column.iter().position(|bytes| *bytes < 0) {
            return Err(Error::Value { what, index, value: column[index] });
        }
        total += times * column.iter().map(|bytes| i128::from(*bytes)).sum::<i128>();
    }
    let born = c.born.iter().chain(&c.born).chain(&c.function_born).chain(&c.function_born);
    let sizes = born.filter_map(|at| c.storage_bytes.get(usize::try_from(*at).ok()?));
    total += sizes.map(|bytes| i128::from(*bytes)).sum::<i128>();
    total += i128::from(*c.seed.get(1).unwrap_or(&0));
    if c.seed.get(1).is_some_and(|bytes| *bytes < 0) {
        return Err(Error::Value { what: "seed", index: 1, value: c.seed[1] });
    }
    if total >= i128::from(UNLIMITED) {
        return Err(Error::Overflow { what: "all bytes of a step, with copies on every device," });
    }
    Ok(())
}

fn storages(c: &Columns) -> Result<Vec<Storage>> {
    let count = c.storage_bytes.len();
    same("storage_kind", &c.storage_kind, count)?;
    same("storage_until", &c.storage_until, count)?;
    let num_positions = c.step_sequence.len() + 1 + c.function_sequence.len();
    let kinds = [Kind::Parameter, Kind::Buffer, Kind::Constant, Kind::Input, Kind::Made];
    (0..count)
        .map(|at| {
            let kind = index("storage_kind", at, c.storage_kind[at], kinds.len())?;
            let until = optional("storage_until", at, c.storage_until[at], num_positions)?;
            Ok(Storage { bytes: c.storage_bytes[at], kind: kinds[kind as usize], until })
        })
        .collect()
}

fn values(
    c: &Columns,
    num_storages: usize,
    num_steps: usize,
    functions: &[Function],
) -> Result<Vec<Value>> {
    let count = c.value_storage.len();
    same("value_bytes", &c.value_bytes, count)?;
    same("value_step", &c.value_step, count)?;
    same("value_function", &c.value_function, count)?;
    same("value_number", &c.value_number, count)?;
    (0..count)
        .map(|at| {
            let function =
                optional("value_function", at, c.value_function[at], functions.len())? as usize;
            let inputs = functions.get(function).map_or(0..0, |one| one.inputs.clone());
            // Nothing ever arrives at an input that no edge leads to.
            let number = u32::try_from(c.value_number[at]).unwrap_or(NONE);
            let is_known = (number as usize) < inputs.len();
            Ok(Value {
                storage: index("value_storage", at, c.value_storage[at], num_storages)?,
                bytes: c.value_bytes[at],
                step: optional("value_step", at, c.value_step[at], num_steps)?,
                input: if is_known { inputs.start + number } else { NONE },
            })
        })
        .collect()
}

fn steps(c: &Columns) -> Result<Vec<Step>> {
    let count = c.step_sequence.len();
    same("step_peak", &c.step_peak, count)?;
    let reads = ranges("read_start", &c.read_start, count, c.read.len())?;
    let makes = ranges("make_start", &c.make_start, count, c.make.len())?;
    let born = ranges("born_start", &c.born_start, count, c.born.len())?;
    let saved = ranges("saved_start", &c.saved_start, count, c.saved_function.len())?;
    let lists = reads.into_iter().zip(makes).zip(born).zip(saved);
    let step = |(at, (((reads, makes), born), saved)): (usize, _)| Step {
        peak: c.step_peak[at],
        sequence: c.step_sequence[at].clamp(0, LAST_SEQUENCE),
        reads,
        makes,
        born,
        saved,
    };
    Ok(lists.enumerate().map(step).collect())
}

/// How many gradient inputs each function has: one more than the greatest number on an edge to it.
fn input_numbers(c: &Columns) -> Result<Vec<u32>> {
    let num_functions = c.function_sequence.len();
    let targets = indices("edge_function", &c.edge_function, num_functions)?;
    same("edge_number", &c.edge_number, targets.len())?;
    let mut numbers = vec![1; num_functions];
    for (at, target) in targets.iter().enumerate() {
        let number = index("edge_number", at, c.edge_number[at], 1 << 16)?;
        numbers[*target as usize] = numbers[*target as usize].max(number + 1);
    }
    if numbers.iter().map(|count| u64::from(*count)).sum::<u64>() > MOST as u64 {
        return Err(Error::Overflow { what: "edge_number" });
    }
    Ok(numbers)
}

fn functions(c: &Columns, numbers: &[u32]) -> Result<Vec<Function>> {
    let count = numbers.len();
    same("function_step", &c.function_step, count)?;
    same("function_parameter", &c.function_parameter, count)?;
    same("function_peak", &c.function_peak, count)?;
    let born = ranges("function_born_start", &c.function_born_start, count, c.function_born.len())?;
    let edges = ranges("edge_start", &c.edge_start, count, c.edge_function.len())?;
    let mut found = Vec::with_capacity(count);
    let mut first = 0;
    for (at, (born, edges)) in born.into_iter().zip(edges).enumerate() {
        let (what, parameter) = ("function_parameter", c.function_parameter[at]);
        let parameter = optional(what, at, parameter, c.storage_kind.len())?;
        if parameter != NONE && !(0..3).contains(&c.storage_kind[parameter as usize]) {
            return Err(wrong(what, at, parameter));
        }
        let step = optional("function_step", at, c.function_step[at], c.step_sequence.len())?;
        if step == NONE && parameter == NONE {
            return Err(Error::Value { what: "function_step", index: at, value: -1 });
        }
        // Born storages of functions come after those of steps.
        let born = born.start + c.born.len()..born.end + c.born.len();
        found.push(Function {
            step,
            parameter,
            sequence: c.function_sequence[at].clamp(0, LAST_SEQUENCE),
            peak: c.function_peak[at],
            born,
            edges,
            inputs: first..first + numbers[at],
        });
        first += numbers[at];
    }
    Ok(found)
}

fn edges(c: &Columns, functions: &[Function], num_storages: usize) -> Result<Vec<Edge>> {
    let count = c.edge_function.len();
    same("edge_bytes", &c.edge_bytes, count)?;
    same("edge_taken", &c.edge_taken, count)?;
    same("edge_at", &c.edge_at, count)?;
    let mut found = Vec::with_capacity(count);
    for own in functions {
        for edge in own.edges.clone() {
            let function = index("edge_function", edge, c.edge_function[edge], functions.len())?;
            let number = index("edge_number", edge, c.edge_number[edge], 1 << 16)?;
            let source = if c.edge_taken[edge] == 0 {
                Source::Held(index("edge_at", edge, c.edge_at[edge], num_storages)?)
            } else {
                Source::Taken(index("edge_at", edge, c.edge_at[edge], own.inputs.len())?)
            };
            let input = functions[function as usize].inputs.start + number;
            let bytes = c.edge_bytes[edge];
            found.push(Edge { function, input, bytes, source, read: NONE });
        }
    }
    Ok(found)
}
