"""Simulating: placements in, times and peaks out."""

import numpy as np
import pytest

import baechi


@pytest.mark.parametrize("is_ordered", [True, False], ids=["ordered", "unordered"])
def bench_many_placements(timed, scaled, make, is_ordered):
    graph, cluster = make.training(scaled(1_000)), make.cluster(4)
    batch = scaled(1_000, small=4)
    devices = np.random.default_rng(1).integers(0, 4, (batch, graph.num_ops), np.int32)
    rank = np.argsort(graph.topological_order()).astype(np.int32)
    order = np.tile(rank, (batch, 1)) if is_ordered else None
    how = "with launch order" if is_ordered else "list-scheduled"
    timed(
        f"`simulate_many`, {batch:,} x {graph.num_ops:,} ops, {how}",
        batch * graph.num_ops,
        lambda: baechi.simulate_many(graph, cluster, devices, order),
        rounds=5,
    )


def bench_replay(timed, scaled, make):
    graph, cluster = make.training(scaled(100_000)), make.cluster(8)
    plan = baechi.place(graph, cluster, "m-etf")
    schedule = timed(
        "`simulate`: replay of a plan",
        graph.num_ops,
        lambda: baechi.simulate(graph, cluster, plan),
        rounds=5,
    )
    assert schedule.makespan_ns == plan.makespan_ns
