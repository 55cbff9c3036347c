"""Reading and writing graphs and plans."""

import pytest

import baechi


@pytest.mark.parametrize(
    ("suffix", "num_ops"), [("npz", 1_000_000), ("json", 10_000)], ids=["npz", "json"]
)
def bench_load(timed, scaled, make, tmp_path, suffix, num_ops):
    graph = make.training(scaled(num_ops))
    path = tmp_path / f"graph.{suffix}"
    graph.save(path)
    loaded = timed(
        f"`load_graph`, {suffix}", graph.num_ops, lambda: baechi.load_graph(path), rounds=5
    )
    assert loaded.fingerprint == graph.fingerprint


def bench_save_plan(timed, scaled, make, tmp_path):
    graph, cluster = make.training(scaled(10_000)), make.cluster(8)
    plan = baechi.place(graph, cluster, "m-etf")
    path = tmp_path / "plan.json"
    timed("`Plan.save`", graph.num_ops, lambda: plan.save(path), rounds=5)
    assert baechi.Plan.load(path, graph) == plan
