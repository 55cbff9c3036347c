"""What is said where no placement fits: whether any can, who holds the space, what would do."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from baechi.cluster import Cluster
from baechi.errors import BaechiError, OutOfMemoryError
from baechi.rules import Setting
from baechi.units import format_bytes

__all__ = ["explained"]

MOST_SCALE = 64.0
PRECISION = 1e-3


def explained(
    error: OutOfMemoryError, setting: Setting, fits: Callable[[Cluster], bool]
) -> OutOfMemoryError:
    """The error with a proof where there is one, the holders of the space, and a limit on demand.

    Args:
        error: as the core raised it, names put in.
        setting: what was placed where.
        fits: whether the same placement fits on another cluster.
    """
    proof = _proof(setting) if setting.rules == "physical" else None
    holders = _holders(error, setting)
    text = str(error.args[0]).split("\nhint: ")[0]
    if holders:
        held = ", ".join(f'"{op}" {format_bytes(size)}' for op, size in holders[:3])
        text += f"; most there is held by {held}"
    if proof is None:
        hint = "no placement was found, though one may exist: error.smallest_limit() finds a limit"
    else:
        hint = (
            "no algorithm can place this: give the devices more memory, or split what is too large"
        )
        text = f"proved infeasible: {proof}; {text}"
    new = OutOfMemoryError(
        error.op,
        error.device,
        error.needed_bytes,
        error.free_bytes,
        error.num_placed,
        message=text,
        hint=hint,
    )
    for name, value in error.__dict__.items():
        new.__dict__.setdefault(name, value)
    new.proved_infeasible = proof is not None
    new.holders = holders
    new.__dict__["_search"] = lambda: _smallest_limit(setting.cluster, fits)
    return new


def _proof(setting: Setting) -> str | None:
    """Why nothing can fit: an op or group that is larger than every device, or all of it."""
    graph, cluster = setting.graph, setting.cluster
    caps = cluster.memory_bytes - cluster.reserve_bytes
    outputs = np.zeros(graph.num_ops, np.int64)
    np.add.at(outputs, graph.tensor_producer, graph.tensor_bytes)
    running = outputs + graph.scratch_bytes
    # A group has all its persistent bytes on one device, and at some time its largest op besides.
    units = np.where(
        graph.group >= 0, graph.group, len(graph.group_names) + np.arange(graph.num_ops)
    )
    persistent = np.zeros(int(units.max(initial=-1)) + 1, np.int64)
    largest = np.zeros_like(persistent)
    np.add.at(persistent, units, graph.persistent_bytes)
    np.maximum.at(largest, units, running)
    needed = (persistent + largest)[units]
    room = np.full(graph.num_ops, int(caps.max()))
    for at, names in enumerate(graph.allowed_sets):
        most = max(int(caps[cluster.index(name)]) for name in names)
        room[graph.allowed_set == at] = most
    too_large = np.flatnonzero(needed > room)
    if len(too_large):
        op = int(too_large[np.argmax(needed[too_large])])
        group = int(graph.group[op])
        name = graph.group_names[group] if group >= 0 else graph.op_names[op]
        what = f'{"group" if group >= 0 else "op"} "{name}"'
        return (
            f"{what} needs {format_bytes(int(needed[op]))} on one device, the largest it may use "
            f"has {format_bytes(int(room[op]))}"
        )
    total, room_in_all = int(graph.persistent_bytes.sum()), sum(caps.tolist())
    if total > room_in_all:
        return (
            f"persistent bytes are {format_bytes(total)} in all, the devices have "
            f"{format_bytes(room_in_all)}"
        )
    return None


def _holders(error: OutOfMemoryError, setting: Setting) -> tuple[tuple[str, int], ...]:
    ops = np.asarray(getattr(error, "placed_ops", ()), np.int64)
    homes = np.asarray(getattr(error, "placed_devices", ()), np.int64)
    if not len(ops) or not isinstance(error.device, str):
        return ()
    graph = setting.graph
    here = ops[homes == setting.cluster.index(error.device)]
    outputs = np.zeros(graph.num_ops, np.int64)
    np.add.at(outputs, graph.tensor_producer, graph.tensor_bytes)
    held = (graph.persistent_bytes + outputs)[here]
    order = np.lexsort((here, -held))[:5]
    return tuple((graph.op_names[here[at]], int(held[at])) for at in order if held[at] > 0)


def _smallest_limit(cluster: Cluster, fits: Callable[[Cluster], bool]) -> dict[str, int]:
    def scaled(scale: float) -> Cluster:
        sizes = {
            device.name: device.reserve_bytes
            + round((device.memory_bytes - device.reserve_bytes) * scale)
            + (scale > 1)
            for device in cluster.devices
        }
        return cluster.with_memory(sizes)

    low, high = 1.0, 2.0
    while not fits(scaled(high)):
        low, high = high, 2 * high
        if high > MOST_SCALE:
            raise BaechiError(f"no placement was found with {MOST_SCALE:g} times the memory either")
    while high - low > PRECISION * low:
        middle = (low + high) / 2
        low, high = (low, middle) if fits(scaled(middle)) else (middle, high)
    found = scaled(high)
    return {device.name: device.memory_bytes for device in found.devices}
