"""Simulating: placements in, times and peaks out."""

import numpy as np
import pytest

import baechi


@pytest.mark.parametrize("what", ["makespan", "peaks", "unordered"])
def bench_many_placements(timed, scaled, make, what):
    """What a local search asks: a good placement with one op in a hundred moved."""
    graph, cluster = make.training(scaled(1_000)), make.cluster(4)
    batch = scaled(1_000, small=4)
    plan = baechi.place(graph, cluster, "m-etf")
    devices = np.tile(plan.device, (batch, 1))
    rng = np.random.default_rng(1)
    moved = rng.random(devices.shape) < 0.01
    devices[moved] = rng.integers(0, 4, int(moved.sum()))
    order = None if what == "unordered" else np.tile(plan.order, (batch, 1))
    how = {
        "makespan": "with launch order, makespans",
        "peaks": "with launch order, makespans and exact peaks",
        "unordered": "list-scheduled, makespans and exact peaks",
    }
    timed(
        f"`simulate_many`, {batch:,} x {graph.num_ops:,} ops, {how[what]}",
        batch * graph.num_ops,
        lambda: baechi.simulate_many(graph, cluster, devices, order, peaks=what != "makespan"),
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
