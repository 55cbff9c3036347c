"""Tasks: everything that a search for a placement needs to know."""

from __future__ import annotations

import collections
import dataclasses
import fnmatch
from collections.abc import Mapping, Sequence
from typing import Literal

from baechi.cluster import Cluster
from baechi.device_table import DeviceKind
from baechi.errors import InputError
from baechi.torch.costs import Costs
from baechi.torch.device_argument import DeviceName, device_name, kind_of
from baechi.torch.flat_task import FlatTask, flatten_task
from baechi.torch.modules import Units
from baechi.torch.operator_graph import OperatorGraph, make_graph
from baechi.torch.optimizers import Optimizer
from baechi.torch.pricing import CANNOT_RUN, Price, price, roofline_ns
from baechi.torch.trace import Trace

__all__ = ["Objective", "Task", "caps_of", "make_task"]

Objective = Literal["fastest", "fewest-devices", "most-headroom"]


@dataclasses.dataclass(frozen=True)
class Task:
    """What is searched for.

    Attributes:
        caps: bytes that the search may use on each device; lower than `caps_of` where a rehearsal
            took more than predicted.
        pinned: device index of each unit that may not be chosen, -1 for the others.
        parameters: storage, bytes and shape of each parameter with a gradient, in model order.
        accumulate_in_place: see `ledger.replay`.
        flat: all of this for the core.
    """

    trace: Trace
    units: Units
    operators: OperatorGraph
    cluster: Cluster
    caps: tuple[int, ...]
    pinned: tuple[int, ...]
    objective: Objective
    optimizer: Optimizer | None
    parameters: tuple[tuple[int, int, tuple[int, ...]], ...]
    free_ops: bool
    accumulate_in_place: bool
    flat: FlatTask

    @property
    def num_devices(self) -> int:
        """How many devices there are."""
        return len(self.caps)


def make_task(
    trace: Trace,
    units: Units,
    cluster: Cluster,
    optimizer: Optimizer | None,
    objective: Objective,
    pin: Mapping[str, DeviceName],
    granularity: str,
    costs: Costs,
    *,
    free_backward: bool = False,
) -> tuple[Task, dict[str, int], tuple[str, ...]]:
    """Prices a trace and makes its graph.

    Returns:
        The task; how many forward calls have a price of each source, "measured" where they were on
        every kind of device; and notes that name, where some were, those that were not.

    Raises:
        InputError: a pin that matches nothing, or two that contradict each other.
    """
    parameters = _trained(trace, optimizer)
    persistent = [0] * len(units.names)
    updates: list[dict[str, int]] = [{} for _ in units.names]  # dtype -> bytes
    shapes = {storage: shape for storage, _, shape in parameters}
    for storage, unit in units.of_storage.items():
        one = trace.storages[storage]
        persistent[unit] += one.nbytes
        if storage in shapes and optimizer is not None:
            persistent[unit] += optimizer.state_bytes(one.nbytes, shapes[storage])
            updates[unit][one.dtype] = updates[unit].get(one.dtype, 0) + one.nbytes
    kinds = list(dict.fromkeys(cluster.kinds))
    tables = {kind: _prices(trace, cluster, kind, costs) for kind in kinds}

    def priced(works: Sequence[str], kind: str) -> int:
        times = [tables[kind][work].time_ns for work in works]
        return CANNOT_RUN if CANNOT_RUN in times else sum(times)

    update_ns = None
    if optimizer is not None:
        rows = [_row_of(cluster, kind) for kind in kinds]
        update_ns = [[_update_ns(optimizer, sizes, row) for row in rows] for sizes in updates]
    pinned = _pins(units, pin, cluster, trace)
    operators = make_graph(
        trace,
        units,
        kinds,
        priced,
        persistent_bytes=persistent,
        update_ns=update_ns,
        allowed={u: (cluster.names[d],) for u, d in enumerate(pinned) if d >= 0},
        free_glue=granularity == "op",
        free_backward=free_backward,
    )
    calls = [work for step in trace.steps for work in step.works]
    sources = [any(t[call].source == "analytic" for t in tables.values()) for call in calls]
    counted = {
        name: sources.count(is_analytic)
        for name, is_analytic in (("analytic", True), ("measured", False))
        if is_analytic in sources
    }
    task = Task(
        trace,
        units,
        operators,
        cluster,
        caps_of(cluster),
        pinned,
        objective,
        optimizer,
        parameters,
        granularity == "op",
        accumulate_in_place=False,
        flat=flatten_task(trace, units, operators, cluster, optimizer, parameters),
    )
    return task, counted, _not_measured(calls, tables)


