"""The operator graph: frozen columns, and the names that go with them."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from baechi.checks import check, topological_order
from baechi.columns import (
    COLUMNS,
    CONTROL,
    MEMORY_CLASSES,
    ROLES,
    Array,
    Names,
    as_array,
    core_columns,
    count_axes,
    exact_column,
    ordinals,
    read_names,
    read_only,
    texts,
)
from baechi.errors import InputError

if TYPE_CHECKING:
    import networkx

    from baechi import _core
    from baechi.cluster import Cluster

__all__ = ["MEMORY_CLASSES", "ROLES", "Graph"]

Integers = npt.ArrayLike


class Graph:
    """Ops, their tensors and who consumes them, as read-only columns.

    Build one with `baechi.GraphBuilder`, `Graph.from_arrays` or `baechi.load_graph`. Insertion
    order is part of a graph: ties are broken by it. Times are integer ns, sizes integer bytes.

    >>> graph = Graph.from_arrays(
    ...     compute_ns=[5, 7], tensor_producer=[0], edge_tensor=[0], edge_consumer=[1]
    ... )
    >>> graph
    Graph(2 ops, 1 tensors, 1 edges, kinds: gpu)
    >>> graph.tensor_name(0)
    'op0:0'
    """

    compute_ns: npt.NDArray[np.int64]  # [kinds, ops] in ns; -1: cannot run on that kind
    persistent_bytes: npt.NDArray[np.int64]  # [ops]: held on the device for the whole step
    scratch_bytes: npt.NDArray[np.int64]  # [ops]: held while the op runs
    group: npt.NDArray[np.int32]  # [ops]: index into `group_names`, -1 none
    allowed_set: npt.NDArray[np.int32]  # [ops]: index into `allowed_sets`, -1 any device
    role: npt.NDArray[np.uint8]  # [ops]: index into `ROLES`
    forward_op: npt.NDArray[np.int32]  # [ops]: the forward op a backward op belongs to, -1 none
    tensor_producer: npt.NDArray[np.int32]  # [tensors]: the op that makes it
    tensor_bytes: npt.NDArray[np.int64]  # [tensors]: size
    tensor_transfer_ns: npt.NDArray[np.int64]  # [tensors]: -1: from bytes
    tensor_class: npt.NDArray[np.uint8]  # [tensors]: index into `MEMORY_CLASSES`
    edge_tensor: npt.NDArray[np.int32]  # [edges]: what is consumed
    edge_consumer: npt.NDArray[np.int32]  # [edges]: the op that consumes it
    op_names: tuple[str, ...]  # [ops]: distinct
    op_kinds: tuple[str, ...]  # [ops]: such as "conv", or empty
    module_paths: tuple[str, ...]  # [ops]: such as "encoder/layer3", or empty
    device_kinds: tuple[str, ...]  # [kinds]: distinct; the rows of `compute_ns`
    group_names: tuple[str, ...]  # distinct
    allowed_sets: tuple[tuple[str, ...], ...]  # distinct sets of device names
    default_cluster: Cluster | None  # came with it; no part of equality, fingerprint or files
    _cache: dict[str, Any]

    __slots__ = (*(column.name for column in COLUMNS), *Names._fields, "_cache", "default_cluster")

    def __init__(self) -> None:
        """Always a TypeError: a graph is made from arrays, by a builder or from a file."""
        raise TypeError("use Graph.from_arrays, GraphBuilder or load_graph")

    @classmethod
    def from_arrays(
        cls,
        *,
        num_ops: int | None = None,
        op_names: Sequence[str] | None = None,
        op_kinds: Sequence[str] | None = None,
        module_paths: Sequence[str] | None = None,
        device_kinds: Sequence[str] = ("gpu",),
        group_names: Sequence[str] | None = None,
        allowed_sets: Sequence[Sequence[str]] = (),
        compute_ns: Integers | None = None,
        persistent_bytes: Integers | None = None,
        scratch_bytes: Integers | None = None,
        group: Integers | None = None,
        allowed_set: Integers | None = None,
        role: Integers | None = None,
        forward_op: Integers | None = None,
        tensor_producer: Integers | None = None,
        tensor_bytes: Integers | None = None,
        tensor_transfer_ns: Integers | None = None,
        tensor_class: Integers | None = None,
        edge_tensor: Integers | None = None,
        edge_consumer: Integers | None = None,
        default_cluster: Cluster | None = None,
    ) -> Graph:
        """A graph from its columns; each is copied once.

        The arguments are the attributes of the same names: integers, or floats without a fraction.
        The number of ops is `num_ops`, or follows from `op_names` or `compute_ns`. What is left
        out has its default: names op0, op1, ...; 0 ns on every kind; 0 bytes; no group; any
        device; role forward; transfers from bytes; class activation; no tensors, no edges.
        A group column without `group_names` names its groups group0, group1, ...; `compute_ns` may
        be [ops] where there is one kind.

        Raises:
            InputError: a wrong type, shape, value or index, or names that are not distinct.
            CycleError: the edges make a cycle.
        """
        given = {k: v for k, v in locals().items() if k in cls.__slots__ and v is not None}
        kinds = texts("device kind", device_kinds, unique=True)
        if not kinds:
            raise InputError("a graph needs at least one device kind")
        given |= {c.name: as_array(c.name, given[c.name]) for c in COLUMNS if c.name in given}
        if compute_ns is not None and len(kinds) == 1 and given["compute_ns"].ndim == 1:
            given["compute_ns"] = given["compute_ns"][np.newaxis]
        counts = count_axes(given, num_ops, len(kinds))
        columns = {c.name: exact_column(c, given.get(c.name), counts) for c in COLUMNS}
        names = read_names(given, counts["ops"], kinds, columns["group"])
        check(columns, names)
        return _restore(columns, names, default_cluster)

    @property
    def num_ops(self) -> int:
        """How many ops."""
        return len(self.op_names)

    @property
    def num_tensors(self) -> int:
        """How many tensors, control tensors among them."""
        return len(self.tensor_producer)

    @property
    def num_edges(self) -> int:
        """How many (tensor, consumer) pairs."""
        return len(self.edge_tensor)

    @property
    def num_kinds(self) -> int:
        """How many device kinds."""
        return len(self.device_kinds)

    def index(self, name: str) -> int:
        """The index of the op of that name.

        Raises:
            InputError: there is none.
        """
        if "index" not in self._cache:
            self._cache["index"] = dict(zip(self.op_names, range(self.num_ops), strict=True))
        try:
            return int(self._cache["index"][name])
        except KeyError:
            raise InputError(f'no op "{name}" in this graph of {self.num_ops} ops') from None

    def tensor_name(self, tensor: int) -> str:
        """The name of a tensor by index: "producer:k", k counting the producer's data tensors.

        A control tensor is "^producer".

        Raises:
            IndexError: there is no such tensor.
        """
        producer = self.op_names[self.tensor_producer[tensor]]
        if self.tensor_class[tensor] == CONTROL:
            return f"^{producer}"
        if "ordinal" not in self._cache:
            self._cache["ordinal"] = ordinals(self.tensor_producer, self.tensor_class)
        return f"{producer}:{self._cache['ordinal'][tensor]}"

    @property
    def fingerprint(self) -> str:
        """SHA-256 of all columns and names in insertion order, 64 hexadecimal digits."""
        if "fingerprint" not in self._cache:
            digest = hashlib.sha256(b"baechi graph 1")
            for column in COLUMNS:
                values = getattr(self, column.name)
                digest.update(f"\n{column.name} {values.dtype} {values.shape}\n".encode())
                digest.update(values.astype(values.dtype.newbyteorder("<"), copy=False).tobytes())
            sets = [str(len(names)) for names in self.allowed_sets]
            for part in (*self._names()[:-1], sets, *self.allowed_sets):
                lengths = np.fromiter(map(len, part), "<i8", len(part))
                digest.update(f"\n{len(part)} texts\n".encode() + lengths.tobytes())
                digest.update("".join(part).encode())
            self._cache["fingerprint"] = digest.hexdigest()
        return str(self._cache["fingerprint"])

    def topological_order(self) -> npt.NDArray[np.int32]:
        """[ops]: op indices, each after its producers, by a first-in first-out queue.

        Sources come in insertion order; a consumer is appended when its last producer leaves the
        queue, several of them in the order of their first edges from it.
        """
        if "order" not in self._cache:
            producer = self.tensor_producer[self.edge_tensor]
            order = topological_order(self.num_ops, producer, self.edge_consumer)
            self._cache["order"] = read_only(np.array(order, np.int32))
        result: npt.NDArray[np.int32] = self._cache["order"]
        return result

    def flatten(self) -> _core.FlatGraph:
        """The numbers of this graph for the core; made once."""
        if "flat" not in self._cache:
            from baechi import _core

            self._cache["flat"] = _core.FlatGraph(*core_columns(self).values())
        flat: _core.FlatGraph = self._cache["flat"]
        return flat

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the graph; the suffix .json or .npz tells the format, InputError for another."""
        from baechi.formats import save_graph

        save_graph(self, path)

    def to_networkx(self) -> networkx.MultiDiGraph[str]:
        """The graph for networkx; docs/formats.md lists the attributes.

        Raises:
            MissingFrameworkError: networkx is not installed.
        """
        from baechi.formats.networkx_graphs import to_networkx

        return to_networkx(self)

    @classmethod
    def from_networkx(cls, graph: networkx.DiGraph[Any] | networkx.MultiDiGraph[Any]) -> Graph:
        """A graph from networkx; docs/formats.md lists the attributes.

        Raises:
            InputError: an attribute is missing or wrong.
            CycleError: the edges make a cycle.
            MissingFrameworkError: networkx is not installed.
        """
        from baechi.formats.networkx_graphs import from_networkx

        return from_networkx(graph)

    def __eq__(self, other: object) -> bool:
        """Whether all columns and names are equal, in the same order."""
        if not isinstance(other, Graph):
            return NotImplemented
        return self is other or (
            self._names() == other._names()
            and all(np.array_equal(getattr(self, c.name), getattr(other, c.name)) for c in COLUMNS)
        )

    def __hash__(self) -> int:
        """From the fingerprint, so that equal graphs have equal hashes."""
        return hash(self.fingerprint)

    def __repr__(self) -> str:
        """The counts and the device kinds."""
        counts = f"{self.num_ops} ops, {self.num_tensors} tensors, {self.num_edges} edges"
        return f"Graph({counts}, kinds: {', '.join(self.device_kinds)})"

    def _repr_html_(self) -> str:
        from baechi.report.notebooks import graph_html

        return graph_html(self)

    def __reduce__(self) -> tuple[Any, ...]:
        """The columns and the names; caches are not pickled."""
        columns = {column.name: getattr(self, column.name) for column in COLUMNS}
        return _restore, (columns, self._names(), self.default_cluster)

    def _frozen(self, name: str, *_: object) -> None:
        raise AttributeError(f"a Graph is frozen: {name} stays as it is")

    __setattr__ = __delattr__ = _frozen

    def _names(self) -> Names:
        return Names(*(getattr(self, field) for field in Names._fields))


def _restore(columns: Mapping[str, Array], names: Names, default_cluster: Cluster | None) -> Graph:
    graph = object.__new__(Graph)
    for name, values in columns.items():
        object.__setattr__(graph, name, read_only(values))
    for name, text in names._asdict().items():
        object.__setattr__(graph, name, text)
    object.__setattr__(graph, "default_cluster", default_cluster)
    object.__setattr__(graph, "_cache", {})
    return graph
