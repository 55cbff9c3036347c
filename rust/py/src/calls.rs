//! The functions of the border.

use baechi_core::curve;
use baechi_core::error::{Error, Result};
use baechi_core::evaluate::Evaluator;
use baechi_core::graph::Columns;
use baechi_core::group;
use baechi_core::launch::Waits;
use baechi_core::list::GivenDevices;
use baechi_core::original::OpBytes;
use baechi_core::place::favorites::{self, Pairs};
use baechi_core::place::{self as core_place};
use baechi_core::problem::Problem;
use baechi_core::request::Request;
use baechi_core::rules::{Retention, Rules};
use baechi_core::schedule::Decision;
use baechi_core::simulate;
use baechi_core::{Bytes, DeviceId, Ns, OpId, UNLIMITED};
use numpy::ndarray::Array2;
use numpy::{
    IntoPyArray, PyArray1, PyArray2, PyReadonlyArray1, PyReadonlyArray2, PyUntypedArrayMethods,
};
use pyo3::prelude::*;

use crate::columns::{PyFlatCluster, PyFlatGraph, PySchedule, event, signed, vector};
use crate::errors::{detached, exception};

type Column<'py, T> = PyReadonlyArray1<'py, T>;
type Out<'py, T> = Bound<'py, PyArray1<T>>;

/// Parent, child and transfer time per pair; compute time per op.
type PairColumns<'py> = (Out<'py, i32>, Out<'py, i32>, Out<'py, i64>, Out<'py, i64>);

/// `node_of`, `first_of`, `tensor_of`, and the columns of the new graph.
type FusionColumns<'py> = (Out<'py, i32>, Out<'py, i32>, Out<'py, i32>, Vec<Bound<'py, PyAny>>);

/// Makespan of each placement, and peaks if they were asked for.
type Evaluated<'py> = (Out<'py, i64>, Option<Bound<'py, PyArray2<i64>>>);

/// Bytes of each op as an original counts them: held, persistent, scratch, peak.
type Counted<'py> = (Column<'py, i64>, Column<'py, i64>, Column<'py, i64>, Column<'py, i64>);

fn rules_of(py: Python<'_>, name: &str) -> PyResult<Rules> {
    let unknown = || Error::Unsupported { what: format!("rules \"{name}\"") };
    Rules::parse(name).ok_or_else(|| exception(py, unknown()))
}

fn retention_of(py: Python<'_>, name: &str) -> PyResult<Retention> {
    match name {
        "liveness" => Ok(Retention::Liveness),
        "training" => Ok(Retention::Training),
        _ => Err(exception(py, Error::Unsupported { what: format!("retention \"{name}\"") })),
    }
}

fn op_bytes(counted: Option<&Counted<'_>>) -> PyResult<Option<OpBytes>> {
    let Some((held, persistent, scratch, peak)) = counted else {
        return Ok(None);
    };
    Ok(Some(OpBytes {
        held: vector(held)?,
        persistent: vector(persistent)?,
        scratch: vector(scratch)?,
        peak: vector(peak)?,
    }))
}

fn unsigned(column: &Column<'_, i32>) -> PyResult<Vec<u32>> {
    Ok(column.as_slice()?.iter().map(|at| u32::try_from(*at).unwrap_or(u32::MAX)).collect())
}

fn check_counted(num_ops: usize, bytes: Option<&OpBytes>, walk: Option<&[OpId]>) -> Result<()> {
    let columns = bytes.map(|b| [b.held.len(), b.persistent.len(), b.scratch.len(), b.peak.len()]);
    let lengths = columns.into_iter().flatten().chain(walk.map(<[OpId]>::len));
    for found in lengths {
        if found != num_ops {
            return Err(Error::Shape { what: "op bytes or walk", expected: num_ops, found });
        }
    }
    let mut seen = vec![false; num_ops];
    for op in walk.into_iter().flatten() {
        match seen.get_mut(*op as usize) {
            Some(slot) if !*slot => *slot = true,
            _ => return Err(Error::LaunchOrder { op: *op }),
        }
    }
    bytes.map_or(Ok(()), OpBytes::check)
}

