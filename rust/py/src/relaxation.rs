//! The class that keeps the core's rounds and a solver in Python in step.

use std::time::{Duration, Instant};

use baechi_core::error::Result;
use baechi_core::relax::program::Program;
use baechi_core::relax::session::{self, Options, Session, Watch};
use numpy::{IntoPyArray, PyArray1, PyReadonlyArray1};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::columns::vector;
use crate::errors::{detached, exception};

type Out<'py, T> = Bound<'py, PyArray1<T>>;

/// Costs, lower and upper bounds of columns, lower and upper bounds of rows, then starts, columns and coefficients of
/// the matrix by rows.
type ModelColumns<'py> = (
    Out<'py, f64>,
    Out<'py, f64>,
    Out<'py, f64>,
    Out<'py, f64>,
    Out<'py, f64>,
    Out<'py, i32>,
    Out<'py, i32>,
    Out<'py, f64>,
);

/// m-SCT's linear program in the middle of its solution.
#[pyclass(name = "Relaxation", module = "baechi._core")]
pub struct PyRelaxation {
    session: Session,
}

#[pymethods]
impl PyRelaxation {
    #[new]
    #[pyo3(signature = (parent, child, transfer, compute, *, whole_ops, block_nodes, sweeps, deep_nodes, seconds = None))]
    #[allow(clippy::too_many_arguments, clippy::needless_pass_by_value)]
    fn new(
        py: Python<'_>,
        parent: PyReadonlyArray1<'_, i32>,
        child: PyReadonlyArray1<'_, i32>,
        transfer: PyReadonlyArray1<'_, f64>,
        compute: PyReadonlyArray1<'_, f64>,
        whole_ops: usize,
        block_nodes: usize,
        sweeps: u32,
        deep_nodes: usize,
        seconds: Option<f64>,
    ) -> PyResult<Self> {
        let program = program(&parent, &child, &transfer, &compute)?;
        let options = Options { whole_ops, block_nodes, sweeps, deep_nodes };
        let session = watched(py, seconds, |watch| Session::new(&program, options, watch))?;
        Ok(Self { session })
    }

    /// The next program to solve, None when there is none left or the time is over.
    #[pyo3(signature = (*, seconds = None))]
    fn next<'py>(
        &mut self,
        py: Python<'py>,
        seconds: Option<f64>,
    ) -> PyResult<Option<ModelColumns<'py>>> {
        let session = &mut self.session;
        let model = watched(py, seconds, |watch| session.next(watch))?;
        Ok(model.map(|model| {
            (
                model.cost.into_pyarray(py),
                model.column_lower.into_pyarray(py),
                model.column_upper.into_pyarray(py),
                model.row_lower.into_pyarray(py),
                model.row_upper.into_pyarray(py),
                model.start.into_pyarray(py),
                model.column.into_pyarray(py),
                model.coefficient.into_pyarray(py),
            )
        }))
    }

    /// Takes the solution of the last program: values of its columns, duals of its rows.
    #[allow(clippy::needless_pass_by_value)]
    fn give(
        &mut self,
        py: Python<'_>,
        columns: PyReadonlyArray1<'_, f64>,
        duals: PyReadonlyArray1<'_, f64>,
    ) -> PyResult<()> {
        let (columns, duals) = (columns.as_slice()?, duals.as_slice()?);
        self.session.give(columns, duals).map_err(|error| exception(py, error))
    }

    /// Values of the pairs, lower bound, upper bound, and counters by name.
    fn outcome<'py>(
        &mut self,
        py: Python<'py>,
    ) -> PyResult<(Out<'py, f64>, f64, f64, Bound<'py, PyDict>)> {
        let session = &mut self.session;
        let outcome = detached(py, |_| Ok(session.outcome()))?;
        let counters = PyDict::new(py);
        let counts = outcome.counters;
        for (name, count) in [
            ("num_never_critical", counts.num_never_critical),
            ("num_free", counts.num_free),
            ("num_dominated", counts.num_dominated),
            ("num_contracted", counts.num_contracted),
            ("num_blocks", counts.num_blocks),
            ("num_large_blocks", counts.num_large_blocks),
            ("largest_block_nodes", counts.largest_block_nodes),
            ("num_programs", counts.num_programs),
            ("num_program_rows", counts.num_program_rows),
            ("num_core_rounds", counts.num_core_rounds),
            ("num_windows", counts.num_windows),
        ] {
            counters.set_item(name, count)?;
        }
        let bounds = outcome.bounds;
        Ok((outcome.values.into_pyarray(py), bounds.lower, bounds.upper, counters))
    }
}

/// Lower and upper bound of the program from given values, one per pair.
#[pyfunction]
#[allow(clippy::needless_pass_by_value)]
pub fn bounds(
    py: Python<'_>,
    parent: PyReadonlyArray1<'_, i32>,
    child: PyReadonlyArray1<'_, i32>,
    transfer: PyReadonlyArray1<'_, f64>,
    compute: PyReadonlyArray1<'_, f64>,
    values: PyReadonlyArray1<'_, f64>,
) -> PyResult<(f64, f64)> {
    let program = program(&parent, &child, &transfer, &compute)?;
    let values = vector(&values)?;
    let bounds = detached(py, |_| session::bounds(&program, &values))?;
    Ok((bounds.lower, bounds.upper))
}

fn program(
    parent: &PyReadonlyArray1<'_, i32>,
    child: &PyReadonlyArray1<'_, i32>,
    transfer: &PyReadonlyArray1<'_, f64>,
    compute: &PyReadonlyArray1<'_, f64>,
) -> PyResult<Program> {
    let ops = |column: &PyReadonlyArray1<'_, i32>| -> PyResult<Vec<u32>> {
        Ok(column.as_slice()?.iter().map(|op| u32::try_from(*op).unwrap_or(u32::MAX)).collect())
    };
    Ok(Program {
        parent: ops(parent)?,
        child: ops(child)?,
        transfer: vector(transfer)?,
        compute: vector(compute)?,
    })
}

/// Runs `work` without the lock; it ends at Ctrl-C, and is told when its time is over.
fn watched<T: Send>(
    py: Python<'_>,
    seconds: Option<f64>,
    work: impl FnOnce(Watch) -> Result<T> + Send,
) -> PyResult<T> {
    let limit = seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds.max(0.0)).ok());
    let started = Instant::now();
    detached(py, |cancelled| {
        let expired = || limit.is_some_and(|limit| started.elapsed() >= limit);
        work(Watch { cancelled, expired: &expired })
    })
}
