"""The ops and edges of a networkx graph as numbers.

Ops keep the order of the nodes. The order of edges decides ties in the originals: in-edges of an op
count in the order of `pred`, children in the order of `succ`. The core derives both from one order
of all edges, so one is chosen that gives both (`_global_order`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from baechi.errors import InputError

if TYPE_CHECKING:
    import networkx

    DiGraph: TypeAlias = networkx.DiGraph[Any]

__all__ = ["MOST", "Edges", "Indices", "Integers", "Ops", "read_edges", "read_ops", "whole"]

Indices = npt.NDArray[np.int32]
Integers = npt.NDArray[np.int64]

MOST: Final = 2**61
"""What the core takes for unlimited."""


class Ops(NamedTuple):
    """The nodes of an op graph: their keys, their attributes, the number of each key."""

    keys: list[Any]
    nodes: list[dict[str, Any]]
    number: dict[Any, int]

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
    parent, child, attributes = _rows(op_graph.adjacency(), ops)
    # The same edges seen from their children, in the order of `pred`.
    child_by_pred, parent_by_pred, _ = _rows(op_graph.reverse(copy=False).adjacency(), ops)
    by_pred = np.empty(len(parent), np.int64)
    num_ops = len(ops.keys)
    from_child = np.argsort(parent_by_pred * num_ops + child_by_pred, kind="stable")
    by_pred[from_child] = np.argsort(parent * num_ops + child, kind="stable")
    ids = _ids(attributes)
    order = _global_order(parent, child, by_pred, ids)
    by_id = np.arange(len(order)) if ids is None else np.argsort(ids[order])
    attributes = list(map(attributes.__getitem__, order.tolist()))
    return Edges(parent[order].astype(np.int32), child[order].astype(np.int32), attributes, by_id)


def _rows(
    adjacency: Iterable[tuple[Any, dict[Any, Any]]], ops: Ops
) -> tuple[Integers, Integers, list[dict[str, Any]]]:
    """The op of every row, its neighbors one by one, and the attributes of the edges to them."""
    keys, rows = [], []  # no list of pairs: ten thousand tuples at once wake the collector
    for key, row in adjacency:
        keys.append(key)
        rows.append(row)
    lengths = np.fromiter(map(len, rows), np.int64, len(rows))
    number_of = ops.number.__getitem__
    owners = np.fromiter(map(number_of, keys), np.int64, len(keys))
    count = int(lengths.sum())
    neighbors = np.fromiter(map(number_of, chain.from_iterable(rows)), np.int64, count)
    attributes = list(chain.from_iterable(row.values() for row in rows))
    return np.repeat(owners, lengths), neighbors, attributes


def _ids(attributes: list[dict[str, Any]]) -> Integers | None:
    """The rank of every edge by its `id`, None unless all are distinct integers."""
    ids = [edge.get("id") for edge in attributes]
    if not set(map(type, ids)) <= {int} or len(set(ids)) < len(ids):
        return None
    rank = np.empty(len(ids), np.int64)
    rank[np.argsort(np.array(ids))] = np.arange(len(ids))
    return rank


def _global_order(
    parent: Integers, child: Integers, by_pred: Integers, ids: Integers | None
) -> Integers:
    """One order of all edges in which in-edges are in the order of `pred`, children of `succ`.

    Edges that were added one by one, some of them after being removed, have such an order. By
    ascending `id` is taken where it is one; node by node where that is one; else the two are
    merged. Where they contradict each other, as in a view or in an edited graph, `succ` decides,
    as it does for `graph.copy()`.

    Args:
        parent: of every edge, node by node in the order of `succ`.
        child: of every edge, in the same order.
        by_pred: the edges node by node in the order of `pred`.
        ids: rank of every edge by its `id`, if they have ids.
    """
    by_succ = np.arange(len(parent))
    for rank in (ids, by_succ):
        if rank is not None and _ascends(rank, by_succ, parent) and _ascends(rank, by_pred, child):
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


def _ascends(rank: Integers, sequence: Integers, end: Integers) -> bool:
    """Whether the rank ascends along the sequence as long as the end stays the same."""
    same = end[sequence[1:]] == end[sequence[:-1]]
    return bool((rank[sequence[1:]] > rank[sequence[:-1]])[same].all())


def whole(values: Iterable[Any], name: Callable[[int], str]) -> Integers:
    """The values as integers of at least 0; floats without a fraction are taken.

    Args:
        values: numbers.
        name: what names the value at a position, for messages.

    Raises:
        InputError: one is negative, has a fraction, or is too large.
    """
    found = list(values)
    try:
        numbers = np.array(found) if found else np.empty(0, np.int64)
    except (ValueError, TypeError, OverflowError):  # nested, or of a size that no array holds
        numbers = np.empty(0, object)
    if numbers.dtype.kind not in "iu" or numbers.shape != (len(found),):
        numbers = np.array([_whole(v, name, i) for i, v in enumerate(found)], np.int64)
    if numbers.size and (int(numbers.min()) < 0 or int(numbers.max()) >= MOST):
        i = int(np.flatnonzero((numbers < 0) | (numbers >= MOST))[0])
        raise InputError(f"{name(i)} is {found[i]}, not in 0 to 2^61")
    if int(numbers.sum(dtype=np.float64)) >= MOST:
        raise InputError(f"{name(0)} and that of the other ops add up to more than 2^61")
    return numbers.astype(np.int64, copy=False)


def _whole(value: Any, name: Callable[[int], str], position: int) -> int:
    try:
        number = int(value)
        if number == value and abs(number) < 2**62:
            return number
    except (TypeError, ValueError, OverflowError):
        pass
    raise InputError(f"{name(position)} is {value!r}, not an integer")
