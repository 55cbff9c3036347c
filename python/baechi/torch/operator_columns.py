"""The columns of an operator graph while it grows: forward ops, backward ops, what flows."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence

from baechi.torch.modules import Units
from baechi.torch.trace import Trace

__all__ = ["UPDATE", "Backward", "Columns", "Forward"]

WEIGHT, GRADIENT, ACTIVATION, CONTROL = 0, 2, 4, 6  # positions in MEMORY_CLASSES
FORWARD, BACKWARD, UPDATE = 0, 1, 2  # positions in ROLES
NO_GROUP = -1


class Columns:
    """Ops, tensors and edges while the graph grows."""

    def __init__(self, num_kinds: int) -> None:
        """Starts empty, with one price per device kind."""
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
        role: int = FORWARD,
        forward_op: int = -1,
        persistent: int = 0,
        scratch: int = 0,
    ) -> int:
        """Adds an op; its index."""
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
        """Adds a tensor that an op makes; its index."""
        self.producer.append(producer)
        self.nbytes.append(nbytes)
        self.memory_class.append(memory_class)
        return len(self.producer) - 1

    def edge(self, tensor: int, consumer: int) -> None:
        """An op reads a tensor; each pair counts once, and nothing reads what it makes itself."""
        if self.producer[tensor] != consumer:
            self.edges[tensor, consumer] = None


class Forward:
    """Adds steps; knows the tensor of each value and of each storage."""

    def __init__(
        self,
        trace: Trace,
        units: Units,
        groups: Sequence[int],
        columns: Columns,
        of_unit: Sequence[int],
    ) -> None:
        """Starts before the first step."""
        self.trace, self.units, self.groups = trace, units, groups
        self.columns, self.of_unit = columns, of_unit
        self.op_of_step: list[int] = []
        self.of_storage: dict[int, int] = {}  # made storage -> tensor
        self.base: dict[int, int] = {}  # made storage -> step that made it
        self.of_value: dict[int, int] = {}  # partial views -> tensor of their own
        self.of_weight: dict[int, int] = {}  # weight storage -> tensor, where units share it

    def add(self, at: int, prices: Sequence[int]) -> int:
        """Adds the op of a step with what it reads and makes; its index."""
        trace, columns = self.trace, self.columns
        step = trace.steps[at]
        kept = sum(trace.storages[s].nbytes for s in step.born)
        op = columns.op(
            step.key,
            step.kind,
            step.path,
            prices,
            self.groups[at],
            scratch=max(0, step.born_peak - kept),
        )
        self.op_of_step.append(op)
        for value in step.reads:
            for tensor in self.tensors_of(value, self.groups[at]):
                columns.edge(tensor, op)
        for storage in step.born:
            self.of_storage[storage] = columns.tensor(
                op, trace.storages[storage].nbytes, ACTIVATION
            )
            self.base[storage] = at
        return op

    def tensors_of(self, value: int, group: int) -> list[int]:
        """The tensors that an op of a group reads when it reads a value."""
        trace = self.trace
        one = trace.values[value]
        if one.step < 0:
            return self._weight(one.storage, group)
        root = self.of_storage.get(one.storage)
        maker = self.base.get(one.storage, -1)
        if root is None:  # a view of a weight or an input
            return self._weight(one.storage, group)
        if maker == one.step or one.nbytes == trace.storages[one.storage].nbytes:
            return [root]
        if group == self.groups[maker] or group == self.groups[one.step]:
            return [root]
        if value not in self.of_value:
            producer = self.op_of_step[one.step]
            self.of_value[value] = self.columns.tensor(producer, one.nbytes, ACTIVATION)
        return [self.of_value[value]]

    def _weight(self, storage: int, group: int) -> list[int]:
        """A weight that another unit owns travels; it is already counted where it lives."""
        unit = self.units.of_storage.get(storage, -1)
        if unit < 0 or unit == group:
            return []
        if storage not in self.of_weight:
            op, nbytes = self.of_unit[unit], self.trace.storages[storage].nbytes
            self.of_weight[storage] = self.columns.tensor(op, nbytes, WEIGHT)
            self.columns.persistent[op] = max(0, self.columns.persistent[op] - nbytes)
        return [self.of_weight[storage]]


class Backward:
    """Adds one backward op per step that has autograd functions."""

    def __init__(
        self,
        trace: Trace,
        units: Units,
        groups: Sequence[int],
        columns: Columns,
        of_step: Sequence[int],
        updates: Sequence[int],
        forward: Forward,
        prices: Callable[[Sequence[str]], list[int]],
        *,
        is_free: bool,
    ) -> None:
        """Starts when all steps have their ops; the ops are in their groups, or free of them."""
        self.trace, self.units, self.groups, self.columns = trace, units, groups, columns
        self.forward_op, self.forward, self.prices = of_step, forward, prices
        self.updates = updates
        self.is_free = is_free
        self.recomputed = {at for region in trace.regions for at in region}
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
        if step in self.recomputed:
            works += trace.steps[step].works
        group = NO_GROUP if self.is_free else self.groups[step]
        extra = max(trace.functions[f].born_peak - self._kept(f) for f in functions)
        one = trace.steps[step]
        op = columns.op(
            f"{one.key}:backward",
            f"{one.kind}.backward",
            one.path,
            self.prices(works),
            group,
            role=BACKWARD,
            forward_op=self.forward_op[step],
            scratch=max(0, extra),
        )
        self.of_step[step] = op
        self.order.append(op)
        read = {trace.values[v].storage: v for v in one.reads}
        for saved in one.saved:
            if saved.storage in read:
                for tensor in self.forward.tensors_of(read[saved.storage], group):
                    columns.edge(tensor, op)
            elif saved.storage in self.forward.of_storage:
                columns.edge(self.forward.of_storage[saved.storage], op)
        control = columns.tensor(self.forward_op[step], 0, CONTROL)
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
                    made[key] = columns.tensor(op, edge.nbytes, GRADIENT)
                tensor = made[key]
            if target.parameter >= 0:
                if self.updates:
                    columns.edge(tensor, self.updates[self.units.of_storage[target.parameter]])
            else:
                self.arrived[edge.function, edge.number].append(tensor)
                columns.edge(tensor, self.of_step[target.step])
