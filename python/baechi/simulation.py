"""Simulating placements: time and memory of a step, on devices that need not be there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, overload

import numpy as np
import numpy.typing as npt

from baechi import _core
from baechi.cluster import Cluster, as_cluster
from baechi.columns import as_array
from baechi.errors import InputError
from baechi.graph import Graph
from baechi.plans import Plan
from baechi.rules import Setting, as_graph, with_names
from baechi.schedules import Schedule

__all__ = ["simulate", "simulate_many"]

Int64s = npt.NDArray[np.int64]
Placement = Plan | Mapping[str, str] | npt.ArrayLike


def simulate(
    graph: Graph,
    cluster: Cluster | Any,
    placement: Placement,
    *,
    rules: str | None = None,
    executor: str | None = None,
    retention: str | None = None,
) -> Schedule:
    """Schedules a placement. No limit is enforced: `Schedule.fits` says whether it fits.

    A plan is replayed in its launch order with its waits, which gives exactly its prediction on the
    plan's own cluster. A bare placement has no order: its ops are list-scheduled, the earliest
    startable first, by m-ETF's rule with devices fixed.

    Args:
        graph: what runs.
        cluster: where it runs, or what `as_cluster` takes.
        placement: a plan, a mapping of every op name to a device name, or int[ops] device indices.
        rules: "physical", "baechi-tf" or "baechi-torch"; by default the plan's, else physical.
        executor: "launch" (needs a plan), "list" (ignores a plan's order), or "fifo", the
            TensorFlow original's virtual scheduler (needs the rules "baechi-tf").
        retention: "liveness" or "training" (docs/rules.md); by default the plan's, else liveness.

    Raises:
        InputError: an op without a device, an unknown name, a device that cannot run its op.
        PlanMismatchError: the plan was made for another graph.
    """
    graph, cluster = as_graph(graph), as_cluster(cluster)
    plan = placement if isinstance(placement, Plan) else None
    if plan is not None:
        plan.check(graph)
        rules = plan.provenance.rules if rules is None else rules
        retention = plan.retention if retention is None else retention
    setting = Setting.of(graph, cluster, rules or "physical", retention or "liveness")
    executor = _executor(executor, plan, setting.rules)
    device = _devices(graph, cluster, placement)
    with with_names(graph, cluster):
        if executor == "launch" and plan is not None:
            core = _replay(setting, device, plan)
        else:
            core = _core.simulate_given(
                setting.flat_graph,
                setting.flat_cluster,
                device,
                setting.rules,
                retention=setting.retention,
            )
    return setting.schedule(core)


@overload
def simulate_many(
    graph: Graph,
    cluster: Cluster | Any,
    devices: npt.ArrayLike,
    order: npt.ArrayLike | None = None,
    *,
    retention: str = "liveness",
    peaks: Literal[True] = True,
) -> tuple[Int64s, Int64s]: ...
@overload
def simulate_many(
    graph: Graph,
    cluster: Cluster | Any,
    devices: npt.ArrayLike,
    order: npt.ArrayLike | None = None,
    *,
    retention: str = "liveness",
    peaks: bool,
) -> tuple[Int64s, Int64s | None]: ...
def simulate_many(
    graph: Graph,
    cluster: Cluster | Any,
    devices: npt.ArrayLike,
    order: npt.ArrayLike | None = None,
    *,
    retention: str = "liveness",
    peaks: bool = True,
) -> tuple[Int64s, Int64s | None]:
    """Schedules many placements under physical rules, without limits.

    Args:
        graph: what runs.
        cluster: where it runs.
        devices: int[batch, ops], device indices.
        order: int[batch, ops], launch indices; None list-schedules each placement.
        retention: as in `simulate`.
        peaks: whether peaks are wanted; makespans alone take a fifth of the time.

    Returns:
        int64[batch] makespans in ns and int64[batch, devices] peaks in bytes, or None for them.

    Raises:
        InputError: a wrong shape, an index out of range, an order that launches a consumer before
            its producer.
    """
    setting = Setting.of(as_graph(graph), as_cluster(cluster), "physical", retention)
    device, launch = _batch(devices, graph, "devices"), _batch(order, graph, "order")
    if device is None:
        raise InputError("devices: None is not int[batch, ops]")
    if launch is not None and launch.shape != device.shape:
        raise InputError(f"order has shape {launch.shape}, devices {device.shape}")
    with with_names(graph, setting.cluster):
        return _core.simulate_many(
            setting.flat_graph,
            setting.flat_cluster,
            device,
            launch,
            retention=retention,
            peaks=peaks,
        )


def _executor(executor: str | None, plan: Plan | None, rules: str) -> str:
    if executor is None:
        executor = "list" if plan is None else plan.executor
        if executor == "fifo" and rules != "baechi-tf":
            executor = "list"
    if executor not in ("launch", "list", "fifo"):
        raise InputError(f'no executor "{executor}"', hint='use "launch", "list" or "fifo"')
    if executor == "launch" and plan is None:
        text = "a placement without a launch order cannot be launched"
        raise InputError(text, hint="pass a plan")
    if executor == "fifo" and rules != "baechi-tf":
        raise InputError(f'the executor "fifo" belongs to the rules "baechi-tf", not "{rules}"')
    return executor


def _devices(graph: Graph, cluster: Cluster, placement: Placement) -> npt.NDArray[np.int32]:
    if isinstance(placement, Plan):
        names = [cluster.index(device.name) for device in placement.devices]
        at: npt.NDArray[np.int32] = np.array(names, np.int32)[placement.device]
        return at
    if isinstance(placement, Mapping):
        if len(placement) != graph.num_ops or any(name not in placement for name in graph.op_names):
            missing = next((name for name in graph.op_names if name not in placement), None)
            if missing is not None:
                raise InputError(f'the placement has no device for op "{missing}"')
            for name in placement:
                graph.index(name)
        known = {name: at for at, name in enumerate(cluster.names)}
        for name, home in placement.items():
            if not isinstance(home, str):
                raise InputError(f'the placement of op "{name}" is {home!r}, not a device name')
        homes = [known.get(placement[name], -1) for name in graph.op_names]
        if -1 in homes:
            cluster.index(placement[graph.op_names[homes.index(-1)]])
        return np.array(homes, np.int32)
    return _indices(placement, "devices of the placement", (graph.num_ops,))


def _batch(column: npt.ArrayLike | None, graph: Graph, name: str) -> npt.NDArray[np.int32] | None:
    if column is None:
        return None
    array = as_array(name, column)
    if array.ndim != 2:
        raise InputError(f"{name}: expected int[batch, ops], found shape {array.shape}")
    return _indices(array, name, (array.shape[0], graph.num_ops))


def _indices(values: npt.ArrayLike, name: str, shape: tuple[int, ...]) -> npt.NDArray[np.int32]:
    array = as_array(name, values)
    if array.shape != shape or (array.dtype.kind not in "iu" and array.size):
        found = f"{array.dtype}{list(array.shape)}"
        raise InputError(f"{name}: expected int{list(shape)}, found {found}")
    if array.size and (array.min() < 0 or array.max() > np.iinfo(np.int32).max):
        wrong = np.argwhere((array < 0) | (array > np.iinfo(np.int32).max))[0].tolist()
        place, value = ", ".join(map(str, wrong)), array[tuple(wrong)]
        raise InputError(f"{name}: entry [{place}] is {value}, negative or too large for an index")
    return np.ascontiguousarray(array, np.int32)


def _replay(setting: Setting, device: npt.NDArray[np.int32], plan: Plan) -> _core.Schedule:
    op_wait, transfer_wait = None, None
    if plan.waits:
        op_wait, transfer_wait = _wait_columns(setting, device, plan)
    return _core.simulate_launched(
        setting.flat_graph,
        setting.flat_cluster,
        device,
        plan.order,
        setting.rules,
        op_wait=op_wait,
        transfer_wait=transfer_wait,
        not_before_ns=plan.decided_ns if len(plan.decided_ns) else None,
        retention=setting.retention,
        reserve=plan.algorithm.endswith("-reserve"),
        colocation=setting.has_groups,
    )


def _wait_columns(
    setting: Setting, device: npt.NDArray[np.int32], plan: Plan
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Waits by name as the core's codes; transfers are numbered by a run without waits."""
    graph, cluster = setting.graph, setting.cluster
    free = _core.simulate_launched(
        setting.flat_graph, setting.flat_cluster, device, plan.order, setting.rules
    )
    at = {
        (graph.tensor_name(tensor), cluster.names[home]): number
        for number, (tensor, home) in enumerate(
            zip(free.transfer_tensor.tolist(), free.transfer_destination.tolist(), strict=True)
        )
    }
    op_wait = np.full(graph.num_ops, -1, np.int64)
    transfer_wait = np.full(len(at), -1, np.int64)

    def number(side: str | tuple[str, str]) -> int:
        if isinstance(side, str):
            return graph.index(side)
        if side not in at:
            raise InputError(
                f'a wait of the plan is for the transfer of "{side[0]}" to {side[1]}, '
                "which does not happen",
                hint="place again after moving ops by hand",
            )
        return at[side]

    for wait in plan.waits:
        code = 2 * number(wait.waits_for) + (not isinstance(wait.waits_for, str))
        column = op_wait if isinstance(wait.what, str) else transfer_wait
        column[number(wait.what)] = code
    return op_wait, transfer_wait
