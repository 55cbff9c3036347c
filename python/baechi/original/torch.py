"""The placers of the PyTorch extension on networkx graphs.

Nodes of the op graph: `weight` (duration), `permanent_mem`, `parameter_mem`, `temporary_mem`,
`peak_mem`, and for m_topo `id`. Edges: `weight` (transfer time) and `requested_bytes`. Nodes of the
device graph: `memory_limit`, and `id` unless the key is the id.

Times are floats in ms. They are rounded to integer ns (halves to even, but no time above 0 to 0),
and results are converted back: starts agree with the original's floats to about 1e-6 ms per op on
the path to them, and a tie that only float sums break may be broken otherwise. Sizes are integers,
floats without a fraction, or, where one has a fraction, all counted in 2^-20 bytes (m_topo's share
is then exact to that instead of being cut to whole bytes); limits are cut to what is counted.

All functions write on the graph that they are given and return it: `p` (id of the device),
`topo_order` (rank of placement), `start_ts` and `end_ts` on nodes; `makespan` and `peak` (bytes per
device, in device order) on the graph. After a failure the nodes keep the `p` and `topo_order` of
what was placed before it.

As in the original, m_etf and m_sct miss the end of an op that takes no time: its children are never
placed, which is a `PlacementError`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping
from numbers import Real
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from baechi.errors import InputError
from baechi.original.elements import Edges, Integers, Ops, read_edges, read_ops, whole
from baechi.original.flattening import Flat, Tensors, flat_graph, read_devices
from baechi.original.outcomes import given_favorites, place, record
from baechi.original.relaxation import rounded

if TYPE_CHECKING:
    from baechi.original.elements import DiGraph

__all__ = ["m_etf", "m_sct", "m_topo"]

_RULES: Final = "baechi-torch"
_MEMORY: Final = ("permanent_mem", "parameter_mem", "temporary_mem", "peak_mem")
_NS_PER_MS: Final = 1e6
_FINE: Final = 2**20  # what a byte counts where a size has a fraction


def m_topo(op_graph: DiGraph, device_graph: DiGraph, uniform: bool = True) -> DiGraph:
    """Fill one device after the other in ascending op `id`.

    The original gives no times; those written here come from running the ops in that order.

    Args:
        op_graph: the ops.
        device_graph: the devices.
        uniform: fill to the balanced share plus the largest op, whatever the limit, instead of to
            the limit.

    Raises:
        OutOfMemoryError: ops are left over.
        InputError: an attribute is missing or wrong.
        CycleError: the graph has a cycle.
    """
    flat = _flatten(op_graph, device_graph)
    ids = [node.get("id", key) for key, node in zip(flat.ops.keys, flat.ops.nodes, strict=True)]
    try:
        walk = np.array(sorted(range(len(ids)), key=ids.__getitem__), np.int32)
    except TypeError:
        raise InputError("the ids of the ops have no order: give every op an integer id") from None
    algorithm = "m-topo" if uniform else "m-topo-nonuniform"
    record(flat, place(flat, algorithm, _RULES, ranks=True, walk=walk), ms=True)
    return op_graph


def m_etf(op_graph: DiGraph, device_graph: DiGraph) -> DiGraph:
    """Place the op that can start earliest, one at a time.

    Args:
        op_graph: the ops.
        device_graph: the devices.

    Raises:
        OutOfMemoryError: an op fits on no device.
        PlacementError: a tensor cannot be received after its op was placed.
        InputError: an attribute is missing or wrong.
        CycleError: the graph has a cycle.
    """
    flat = _flatten(op_graph, device_graph)
    record(flat, place(flat, "m-etf", _RULES, ranks=True), ms=True)
    return op_graph


def m_sct(
    op_graph: DiGraph,
    device_graph: DiGraph,
    threshold: float = 0.5,
    favorites: Mapping[Hashable, Hashable] | None = None,
) -> DiGraph:
    """Place as `m_etf`, but let an idle device wait for the favorite child of its last op.

    Args:
        op_graph: the ops.
        device_graph: the devices.
        threshold: an edge is a favorite if its value in the linear program is at most this.
        favorites: the favorite child of each op that has one, instead of the linear program.

    Raises:
        OutOfMemoryError: an op fits on no device.
        PlacementError: a tensor cannot be received after its op was placed.
        SolverError: the linear program was not solved.
        InputError: an attribute is missing or wrong, or a favorite is no op.
        CycleError: the graph has a cycle.
    """
    flat = _flatten(op_graph, device_graph)
    if favorites is None:
        transfer = [edge["weight"] for edge in flat.edges.attributes]
        chosen, _ = rounded(flat.ops, flat.edges, _RULES, transfer, threshold)
    else:
        chosen = given_favorites(flat.ops, favorites)
    record(flat, place(flat, "m-sct", _RULES, ranks=True, favorites=chosen), ms=True)
    return op_graph


def _flatten(op_graph: DiGraph, device_graph: DiGraph) -> Flat:
    ops = read_ops(op_graph)
    edges = read_edges(op_graph, ops)
    sizes = {name: ops.attribute(name) for name in _MEMORY}
    copied = _edge_values(edges, ops, "requested_bytes")
    columns = [*sizes.values(), copied]
    scale = 1 if all(map(_is_whole, columns)) else _FINE
    permanent, parameter, temporary, peak = (
        ops.integers(name, _scaled(values, scale)) for name, values in sizes.items()
    )

    def edge_name(attribute: str) -> Callable[[int], str]:
        return lambda i: f"{attribute} of {edges.name(i, ops)}"

    requested = whole(_scaled(copied, scale), edge_name("requested_bytes"))
    transfer = _ns(_edge_values(edges, ops, "weight"), edge_name("weight"))
    compute = _ns(ops.attribute("weight"), lambda i: f"weight of op {ops.keys[i]!r}")
    number = np.arange(len(edges.parent))
    tensors = Tensors(edges.parent, requested, transfer, np.zeros(len(number)), number, edges.child)
    ids, cluster = read_devices(device_graph, scale)
    graph = flat_graph(ops, compute, np.full(len(ops.keys), -1, np.int32), tensors)
    op_bytes = (permanent, parameter, temporary, peak)
    return Flat(op_graph, ops, edges, ids, graph, cluster, op_bytes, scale)


def _edge_values(edges: Edges, ops: Ops, name: str) -> list[Any]:
    try:
        return [edge[name] for edge in edges.attributes]
    except KeyError:
        at = next(i for i, edge in enumerate(edges.attributes) if name not in edge)
        raise InputError(f'{edges.name(at, ops)} has no attribute "{name}"') from None


def _is_whole(values: list[Any]) -> bool:
    """Whether no value is a float with a fraction."""
    return not any(isinstance(value, float) and not value.is_integer() for value in values)


def _scaled(values: list[Any], scale: int) -> list[Any]:
    if scale == 1:
        return values
    finite = (isinstance(value, int | float) and np.isfinite(value) for value in values)
    return [round(v * scale) if f else v for v, f in zip(values, finite, strict=True)]


def _ns(given: list[Any], name: Callable[[int], str]) -> Integers:
    """Milliseconds as ns."""
    values = given
    if not set(map(type, given)) <= {float, int}:
        values = [v if isinstance(v, Real) else math.nan for v in given]
    ms = np.array(values, np.float64)
    wrong = ~(ms >= 0) | ~(ms < 2**61 / _NS_PER_MS)
    if wrong.any():
        i = int(np.flatnonzero(wrong)[0])
        raise InputError(f"{name(i)} is {given[i]!r}, not a time in ms")
    return np.maximum(np.rint(ms * _NS_PER_MS), ms > 0).astype(np.int64)
