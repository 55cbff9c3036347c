"""Networkx graphs with the originals' attribute names as numbers for the core.

Ops keep the order of the nodes. The order of edges decides ties in the originals: in-edges of an op
count in the order of `pred`, children in the order of `succ`. The core derives both from one order
of all edges, so one is chosen that gives both (`_global_order`).
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Hashable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from baechi.columns import CONTROL, MEMORY_CLASSES
from baechi.errors import InputError

if TYPE_CHECKING:
    import networkx

    from baechi import _core

    DiGraph = networkx.DiGraph[Any]

__all__ = ["Edges", "Flat", "Ops", "Tensors", "flat_graph", "read_devices", "read_edges", "read_ops"]

Indices = npt.NDArray[np.int32]
Integers = npt.NDArray[np.int64]

_MOST: Final = 2**61  # what the core takes for unlimited
_DATA: Final = MEMORY_CLASSES.index("activation")


class Ops(NamedTuple):
    """The nodes of an op graph: their keys, their attributes, the index of each key."""

    keys: list[Any]
    nodes: list[dict[str, Any]]
    index: dict[Any, int]

    def attribute(self, name: str) -> list[Any]:
        """The values of an attribute, by op.

        Raises:
            InputError: an op has no such attribute.
        """
        try:
            return [node[name] for node in self.nodes]
        except KeyError:
            lacks = next(i for i, node in enumerate(self.nodes) if name not in node)
            raise InputError(f'op {self.keys[lacks]!r} has no attribute "{name}"') from None

    def integers(self, name: str, values: Iterable[Any] | None = None) -> Integers:
        """An attribute, or values that follow from it, as integers of at least 0.

        Raises:
            InputError: one is missing, negative or not whole.
        """
        found = self.attribute(name) if values is None else values
        return whole(found, lambda i: f"{name} of op {self.keys[i]!r}")


class Edges(NamedTuple):
    """The edges in one order that gives the order of every op's in-edges and of its children."""

    parent: Indices
    child: Indices
    attributes: list[dict[str, Any]]
    by_id: Integers  # the edges in ascending `id`, as the originals' linear program lists them

    def name(self, edge: int, ops: Ops) -> str:
        """The edge for messages."""
        return f"edge {ops.keys[self.parent[edge]]!r} -> {ops.keys[self.child[edge]]!r}"


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


def read_ops(op_graph: DiGraph) -> Ops:
    """The ops in node order.

    Raises:
        InputError: it is no directed graph, or one with parallel edges.
    """
    if not op_graph.is_directed() or op_graph.is_multigraph():
        raise InputError("the op graph must be a networkx.DiGraph")
    keys = list(op_graph.nodes)
    nodes = [node for _, node in op_graph.nodes(data=True)]
    return Ops(keys, nodes, dict(zip(keys, range(len(keys)), strict=True)))


def read_edges(op_graph: DiGraph, ops: Ops) -> Edges:
    """The edges in an order that agrees with every op's in-edges and children."""
    index = ops.index
    parents: list[int] = []
    children: list[int] = []
    attributes: list[dict[str, Any]] = []
    for parent, successors in op_graph.adjacency():
        parents += [index[parent]] * len(successors)
        children += [index[child] for child in successors]
        attributes += successors.values()
    number = dict(zip(zip(parents, children, strict=True), range(len(parents)), strict=True))
    by_pred = [
        number[index[parent], child]
        for child, predecessors in zip(map(index.__getitem__, op_graph.pred), op_graph.pred.values())
        for parent in predecessors
    ]
    parent_of, child_of = np.array(parents, np.int32), np.array(children, np.int32)
    ids = _ids(attributes)
    order = _global_order(parent_of, child_of, np.array(by_pred, np.int64), ids)
    by_id = np.arange(len(order)) if ids is None else np.argsort(ids[order], kind="stable")
    return Edges(
        parent_of[order], child_of[order], [attributes[i] for i in order.tolist()], by_id
    )


