"""The operator graph of a trace: forward, backward and update ops for the placers.

Prices are given from outside. Every unit is a colocation group; a run of glue ops of one module is a
group of its own. A view that covers its storage is its storage; a gradient that a function passes on
as it is, is the one that it was given. Persistent bytes (weights, buffers, optimizer state) belong to
one op per unit; the gradients of its weights are kept for its update.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from baechi.graph import Graph
from baechi.torch.modules import Units
from baechi.torch.trace import Trace

__all__ = ["OperatorGraph", "make_graph"]

Price = Callable[[Sequence[str], str], int]
"""Signatures of an op's calls and a device kind to ns, -1 where the kind cannot run it."""

_WEIGHT, _GRADIENT, _ACTIVATION, _CONTROL = 0, 2, 4, 6  # positions in MEMORY_CLASSES
_FORWARD, _BACKWARD, _UPDATE = 0, 1, 2


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


class _Columns:
    """Ops, tensors and edges while the graph grows."""

    def __init__(self, num_kinds: int) -> None:
        self.names: list[str] = []
        self.kinds: list[str] = []
        self.paths: list[str] = []
        self.compute: list[list[int]] = [[] for _ in range(num_kinds)]
        self.persistent: list[int] = []
        self.scratch: list[int] = []
        self.group: list[int] = []
        self.role: list[int] = []
        self.forward_op: list[int] = []
        self.producer: list[int] = []
        self.nbytes: list[int] = []
        self.memory_class: list[int] = []
        self.edges: dict[tuple[int, int], None] = {}

    def op(
        self,
        name: str,
        kind: str,
        path: str,
        prices: Sequence[int],
        group: int,
        *,
        role: int = _FORWARD,
        forward_op: int = -1,
        persistent: int = 0,
        scratch: int = 0,
    ) -> int:
        self.names.append(name)
        self.kinds.append(kind)
        self.paths.append(path)
        for row, ns in zip(self.compute, prices, strict=True):
            row.append(ns)
        self.persistent.append(persistent)
        self.scratch.append(scratch)
        self.group.append(group)
        self.role.append(role)
        self.forward_op.append(forward_op)
        return len(self.names) - 1

    def tensor(self, producer: int, nbytes: int, memory_class: int) -> int:
        self.producer.append(producer)
        self.nbytes.append(nbytes)
        self.memory_class.append(memory_class)
        return len(self.producer) - 1

    def edge(self, tensor: int, consumer: int) -> None:
        if self.producer[tensor] != consumer:
            self.edges[tensor, consumer] = None


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
) -> OperatorGraph:
    """Makes the graph.

    Args:
        price: works and device kind to ns.
        persistent_bytes: of each unit: weights, buffers, optimizer state.
        update_ns: of each unit, by device kind: the optimizer's step; None without one.
        allowed: unit to the device names that it may use.
        free_glue: each glue op is a group of its own.
    """
    columns = _Columns(len(device_kinds))
    groups = _groups(trace, units, free_glue)

    def prices(works: Sequence[str]) -> list[int]:
        return [price(works, kind) for kind in device_kinds]

    nothing = [0] * len(device_kinds)
    of_unit = [
        columns.op(f"{name}:weights:0", "weights", name, nothing, at, persistent=nbytes)
        for at, (name, nbytes) in enumerate(zip(units.names, persistent_bytes, strict=True))
    ]
    forward = _Forward(trace, units, groups, columns, of_unit)
    of_step = [forward.add(at, prices(step.works)) for at, step in enumerate(trace.steps)]
    updates = [
        columns.op(f"{name}:update:0", "update", name, ns, at, role=_UPDATE)
        for at, (name, ns) in enumerate(zip(units.names, update_ns or (), strict=False))
    ]
    backward = _Backward(trace, units, groups, columns, of_step, updates, forward, prices)
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
    columns: _Columns,
    device_kinds: Sequence[str],
    allowed: Mapping[int, Sequence[str]],
    units: Units,
) -> Graph:
    sets = {tuple(names): at for at, names in enumerate(dict.fromkeys(map(tuple, allowed.values())))}
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
            units.names[at] or "(root)" if at < len(units.names) else f"(glue {at})" for at in range(width)
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


