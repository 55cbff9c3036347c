"""Perturbing: factors within the spread, from a seed, and a plan that is kept or made anew."""

from __future__ import annotations

import numpy as np
import pytest

import baechi
from baechi import Cluster, Graph, InputError, Link, Plan, PlanMismatchError, workloads
from baechi.perturbation import perturb, perturbed


def placed(algorithm: str = "m-etf") -> tuple[Graph, Cluster, Plan]:
    graph = workloads.transformer_like(layers=1, heads=2, seed=0)
    cluster = Cluster("2x512MiB", Link("10us", "12GB/s"))
    return graph, cluster, baechi.place(graph, cluster, algorithm)


def test_nothing_changes_without_a_spread() -> None:
    graph, cluster, plan = placed()
    found = perturb(graph, cluster, plan, spread=0, samples=3, remade=2)
    assert found.kept_ns.tolist() == [plan.makespan_ns] * 3
    assert found.remade_ns.tolist() == [plan.makespan_ns] * 2
    assert found.predicted_ns == plan.makespan_ns


def test_every_factor_is_within_the_spread() -> None:
    graph, cluster, _ = placed()
    other, links = perturbed(graph, cluster, 0.2, np.random.default_rng(0))
    for was, now in (
        (graph.compute_ns, other.compute_ns),
        (cluster.latency_ns, links.latency_ns),
        (cluster.bytes_per_s, links.bytes_per_s),
    ):
        assert (np.abs(now - was) <= 0.2 * was + 1).all()
        assert (now != was).any()
    assert (other.tensor_bytes == graph.tensor_bytes).all()


def test_given_transfer_times_change_and_what_cannot_run_stays_so() -> None:
    graph = Graph.from_arrays(
        compute_ns=[[1000, -1], [-1, 1000]],
        device_kinds=("gpu", "cpu"),
        tensor_producer=[0],
        tensor_transfer_ns=[10_000],
        edge_tensor=[0],
        edge_consumer=[1],
    )
    other, _ = perturbed(graph, Cluster("gpu:1,cpu:1"), 0.2, np.random.default_rng(0))
    assert ((other.compute_ns < 0) == (graph.compute_ns < 0)).all()
    assert other.tensor_transfer_ns[0] != 10_000
    assert 8_000 <= other.tensor_transfer_ns[0] <= 12_000


def test_a_seed_gives_the_same_steps_again() -> None:
    graph, cluster, plan = placed()
    one, other, third = (
        perturb(graph, cluster, plan, samples=4, remade=1, seed=seed) for seed in (0, 0, 1)
    )
    assert one.kept_ns.tolist() == other.kept_ns.tolist() != third.kept_ns.tolist()


def test_a_new_plan_that_is_not_found_is_counted() -> None:
    graph, cluster, plan = placed("single")
    found = perturb(graph, cluster.with_memory("10MiB"), plan, samples=2, remade=2)
    assert found.remade_ns.tolist() == [-1, -1]
    assert not found.kept_fits.any()


def test_a_plan_of_another_graph_is_refused() -> None:
    graph, cluster, plan = placed()
    with pytest.raises(PlanMismatchError):
        perturb(workloads.chain(3, seed=0), cluster, plan)
    with pytest.raises(InputError, match="spread 1"):
        perturb(graph, cluster, plan, spread=1)
    with pytest.raises(InputError, match="2 samples"):
        perturb(graph, cluster, plan, samples=2, remade=3)
