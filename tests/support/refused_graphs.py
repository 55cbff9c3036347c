"""Graphs that are none, one mistake each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import networkx
import numpy as np

from baechi.builder import GraphBuilder
from baechi.errors import CycleError
from baechi.graph import Graph
from refusals import Refusal, refusal

__all__ = ["REFUSED_GRAPHS"]

PAIR: dict[str, Any] = {
    "compute_ns": [5, 7],
    "op_names": ["a", "b"],
    "tensor_producer": [0],
    "tensor_bytes": [9],
    "edge_tensor": [0],
    "edge_consumer": [1],
}


def arrays(name: str, *words: str, error: Any = None, **changes: Any) -> Refusal:
    def call(_: Path) -> Graph:
        return Graph.from_arrays(**{**PAIR, **changes})

    return refusal(name, call, *words, **({} if error is None else {"error": error}))


def built(name: str, *words: str, **op: Any) -> Refusal:
    def call(_: Path) -> Graph:
        builder = GraphBuilder()
        builder.op("a", 5)
        builder.op(**{"name": "b", "compute_ns": 5, **op})
        return builder.build()

    return refusal(name, call, *words)


def steps(name: str, step: Any, *words: str, error: Any = None) -> Refusal:
    def call(_: Path) -> Graph:
        builder = GraphBuilder()
        builder.op("a", 5)
        builder.op("b", 5)
        step(builder)
        return builder.build()

    return refusal(name, call, *words, **({} if error is None else {"error": error}))


def cycle(builder: GraphBuilder) -> None:
    builder.connect("a", "b", 1)
    builder.connect("b", "a", 1)


def ring(_: Path) -> Graph:
    at = np.arange(1_000)
    return Graph.from_arrays(
        compute_ns=np.ones(1_000, np.int64),
        tensor_producer=at,
        edge_tensor=at,
        edge_consumer=(at + 1) % 1_000,
    )


def networkx_graph(
    name: str, *words: str, nodes: Any, edges: Any = (), error: Any = None
) -> Refusal:
    def call(_: Path) -> Graph:
        graph = networkx.MultiDiGraph()
        graph.add_nodes_from(nodes)
        graph.add_edges_from(edges)
        return Graph.from_networkx(graph)

    return refusal(name, call, *words, **({} if error is None else {"error": error}))


REFUSED_GRAPHS = [
    steps("a cycle of two", cycle, '"a" -> "b" -> "a"', error=CycleError),
    refusal("a cycle of a thousand", ring, "990 more", '"op2"', error=CycleError),
    steps("a self loop", lambda b: b.connect("a", "a", 1), '"a"', "own output"),
    steps("an edge from an unknown op", lambda b: b.connect("z", "a", 1), "'z'"),
    steps("an edge to an unknown op", lambda b: b.connect("a", "z", 1), "'z'"),
    steps("an edge from no name", lambda b: b.connect(["a"], "b", 1), "['a']"),
    steps("an op twice", lambda b: b.op("a", 1), 'op "a" is there already'),
    steps("an op without a name", lambda b: b.op("", 1), "not empty, not ''"),
    steps("a name that is no text", lambda b: b.op(7, 1), "not 7"),
    steps("a name that is not UTF-8", lambda b: b.op("\ud800", 1), "\\ud800", "UTF-8"),
    steps("a tensor of 2^62 bytes", lambda b: b.tensor("a", 2**62), '"a"', str(2**62)),
    steps("an unknown memory class", lambda b: b.tensor("a", 1, memory_class="x"), '"a"', "'x'"),
    steps("an edge of tensor 5", lambda b: b.edge(5, "a"), "tensor 5", "there are 0"),
    steps("a tensor by a huge number", lambda b: b.edge(2**70, "a"), str(2**70)),
    built("a negative time", '"b"', "compute_ns is -1", compute_ns=-1),
    built("a time that is NaN", '"b"', "compute_ns is nan", compute_ns=float("nan")),
    built("an infinite time", '"b"', "compute_ns is inf", compute_ns=float("inf")),
    built("a fractional time", '"b"', "compute_ns is 1.5", compute_ns=1.5),
    built("a true time", '"b"', "compute_ns is True", compute_ns=True),
    built("a time of 2^100", '"b"', str(2**100), compute_ns=2**100),
    built("a time of an unknown kind", '"b"', "'tpu'", compute_ns={"tpu": 3}),
    built("an op for no kind", '"b"', "no device kind (gpu)", compute_ns={}),
    built("negative weights", '"b"', "persistent_bytes is -3", persistent_bytes=-3),
    built("scratch that is text", '"b"', "scratch_bytes is '4GiB'", scratch_bytes="4GiB"),
    built("an unknown role", '"b"', "'sideways'", role="sideways"),
    built("a forward op of a forward op", '"b"', "role", forward_op="a"),
    built("a group that is empty", '"b"', "group is ''", group=""),
    built("no device is allowed", '"b"', "allowed devices is empty", allowed_devices=[]),
    built("an allowed device by number", '"b"', "0", allowed_devices=[0]),
    arrays("two names for three ops", "shape (1, 3), not (1, 2)", compute_ns=[1, 2, 3]),
    arrays("a name twice", '"a" is there twice', op_names=["a", "a"]),
    arrays("one text for all names", "not one text", op_names="ab"),
    arrays("a NaN in a column", "compute_ns holds nan", compute_ns=[5, np.nan]),
    arrays("an infinity in a column", "tensor_bytes holds inf", tensor_bytes=[np.inf]),
    arrays("a float beyond 64 bits", "compute_ns[0, 1]", "10000000000", compute_ns=[5, 1e30]),
    arrays("an integer beyond 64 bits", "compute_ns", compute_ns=[5, 2**64]),
    arrays("a column of texts", "compute_ns has type <U1", compute_ns=["5", "7"]),
    arrays("a column of objects", "type object", persistent_bytes=[None, 3]),
    arrays("a column of times", "type timedelta64", compute_ns=np.array([1, 2], "m8[ns]")),
    arrays("a complex column", "type complex128", compute_ns=np.array([1, 2j])),
    arrays("ragged rows", "compute_ns", compute_ns=[[1, 2], [3]]),
    arrays("a column too short", "persistent_bytes has shape (1,), not (2,)", persistent_bytes=[1]),
    arrays("three axes", "compute_ns has shape", compute_ns=np.zeros((1, 1, 2))),
    arrays("a scalar for a column", "scratch_bytes has shape ()", scratch_bytes=3),
    arrays("an unknown producer", "tensor_producer[0] is 9", "only 2", tensor_producer=[9]),
    arrays("a negative consumer", "edge_consumer[0] is -1", edge_consumer=[-1]),
    arrays("a consumer at 2^31", "edge_consumer[0] is 2147483648", edge_consumer=[2**31]),
    arrays("an unknown group", "group[1] is 3", "only 1", group=[0, 3], group_names=["g"]),
    arrays("an unknown role code", "role[0] is 9", role=[9, 0]),
    arrays(
        "an edge twice", '"a" to op "b" is there twice', edge_tensor=[0, 0], edge_consumer=[1, 1]
    ),
    arrays("an op for no kind at all", '"b" can run on no device kind', compute_ns=[5, -1]),
    arrays("no kinds", "at least one device kind", device_kinds=[], compute_ns=np.zeros((0, 2))),
    arrays("a set twice", "allowed_sets", allowed_sets=[["g"], ["g"]]),
    arrays("a negative number of ops", "-1", num_ops=-1, compute_ns=None, op_names=None),
    arrays("a number of ops that is none", "num_ops is 1.5", num_ops=1.5),
    arrays("a number for the names", "not a sequence", op_names=7, compute_ns=[1]),
    arrays("a number for the sets", "allowed_sets is 7", allowed_sets=7),
    arrays("a number for the times", "compute_ns has shape ()", compute_ns=5, op_names=None),
    arrays("groups without end", "group 2000000000 of 2 ops", group=[2_000_000_000, 0]),
    arrays(
        "more ops than arrays can have", str(2**62), num_ops=2**62, compute_ns=None, op_names=None
    ),
    arrays("a control tensor with bytes", '"a"', "has bytes", tensor_class=[6]),
    arrays("times that add up to 2^62", "compute_ns", str(2**62), compute_ns=[2**61, 2**61]),
    arrays("weights beyond 2^61", "persistent_bytes", str(2**61), persistent_bytes=[2**60, 2**60]),
    arrays(
        "bytes of all sorts beyond 2^61",
        "all bytes",
        str(5 * 2**59),
        tensor_bytes=[2**60],
        persistent_bytes=[2**59, 0],
    ),
    arrays("transfers beyond 2^62", "tensor_transfer_ns", str(2**62), tensor_transfer_ns=[2**62]),
    networkx_graph("a node without a time", '"a"', '"compute_ns"', nodes=["a"]),
    networkx_graph(
        "a node with a NaN", "compute_ns holds nan", nodes=[("a", {"compute_ns": float("nan")})]
    ),
    networkx_graph(
        "1 and '1'", "same name", nodes=[(1, {"compute_ns": 1}), ("1", {"compute_ns": 1})]
    ),
    networkx_graph(
        "a text for the bytes",
        "bytes is 'many'",
        nodes=[("a", {"compute_ns": 1}), ("b", {"compute_ns": 1})],
        edges=[("a", "b", {"bytes": "many"})],
    ),
    networkx_graph(
        "a list for a kind", "op kind", nodes=[("a", {"compute_ns": 1, "kind": ["conv"]})]
    ),
    networkx_graph(
        "a list for a group", '"a"', "group", nodes=[("a", {"compute_ns": 1, "group": ["g"]})]
    ),
    networkx_graph(
        "a number for the devices",
        '"a"',
        "allowed_devices",
        nodes=[("a", {"compute_ns": 1, "allowed_devices": 7})],
    ),
    networkx_graph(
        "a cycle in networkx",
        '"a"',
        '"b"',
        error=CycleError,
        nodes=[("a", {"compute_ns": 1}), ("b", {"compute_ns": 1})],
        edges=[("a", "b", {}), ("b", "a", {})],
    ),
    refusal(
        "an undirected graph", lambda _: Graph.from_networkx(networkx.Graph()), "Graph", "directed"
    ),
]
