"""Outline: the units of the graph picture and their paths: ops, or modules where ops are many."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from baechi.graph import Graph
from baechi.report.packing import Packer
from baechi.schedules import Schedule

__all__ = ["SEPARATOR", "op_paths", "pack_outline", "units_of"]

SEPARATOR = "\x1f"
"""Between the parts of a path on its way to the script."""
_MOST_UNITS = 3_000
_MOST_LINKS = 30_000
Indices = npt.NDArray[np.int64]


def op_paths(graph: Graph) -> list[tuple[str, ...]]:
    """Where each op stands: its module path and its name, split at "/", or at "." without any.

    An op whose name begins with its module path is not named twice.
    """
    splitter = "/" if any("/" in name for name in graph.op_names) else "."
    if any("/" in path for path in set(graph.module_paths)):
        splitter = "/"
    found = []
    for name, module in zip(graph.op_names, graph.module_paths, strict=True):
        if module and name != module and not name.startswith(module + splitter):
            parts = (*module.split(splitter), name)
        else:
            parts = tuple(name.split(splitter))
        found.append(tuple(part for part in parts if part) or (name,))
    return found


def pack_outline(packer: Packer, schedule: Schedule, *, each_op: bool) -> dict[str, Any]:
    """Packs the paths of all ops, or of modules with what they hold and what flows between."""
    paths = op_paths(schedule.graph)
    if each_op:
        packer.texts("unit_path", [SEPARATOR.join(path) for path in paths])
        return {"each_op": True, "num_units": len(paths)}
    unit, names = units_of(paths, schedule.order)
    num_units, num_devices = len(names), schedule.cluster.num_devices
    packer.texts("unit_path", [SEPARATOR.join(name) for name in names])
    busy = np.bincount(unit, (schedule.end_ns - schedule.start_ns).astype(np.float64), num_units)
    count = np.bincount(unit, minlength=num_units)
    packer.numbers("unit_ops", count, "i4")
    packer.numbers("unit_busy", busy, "f8")
    # A module stands where its forward ops spend their time; backward ops come much later.
    forward = (schedule.graph.role == 0) * (schedule.end_ns - schedule.start_ns).astype(np.float64)
    spent = np.bincount(unit, forward, num_units)
    weight = np.where(spent[unit] > 0, forward, 1.0)
    rank = np.bincount(unit, schedule.order * weight, num_units)
    packer.numbers("unit_rank", rank / np.bincount(unit, weight, num_units), "f8")
    packer.numbers("unit_forward", spent, "f8")
    shares, sizes = np.unique(unit * num_devices + schedule.device, return_counts=True)
    packer.numbers("share_unit", shares // num_devices, "i4")
    packer.numbers("share_device", shares % num_devices, "i4")
    packer.numbers("share_ops", sizes, "i4")
    complete = _pack_links(packer, schedule.graph, unit, num_units)
    return {"each_op": False, "num_units": num_units, "all_links": complete}


def units_of(
    paths: Sequence[tuple[str, ...]], order: npt.NDArray[np.int32]
) -> tuple[Indices, list[tuple[str, ...]]]:
    """A unit per op: its path cut as deep as the number of units allows, or a range of ops.

    Returns:
        int64[ops], the unit of each op, and the units' paths, in the order of first appearance.
    """
    chosen: dict[tuple[str, ...], int] = {}
    for depth in range(1, max(map(len, paths)) + 1):
        cut: dict[tuple[str, ...], int] = {}
        for path in paths:
            cut.setdefault(path[:depth], len(cut))
        if len(cut) > _MOST_UNITS and len(chosen) > 1:
            break
        chosen, chosen_depth = cut, depth
        if len(cut) > _MOST_UNITS:
            break
    cuts = (chosen[path[:chosen_depth]] for path in paths)
    unit = np.fromiter(cuts, np.int64, len(paths))
    names = list(chosen)
    return (unit, names) if len(names) <= _MOST_UNITS else _in_ranges(unit, names, order)


def _in_ranges(
    unit: Indices, names: list[tuple[str, ...]], order: npt.NDArray[np.int32]
) -> tuple[Indices, list[tuple[str, ...]]]:
    """Joins units that follow each other in the launch order until they are few enough."""
    rank = np.bincount(unit, order, len(names)) / np.bincount(unit, minlength=len(names))
    by_rank = np.argsort(rank, kind="stable")
    size = -(-len(names) // (_MOST_UNITS // 3))
    ranges = np.empty(len(names), np.int64)
    ranges[by_rank] = np.arange(len(names)) // size
    members = [by_rank[at : at + size].tolist() for at in range(0, len(names), size)]
    joined = [
        "/".join(names[some[0]]) + (f" … {'/'.join(names[some[-1]])}" if len(some) > 1 else "")
        for some in members
    ]
    return ranges[unit], [(name,) for name in joined]


def _pack_links(packer: Packer, graph: Graph, unit: Indices, num_units: int) -> bool:
    one = unit[graph.tensor_producer[graph.edge_tensor]]
    two = unit[graph.edge_consumer]
    between = np.flatnonzero(one != two)
    pairs, at = np.unique(one[between] * num_units + two[between], return_inverse=True)
    num_bytes = graph.tensor_bytes[graph.edge_tensor[between]].astype(np.float64)
    moved = np.bincount(at, num_bytes, len(pairs))
    kept = np.sort(np.argsort(-moved, kind="stable")[:_MOST_LINKS])
    packer.numbers("link_from", pairs[kept] // num_units, "i4")
    packer.numbers("link_to", pairs[kept] % num_units, "i4")
    packer.numbers("link_bytes", moved[kept], "f8")
    return len(kept) == len(pairs)
