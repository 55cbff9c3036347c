//! The classes that cross the border: flat graph, flat cluster, schedule.

use baechi_core::cluster::{self, Cluster};
use baechi_core::graph::{self, Graph};
use baechi_core::schedule::{Event, Executor, Schedule};
use numpy::{Element, IntoPyArray, PyArray1, PyReadonlyArray1, PyReadonlyArray2};
use pyo3::prelude::*;

use crate::errors;

/// An operator graph in the core; made by `baechi.Graph.flatten`.
#[pyclass(name = "FlatGraph", module = "baechi._core", frozen)]
pub struct PyFlatGraph {
    pub(crate) graph: Graph,
}

#[pymethods]
impl PyFlatGraph {
    #[new]
    #[pyo3(signature = (compute_ns, persistent_bytes, scratch_bytes, group, allowed_set, role,
        forward_op, tensor_producer, tensor_bytes, tensor_transfer_ns, tensor_class, edge_tensor,
        edge_consumer, order = None))]
    #[allow(clippy::too_many_arguments, clippy::needless_pass_by_value)]
    fn new(
        py: Python<'_>,
        compute_ns: PyReadonlyArray2<'_, i64>,
        persistent_bytes: PyReadonlyArray1<'_, i64>,
        scratch_bytes: PyReadonlyArray1<'_, i64>,
        group: PyReadonlyArray1<'_, i32>,
        allowed_set: PyReadonlyArray1<'_, i32>,
        role: PyReadonlyArray1<'_, u8>,
        forward_op: PyReadonlyArray1<'_, i32>,
        tensor_producer: PyReadonlyArray1<'_, i32>,
        tensor_bytes: PyReadonlyArray1<'_, i64>,
        tensor_transfer_ns: PyReadonlyArray1<'_, i64>,
        tensor_class: PyReadonlyArray1<'_, u8>,
        edge_tensor: PyReadonlyArray1<'_, i32>,
        edge_consumer: PyReadonlyArray1<'_, i32>,
        order: Option<PyReadonlyArray1<'_, i32>>,
    ) -> PyResult<Self> {
        let columns = graph::Columns {
            compute_ns: compute_ns.as_slice()?.to_vec(),
            persistent_bytes: vector(&persistent_bytes)?,
            scratch_bytes: vector(&scratch_bytes)?,
            group: vector(&group)?,
            allowed_set: vector(&allowed_set)?,
            role: vector(&role)?,
            forward_op: vector(&forward_op)?,
            tensor_producer: vector(&tensor_producer)?,
            tensor_bytes: vector(&tensor_bytes)?,
            tensor_transfer_ns: vector(&tensor_transfer_ns)?,
            tensor_class: vector(&tensor_class)?,
            edge_tensor: vector(&edge_tensor)?,
            edge_consumer: vector(&edge_consumer)?,
        };
        let order = order.as_ref().map(vector).transpose()?;
        let graph = errors::detached(py, |_| match order {
            None => Graph::new(columns),
            Some(order) => Graph::new(columns)?.with_order(
                order.iter().map(|op| u32::try_from(*op).unwrap_or(u32::MAX)).collect(),
            ),
        })?;
        Ok(Self { graph })
    }

    fn __repr__(&self) -> String {
        format!("FlatGraph({} ops, {} tensors)", self.graph.num_ops, self.graph.num_tensors)
    }
}

/// A cluster in the core, for one graph; made by `baechi.Cluster.flatten`.
#[pyclass(name = "FlatCluster", module = "baechi._core", frozen)]
pub struct PyFlatCluster {
    pub(crate) cluster: Cluster,
}

#[pymethods]
impl PyFlatCluster {
    #[new]
    #[allow(clippy::too_many_arguments, clippy::needless_pass_by_value)]
    fn new(
        py: Python<'_>,
        memory_bytes: PyReadonlyArray1<'_, i64>,
        reserve_bytes: PyReadonlyArray1<'_, i64>,
        kind: PyReadonlyArray1<'_, i32>,
        speed: PyReadonlyArray1<'_, f64>,
        latency_ns: PyReadonlyArray2<'_, i64>,
        bytes_per_s: PyReadonlyArray2<'_, i64>,
        send_channel: PyReadonlyArray2<'_, i32>,
        recv_channel: PyReadonlyArray2<'_, i32>,
        allowed: PyReadonlyArray2<'_, u8>,
    ) -> PyResult<Self> {
        let columns = cluster::Columns {
            memory_bytes: vector(&memory_bytes)?,
            reserve_bytes: vector(&reserve_bytes)?,
            kind: vector(&kind)?,
            speed: vector(&speed)?,
            latency_ns: latency_ns.as_slice()?.to_vec(),
            bytes_per_s: bytes_per_s.as_slice()?.to_vec(),
            send_channel: send_channel.as_slice()?.to_vec(),
            recv_channel: recv_channel.as_slice()?.to_vec(),
            allowed: allowed.as_slice()?.to_vec(),
        };
        Ok(Self { cluster: errors::detached(py, |_| Cluster::new(columns))? })
    }

    fn __repr__(&self) -> String {
        format!("FlatCluster({} devices)", self.cluster.num_devices)
    }
}

/// Times and bytes of one step, as columns; wrapped by `baechi.Schedule`.
#[pyclass(name = "Schedule", module = "baechi._core", frozen)]
pub struct PySchedule {
    pub(crate) schedule: Schedule,
}

