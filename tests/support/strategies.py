"""Random graphs and clusters for properties: small numbers, so that ties are frequent.

A case is feasible in that every op, and every group as a whole, has a device that may run it;
whether the memory suffices is left open.
"""

from __future__ import annotations

import dataclasses
import random
from typing import Any

import numpy as np
from hypothesis import strategies as st

from baechi.builder import GraphBuilder
from baechi.cluster import Cluster, Device
from baechi.graph import Graph

__all__ = ["CHANNELS", "LIMITS", "Case", "cases", "dense_case", "favorites", "placements"]

CHANNELS = ("serial", "duplex", "parallel", "bus", "custom")
LIMITS = ("ample", "tight", "dead-tight")
KINDS = ("gpu", "cpu", "npu")
SPEEDS = (1.0, 1.0, 2.0, 0.5, 3.0, 0.7)
RATES = (0, 10**9, 3 * 10**8, 4 * 10**9)


class Case:
    """A graph and a cluster that suits it."""

    def __init__(self, graph: Graph, cluster: Cluster) -> None:
        """Keeps both."""
        self.graph = graph
        self.cluster = cluster

    def __repr__(self) -> str:
        """Everything that a failure needs to be understood."""
        columns = ("compute_ns", "persistent_bytes", "scratch_bytes", "group", "allowed_set")
        tensors = ("tensor_producer", "tensor_bytes", "tensor_transfer_ns")
        names = (*columns, "role", "forward_op", *tensors, "edge_tensor", "edge_consumer")
        graph = ", ".join(f"{name}={getattr(self.graph, name).tolist()}" for name in names)
        cluster = self.cluster.to_json_dict()
        return f"Case({graph}, allowed_sets={self.graph.allowed_sets}, cluster={cluster})"


@dataclasses.dataclass
class _Op:
    times: list[int | None]
    persistent: int
    scratch: int
    group: int | None
    pins: frozenset[int] | None
    backward: bool


@st.composite
def cases(
    draw: Any,
    *,
    channels: str | None = None,
    limits: str | None = None,
    max_ops: int = 9,
    max_devices: int = 4,
    grouped: bool = True,
) -> Case:
    """A case; what is None is drawn."""
    num_devices = draw(st.integers(1, max_devices))
    num_kinds = draw(st.sampled_from([1, 1, 2, 3]))
    kinds = draw(
        st.lists(st.integers(0, num_kinds - 1), min_size=num_devices, max_size=num_devices)
    )
    ops = draw(_ops(num_devices, kinds, num_kinds, max_ops, grouped))
    tensors, control = draw(_tensors(len(ops)))
    graph = _graph(ops, tensors, control, num_kinds)
    cluster = draw(_clusters(kinds, _sizes(graph), channels, limits))
    return Case(graph, cluster)


def favorites(case: Case) -> st.SearchStrategy[Any]:
    """Any favorites: by a method, or a child or nothing given for every op."""
    graph = case.graph
    children: list[set[int]] = [{-1} for _ in range(graph.num_ops)]
    producers = graph.tensor_producer[graph.edge_tensor].tolist()
    for producer, consumer in zip(producers, graph.edge_consumer.tolist(), strict=True):
        children[producer].add(consumer)
    given = st.tuples(*(st.sampled_from(sorted(some)) for some in children)).map(list)
    return st.one_of(given, st.sampled_from(["lp", "greedy", "none"]))


def placements(case: Case) -> st.SearchStrategy[list[int]]:
    """A device for every op that may run it; groups may be split."""
    graph, cluster = case.graph, case.cluster
    homes = []
    for op in range(graph.num_ops):
        allowed = graph.allowed_set[op]
        pins = graph.allowed_sets[allowed] if allowed >= 0 else cluster.names
        homes.append(
            [
                at
                for at, (name, kind) in enumerate(zip(cluster.names, cluster.kinds, strict=True))
                if name in pins and graph.compute_ns[_row(graph, kind), op] >= 0
            ]
        )
    return st.tuples(*map(st.sampled_from, homes)).map(list)


