"""Graphs that were made with networkx, not by Baechi."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import networkx
import pytest

from baechi.errors import InputError, MissingFrameworkError
from baechi.graph import Graph
from baechi.workloads import diamond


def test_a_plain_networkx_graph_needs_only_compute_times() -> None:
    plain: Any = networkx.DiGraph()
    plain.add_node(1, compute_ns=5)
    plain.add_node(2, compute_ns=6)
    plain.add_edge(1, 2, bytes=4)
    graph = Graph.from_networkx(plain)
    assert graph.op_names == ("1", "2")
    assert graph.tensor_bytes.tolist() == [4]


def test_edges_with_the_same_tensor_share_it() -> None:
    plain: Any = networkx.DiGraph()
    plain.add_nodes_from("abc", compute_ns=1)
    plain.add_edge("a", "b", tensor="x", bytes=4)
    plain.add_edge("a", "c", tensor="x", bytes=4)
    assert Graph.from_networkx(plain).edge_tensor.tolist() == [0, 0]


def _without_times(plain: Any) -> None:
    del plain.nodes["a"]["compute_ns"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_without_times, 'op "a" has no attribute "compute_ns"'),
        (lambda g: g.nodes["a"].update(role="x"), "op \"a\": 'x' is not one of"),
        (lambda g: g.nodes["a"].update(forward_op="z"), 'there is no op "z"'),
        (lambda g: g.edges["a", "b"].update(bytes=-1), r"tensor_bytes\[0\] is -1"),
        (lambda g: g.edges["a", "b"].update(memory_class="x"), "'x' is not one of"),
        (lambda g: g.edges["a", "b"].update(tensor=[]), "not a number or a text"),
        (lambda g: g.edges["a", "b"].update(tensor=1, bytes=5), "tensor 1 do not agree"),
    ],
)
def test_a_wrong_attribute_of_networkx_is_refused(
    change: Callable[[Any], None], message: str
) -> None:
    plain: Any = networkx.DiGraph()
    plain.add_nodes_from("abc", compute_ns=1)
    plain.add_edge("a", "b", bytes=4)
    plain.add_edge("a", "c", tensor=1, bytes=4)
    change(plain)
    with pytest.raises(InputError, match=message):
        Graph.from_networkx(plain)


def test_an_undirected_graph_is_refused() -> None:
    with pytest.raises(InputError, match="not a directed graph"):
        Graph.from_networkx(networkx.Graph())


def test_a_missing_networkx_names_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "networkx", None)
    with pytest.raises(MissingFrameworkError, match=r"baechi\[networkx\]"):
        diamond(seed=1).to_networkx()
