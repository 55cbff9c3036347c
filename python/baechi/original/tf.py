"""The placers of the TensorFlow original on networkx graphs.

Nodes of the op graph: `weight` (duration), `temporary_memory`, `persistent_memory`, `output_memory`
(a list), `colocation_group` if groups count, and perhaps `topo_order` on all nodes, which then
replaces the topological numbers that break ties. Edges: `tensor`, a list of {name, weight}, one
name being one tensor; an empty list orders the two ops and nothing else. Nodes of the device graph:
`memory_limit`, and `id` unless the key is the id. Times and sizes are integers (floats without a
fraction are taken, a fraction of a limit is cut off).

All functions write on the graph that they are given and return it: `p` (id of the device),
`start_ts` and `end_ts` on nodes; `makespan` and `peak` (bytes per device, in device order) on the
graph. After a failure the nodes keep the `p` of what was placed before it.

As in the original, m_etf and m_sct miss the end of an op that takes no time (unless it starts later
than decided): its children are never placed, which is a `PlacementError`. A tensor with two
producers or two weights, which the original takes for granted not to be, is an `InputError`.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from baechi.errors import InputError
from baechi.original.elements import Edges, Indices, Ops, read_edges, read_ops, whole
from baechi.original.flattening import Flat, Tensors, flat_graph, read_devices
from baechi.original.outcomes import forget, given_favorites, place, record
from baechi.original.relaxation import Favorites, named_favorites, rounded

if TYPE_CHECKING:
    from baechi.original.elements import DiGraph

__all__ = ["favorites", "m_etf", "m_sct", "m_topo", "virtual_scheduler"]

_RULES = "baechi-tf"


def m_topo(
    op_graph: DiGraph, device_graph: DiGraph, colocation: bool = False, uniform: bool = True
) -> DiGraph:
    """Fill one device after the other in topological order.

    The original gives no times; those written here, and the makespan, are `virtual_scheduler`'s.
    The peak is the placer's own: all that it charged.

    Args:
        op_graph: the ops.
        device_graph: the devices.
        colocation: place the whole colocation group with its first op.
        uniform: fill to the balanced share plus the largest op, whatever the limit, instead of to
            the limit.

    Raises:
        OutOfMemoryError: ops are left over.
        InputError: an attribute is missing or wrong.
        CycleError: the graph has a cycle.
    """
    flat = _flatten(op_graph, device_graph, colocation)
    algorithm = "m-topo" if uniform else "m-topo-nonuniform"
    schedule = place(flat, algorithm, _RULES, ranks=False, colocation=colocation)
    charged = np.zeros(len(flat.device_ids), np.int64)
    np.add.at(charged, schedule.device, flat.op_bytes[0] + flat.op_bytes[2])
    record(flat, schedule, peak=charged)
    return op_graph


def m_etf(
    op_graph: DiGraph,
    device_graph: DiGraph,
    colocation: bool = False,
    reserve_memory: bool = False,
) -> DiGraph:
    """Place the op that can start earliest, one at a time.

    Args:
        op_graph: the ops.
        device_graph: the devices.
        colocation: keep every colocation group on one device.
        reserve_memory: let the first op of a group reserve memory for all of it; wants colocation.

    Raises:
        OutOfMemoryError: an op fits on no device.
        PlacementError: the original gives up in the middle of a placement.
        InputError: an attribute is missing or wrong.
        CycleError: the graph has a cycle.
    """
    flat = _flatten(op_graph, device_graph, colocation)
    algorithm = _with_reserve("m-etf", colocation, reserve_memory)
    record(flat, place(flat, algorithm, _RULES, ranks=False, colocation=colocation))
    return op_graph


def m_sct(
    op_graph: DiGraph,
    device_graph: DiGraph,
    threshold: float = 0.1,
    colocation: bool = False,
    reserve_memory: bool = False,
    favorites: Mapping[Hashable, Hashable] | None = None,
) -> DiGraph:
    """Place as `m_etf`, but let an idle device wait for the favorite child of its last op.

    Args:
        op_graph: the ops.
        device_graph: the devices.
        threshold: an edge is a favorite if its value in the linear program is at most this.
        colocation: keep every colocation group on one device.
        reserve_memory: let the first op of a group reserve memory for all of it; wants colocation.
        favorites: the favorite child of each op that has one, instead of the linear program.

    Raises:
        OutOfMemoryError: an op fits on no device.
        PlacementError: the original gives up in the middle of a placement.
        SolverError: the linear program was not solved.
        InputError: an attribute is missing or wrong, or a favorite is no op.
        CycleError: the graph has a cycle.
    """
    flat = _flatten(op_graph, device_graph, colocation)
    algorithm = _with_reserve("m-sct", colocation, reserve_memory)
    if favorites is None:
        chosen, _ = rounded(flat.ops, flat.edges, _RULES, _transfer(flat.edges), threshold)
    else:
        chosen = given_favorites(flat.ops, favorites)
    options = {"colocation": colocation, "favorites": chosen}
    record(flat, place(flat, algorithm, _RULES, ranks=False, **options))
    return op_graph


def favorites(
    op_graph: DiGraph, threshold: float = 0.1, time_limit: float | None = None
) -> Favorites:
    """The favorite children that `m_sct` rounds from the linear program, and its bounds.

    Args:
        op_graph: the ops; it is left as it is.
        threshold: an edge is a favorite if its value in the linear program is at most this.
        time_limit: seconds, after which the best so far is returned; None: no limit.

    Raises:
        SolverError: the linear program was not solved.
        InputError: an attribute is missing or wrong.
        CycleError: the graph has a cycle.
    """
    ops = read_ops(op_graph)
    edges = read_edges(op_graph, ops)
    found, relaxed = rounded(ops, edges, _RULES, _transfer(edges), threshold, time_limit)
    return named_favorites(ops, edges, found, relaxed)


def virtual_scheduler(op_graph: DiGraph, device_graph: DiGraph) -> DiGraph:
    """Replay the placement `p`: ops in the order of their ready times, transfers pushed at once.

    Times, makespan and peaks become those of the replay, which knows no memory limit.

    Args:
        op_graph: the ops, each with `p`.
        device_graph: the devices.

    Raises:
        InputError: an op has no `p`, or one that is no device; an attribute is missing or wrong.
        CycleError: the graph has a cycle.
    """
    from baechi import _core

    flat = _flatten(op_graph, device_graph, colocation=False)
    index = {device: i for i, device in enumerate(flat.device_ids)}
    homes = np.empty(len(flat.ops.keys), np.int32)
    for i, device in enumerate(flat.ops.attribute("p")):
        if device not in index:
            raise InputError(f"p of op {flat.ops.keys[i]!r} is {device!r}, which is no device")
        homes[i] = index[device]
    schedule = _core.simulate_given(flat.graph, flat.cluster, homes, _RULES, op_bytes=flat.op_bytes)
    forget(flat, ranks=False)
    record(flat, schedule)
    return op_graph


def _transfer(edges: Edges) -> list[int]:
    """The time of every edge: its tensors travel one after the other."""
    return [sum(tensor["weight"] for tensor in edge["tensor"]) for edge in edges.attributes]


def _with_reserve(algorithm: str, colocation: bool, reserve_memory: bool) -> str:
    if reserve_memory and not colocation:
        raise InputError("reserve_memory reserves for colocation groups: set colocation too")
    return f"{algorithm}-reserve" if reserve_memory else algorithm


def _flatten(op_graph: DiGraph, device_graph: DiGraph, colocation: bool) -> Flat:
    ops = read_ops(op_graph)
    edges = read_edges(op_graph, ops)
    ids, cluster = read_devices(device_graph)
    outputs = ops.integers("output_memory", map(sum, ops.attribute("output_memory")))
    persistent = ops.integers("persistent_memory")
    scratch = ops.integers("temporary_memory")
    group = _groups(ops) if colocation else np.full(len(ops.keys), -1, np.int32)
    tensors = _tensors(ops, edges)
    graph = flat_graph(ops, ops.integers("weight"), group, tensors, _given_order(ops))
    op_bytes = (outputs, persistent, scratch, outputs)
    return Flat(op_graph, ops, edges, ids, graph, cluster, op_bytes)


def _given_order(ops: Ops) -> Indices | None:
    """The ops by their `topo_order`, None unless all have one."""
    numbers: list[Any] = [node.get("topo_order") for node in ops.nodes]
    if None in numbers:
        return None
    try:
        return np.array(sorted(range(len(numbers)), key=lambda i: numbers[i]), np.int32)
    except TypeError:
        raise InputError("the topo_order of the ops has no order: give numbers") from None


def _groups(ops: Ops) -> Indices:
    """The colocation group of every op by number, in order of first appearance."""
    number: dict[Any, int] = {}
    names = ops.attribute("colocation_group")
    return np.array([number.setdefault(name, len(number)) for name in names], np.int32)


def _tensors(ops: Ops, edges: Edges) -> Tensors:
    """The tensors by name; an edge without any gets a control tensor of its own."""
    number: dict[Any, int] = {}
    producer: list[int] = []
    weights: list[Any] = []
    controls: list[int] = []
    edge_tensor: list[int] = []
    edge_consumer: list[int] = []
    columns = zip(edges.parent.tolist(), edges.child.tolist(), edges.attributes, strict=True)
    for at, (parent, child, attributes) in enumerate(columns):
        try:
            tensors = attributes["tensor"]
            for tensor in tensors:
                name, weight = tensor["name"], tensor["weight"]
                index = number.setdefault(name, len(producer))
                if index == len(producer):
                    producer.append(parent)
                    weights.append(weight)
                elif producer[index] != parent or weights[index] != weight:
                    raise _conflict(ops, name, producer[index], parent)
                edge_tensor.append(index)
                edge_consumer.append(child)
        except KeyError as error:
            raise InputError(f"{edges.name(at, ops)} or a tensor of it has no {error}") from None
        if not tensors:
            controls.append(len(producer))
            edge_tensor.append(len(producer))
            edge_consumer.append(child)
            producer.append(parent)
            weights.append(0)
        elif len(tensors) > 1 and len({tensor["name"] for tensor in tensors}) < len(tensors):
            raise InputError(f"{edges.name(at, ops)} carries a tensor twice")
    is_control = np.zeros(len(producer), bool)
    is_control[controls] = True
    transfer = whole(weights, lambda i: f"weight of a tensor of op {ops.keys[producer[i]]!r}")
    nothing = np.zeros(len(producer), np.int64)
    return Tensors(producer, nothing, transfer, is_control, edge_tensor, edge_consumer)


def _conflict(ops: Ops, name: Any, first: int, other: int) -> InputError:
    keys = ops.keys
    if first != other:
        return InputError(f"tensor {name!r} has two producers: {keys[first]!r} and {keys[other]!r}")
    return InputError(f"tensor {name!r} of op {keys[first]!r} has two weights")
