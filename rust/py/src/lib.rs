//! The Python border of `baechi-core`: numbers in, numbers out, errors as Python exceptions.
//!
//! This crate holds no logic. Every function whose cost grows with the graph runs without the interpreter's
//! lock, can be stopped with Ctrl-C, and turns a panic of ours into an exception.

mod calls;
mod columns;
mod errors;
mod program;
mod relaxation;

use numpy::{PyArray1, PyArrayMethods};
use pyo3::prelude::*;

#[pymodule(gil_used = false)]
mod _core {
    #[pymodule_export]
    use super::calls::{
        coplace, fuse, greedy_favorites, lower_bounds, memory_curves, pairs, place,
        round_favorites, simulate_given, simulate_launched, simulate_many,
    };
    #[pymodule_export]
    use super::columns::{PyFlatCluster, PyFlatGraph, PySchedule};
    #[pymodule_export]
    use super::program::{PyFlatTrace, PyFlatUnits, judge_placements};
    #[pymodule_export]
    use super::relaxation::{PyRelaxation, bounds};
    use super::{Bound, PyModule, PyModuleMethods, PyResult, find_numpy};

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        let names = baechi_core::place::ALGORITHMS.map(|algorithm| algorithm.name);
        module.add("ALGORITHMS", names)?;
        find_numpy(module.py())?;
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }
}

/// Looks up what the `numpy` crate needs of `NumPy` before any call.
///
/// The crate does it at the first array, runs Python code for it, and panics when that fails: a Ctrl-C at that
/// moment would become a panic. Whoever has arrays has loaded `NumPy`; the help of the command line has not, and
/// does without.
fn find_numpy(py: Python<'_>) -> PyResult<()> {
    let modules = py.import("sys")?.getattr("modules")?;
    if modules.contains("numpy")? {
        drop(PyArray1::<i64>::zeros(py, 0, false).readonly());
    }
    Ok(())
}
