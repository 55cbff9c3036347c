"""What a run of an original's rules leaves on the graph it was given, or raises."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from baechi.errors import BaechiError, InputError, OutOfMemoryError, PlacementError
from baechi.original.elements import Ops
from baechi.original.flattening import Flat

if TYPE_CHECKING:
    from baechi import _core

__all__ = ["given_favorites", "place", "record"]

_OF_A_RUN = ("p", "start_ts", "end_ts")


def place(flat: Flat, algorithm: str, rules: str, *, ranks: bool, **options: Any) -> _core.Schedule:
    """Run an algorithm of the core on the graphs.

    Args:
        flat: the graphs.
        algorithm: the core's name of the algorithm.
        rules: the original's rules.
        ranks: whether nodes get their rank of placement as `topo_order`, or None.
        options: of the core.

    Raises:
        OutOfMemoryError: an op does not fit; the nodes have the `p` of what was placed before.
        PlacementError: the original gives up for another reason; the nodes likewise.
    """
    from baechi import _core

    forget(flat, ranks=ranks)
    try:
        return _core.place(
            flat.graph, flat.cluster, algorithm, rules, op_bytes=flat.op_bytes, **options
        )
    except (OutOfMemoryError, PlacementError) as error:
        for rank, (op, device) in enumerate(_placed(error)):
            flat.ops.nodes[op]["p"] = flat.device_ids[device]
            if ranks:
                flat.ops.nodes[op]["topo_order"] = rank
        raise named(error, flat) from None


def forget(flat: Flat, *, ranks: bool) -> None:
    """Clear what an earlier run wrote."""
    names = (*_OF_A_RUN, "topo_order") if ranks else _OF_A_RUN
    nothing = dict.fromkeys(names)
    for node in flat.ops.nodes:
        node.update(nothing)
    for name in ("makespan", "peak"):
        flat.op_graph.graph.pop(name, None)


def record(
    flat: Flat,
    schedule: _core.Schedule,
    *,
    ms: bool = False,
    peak: npt.NDArray[Any] | None = None,
) -> None:
    """Write placement and times on the nodes, makespan and peaks on the graph.

    Args:
        flat: the graphs.
        schedule: what the core answered.
        ms: whether times become float milliseconds and nodes get their rank as `topo_order`.
        peak: bytes per device, by default the schedule's.
    """
    ids = flat.device_ids
    unit = 1e6 if ms else 1
    start = (schedule.start_ns / unit if ms else schedule.start_ns).tolist()
    end = (schedule.end_ns / unit if ms else schedule.end_ns).tolist()
    columns = zip(flat.ops.nodes, schedule.device.tolist(), start, end, strict=True)
    for node, device, start_ts, end_ts in columns:
        node["p"] = ids[device]
        node["start_ts"] = start_ts
        node["end_ts"] = end_ts
    if ms:
        for node, rank in zip(flat.ops.nodes, schedule.order.tolist(), strict=True):
            node["topo_order"] = rank
    makespan = schedule.makespan_ns
    flat.op_graph.graph["makespan"] = makespan / unit if ms else makespan
    peak = schedule.peak_bytes if peak is None else peak
    flat.op_graph.graph["peak"] = (peak if flat.scale == 1 else peak / flat.scale).tolist()


def named(error: BaechiError, flat: Flat) -> BaechiError:
    """The core's error with the keys of ops and the ids of devices where indices were."""
    details = error.__dict__
    op, device = flat.ops.keys[details["op"]], flat.device_ids[details["device"]]
    if isinstance(error, OutOfMemoryError):
        needed, free = error.needed_bytes // flat.scale, error.free_bytes // flat.scale
        return OutOfMemoryError(op, device, needed, free, error.num_placed)
    reason = details["reason"]
    result = PlacementError(f"op {op!r} cannot be placed on device {device!r}: {reason}")
    result.__dict__.update(op=op, device=device, reason=reason)
    return result


def _placed(error: BaechiError) -> zip[tuple[int, int]]:
    details = error.__dict__
    return zip(details["placed_ops"].tolist(), details["placed_devices"].tolist(), strict=True)


def given_favorites(ops: Ops, favorites: Mapping[Any, Any]) -> npt.NDArray[np.int32]:
    """The favorite child of every op, -1 for none, from a mapping of keys.

    Raises:
        InputError: a key is no op of the graph.
    """
    result = np.full(len(ops.keys), -1, np.int32)
    for parent, child in favorites.items():
        for op in (parent, child):
            if op not in ops.number and op is not None:
                raise InputError(f"favorites name {op!r}, which is no op of the graph")
        if parent is not None and child is not None:
            result[ops.number[parent]] = ops.number[child]
    return result