/// Places a graph.
#[pyfunction]
#[pyo3(signature = (graph, cluster, algorithm, rules, *, retention = "liveness", favorites = None,
    seed = 0, colocation = true, op_bytes = None, walk = None, repair = true))]
#[allow(clippy::too_many_arguments, clippy::needless_pass_by_value)]
pub fn place(
    py: Python<'_>,
    graph: &PyFlatGraph,
    cluster: &PyFlatCluster,
    algorithm: &str,
    rules: &str,
    retention: &str,
    favorites: Option<Column<'_, i32>>,
    seed: u64,
    colocation: bool,
    op_bytes: Option<Counted<'_>>,
    walk: Option<Column<'_, i32>>,
    repair: bool,
) -> PyResult<PySchedule> {
    let (rules, retention) = (rules_of(py, rules)?, retention_of(py, retention)?);
    let favorites = favorites.as_ref().map(vector).transpose()?;
    let bytes = self::op_bytes(op_bytes.as_ref())?;
    let walk = walk.as_ref().map(unsigned).transpose()?;
    let schedule = detached(py, |cancelled| {
        let problem = Problem::new(&graph.graph, &cluster.cluster, retention, cancelled)?;
        check_counted(graph.graph.num_ops, bytes.as_ref(), walk.as_deref())?;
        let request = Request {
            favorites: favorites.as_deref(),
            seed,
            colocation,
            bytes: bytes.as_ref(),
            walk: walk.as_deref(),
            repair,
            ..Request::new(&problem, rules)
        };
        core_place::place(algorithm, &request)
    })?;
    Ok(PySchedule { schedule })
}

/// Schedules a placement whose launch order is free, if wanted within the limits.
#[pyfunction]
#[pyo3(signature = (graph, cluster, device, rules, *, retention = "liveness", op_bytes = None,
    limits = false))]
#[allow(clippy::too_many_arguments, clippy::needless_pass_by_value)]
pub fn simulate_given(
    py: Python<'_>,
    graph: &PyFlatGraph,
    cluster: &PyFlatCluster,
    device: Column<'_, i32>,
    rules: &str,
    retention: &str,
    op_bytes: Option<Counted<'_>>,
    limits: bool,
) -> PyResult<PySchedule> {
    let (rules, retention) = (rules_of(py, rules)?, retention_of(py, retention)?);
    let device = unsigned(&device)?;
    let bytes = self::op_bytes(op_bytes.as_ref())?;
    let schedule = detached(py, |cancelled| {
        let problem = Problem::new(&graph.graph, &cluster.cluster, retention, cancelled)?;
        check_counted(graph.graph.num_ops, bytes.as_ref(), None)?;
        let request = Request { bytes: bytes.as_ref(), ..Request::new(&problem, rules) };
        if limits {
            simulate::check_devices(&problem, &device)?;
            return request.schedule_given(&device);
        }
        simulate::simulate_given(&request, &device)
    })?;
    Ok(PySchedule { schedule })
}

/// Schedules a placement in a given launch order, with the waits and decision times of its plan; or, under
/// physical rules, within the limits.
#[pyfunction]
#[pyo3(signature = (graph, cluster, device, order, rules, *, op_wait = None, transfer_wait = None,
    not_before_ns = None, retention = "liveness", reserve = false, colocation = true,
    limits = false))]