#[pymethods]
impl PySchedule {
    /// Device of each op.
    #[getter]
    fn device<'py>(&self, py: Python<'py>) -> Bound<'py, PyArray1<i32>> {
        self.schedule.device.iter().map(|at| signed(*at)).collect::<Vec<_>>().into_pyarray(py)
    }

    /// Launch index of each op.
    #[getter]
    fn order<'py>(&self, py: Python<'py>) -> Bound<'py, PyArray1<i32>> {
        self.schedule.order.iter().map(|at| signed(*at)).collect::<Vec<_>>().into_pyarray(py)
    }

    #[getter]
    fn start_ns<'py>(&self, py: Python<'py>) -> Bound<'py, PyArray1<i64>> {
        copy(py, &self.schedule.start)
    }

    #[getter]
    fn end_ns<'py>(&self, py: Python<'py>) -> Bound<'py, PyArray1<i64>> {
        copy(py, &self.schedule.end)
    }

    #[getter]
    fn busy_ns<'py>(&self, py: Python<'py>) -> Bound<'py, PyArray1<i64>> {
        copy(py, &self.schedule.busy)
    }

    #[getter]
    fn peak_bytes<'py>(&self, py: Python<'py>) -> Bound<'py, PyArray1<i64>> {
        copy(py, &self.schedule.peak)
    }

    /// Op that reached the peak of each device, -1 if none did.
    #[getter]
    fn peak_op<'py>(&self, py: Python<'py>) -> Bound<'py, PyArray1<i32>> {
        self.schedule.peak_op.iter().map(|at| signed(*at)).collect::<Vec<_>>().into_pyarray(py)
    }

    #[getter]
    fn makespan_ns(&self) -> i64 {
        self.schedule.makespan
    }

    /// Whether the placer ran out of memory and this is its repair.
    #[getter]
    fn repaired(&self) -> bool {
        self.schedule.repaired
    }

    /// "launch" or "fifo".
    #[getter]
    fn executor(&self) -> &'static str {
        match self.schedule.executor {
            Executor::Launch => "launch",
            Executor::Fifo => "fifo",
        }
    }

    /// What each op waited for: 2 i for op i, 2 j + 1 for transfer j, -1 for nothing.
    #[getter]
    fn op_wait<'py>(&self, py: Python<'py>) -> Bound<'py, PyArray1<i64>> {
        self.schedule.wait.iter().map(|wait| code(*wait)).collect::<Vec<_>>().into_pyarray(py)
    }

    /// When each op was decided under the originals' rules; empty under physical rules.
    #[getter]
    fn not_before_ns<'py>(&self, py: Python<'py>) -> Bound<'py, PyArray1<i64>> {
        copy(py, &self.schedule.not_before)
    }

    #[getter]
    fn transfer_tensor<'py>(&self, py: Python<'py>) -> Bound<'py, PyArray1<i32>> {
        self.transfers(py, |transfer| signed(transfer.tensor))
    }

    #[getter]
    fn transfer_source<'py>(&self, py: Python<'py>) -> Bound<'py, PyArray1<i32>> {
        self.transfers(py, |transfer| signed(transfer.source))
    }

    #[getter]
    fn transfer_destination<'py>(&self, py: Python<'py>) -> Bound<'py, PyArray1<i32>> {
        self.transfers(py, |transfer| signed(transfer.destination))
    }

    #[getter]
    fn transfer_consumer<'py>(&self, py: Python<'py>) -> Bound<'py, PyArray1<i32>> {
        self.transfers(py, |transfer| signed(transfer.consumer))
    }

    #[getter]
    fn transfer_start_ns<'py>(&self, py: Python<'py>) -> Bound<'py, PyArray1<i64>> {
        self.transfers(py, |transfer| transfer.start)
    }

    #[getter]
    fn transfer_end_ns<'py>(&self, py: Python<'py>) -> Bound<'py, PyArray1<i64>> {
        self.transfers(py, |transfer| transfer.end)
    }

    /// As `op_wait`, for each transfer.
    #[getter]
    fn transfer_wait<'py>(&self, py: Python<'py>) -> Bound<'py, PyArray1<i64>> {
        self.transfers(py, |transfer| code(transfer.wait))
    }

    fn __repr__(&self) -> String {
        let schedule = &self.schedule;
        let (ops, transfers) = (schedule.device.len(), schedule.transfers.len());
        format!("Schedule({ops} ops, {transfers} transfers, {} ns)", schedule.makespan)
    }
}

impl PySchedule {
    fn transfers<'py, T: Element>(
        &self,
        py: Python<'py>,
        column: impl Fn(&baechi_core::schedule::Transfer) -> T,
    ) -> Bound<'py, PyArray1<T>> {
        self.schedule.transfers.iter().map(column).collect::<Vec<_>>().into_pyarray(py)
    }
}

pub(crate) fn vector<T: Element + Copy>(column: &PyReadonlyArray1<'_, T>) -> PyResult<Vec<T>> {
    Ok(column.as_slice()?.to_vec())
}

fn copy<'py>(py: Python<'py>, column: &[i64]) -> Bound<'py, PyArray1<i64>> {
    column.to_vec().into_pyarray(py)
}

/// An index that fits 31 bits; the mark for "none" becomes -1.
pub(crate) fn signed(index: u32) -> i32 {
    i32::try_from(index).unwrap_or(-1)
}

fn code(wait: Option<Event>) -> i64 {
    match wait {
        None => -1,
        Some(Event::Op(op)) => i64::from(op) * 2,
        Some(Event::Transfer(at)) => i64::from(at) * 2 + 1,
    }
}

/// The event of a code as `op_wait` gives it.
pub(crate) fn event(code: i64) -> Option<Event> {
    // An index beyond all events is refused when the waits are checked.
    let index = u32::try_from(code / 2).unwrap_or(u32::MAX);
    match code {
        ..0 => None,
        code if code % 2 == 0 => Some(Event::Op(index)),
        _ => Some(Event::Transfer(index)),
    }
}
