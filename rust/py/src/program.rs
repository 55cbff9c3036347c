//! The border of traced steps: columns in, peaks and step times of placements out.

use baechi_core::error::{Error, Result};
use baechi_core::problem::Problem;
use baechi_core::program::blocks::{Cause, NUM_CLASSES, Peak};
use baechi_core::program::columns::Columns;
use baechi_core::program::judge::{Judge, Ops};
use baechi_core::program::layout::{Layout, UnitColumns, Units};
use baechi_core::program::replay::{Moved, Replay};
use baechi_core::program::{NONE, Program, Updated, Updates};
use baechi_core::rules::Retention;
use numpy::ndarray::Array2;
use numpy::{
    IntoPyArray, PyArray1, PyArray2, PyReadonlyArray1, PyReadonlyArray2, PyUntypedArrayMethods,
};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::columns::{PyFlatCluster, PyFlatGraph, signed};
use crate::errors::{detached, exception};

type Out<'py, T> = Bound<'py, PyArray1<T>>;
type Table<'py, T> = Bound<'py, PyArray2<T>>;

/// Peaks, causes, bytes by class, transfers, order of functions, deaths of storages.
type Replayed<'py> =
    (Out<'py, i64>, Out<'py, i64>, Table<'py, i64>, Table<'py, i64>, Out<'py, i32>, Out<'py, i64>);

/// Makespans (-1: an op cannot run on its device), peaks by device, number of devices used.
type Judged<'py> = (Out<'py, i64>, Table<'py, i64>, Out<'py, i32>);

/// A traced step in the core; made by `baechi.torch.flat_trace`.
#[pyclass(name = "FlatTrace", module = "baechi._core", frozen)]
pub struct PyFlatTrace {
    program: Program,
}

#[pymethods]
impl PyFlatTrace {
    #[new]
    fn new(py: Python<'_>, columns: &Bound<'_, PyDict>) -> PyResult<Self> {
        let column = |name: &'static str| entries(columns, name);
        let columns = Columns {
            storage_bytes: column("storage_bytes")?,
            storage_kind: column("storage_kind")?,
            storage_until: column("storage_until")?,
            value_storage: column("value_storage")?,
            value_bytes: column("value_bytes")?,
            value_step: column("value_step")?,
            value_function: column("value_function")?,
            value_number: column("value_number")?,
            step_sequence: column("step_sequence")?,
            step_peak: column("step_peak")?,
            read_start: column("read_start")?,
            read: column("read")?,
            make_start: column("make_start")?,
            make: column("make")?,
            born_start: column("born_start")?,
            born: column("born")?,
            saved_start: column("saved_start")?,
            saved_function: column("saved_function")?,
            saved_storage: column("saved_storage")?,
            function_step: column("function_step")?,
            function_parameter: column("function_parameter")?,
            function_sequence: column("function_sequence")?,
            function_peak: column("function_peak")?,
            function_born_start: column("function_born_start")?,
            function_born: column("function_born")?,
            edge_start: column("edge_start")?,
            edge_function: column("edge_function")?,
            edge_number: column("edge_number")?,
            edge_bytes: column("edge_bytes")?,
            edge_taken: column("edge_taken")?,
            edge_at: column("edge_at")?,
            output: column("output")?,
            region_start: column("region_start")?,
            region_step: column("region_step")?,
            seed: column("seed")?,
            follows: column("follows")?,
        };
        Ok(Self { program: detached(py, |_| Program::new(&columns))? })
    }

    /// The peaks of a placement and what made them up; see `baechi.torch.ledger`.
    #[allow(clippy::too_many_arguments)]
    fn replay<'py>(
        &self,
        py: Python<'py>,
        device_of_step: PyReadonlyArray1<'py, i32>,
        home_of_storage: PyReadonlyArray1<'py, i32>,
        num_devices: usize,
        updates: PyReadonlyArray2<'py, i64>,
        together: bool,
        in_place: bool,
    ) -> PyResult<Replayed<'py>> {
        let updates = read_updates(py, &updates, together)?;
        let (steps, homes) = (unsigned(&device_of_step)?, unsigned(&home_of_storage)?);
        let (peaks, record, deaths) = detached(py, |_| {
            check_num_devices(num_devices)?;
            self.program.check_updates(&updates)?;
            let mut replay = Replay::new(&self.program, &updates, in_place);
            let peaks = replay.run::<true>(&steps, &homes, num_devices)?.to_vec();
            let deaths: Vec<i64> = replay.deaths().iter().map(|at| code(*at)).collect();
            Ok((peaks, replay.record().clone(), deaths))
        })?;
        let bytes: Vec<i64> = peaks.iter().map(|peak| peak.bytes).collect();
        let num_steps = self.program.num_steps();
        let causes: Vec<i64> = peaks.iter().map(|peak| cause(peak, num_steps)).collect();
        let held = peaks.iter().flat_map(|peak| peak.by_class).collect();
        let held = table(held, peaks.len(), NUM_CLASSES);
        let num_moved = record.moved.len();
        let moved = table(record.moved.iter().flat_map(moved).collect(), num_moved, 5);
        let order: Vec<i32> = record.order.iter().map(|at| signed(*at)).collect();
        Ok((
            bytes.into_pyarray(py),
            causes.into_pyarray(py),
            held.into_pyarray(py),
            moved.into_pyarray(py),
            order.into_pyarray(py),
            deaths.into_pyarray(py),
        ))
    }

    fn __repr__(&self) -> String {
        format!("FlatTrace({} steps)", self.program.num_steps())
    }
}

