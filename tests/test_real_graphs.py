"""The 24 dnn-partitioning workloads by every algorithm, and the paper's worked example."""

from __future__ import annotations

from pathlib import Path

import networkx as nx
import pytest

import baechi
from baechi.original import tf, torch
from checker import check
from scheduled import finished

FOLDER = Path(__file__).parent.parent / "benches" / "workloads" / "dnn-partitioning"
WORKLOADS = sorted(FOLDER.glob("*-inputs/*/*.json"))


def test_there_are_24_workloads() -> None:
    assert len(WORKLOADS) == 24


@pytest.mark.parametrize(
    "path", WORKLOADS, ids=lambda path: "-".join(path.relative_to(FOLDER).with_suffix("").parts)
)
def test_every_algorithm_places_a_workload_within_its_limits(path: Path) -> None:
    graph = baechi.load_graph(path)
    comparison = baechi.compare(graph)
    assert comparison.best is not None
    for row in comparison.rows:
        assert row.plan is not None, row.error
        assert row.plan.fits
        assert comparison.lower_bound_ns <= row.plan.makespan_ns
        schedule = baechi.simulate(graph, comparison.cluster, row.plan)
        assert schedule.makespan_ns == row.plan.makespan_ns
        assert check(graph, comparison.cluster, finished(schedule)) == []


def figure_1(*, is_torch: bool) -> nx.DiGraph:
    """Fig. 1 of the paper: costs and memory of six ops, every transfer 1."""
    graph = nx.DiGraph()
    for op, (cost, memory) in enumerate([(1, 1), (3, 2), (3, 2), (1, 1), (3, 1), (1, 1)]):
        if is_torch:
            sizes = {"permanent_mem": memory, "temporary_mem": 0, "peak_mem": memory}
            sizes |= {"parameter_mem": 0, "output_mem": memory}
            graph.add_node(op, id=op, name=f"op{op}", weight=float(cost), **sizes)
        else:
            sizes = {"temporary_memory": 0, "persistent_memory": memory}
            sizes |= {"output_memory": [memory], "colocation_group": f"op{op}"}
            graph.add_node(op, id=op, name=f"op{op}", weight=cost, **sizes)
    for at, (one, other) in enumerate([(0, 1), (1, 2), (2, 3), (0, 4), (4, 5), (5, 3)]):
        if is_torch:
            tensor = {"name": str(at), "transfer_time": 1.0, "bytes": 0}
            graph.add_edge(one, other, id=at, weight=1.0, requested_bytes=0, tensor=tensor)
        else:
            tensors = [{"name": f"op{one}:0", "weight": 1, "num_bytes": 0}]
            graph.add_edge(one, other, id=at, weight=1, tensor=tensors)
    return graph


def devices(limit: int) -> nx.DiGraph:
    graph = nx.DiGraph()
    for device in range(2):
        graph.add_node(device, id=device, memory_limit=limit)
    return graph


@pytest.mark.parametrize("algorithm", ["m_etf", "m_sct"])
@pytest.mark.parametrize("era", [tf, torch], ids=["tf", "torch"])
@pytest.mark.parametrize(("limit", "makespan"), [(100, 8), (4, 9)])
def test_figure_1_of_the_paper(algorithm: str, era: object, limit: int, makespan: int) -> None:
    graph = figure_1(is_torch=era is torch)
    getattr(era, algorithm)(graph, devices(limit))
    assert graph.graph["makespan"] == pytest.approx(makespan)