class _Forward:
    """Adds steps; knows the tensor of each value and of each storage."""

    def __init__(
        self,
        trace: Trace,
        units: Units,
        groups: Sequence[int],
        columns: _Columns,
        of_unit: Sequence[int],
    ) -> None:
        self.trace, self.units, self.groups = trace, units, groups
        self.columns, self.of_unit = columns, of_unit
        self.op_of_step: list[int] = []
        self.of_storage: dict[int, int] = {}  # made storage -> tensor
        self.base: dict[int, int] = {}  # made storage -> step that made it
        self.of_value: dict[int, int] = {}  # partial views -> tensor of their own
        self.of_weight: dict[int, int] = {}  # weight storage -> tensor, where units share it

    def add(self, at: int, prices: Sequence[int]) -> int:
        trace, columns = self.trace, self.columns
        step = trace.steps[at]
        kept = sum(trace.storages[s].nbytes for s in step.born)
        op = columns.op(
            step.key, step.kind, step.path, prices, self.groups[at],
            scratch=max(0, step.born_peak - kept),
        )
        self.op_of_step.append(op)
        for value in step.reads:
            for tensor in self.tensors_of(value, at):
                columns.edge(tensor, op)
        for storage in step.born:
            self.of_storage[storage] = columns.tensor(op, trace.storages[storage].nbytes, _ACTIVATION)
            self.base[storage] = at
        return op

    def tensors_of(self, value: int, reader: int) -> list[int]:
        """The tensors that a step reads when it reads a value."""
        trace = self.trace
        one = trace.values[value]
        if one.step < 0:
            return self._weight(one.storage, reader)
        root = self.of_storage.get(one.storage)
        maker = self.base.get(one.storage, -1)
        if root is None:  # a view of a weight or an input
            return self._weight(one.storage, reader)
        if maker == one.step or one.nbytes == trace.storages[one.storage].nbytes:
            return [root]
        group = self.groups[reader]
        if group == self.groups[maker] or group == self.groups[one.step]:
            return [root]
        if value not in self.of_value:
            producer = self.op_of_step[one.step]
            self.of_value[value] = self.columns.tensor(producer, one.nbytes, _ACTIVATION)
        return [self.of_value[value]]

    def _weight(self, storage: int, reader: int) -> list[int]:
        """A weight that another unit owns travels; it is already counted where it lives."""
        unit = self.units.of_storage.get(storage, -1)
        if unit < 0 or unit == self.groups[reader]:
            return []
        if storage not in self.of_weight:
            op, nbytes = self.of_unit[unit], self.trace.storages[storage].nbytes
            self.of_weight[storage] = self.columns.tensor(op, nbytes, _WEIGHT)
            self.columns.persistent[op] = max(0, self.columns.persistent[op] - nbytes)
        return [self.of_weight[storage]]


class _Backward:
    """Adds one backward op per step that has autograd functions."""

    def __init__(
        self,
        trace: Trace,
        units: Units,
        groups: Sequence[int],
        columns: _Columns,
        of_step: Sequence[int],
        updates: Sequence[int],
        forward: _Forward,
        prices: Callable[[Sequence[str]], list[int]],
    ) -> None:
        self.trace, self.units, self.groups, self.columns = trace, units, groups, columns
        self.forward_op, self.forward, self.prices = of_step, forward, prices
        self.updates = updates
        self.of_step = [-1] * len(trace.steps)
        self.order: list[int] = []
        self.arrived: dict[tuple[int, int], list[int]] = defaultdict(list)

    def add_all(self) -> None:
        """Adds the ops in the order in which autograd runs them, then what flows between them."""
        trace = self.trace
        by_step: dict[int, list[int]] = defaultdict(list)
        for at, function in enumerate(trace.functions):
            if function.parameter < 0:
                by_step[function.step].append(at)
        for step in sorted(by_step, reverse=True):
            self._add(step, by_step[step])
        ordered = sorted(
            (f for step in by_step for f in by_step[step]),
            key=lambda f: -trace.functions[f].sequence,
        )
        for f in ordered:
            self._flow(f)

    def _add(self, step: int, functions: Sequence[int]) -> None:
        trace, columns = self.trace, self.columns
        works = [work for f in functions for work in trace.functions[f].works]
        extra = max(trace.functions[f].born_peak - self._kept(f) for f in functions)
        one = trace.steps[step]
        op = columns.op(
            f"{one.key}:backward", f"{one.kind}.backward", one.path, self.prices(works),
            self.groups[step], role=_BACKWARD, forward_op=self.forward_op[step],
            scratch=max(0, extra),
        )
        self.of_step[step] = op
        self.order.append(op)
        read = {trace.values[v].storage: v for v in one.reads}
        for saved in one.saved:
            if saved.storage in read:
                for tensor in self.forward.tensors_of(read[saved.storage], step):
                    columns.edge(tensor, op)
            elif saved.storage in self.forward.of_storage:
                columns.edge(self.forward.of_storage[saved.storage], op)
        control = columns.tensor(self.forward_op[step], 0, _CONTROL)
        columns.edge(control, op)

    def _kept(self, f: int) -> int:
        return sum(self.trace.storages[s].nbytes for s in self.trace.functions[f].born)

    def _flow(self, f: int) -> None:
        """Passes the gradients of one function on to the ops of the functions that take them."""
        trace, columns = self.trace, self.columns
        function = trace.functions[f]
        op = self.of_step[function.step]
        made: dict[int, int] = {}
        for edge in function.edges:
            target = trace.functions[edge.function]
            arrived = self.arrived.get((f, edge.incoming.at), [])
            if edge.incoming.source == "taken" and len(arrived) == 1:
                tensor = arrived[0]
            else:
                key = edge.incoming.at if edge.incoming.source == "made" else -1 - edge.incoming.at
                if key not in made:
                    made[key] = columns.tensor(op, edge.nbytes, _GRADIENT)
                tensor = made[key]
            if target.parameter >= 0:
                if self.updates:
                    columns.edge(tensor, self.updates[self.units.of_storage[target.parameter]])
            else:
                self.arrived[edge.function, edge.number].append(tensor)
                columns.edge(tensor, self.of_step[target.step])