/// The units of a trace in the core.
#[pyclass(name = "FlatUnits", module = "baechi._core", frozen)]
pub struct PyFlatUnits {
    units: Units,
}

#[pymethods]
impl PyFlatUnits {
    #[new]
    fn new(
        py: Python<'_>,
        trace: &PyFlatTrace,
        num_units: usize,
        columns: &Bound<'_, PyDict>,
    ) -> PyResult<Self> {
        let column = |name: &'static str| entries(columns, name);
        let (of_step, of_storage) = (column("unit_of_step")?, column("unit_of_storage")?);
        let (tied_to, scope_of_step) = (column("tied_to")?, column("scope_of_step")?);
        let (scope_start, scope_unit) = (column("scope_start")?, column("scope_unit")?);
        let given = UnitColumns {
            num_units,
            of_step: &of_step,
            of_storage: &of_storage,
            tied_to: &tied_to,
            scope_of_step: &scope_of_step,
            scope_start: &scope_start,
            scope_unit: &scope_unit,
        };
        Ok(Self { units: detached(py, |_| Units::new(&trace.program, &given))? })
    }

    /// Device of each step, and of each weight, buffer and constant by storage (-1 for others).
    fn lay_out<'py>(
        &self,
        py: Python<'py>,
        trace: &PyFlatTrace,
        device_of_unit: PyReadonlyArray1<'py, i32>,
        exceptions: PyReadonlyArray2<'py, i32>,
        num_devices: usize,
    ) -> PyResult<(Out<'py, i32>, Out<'py, i32>)> {
        let devices = device_of_unit.as_slice()?;
        let exceptions = pairs(py, &exceptions)?;
        let layout = detached(py, |_| {
            check_num_devices(num_devices)?;
            let mut layout = Layout::default();
            layout.fill(&trace.program, &self.units, devices, &exceptions, num_devices)?;
            Ok(layout)
        })?;
        let column = |devices: &[u32]| devices.iter().map(|at| signed(*at)).collect::<Vec<_>>();
        Ok((
            column(&layout.device_of_step).into_pyarray(py),
            column(&layout.homes).into_pyarray(py),
        ))
    }

    fn __repr__(&self) -> String {
        format!("FlatUnits({} units)", self.units.num_units())
    }
}

/// Step times, peaks and numbers of devices of many placements of the units, `[batch, units]`.
#[pyfunction]
#[allow(clippy::too_many_arguments)]
pub fn judge_placements<'py>(
    py: Python<'py>,
    trace: &PyFlatTrace,
    units: &PyFlatUnits,
    graph: &PyFlatGraph,
    cluster: &PyFlatCluster,
    ops: PyReadonlyArray2<'py, i32>,
    updates: PyReadonlyArray2<'py, i64>,
    together: bool,
    in_place: bool,
    device_of_unit: PyReadonlyArray2<'py, i32>,
    exceptions: PyReadonlyArray2<'py, i32>,
) -> PyResult<Judged<'py>> {
    let updates = read_updates(py, &updates, together)?;
    let exceptions = pairs(py, &exceptions)?;
    let ops = read_ops(py, &ops, graph.graph.num_ops)?;
    let num_devices = cluster.cluster.num_devices;
    let (batch, num_units) = (device_of_unit.shape()[0], device_of_unit.shape()[1]);
    let devices = device_of_unit.as_slice()?;
    let (times, peaks, used) = detached(py, |cancelled| {
        let retention = Retention::Liveness;
        let problem = Problem::new(&graph.graph, &cluster.cluster, retention, cancelled)?;
        let mut judge =
            Judge::new(&trace.program, &units.units, &updates, &ops, &problem, in_place)?;
        let (mut times, mut used) = (Vec::with_capacity(batch), Vec::with_capacity(batch));
        let mut peaks = Vec::with_capacity(batch * num_devices);
        for row in 0..batch {
            let row = &devices[row * num_units..(row + 1) * num_units];
            let verdict = judge.judge(row, &exceptions)?;
            times.push(verdict.makespan.unwrap_or(-1));
            used.push(i32::try_from(verdict.num_used).expect("fewer than 2^15 devices"));
            peaks.extend_from_slice(judge.peaks());
            problem.check_cancelled()?;
        }
        Ok((times, peaks, used))
    })?;
    let peaks = table(peaks, batch, num_devices);
    Ok((times.into_pyarray(py), peaks.into_pyarray(py), used.into_pyarray(py)))
}