#[allow(clippy::too_many_arguments, clippy::needless_pass_by_value)]
pub fn simulate_launched(
    py: Python<'_>,
    graph: &PyFlatGraph,
    cluster: &PyFlatCluster,
    device: Column<'_, i32>,
    order: Column<'_, i32>,
    rules: &str,
    op_wait: Option<Column<'_, i64>>,
    transfer_wait: Option<Column<'_, i64>>,
    not_before_ns: Option<Column<'_, i64>>,
    retention: &str,
    reserve: bool,
    colocation: bool,
    limits: bool,
) -> PyResult<PySchedule> {
    let (rules, retention) = (rules_of(py, rules)?, retention_of(py, retention)?);
    let events = |column: &Column<'_, i64>| -> PyResult<Vec<_>> {
        Ok(column.as_slice()?.iter().map(|code| event(*code)).collect())
    };
    let waits = Waits {
        ops: op_wait.as_ref().map(events).transpose()?.unwrap_or_default(),
        transfers: transfer_wait.as_ref().map(events).transpose()?.unwrap_or_default(),
    };
    let (device, order) = (unsigned(&device)?, unsigned(&order)?);
    let not_before = not_before_ns.as_ref().map(vector).transpose()?.unwrap_or_default();
    let schedule = detached(py, |cancelled| {
        let problem = Problem::new(&graph.graph, &cluster.cluster, retention, cancelled)?;
        let decision = decision(&problem, device, &order, &not_before)?;
        if limits && rules == Rules::Physical {
            return simulate::schedule_within_caps(&problem, &decision);
        }
        simulate::check_waits(&problem, &decision, &waits)?;
        let request = Request { colocation, ..Request::new(&problem, rules) };
        simulate::simulate_launched(&request, &decision, &waits, reserve)
    })?;
    Ok(PySchedule { schedule })
}

fn decision(
    problem: &Problem,
    device: Vec<DeviceId>,
    order: &[u32],
    not_before: &[Ns],
) -> Result<Decision> {
    let num_ops = problem.graph.num_ops;
    let lengths = [("devices of the placement", device.len()), ("launch order", order.len())];
    for (what, found) in lengths {
        if found != num_ops {
            return Err(Error::Shape { what, expected: num_ops, found });
        }
    }
    if !not_before.is_empty() && not_before.len() != num_ops {
        let found = not_before.len();
        return Err(Error::Shape { what: "not_before_ns", expected: num_ops, found });
    }
    let mut launch = vec![u32::MAX; num_ops];
    for (op, rank) in (0_u32..).zip(order) {
        match launch.get_mut(*rank as usize) {
            Some(slot) if *slot == u32::MAX => *slot = op,
            _ => return Err(Error::LaunchOrder { op }),
        }
    }
    if let Some(op) = not_before.iter().position(|time| !(0..UNLIMITED).contains(time)) {
        return Err(Error::Value { what: "not_before_ns", index: op, value: not_before[op] });
    }
    let times = launch.iter().filter_map(|op| not_before.get(*op as usize).copied());
    Ok(Decision { device, not_before: times.collect(), launch })
}

/// Times that no schedule can beat: the critical path, and the work spread evenly.
#[pyfunction]
pub fn lower_bounds(
    py: Python<'_>,
    graph: &PyFlatGraph,
    cluster: &PyFlatCluster,
) -> PyResult<(Ns, Ns)> {
    detached(py, |cancelled| {
        let problem = Problem::new(&graph.graph, &cluster.cluster, Retention::Liveness, cancelled)?;
        Ok(problem.lower_bounds())
    })
}

