"""A graph built op by op; every mistake is reported at the call that makes it."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, SupportsIndex, TypeVar

import numpy as np
import numpy.typing as npt

from baechi.columns import CONTROL, texts
from baechi.errors import InputError
from baechi.graph import MEMORY_CLASSES, ROLES, Graph

__all__ = ["GraphBuilder"]

ComputeTimes = SupportsIndex | Mapping[str, SupportsIndex | None]
_Key = TypeVar("_Key", str, tuple[str, ...])
_LIMIT = 2**62


class GraphBuilder:
    """Collects ops, tensors and edges in insertion order, then builds a frozen `Graph`.

    >>> builder = GraphBuilder()
    >>> a = builder.op("a", compute_ns=5)
    >>> b = builder.op("b", compute_ns=7)
    >>> builder.connect(a, b, bytes=1024)
    0
    >>> builder.build()
    Graph(2 ops, 1 tensors, 1 edges, kinds: gpu)
    """

    def __init__(self, device_kinds: Sequence[str] = ("gpu",)) -> None:
        """An empty graph for these device kinds.

        Args:
            device_kinds: distinct texts, at least one.

        Raises:
            InputError: no kind, or one that is empty or repeated.
        """
        self._kinds = texts("device kind", device_kinds, unique=True)
        if not self._kinds:
            raise InputError("a graph needs at least one device kind")
        self._ops: dict[str, int] = {}
        self._texts: list[tuple[str, str]] = []  # kind, module
        self._compute_ns: list[tuple[int, ...]] = []
        self._op_bytes: list[tuple[int, int]] = []
        self._groups: dict[str, int] = {}
        self._allowed_sets: dict[tuple[str, ...], int] = {}
        self._op_indices: list[tuple[int, int, int, int]] = []  # group, allowed, role, forward op
        self._tensors: list[tuple[int, int, int, int]] = []  # producer, bytes, transfer, class
        self._edges: dict[tuple[int, int], None] = {}
        self._control_tensors: dict[int, int] = {}

    def op(
        self,
        name: str,
        compute_ns: ComputeTimes,
        *,
        kind: str = "",
        module: str = "",
        persistent_bytes: SupportsIndex = 0,
        scratch_bytes: SupportsIndex = 0,
        group: str | None = None,
        allowed_devices: Iterable[str] | None = None,
        role: str = "forward",
        forward_op: str | None = None,
    ) -> str:
        """Add an op and return its name.

        Args:
            name: distinct from all other ops.
            compute_ns: ns on every device kind, or a mapping of kind to ns; the op cannot run on
                a kind that is missing or None.
            kind: such as "conv".
            module: such as "encoder/layer3".
            persistent_bytes: held on the device for the whole step.
            scratch_bytes: held while the op runs.
            group: all ops of a group share a device.
            allowed_devices: names of the devices it may run on; None: any.
            role: "forward", "backward" or "update".
            forward_op: the forward op that this backward op belongs to.

        Raises:
            InputError: a name that is taken, an unknown kind, role or op, a negative or fractional
                quantity, or an op that can run nowhere.
        """
        if not isinstance(name, str) or not name:
            raise InputError(f"the name of an op must be a text and not empty, not {name!r}")
        if name in self._ops:
            raise InputError(f'op "{name}" is there already')
        what = f'op "{name}"'
        times = self._times(what, compute_ns)
        sizes = (
            _quantity(what, "persistent_bytes", persistent_bytes),
            _quantity(what, "scratch_bytes", scratch_bytes),
        )
        if role not in ROLES:
            raise InputError(f"{what}: role {role!r} is not one of {', '.join(ROLES)}")
        labels = _text(what, "kind", kind, empty=True), _text(what, "module", module, empty=True)
        belongs = self._forward_op(what, role, forward_op)
        if group is not None:
            _text(what, "group", group)
        allowed = self._allowed_set(what, allowed_devices)  # the last that may refuse
        team = -1 if group is None else _interned(self._groups, group)
        self._texts.append(labels)
        self._compute_ns.append(times)
        self._op_bytes.append(sizes)
        self._op_indices.append((team, allowed, ROLES.index(role), belongs))
        self._ops[name] = len(self._ops)
        return name

    def tensor(
        self,
        producer: str,
        bytes: SupportsIndex,
        *,
        memory_class: str = "activation",
        transfer_ns: SupportsIndex | None = None,
    ) -> int:
        """Add an output of an op and return its index among the tensors.

        Args:
            producer: name of the op.
            bytes: its size.
            memory_class: "weight", "buffer", "gradient", "optimizer", "activation" or "other".
            transfer_ns: ns of one transfer over any link; None: follows from the bytes.

        Raises:
            InputError: an unknown op or class, or a negative or fractional quantity.
        """
        source, what = self._index(producer), f'tensor of op "{producer}"'
        size = _quantity(what, "bytes", bytes)
        if memory_class == "control":
            raise InputError(f"{what}: class control is for control edges", hint="control_edge")
        if memory_class not in MEMORY_CLASSES:
            known = ", ".join(MEMORY_CLASSES[:-1])
            raise InputError(f"{what}: memory class {memory_class!r} is not one of {known}")
        transfer = -1 if transfer_ns is None else _quantity(what, "transfer_ns", transfer_ns)
        self._tensors.append((source, size, transfer, MEMORY_CLASSES.index(memory_class)))
        return len(self._tensors) - 1

    def edge(self, tensor: SupportsIndex, consumer: str) -> None:
        """Let an op consume a tensor.

        Args:
            tensor: what `tensor` or `connect` returned.
            consumer: name of the op.

        Raises:
            InputError: an unknown tensor or op, the op's own output, or an edge that is there.
        """
        target = self._index(consumer)
        index = _quantity("edge", "tensor", tensor)
        if index >= len(self._tensors):
            raise InputError(f"tensor {index} is not there: there are {len(self._tensors)}")
        if self._tensors[index][0] == target:
            raise InputError(f'op "{consumer}" cannot consume its own output')
        if (index, target) in self._edges:
            raise InputError(f'op "{consumer}" consumes tensor {index} already')
        self._edges[index, target] = None

    def connect(
        self,
        producer: str,
        consumer: str,
        bytes: SupportsIndex = 0,
        *,
        memory_class: str = "activation",
        transfer_ns: SupportsIndex | None = None,
    ) -> int:
        """Add a tensor from one op to another and return its index among the tensors.

        Args:
            producer: name of the op that makes it.
            consumer: name of the op that consumes it.
            bytes: its size.
            memory_class: as in `tensor`.
            transfer_ns: as in `tensor`.

        Raises:
            InputError: as in `tensor` and `edge`.
        """
        if self._index(consumer) == self._index(producer):
            raise InputError(f'op "{consumer}" cannot consume its own output')
        tensor = self.tensor(producer, bytes, memory_class=memory_class, transfer_ns=transfer_ns)
        self.edge(tensor, consumer)
        return tensor

    def control_edge(self, producer: str, consumer: str) -> None:
        """Let one op wait for another; an edge of the producer's one tensor of class control.

        Raises:
            InputError: an unknown op, one op twice, or a control edge that is there.
        """
        source, target = self._index(producer), self._index(consumer)
        if source == target:
            raise InputError(f'op "{consumer}" cannot wait for itself')
        tensor = self._control_tensors.get(source, len(self._tensors))
        if (tensor, target) in self._edges:
            raise InputError(f'op "{consumer}" waits for op "{producer}" already')
        if tensor == len(self._tensors):
            self._tensors.append((source, 0, -1, CONTROL))
            self._control_tensors[source] = tensor
        self._edges[tensor, target] = None

    def build(self) -> Graph:
        """The graph so far; the builder may go on.

        Raises:
            CycleError: the edges make a cycle.
            InputError: the bytes or the times together exceed 64 bits.
        """
        groups, allowed, roles, forward = _columns(self._op_indices, 4)
        persistent, scratch = _columns(self._op_bytes, 2)
        producers, sizes, transfers, classes = _columns(self._tensors, 4)
        edge_tensors, edge_consumers = _columns(list(self._edges), 2)
        return Graph.from_arrays(
            op_names=tuple(self._ops),
            op_kinds=[kind for kind, _ in self._texts],
            module_paths=[module for _, module in self._texts],
            device_kinds=self._kinds,
            group_names=tuple(self._groups),
            allowed_sets=tuple(self._allowed_sets),
            compute_ns=_columns(self._compute_ns, len(self._kinds)),
            persistent_bytes=persistent,
            scratch_bytes=scratch,
            group=groups,
            allowed_set=allowed,
            role=roles,
            forward_op=forward,
            tensor_producer=producers,
            tensor_bytes=sizes,
            tensor_transfer_ns=transfers,
            tensor_class=classes,
            edge_tensor=edge_tensors,
            edge_consumer=edge_consumers,
        )

    def _index(self, name: str) -> int:
        try:
            return self._ops[name]
        except (KeyError, TypeError):
            raise InputError(f"there is no op {name!r} yet") from None

    def _times(self, what: str, compute_ns: ComputeTimes) -> tuple[int, ...]:
        if not isinstance(compute_ns, Mapping):
            return (_quantity(what, "compute_ns", compute_ns),) * len(self._kinds)
        if unknown := [kind for kind in compute_ns if kind not in self._kinds]:
            raise InputError(f"{what}: unknown device kind {unknown[0]!r} in compute_ns")
        given = [compute_ns.get(kind) for kind in self._kinds]
        times = tuple(-1 if ns is None else _quantity(what, "compute_ns", ns) for ns in given)
        if max(times) < 0:
            raise InputError(f"{what} can run on no device kind ({', '.join(self._kinds)})")
        return times

    def _allowed_set(self, what: str, devices: Iterable[str] | None) -> int:
        if devices is None:
            return -1
        names = {devices} if isinstance(devices, str) else set(devices)
        if not names:
            raise InputError(f"{what}: the set of allowed devices is empty")
        key = tuple(sorted(_text(what, "allowed device", name) for name in names))
        return _interned(self._allowed_sets, key)

    def _forward_op(self, what: str, role: str, forward_op: str | None) -> int:
        if forward_op is None:
            return -1
        index = self._index(forward_op)
        if role != "backward" or self._op_indices[index][2] != ROLES.index("forward"):
            raise InputError(f"{what}: a forward op is for a backward op, and has the role forward")
        return index


def _interned(table: dict[_Key, int], key: _Key) -> int:
    return table.setdefault(key, len(table))


def _columns(rows: Sequence[tuple[int, ...]], width: int) -> npt.NDArray[Any]:
    return np.array(rows, np.int64).reshape(len(rows), width).T


def _quantity(what: str, field: str, value: SupportsIndex) -> int:
    try:
        number = operator.index(value)
    except TypeError:
        number = -1
    if isinstance(value, bool | np.bool_) or not 0 <= number < _LIMIT:
        raise InputError(f"{what}: {field} is {value!r}, not an integer from 0 to 2^62 - 1")
    return number


def _text(what: str, field: str, value: str, *, empty: bool = False) -> str:
    if not isinstance(value, str) or not (value or empty):
        raise InputError(f"{what}: {field} is {value!r}, not a text")
    return value