def _ids(attributes: list[dict[str, Any]]) -> Integers | None:
    """The `id` of every edge, None unless all are distinct integers."""
    ids = [edge.get("id") for edge in attributes]
    if not all(isinstance(i, int) for i in ids) or len(set(ids)) < len(ids):
        return None
    return np.array(np.argsort(np.argsort(np.array(ids))), np.int64)


def _global_order(
    parent: Indices, child: Indices, by_pred: Integers, ids: Integers | None
) -> Integers:
    """One order of all edges in which in-edges are in the order of `pred`, children of `succ`.

    Edges that were added one by one, some of them after being removed, have such an order. By
    ascending `id` is taken where it is one; node by node where that is one; else the two are
    merged. Where they contradict each other, as in a view or in an edited graph, `succ` decides,
    as it does for `graph.copy()`.

    Args:
        parent, child: ends of every edge, node by node in the order of `succ`.
        by_pred: the edges node by node in the order of `pred`.
        ids: rank of every edge by its `id`, if they have ids.
    """
    by_succ = np.arange(len(parent))
    for rank in (ids, by_succ):
        if (
            rank is not None
            and _ascends(rank, by_succ, parent)
            and _ascends(rank, by_pred, child)
        ):
            return np.argsort(rank)
    followers: list[list[int]] = [[] for _ in parent]
    waiting = [0] * len(parent)
    for sequence, end in ((by_succ, parent), (by_pred, child)):
        same = end[sequence[1:]] == end[sequence[:-1]]
        for before, after in zip(
            sequence[:-1][same].tolist(), sequence[1:][same].tolist(), strict=True
        ):
            followers[before].append(after)
            waiting[after] += 1
    queue = deque(edge for edge, count in enumerate(waiting) if not count)
    order: list[int] = []
    while queue:
        order.append(queue.popleft())
        for after in followers[order[-1]]:
            waiting[after] -= 1
            if not waiting[after]:
                queue.append(after)
    return np.array(order, np.int64) if len(order) == len(parent) else by_succ


def _ascends(rank: Integers, sequence: Integers, end: Indices) -> bool:
    """Whether the rank ascends along the sequence as long as the end stays the same."""
    same = end[sequence[1:]] == end[sequence[:-1]]
    return bool((rank[sequence[1:]] > rank[sequence[:-1]])[same].all())


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
        except (TypeError, ValueError):
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


def _floor(limit: Any, scale: int) -> int:
    if isinstance(limit, float) and math.isinf(limit):
        return _MOST if limit > 0 else -_MOST
    return max(-_MOST, min(math.floor(limit * scale), _MOST))


def flat_graph(compute: Integers, group: Indices, tensors: Tensors) -> _core.FlatGraph:
    """The graph for the core; the bytes of ops travel beside it, as the originals count them."""
    from baechi import _core

    num_ops = len(compute)
    control = np.asarray(tensors.is_control, bool)
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
    )


def whole(values: Iterable[Any], name: Any) -> Integers:
    """The values as integers of at least 0; floats without a fraction are taken.

    Args:
        values: numbers.
        name: what names the value at a position, for messages.

    Raises:
        InputError: one is negative, has a fraction, or is too large.
    """
    found = list(values)
    numbers = np.array(found) if found else np.empty(0, np.int64)
    if numbers.dtype.kind not in "iu" or numbers.shape != (len(found),):
        numbers = np.array([_whole(v, name, i) for i, v in enumerate(found)], np.int64)
    if numbers.size and not (0 <= int(numbers.min()) and int(numbers.max()) < _MOST):
        i = int(np.flatnonzero((numbers < 0) | (numbers >= _MOST))[0])
        raise InputError(f"{name(i)} is {found[i]}, not in 0 to 2^61")
    if int(numbers.sum(dtype=np.float64)) >= _MOST:
        raise InputError(f"{name(0)} and that of the other ops add up to more than 2^61")
    return numbers.astype(np.int64, copy=False)


def _whole(value: Any, name: Any, position: int) -> int:
    try:
        number = int(value)
        if number == value and abs(number) < 2**62:
            return number
    except (TypeError, ValueError, OverflowError):
        pass
    raise InputError(f"{name(position)} is {value!r}, not an integer")