/// Makespans of many placements under physical rules, `[batch]`, and their peaks, `[batch, devices]`.
#[pyfunction]
#[pyo3(signature = (graph, cluster, device, order, *, retention = "liveness", peaks = true))]
#[allow(clippy::needless_pass_by_value)]
pub fn simulate_many<'py>(
    py: Python<'py>,
    graph: &PyFlatGraph,
    cluster: &PyFlatCluster,
    device: PyReadonlyArray2<'py, i32>,
    order: Option<PyReadonlyArray2<'py, i32>>,
    retention: &str,
    peaks: bool,
) -> PyResult<Evaluated<'py>> {
    let retention = retention_of(py, retention)?;
    let num_ops = graph.graph.num_ops;
    let num_devices = cluster.cluster.num_devices;
    let batch = device.shape()[0];
    let shape = [batch, num_ops];
    for column in std::iter::once(&device).chain(&order) {
        if column.shape() != shape {
            let (expected, found) = (batch * num_ops, column.len());
            let what = "devices and order of a batch";
            return Err(exception(py, Error::Shape { what, expected, found }));
        }
    }
    let devices = device.as_slice()?;
    let orders = order.as_ref().map(|order| order.as_slice()).transpose()?;
    let (makespans, all_peaks) = detached(py, |cancelled| {
        let problem = Problem::new(&graph.graph, &cluster.cluster, retention, cancelled)?;
        let mut evaluator = Evaluator::new(&problem);
        let (mut given, mut listed) = (None, vec![0; num_ops]);
        let (mut makespans, mut all_peaks) = (Vec::with_capacity(batch), Vec::new());
        for row in 0..batch {
            let row = row * num_ops..(row + 1) * num_ops;
            let device = &devices[row.clone()];
            let order = if let Some(orders) = orders {
                &orders[row]
            } else {
                let given = given.get_or_insert_with(|| GivenDevices::new(&problem));
                for (rank, op) in (0..).zip(given.launch_order(device)?) {
                    listed[*op as usize] = rank;
                }
                listed.as_slice()
            };
            makespans.push(if peaks {
                evaluator.makespan_and_peaks(device, order, &mut all_peaks)?
            } else {
                evaluator.makespan(device, order)?
            });
            if makespans.len() % 64 == 0 {
                problem.check_cancelled()?;
            }
        }
        Ok((makespans, all_peaks))
    })?;
    let shape = (makespans.len(), num_devices);
    let all_peaks = peaks.then(|| Array2::from_shape_vec(shape, all_peaks));
    let all_peaks = all_peaks.map(|peaks| peaks.expect("one peak per placement and device"));
    Ok((makespans.into_pyarray(py), all_peaks.map(|peaks| peaks.into_pyarray(py))))
}

/// Use of each device's memory over time: (time in ns, bytes after it) per device.
#[pyfunction]
#[pyo3(signature = (graph, cluster, schedule, *, retention = "liveness"))]
pub fn memory_curves<'py>(
    py: Python<'py>,
    graph: &PyFlatGraph,
    cluster: &PyFlatCluster,
    schedule: &PySchedule,
    retention: &str,
) -> PyResult<Vec<(Out<'py, i64>, Out<'py, i64>)>> {
    let retention = retention_of(py, retention)?;
    let curves = detached(py, |cancelled| {
        let problem = Problem::new(&graph.graph, &cluster.cluster, retention, cancelled)?;
        curve::check_schedule(&problem, &schedule.schedule)?;
        Ok(curve::memory_curves(&problem, &schedule.schedule))
    })?;
    let columns =
        |curve: curve::MemoryCurve| (curve.time.into_pyarray(py), curve.bytes.into_pyarray(py));
    Ok(curves.into_iter().map(columns).collect())
}

/// Edges of m-SCT's linear program: parent, child, transfer time per pair; compute time per op.
#[pyfunction]
pub fn pairs<'py>(
    py: Python<'py>,
    graph: &PyFlatGraph,
    cluster: &PyFlatCluster,
    rules: &str,
) -> PyResult<PairColumns<'py>> {
    let rules = rules_of(py, rules)?;
    let pairs = detached(py, |cancelled| {
        let problem = Problem::new(&graph.graph, &cluster.cluster, Retention::Liveness, cancelled)?;
        Ok(favorites::pairs(&problem, rules))
    })?;
    Ok((
        indices(py, &pairs.parent),
        indices(py, &pairs.child),
        pairs.transfer_ns.into_pyarray(py),
        pairs.compute_ns.into_pyarray(py),
    ))
}

/// Favorite child of each op by the greedy rule, -1 for none.
#[pyfunction]
pub fn greedy_favorites<'py>(
    py: Python<'py>,
    graph: &PyFlatGraph,
    cluster: &PyFlatCluster,
    rules: &str,
) -> PyResult<Out<'py, i32>> {
    let rules = rules_of(py, rules)?;
    let favorites = detached(py, |cancelled| {
        let problem = Problem::new(&graph.graph, &cluster.cluster, Retention::Liveness, cancelled)?;
        Ok(favorites::greedy(&problem, &favorites::pairs(&problem, rules)))
    })?;
    Ok(favorites.into_pyarray(py))
}

