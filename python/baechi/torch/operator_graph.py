"""The operator graph of a trace: forward, backward and update ops for the placers.

Prices are given from outside. Every unit is a colocation group; a run of glue ops of one module is
a group of its own. A view that covers its storage is its storage; a gradient that a function passes
on as it is, is the one that it was given. Persistent bytes (weights, buffers, optimizer state)
belong to one op per unit; the gradients of its weights are kept for its update.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from baechi.graph import Graph
from baechi.torch.modules import Units
from baechi.torch.operator_columns import UPDATE, Backward, Columns, Forward
from baechi.torch.trace import Trace

__all__ = ["OperatorGraph", "make_graph"]

Price = Callable[[Sequence[str], str], int]
"""Signatures of an op's calls and a device kind to ns, -1 where the kind cannot run it."""


@dataclasses.dataclass(frozen=True)
class OperatorGraph:
    """A graph and what its ops are.

    Attributes:
        graph: what the placers get.
        of_step, backward_of_step: the ops of each step; -1 without backward.
        of_unit: the op that holds the persistent bytes of each unit.
        updates: the op that updates the weights of each unit; none in inference.
        group_of_step: number of the colocation group; units first, then runs of glue.
        order: op indices in the order in which PyTorch issues them.
    """

    graph: Graph
    of_step: tuple[int, ...]
    backward_of_step: tuple[int, ...]
    of_unit: tuple[int, ...]
    updates: tuple[int, ...]
    group_of_step: tuple[int, ...]
    order: tuple[int, ...]


def make_graph(
    trace: Trace,
    units: Units,
    device_kinds: Sequence[str],
    price: Price,
    *,
    persistent_bytes: Sequence[int],
    update_ns: Sequence[Sequence[int]] | None,
    allowed: Mapping[int, Sequence[str]] | None = None,
    free_glue: bool = False,
    free_backward: bool = False,
) -> OperatorGraph:
    """Makes the graph.

    Args:
        trace: one step of the model.
        units: its units.
        device_kinds: the kinds of the devices, each once.
        price: works and device kind to ns.
        persistent_bytes: of each unit: weights, buffers, optimizer state.
        update_ns: of each unit, by device kind: the optimizer's step; None without one.
        allowed: unit to the device names that it may use.
        free_glue: each glue op is a group of its own.
        free_backward: backward ops are in no group; those that need weights read them.
    """
    columns = Columns(len(device_kinds))
    groups = _groups(trace, units, free_glue)

    def prices(works: Sequence[str]) -> list[int]:
        return [price(works, kind) for kind in device_kinds]

    nothing = [0] * len(device_kinds)
    of_unit = [
        columns.op(f"{name}:weights:0", "weights", name, nothing, at, persistent=nbytes)
        for at, (name, nbytes) in enumerate(zip(units.names, persistent_bytes, strict=True))
    ]
    forward = Forward(trace, units, groups, columns, of_unit)
    of_step = [forward.add(at, prices(step.works)) for at, step in enumerate(trace.steps)]
    updates = [
        columns.op(f"{name}:update:0", "update", name, ns, at, role=UPDATE)
        for at, (name, ns) in enumerate(zip(units.names, update_ns or (), strict=False))
    ]
    backward = Backward(
        trace, units, groups, columns, of_step, updates, forward, prices, is_free=free_backward
    )
    backward.add_all()
    order = [*of_unit, *of_step, *backward.order, *updates]
    return OperatorGraph(
        _finish(columns, device_kinds, allowed or {}, units),
        tuple(of_step),
        tuple(backward.of_step),
        tuple(of_unit),
        tuple(updates),
        tuple(groups),
        tuple(order),
    )


def _finish(
    columns: Columns,
    device_kinds: Sequence[str],
    allowed: Mapping[int, Sequence[str]],
    units: Units,
) -> Graph:
    sets = {
        tuple(names): at for at, names in enumerate(dict.fromkeys(map(tuple, allowed.values())))
    }
    by_group = {unit: sets[tuple(names)] for unit, names in allowed.items()}
    edges = list(columns.edges)
    width = max(columns.group, default=-1) + 1
    return Graph.from_arrays(
        op_names=columns.names,
        op_kinds=columns.kinds,
        module_paths=columns.paths,
        device_kinds=device_kinds,
        compute_ns=np.array(columns.compute, np.int64).reshape(len(device_kinds), -1),
        persistent_bytes=columns.persistent,
        scratch_bytes=columns.scratch,
        group=columns.group,
        group_names=[
            units.names[at] or "(root)" if at < len(units.names) else f"(glue {at})"
            for at in range(width)
        ],
        allowed_sets=list(sets),
        allowed_set=[by_group.get(group, -1) for group in columns.group],
        role=columns.role,
        forward_op=columns.forward_op,
        tensor_producer=columns.producer,
        tensor_bytes=columns.nbytes,
        tensor_class=columns.memory_class,
        edge_tensor=[tensor for tensor, _ in edges],
        edge_consumer=[consumer for _, consumer in edges],
    )


def _groups(trace: Trace, units: Units, free_glue: bool) -> list[int]:
    """Colocation group of each step: its unit, or its run of glue ops in one module."""
    groups: list[int] = []
    following = len(units.names)
    before = ""
    for at, (step, unit) in enumerate(zip(trace.steps, units.of_step, strict=True)):
        if unit >= 0:
            groups.append(unit)
            before = ""
            continue
        anchor = units.tied_glue.get(at, -1)
        if 0 <= anchor < at:
            groups.append(groups[anchor])
            continue
        if free_glue or step.path != before or not before:
            following += 1
        groups.append(following - 1)
        before = step.path
    return groups
