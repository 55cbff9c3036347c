"""Networkx graphs with the originals' attribute names as numbers for the core.

What is shared by both originals: tensors, devices, and the graph for the core.
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from baechi.columns import CONTROL, MEMORY_CLASSES
from baechi.errors import CycleError, InputError
from baechi.original.elements import MOST, Edges, Indices, Integers, Ops

if TYPE_CHECKING:
    from baechi import _core
    from baechi.original.elements import DiGraph

__all__ = ["Flat", "Tensors", "flat_graph", "read_devices"]

_DATA: Final = MEMORY_CLASSES.index("activation")


class Tensors(NamedTuple):
    """What the edges carry: tensors, and pairs of a tensor and an op that consumes it."""

    producer: npt.ArrayLike
    num_bytes: npt.ArrayLike
    transfer: npt.ArrayLike
    is_control: npt.ArrayLike
    edge_tensor: npt.ArrayLike
    edge_consumer: npt.ArrayLike


class Flat(NamedTuple):
    """An op graph and a device graph, ready for the core."""

    op_graph: DiGraph
    ops: Ops
    edges: Edges
    device_ids: list[Any]
    graph: _core.FlatGraph
    cluster: _core.FlatCluster
    op_bytes: tuple[Integers, Integers, Integers, Integers]  # held, persistent, scratch, peak
    scale: int = 1  # what a byte of the graphs counts


def read_devices(device_graph: DiGraph, scale: int = 1) -> tuple[list[Any], _core.FlatCluster]:
    """The ids of the devices in node order (the key of a device without `id`), and the cluster.

    Args:
        device_graph: devices, each with `memory_limit` in bytes; a fraction is cut off.
        scale: what a byte counts.

    Raises:
        InputError: no devices, the same id twice, or a limit that is missing or no number.
    """
    from baechi import _core

    ids: list[Hashable] = []
    limits: list[int] = []
    for key, device in device_graph.nodes(data=True):
        ids.append(device.get("id", key))
        try:
            limits.append(_floor(device["memory_limit"], scale))
        except KeyError:
            raise InputError(f'device {key!r} has no attribute "memory_limit"') from None
        except (TypeError, ValueError, OverflowError):
            text = f"memory_limit of device {key!r} is {device['memory_limit']!r}, not a number"
            raise InputError(text) from None
    if not ids or len(set(ids)) < len(ids):
        raise InputError("the device graph needs devices, each with an id of its own")
    num = len(ids)
    limit, none = np.array(limits, np.int64), np.zeros((num, num), np.int64)
    return ids, _core.FlatCluster(
        np.maximum(limit, 0),
        np.maximum(-limit, 0),  # a negative limit: not even an op without bytes fits
        np.zeros(num, np.int32),
        np.ones(num),
        none,
        none,
        none.astype(np.int32) - 1,
        none.astype(np.int32) - 1,
        np.zeros((0, num), np.uint8),
    )


def _floor(limit: float, scale: int) -> int:
    if isinstance(limit, float) and math.isinf(limit):
        return MOST if limit > 0 else -MOST
    return max(-MOST, min(math.floor(limit * scale), MOST))


def flat_graph(
    ops: Ops, compute: Integers, group: Indices, tensors: Tensors, order: Indices | None = None
) -> _core.FlatGraph:
    """The graph for the core; the bytes of ops travel beside it, as the originals count them.

    Args:
        ops: the ops.
        compute: their durations.
        group: their colocation groups, -1 for none.
        tensors: what the edges carry.
        order: the ops in the order that breaks ties, None for the topological one.

    Raises:
        CycleError: the edges make a cycle.
    """
    from baechi import _core

    num_ops = len(compute)
    control = np.asarray(tensors.is_control, bool)
    try:
        return _core.FlatGraph(
            compute.reshape(1, num_ops),
            np.zeros(num_ops, np.int64),
            np.zeros(num_ops, np.int64),
            group,
            np.full(num_ops, -1, np.int32),
            np.zeros(num_ops, np.uint8),
            np.full(num_ops, -1, np.int32),
            np.asarray(tensors.producer, np.int32),
            np.asarray(tensors.num_bytes, np.int64),
            np.asarray(tensors.transfer, np.int64),
            np.where(control, CONTROL, _DATA).astype(np.uint8),
            np.asarray(tensors.edge_tensor, np.int32),
            np.asarray(tensors.edge_consumer, np.int32),
            order,
        )
    except CycleError as error:
        raise CycleError([ops.keys[int(op)] for op in error.ops]) from None