/// Favorite child of each op from the program's values, one per pair.
#[pyfunction]
#[allow(clippy::needless_pass_by_value)]
pub fn round_favorites<'py>(
    py: Python<'py>,
    num_ops: usize,
    parent: Column<'py, i32>,
    child: Column<'py, i32>,
    values: Column<'py, f64>,
    threshold: f64,
    rules: &str,
) -> PyResult<Out<'py, i32>> {
    let rules = rules_of(py, rules)?;
    let values = vector(&values)?;
    let (parent, child) = (unsigned(&parent)?, unsigned(&child)?);
    let pairs = Pairs { parent, child, ..Pairs::default() };
    let favorites = detached(py, |_| favorites::round(num_ops, &pairs, &values, threshold, rules))?;
    Ok(favorites.into_pyarray(py))
}

/// Group of each op after co-placement, -1 for ops that stay alone.
#[pyfunction]
#[allow(clippy::needless_pass_by_value)]
pub fn coplace<'py>(
    py: Python<'py>,
    graph: &PyFlatGraph,
    labels: Column<'py, i32>,
    most_bytes: Bytes,
) -> PyResult<Out<'py, i32>> {
    let labels = checked_labels(py, graph, &labels)?;
    let groups = detached(py, |_| Ok(group::coplace(&graph.graph, &labels, most_bytes)))?;
    Ok(groups.into_pyarray(py))
}

/// The columns of a fused graph, in the order of `FlatGraph`, behind (`node_of`, `first_of`, `tensor_of`).
#[pyfunction]
#[allow(clippy::needless_pass_by_value)]
pub fn fuse<'py>(
    py: Python<'py>,
    graph: &PyFlatGraph,
    labels: Column<'py, i32>,
    retention: &str,
) -> PyResult<FusionColumns<'py>> {
    let retention = retention_of(py, retention)?;
    let labels = checked_labels(py, graph, &labels)?;
    let fusion = detached(py, |_| Ok(group::fuse(&graph.graph, &labels, retention)))?;
    let Columns {
        compute_ns,
        persistent_bytes,
        scratch_bytes,
        group,
        allowed_set,
        role,
        forward_op,
        tensor_producer,
        tensor_bytes,
        tensor_transfer_ns,
        tensor_class,
        edge_tensor,
        edge_consumer,
    } = fusion.columns;
    let rows = (graph.graph.num_kinds, fusion.first_of.len());
    let compute = Array2::from_shape_vec(rows, compute_ns).expect("one row per kind");
    let columns = vec![
        compute.into_pyarray(py).into_any(),
        persistent_bytes.into_pyarray(py).into_any(),
        scratch_bytes.into_pyarray(py).into_any(),
        group.into_pyarray(py).into_any(),
        allowed_set.into_pyarray(py).into_any(),
        role.into_pyarray(py).into_any(),
        forward_op.into_pyarray(py).into_any(),
        tensor_producer.into_pyarray(py).into_any(),
        tensor_bytes.into_pyarray(py).into_any(),
        tensor_transfer_ns.into_pyarray(py).into_any(),
        tensor_class.into_pyarray(py).into_any(),
        edge_tensor.into_pyarray(py).into_any(),
        edge_consumer.into_pyarray(py).into_any(),
    ];
    let (node_of, first_of) = (indices(py, &fusion.node_of), indices(py, &fusion.first_of));
    Ok((node_of, first_of, indices(py, &fusion.tensor_of), columns))
}

fn checked_labels(
    py: Python<'_>,
    graph: &PyFlatGraph,
    labels: &Column<'_, i32>,
) -> PyResult<Vec<i32>> {
    let labels = vector(labels)?;
    let num_ops = graph.graph.num_ops;
    if labels.len() != num_ops {
        let found = labels.len();
        return Err(exception(py, Error::Shape { what: "labels", expected: num_ops, found }));
    }
    let bad = |label: &i32| usize::try_from(*label).is_ok_and(|label| label >= num_ops);
    match labels.iter().position(bad) {
        Some(index) => {
            let value = i64::from(labels[index]);
            Err(exception(py, Error::Value { what: "labels", index, value }))
        }
        None => Ok(labels),
    }
}

fn indices<'py>(py: Python<'py>, column: &[u32]) -> Out<'py, i32> {
    column.iter().map(|at| signed(*at)).collect::<Vec<_>>().into_pyarray(py)
}
