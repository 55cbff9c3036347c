//! Core errors as the exceptions of `baechi.errors`, with indices where names belong.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use baechi_core::error::{Error, Placed, Result};
use numpy::IntoPyArray;
use pyo3::prelude::*;
use pyo3::types::PyDict;

const BETWEEN_SIGNAL_CHECKS: Duration = Duration::from_millis(50);

/// Runs `work` without the lock. The callback it gets says whether the user pressed Ctrl-C.
pub fn detached<T: Send>(
    py: Python<'_>,
    work: impl FnOnce(&dyn Fn() -> bool) -> Result<T> + Send,
) -> PyResult<T> {
    let interrupt: Mutex<Option<PyErr>> = Mutex::new(None);
    let result = py.detach(|| {
        let last_check = std::cell::Cell::new(Instant::now());
        // The signal is seen once; whoever asks later is told too.
        let is_cancelled = std::cell::Cell::new(false);
        let cancelled = || {
            if is_cancelled.get() {
                return true;
            }
            if last_check.get().elapsed() < BETWEEN_SIGNAL_CHECKS {
                return false;
            }
            last_check.set(Instant::now());
            #[allow(clippy::redundant_closure_for_method_calls)] // the method is not general enough
            let Err(error) = Python::attach(|py| py.check_signals()) else {
                return false;
            };
            if let Ok(mut slot) = interrupt.lock() {
                *slot = Some(error);
            }
            is_cancelled.set(true);
            true
        };
        catch_unwind(AssertUnwindSafe(|| work(&cancelled)))
    });
    let interrupt = interrupt.into_inner().unwrap_or(None);
    match result {
        Ok(Ok(value)) => interrupt.map_or(Ok(value), Err),
        Ok(Err(Error::Cancelled)) => {
            Err(interrupt.unwrap_or_else(|| pyo3::exceptions::PyKeyboardInterrupt::new_err(())))
        }
        Ok(Err(error)) => Err(exception(py, error)),
        Err(_) => {
            Err(make(py, "BaechiError", ("internal error in the core: please report it",), None))
        }
    }
}

/// The Python exception for a core error.
pub fn exception(py: Python<'_>, error: Error) -> PyErr {
    let input = |text: String| make(py, "InputError", (text,), None);
    match error {
        Error::Shape { what: "devices", found, .. } => {
            input(format!("a cluster needs 1 to 32768 devices, not {found}"))
        }
        Error::Shape { what, expected, found } => {
            input(format!("{what}: expected {expected} entries, found {found}"))
        }
        Error::Value { what, index, value } => {
            input(format!("{what}[{index}] = {value} is not allowed"))
        }
        Error::Overflow { what } => {
            input(format!("the sum of {what} does not fit 64-bit integers"))
        }
        Error::Cycle { ops } => make(py, "CycleError", (ops,), None),
        Error::NowhereToRun { op } => with_op(
            py,
            "PlacementError",
            format!("op {op} may run on no device of the cluster"),
            op,
        ),
        Error::GroupNowhereToRun { op } => {
            let text = format!("the group of op {op} has no device that may run all of it");
            with_op(py, "PlacementError", text, op)
        }
        Error::OutOfMemory { op, device, needed, free, placed } => {
            let numbers = (op, device, needed, free, placed.len());
            attach_placed(py, make(py, "OutOfMemoryError", numbers, None), placed)
        }
        Error::Stuck { op, device, reason, placed } => {
            let text = format!("op {op} cannot be placed on device {device}: {reason}");
            let error = with_op(py, "PlacementError", text, op);
            let error = set(py, error, "device", device);
            attach_placed(py, set(py, error, "reason", reason), placed)
        }
        Error::LaunchOrder { op } => {
            let text = format!("op {op} is launched twice, never, or before one of its producers");
            with_op(py, "InputError", text, op)
        }
        Error::WrongDevice { op, device } => {
            let text = format!("op {op} cannot run on device {device}");
            set(py, with_op(py, "InputError", text, op), "device", device)
        }
        Error::Unsupported { what } => input(format!("not available: {what}")),
        Error::Cancelled => pyo3::exceptions::PyKeyboardInterrupt::new_err(()),
    }
}

fn with_op(py: Python<'_>, class: &str, text: String, op: u32) -> PyErr {
    set(py, make(py, class, (text,), None), "op", op)
}

fn attach_placed(py: Python<'_>, error: PyErr, placed: Placed) -> PyErr {
    let (ops, devices): (Vec<u32>, Vec<u32>) = placed.into_iter().unzip();
    let error = set(py, error, "placed_ops", ops.into_pyarray(py));
    set(py, error, "placed_devices", devices.into_pyarray(py))
}

fn set<'py>(py: Python<'py>, error: PyErr, name: &str, value: impl IntoPyObject<'py>) -> PyErr {
    match error.value(py).setattr(name, value) {
        Ok(()) => error,
        Err(other) => other,
    }
}

fn make<'py, A>(py: Python<'py>, class: &str, args: A, kwargs: Option<&Bound<'py, PyDict>>) -> PyErr
where
    A: pyo3::call::PyCallArgs<'py>,
{
    let made = py
        .import("baechi.errors")
        .and_then(|module| module.getattr(class))
        .and_then(|class| class.call(args, kwargs));
    match made {
        Ok(value) => PyErr::from_value(value),
        Err(error) => error,
    }
}