def _not_measured(
    calls: Sequence[str], tables: Mapping[str, Mapping[str, Price]]
) -> tuple[str, ...]:
    """Which calls have analytic prices, by device kind, where others were measured."""
    analytic = {
        kind: [call for call in calls if table[call].source == "analytic"]
        for kind, table in tables.items()
    }
    if all(len(some) == len(calls) for some in analytic.values()):
        return ()
    notes = []
    for kind, some in analytic.items():
        names = collections.Counter(call.partition("(")[0] for call in some).most_common()
        shown = ", ".join(f"{count} of {name}" for name, count in names[:3])
        more = f" and of {len(names) - 3} more ops" if len(names) > 3 else ""
        if names:
            notes.append(
                f"{len(some)} of {len(calls)} calls were not measured on {kind} and have analytic "
                f"prices: {shown}{more}"
            )
    return tuple(notes)


def caps_of(cluster: Cluster) -> tuple[int, ...]:
    """Bytes that each device may hold: its memory without its reserve."""
    pairs = zip(cluster.memory_bytes, cluster.reserve_bytes, strict=True)
    return tuple(int(memory - reserve) for memory, reserve in pairs)


def _trained(
    trace: Trace, optimizer: Optimizer | None
) -> tuple[tuple[int, int, tuple[int, ...]], ...]:
    """Storage, bytes and shape of the parameters that get a gradient and are updated."""
    if optimizer is None:
        return ()
    reached = {f.parameter for f in trace.functions if f.parameter >= 0}
    found = []
    for at, storage in enumerate(trace.storages):
        if at not in reached:
            continue
        names = trace.ties.get(storage.name, (storage.name,))
        if optimizer.names is None or optimizer.names.intersection(names):
            found.append((at, storage.nbytes, storage.shape))
    return tuple(found)


def _row_of(cluster: Cluster, kind: str) -> DeviceKind:
    """The row of the device table that prices the devices of a kind."""
    return kind_of(next(device for device in cluster.devices if device.kind == kind))


def _prices(trace: Trace, cluster: Cluster, kind: str, costs: Costs) -> dict[str, Price]:
    return price(trace.works, _row_of(cluster, kind), costs.for_kind(kind))


def _update_ns(optimizer: Optimizer, sizes: Mapping[str, int], row: DeviceKind) -> int:
    times = [roofline_ns(optimizer.work(nbytes, "fp32"), row) for nbytes in sizes.values()]
    return max(0, sum(times))


def _pins(
    units: Units, pin: Mapping[str, DeviceName], cluster: Cluster, trace: Trace
) -> tuple[int, ...]:
    """Device index of each unit that a pin covers, -1 for the others."""
    pinned = [-1] * len(units.names)
    why: dict[int, str] = {}
    names = [name for group in trace.ties.values() for name in group]
    if not isinstance(pin, Mapping):
        raise InputError(
            f"pin is a {type(pin).__name__}, not a mapping of paths to devices",
            hint='write pin={"head": "cuda:1"}',
        )
    for pattern, device in pin.items():
        index = cluster.index(device_name(device))
        covered = {
            unit
            for unit, paths in enumerate(units.members)
            for path in paths
            if _covers(pattern, path)
        }
        for name in names:
            if _matches(pattern, name):
                path = trace.ties[name][0].rpartition(".")[0]
                covered.add(units.of_path[path])
        if not covered:
            raise InputError(
                f'pin "{pattern}" matches no module and no parameter',
                hint="write paths as in model.named_modules(), or a pattern such as 'encoder.*'",
            )
        for unit in covered:
            if pinned[unit] >= 0 and pinned[unit] != index:
                raise InputError(
                    f'pins "{why[unit]}" and "{pattern}" send "{units.names[unit]}" to '
                    f"{cluster.names[pinned[unit]]} and {cluster.names[index]}",
                    hint=_way_out(units.members[unit], why[unit], pattern),
                )
            pinned[unit], why[unit] = index, pattern
    return tuple(pinned)


def _way_out(members: Sequence[str], one: str, other: str) -> str:
    """What to do about two pins that send the modules of a unit to two devices."""
    alone = [path for path in members if _covers(one, path) and not _covers(other, path)]
    beside = [path for path in members if _covers(other, path) and not _covers(one, path)]
    if alone and beside:
        return (
            f'"{alone[0]}" and "{beside[0]}" have one device, for one uses weights of the other or '
            "changes a value of it in place: pin both to the same device"
        )
    return "a pin does not give way to another: leave out one of them, or narrow its pattern"


def _matches(pattern: str, name: str) -> bool:
    return name == pattern or fnmatch.fnmatchcase(name, pattern)


def _covers(pattern: str, path: str) -> bool:
    """Whether a pin covers a module: itself, or a module above it."""
    while path:
        if _matches(pattern, path):
            return True
        path = path.rpartition(".")[0]
    return pattern == ""