def dense_case(seed: int, *, max_ops: int = 13, max_devices: int = 3) -> Case:
    """A case of many tensors and so little memory that a plan, if any, often waits for it."""
    rng = random.Random(seed)
    num_ops, num_devices = rng.randint(4, max_ops), rng.randint(2, max_devices)
    builder = GraphBuilder()
    names = [
        builder.op(
            f"op{at}",
            rng.choice([0, 1, 2, 5, 9]),
            persistent_bytes=rng.choice([0, 0, 1, 3]),
            scratch_bytes=rng.choice([0, 0, 2, 5]),
            role=rng.choice(["forward", "update"]),
        )
        for at in range(num_ops)
    ]
    rng.shuffle(names)
    for at, name in enumerate(names[:-1]):
        for _ in range(rng.choice([1, 1, 2])):
            given = rng.choice([None, None, 0, 4])
            tensor = builder.tensor(name, rng.randrange(9), transfer_ns=given)
            for consumer in sorted(
                set(rng.choices(names[at + 1 :], k=rng.choice([0, 1, 1, 2, 3])))
            ):
                builder.edge(tensor, consumer)
    graph = builder.build()
    total = int(graph.tensor_bytes.sum() + graph.persistent_bytes.sum())

    def matrix(values: Any) -> Any:
        return [[rng.choice(values) for _ in range(num_devices)] for _ in range(num_devices)]

    links = matrix(range(5)), matrix(RATES)
    channels: Any = rng.choice(CHANNELS)
    if channels == "bus":
        channels = [[0] * num_devices] * num_devices, [[0] * num_devices] * num_devices
    elif channels == "custom":
        channels = matrix([-1, 0, 1]), matrix([-1, 0, 1])
    caps = [rng.randint(total // 4, total + 1) for _ in range(num_devices)]
    devices = [Device(f"d{at}", "gpu", cap, 0, rng.choice(SPEEDS)) for at, cap in enumerate(caps)]
    return Case(graph, Cluster(devices, links, channels))


def _row(graph: Graph, kind: str) -> int:
    return 0 if graph.num_kinds == 1 else graph.device_kinds.index(kind)


@st.composite
def _ops(
    draw: Any, num_devices: int, kinds: list[int], num_kinds: int, max_ops: int, grouped: bool
) -> list[_Op]:
    times = st.lists(st.integers(-2, 6), min_size=num_kinds, max_size=num_kinds)
    sizes = st.sampled_from([0, 0, 1, 2, 5, 9])
    groups = st.sampled_from([None, None, None, 0, 1] if grouped else [None])
    pins = st.one_of(st.none(), st.none(), st.none(), st.sets(st.integers(0, num_devices - 1)))
    rows = st.tuples(times, sizes, sizes, groups, pins, st.booleans())
    ops = []
    for row in draw(st.lists(rows, min_size=1, max_size=max_ops)):
        given, persistent, scratch, group, wished, backward = row
        # -2 is one more way to be 0 ns, -1 cannot run there; nobody is left without a device.
        found: list[int | None] = [0 if ns == -2 else None if ns < 0 else ns for ns in given]
        if all(found[kind] is None for kind in kinds):
            found[kinds[0]] = 3
        op = _Op(found, persistent, scratch, group, None, backward)
        if wished and _homes(dataclasses.replace(op, pins=frozenset(wished)), kinds):
            op.pins = frozenset(wished)
        ops.append(op)
    for group in (0, 1):
        members = [op for op in ops if op.group == group]
        if members and not set.intersection(*(_homes(op, kinds) for op in members)):
            for op in members:
                op.group = None
    return ops


def _homes(op: _Op, kinds: list[int]) -> set[int]:
    able = {at for at, kind in enumerate(kinds) if op.times[kind] is not None}
    return able if op.pins is None else able & op.pins


@st.composite
def _tensors(draw: Any, num_ops: int) -> Any:
    """Tensors (producer, bytes, given ns, consumers) and control edges along a hidden order."""
    order = draw(st.permutations(range(num_ops)))
    ranks = st.integers(0, num_ops - 1)
    row = st.tuples(
        ranks,
        st.sampled_from([0, 1, 2, 3, 7]),
        st.sampled_from([None, None, None, 0, 1, 4]),
        st.lists(ranks, max_size=3, unique=True),
    )
    tensors = []
    for rank, size, given, later in draw(st.lists(row, max_size=2 * num_ops)):
        consumers = [order[at] for at in later if at > rank]
        tensors.append((order[rank], size, given, consumers))
    pairs = draw(st.lists(st.tuples(ranks, ranks), max_size=2, unique=True))
    control = [(order[one], order[other]) for one, other in pairs if one < other]
    return tensors, control


def _graph(ops: list[_Op], tensors: Any, control: Any, num_kinds: int) -> Graph:
    builder = GraphBuilder(KINDS[:num_kinds])
    names = [f"op{at}" for at in range(len(ops))]
    forward: list[str] = []
    for name, op in zip(names, ops, strict=True):
        backward = op.backward and len(forward) > 0
        builder.op(
            name,
            dict(zip(KINDS, op.times, strict=False)),
            persistent_bytes=op.persistent,
            scratch_bytes=op.scratch,
            group=None if op.group is None else f"group{op.group}",
            allowed_devices=None if op.pins is None else [f"d{at}" for at in op.pins],
            role="backward" if backward else "forward",
            forward_op=forward[-1] if backward else None,
        )
        if not backward:
            forward.append(name)
    for producer, size, given, consumers in tensors:
        tensor = builder.tensor(names[producer], size, transfer_ns=given)
        for consumer in consumers:
            builder.edge(tensor, names[consumer])
    for producer, consumer in control:
        builder.control_edge(names[producer], names[consumer])
    return builder.build()


def _sizes(graph: Graph) -> tuple[int, int]:
    """Bytes of everything together, and what one device needs that runs one op after the other."""
    producer, size = graph.tensor_producer.tolist(), graph.tensor_bytes.tolist()
    left = np.bincount(graph.edge_tensor, minlength=graph.num_tensors).tolist()
    held = peak = int(graph.persistent_bytes.sum())
    for op in graph.topological_order().tolist():
        held += sum(size[tensor] for tensor in range(len(size)) if producer[tensor] == op)
        peak = max(peak, held + int(graph.scratch_bytes[op]))
        for tensor in graph.edge_tensor[graph.edge_consumer == op].tolist():
            left[tensor] -= 1
            held -= 0 if left[tensor] else size[tensor]
    total = graph.persistent_bytes.sum() + graph.tensor_bytes.sum() + graph.scratch_bytes.sum()
    return int(total), peak


@st.composite
def _clusters(
    draw: Any, kinds: list[int], sizes: tuple[int, int], channels: str | None, limits: str | None
) -> Cluster:
    num_devices = len(kinds)
    limits = draw(st.sampled_from(LIMITS)) if limits is None else limits
    channels = draw(st.sampled_from(CHANNELS)) if channels is None else channels
    total, peak = sizes
    least, most = {
        "ample": (2 * total, 3 * total),
        "tight": (peak // 2, peak + 3),
        "dead-tight": (0, max(peak - 1, 0)),
    }[limits]
    devices = []
    for at, kind in enumerate(kinds):
        cap, reserve = draw(st.tuples(st.integers(least, most), st.sampled_from([0, 0, 3])))
        speed = draw(st.sampled_from(SPEEDS))
        devices.append(Device(f"d{at}", KINDS[kind], cap + reserve, reserve, speed))

    def matrix(values: Any) -> Any:
        row = st.lists(values, min_size=num_devices, max_size=num_devices)
        return draw(st.lists(row, min_size=num_devices, max_size=num_devices))

    if draw(st.booleans()):
        links = matrix(st.integers(0, 4)), matrix(st.sampled_from(RATES))
    else:
        one = draw(st.tuples(st.integers(0, 4), st.sampled_from(RATES)))
        links = tuple([[value] * num_devices] * num_devices for value in one)
    given: Any = channels
    if channels == "bus":
        given = [[0] * num_devices] * num_devices, [[0] * num_devices] * num_devices
    elif channels == "custom":
        ids = st.integers(-1, min(3, 2 * num_devices**2 - 1))
        given = matrix(ids), matrix(ids)
    return Cluster(devices, links, given)