fn entries(columns: &Bound<'_, PyDict>, name: &'static str) -> PyResult<Vec<i64>> {
    let shape = |found| Error::Shape { what: name, expected: 1, found };
    let Some(column) = columns.get_item(name)? else {
        return Err(exception(columns.py(), shape(0)));
    };
    let column: PyReadonlyArray1<'_, i64> = column.extract()?;
    Ok(column.as_slice()?.to_vec())
}

fn check_num_devices(found: usize) -> Result<()> {
    if (1..=32768).contains(&found) {
        return Ok(());
    }
    Err(Error::Shape { what: "devices", expected: 1, found })
}

/// Storage, state, peak and kept bytes of each parameter that is updated.
fn read_updates(
    py: Python<'_>,
    rows: &PyReadonlyArray2<'_, i64>,
    together: bool,
) -> PyResult<Updates> {
    check_width(py, "updates", rows.shape()[1], 4)?;
    let of = rows.as_slice()?.chunks(4).map(|row| Updated {
        storage: u32::try_from(row[0]).unwrap_or(NONE),
        state: row[1],
        peak: row[2],
        kept: row[3],
    });
    Ok(Updates { of: of.collect(), together })
}

/// Unit, step and launch index of each op.
fn read_ops(py: Python<'_>, rows: &PyReadonlyArray2<'_, i32>, num_ops: usize) -> PyResult<Ops> {
    check_width(py, "rows of ops", rows.shape()[0], 3)?;
    check_width(py, "ops", rows.shape()[1], num_ops)?;
    let rows = rows.as_slice()?;
    let index = |at: &i32| u32::try_from(*at).unwrap_or(NONE);
    Ok(Ops {
        unit: rows[..num_ops].iter().map(index).collect(),
        step: rows[num_ops..2 * num_ops].iter().map(index).collect(),
        launch: rows[2 * num_ops..].to_vec(),
    })
}

fn pairs(py: Python<'_>, rows: &PyReadonlyArray2<'_, i32>) -> PyResult<Vec<(u32, u32)>> {
    check_width(py, "exceptions", rows.shape()[1], 2)?;
    let index = |at: i32| u32::try_from(at).unwrap_or(NONE);
    Ok(rows.as_slice()?.chunks(2).map(|row| (index(row[0]), index(row[1]))).collect())
}

fn check_width(py: Python<'_>, what: &'static str, found: usize, expected: usize) -> PyResult<()> {
    if found == expected {
        return Ok(());
    }
    Err(exception(py, Error::Shape { what, expected, found }))
}

fn unsigned(column: &PyReadonlyArray1<'_, i32>) -> PyResult<Vec<u32>> {
    Ok(column.as_slice()?.iter().map(|at| u32::try_from(*at).unwrap_or(NONE)).collect())
}

fn table(items: Vec<i64>, rows: usize, columns: usize) -> Array2<i64> {
    Array2::from_shape_vec((rows, columns), items).expect("as many items as rows have entries")
}

fn moved(one: &Moved) -> [i64; 5] {
    let sides = [code(one.source), code(one.destination)];
    [sides[0], sides[1], one.bytes, i64::from(one.backward), code(one.value)]
}

fn code(index: u32) -> i64 {
    if index == NONE { -1 } else { i64::from(index) }
}

/// -1 nothing, 0 weights, 1 optimizer, 2 gradient, 3 copy of a gradient, then steps, then functions.
fn cause(peak: &Peak, num_steps: usize) -> i64 {
    let first_function = 4 + i64::try_from(num_steps).expect("checked to fit 30 bits");
    match peak.cause {
        Cause::Nothing => -1,
        Cause::Weights => 0,
        Cause::Optimizer => 1,
        Cause::Gradient => 2,
        Cause::GradientCopy => 3,
        Cause::Step(at) => 4 + i64::from(at),
        Cause::Function(at) => first_function + i64::from(at),
    }
}
