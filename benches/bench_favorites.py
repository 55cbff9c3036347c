"""Favorite children for m-SCT: the certified solution, the whole program, the greedy rule.

The rows of docs/m-sct.md come from m_sct.py, which also measures memory and what favorites buy.
"""

import pytest

import baechi
import families
from baechi.relaxation import relax


def program(graph, cluster):
    """The arguments of `relax`."""
    from baechi import _core

    columns = _core.pairs(graph.flatten(), cluster.flatten(graph), "physical")
    return (*columns[:2], *(column.astype(float) for column in columns[2:]))


@pytest.fixture
def slow(request):
    """Skip what takes minutes unless it is asked for."""

    def skip(is_slow):
        options = request.config
        if is_slow and not (
            options.getoption("benchmark_disable") or options.getoption("slow_baseline")
        ):
            pytest.skip("takes minutes: --slow-baseline")

    return skip


@pytest.mark.parametrize("num_ops", [10_000, 100_000, 1_000_000])
@pytest.mark.parametrize("name", families.FAMILIES)
def bench_exact(timed, scaled, name, num_ops):
    graph = families.family(name, scaled(num_ops, 3_000), ratio=1.0, seed=1)
    cluster = families.unit_cluster()
    found = timed(
        f"favorites, {name}",
        graph.num_ops,
        lambda: baechi.favorites(graph, cluster),
        rounds=3 if num_ops < 100_000 else 1,
        series=f"favorites, {name}",
    )
    assert found.gap < 1e-8


@pytest.mark.parametrize("num_ops", [10_000, 100_000])
@pytest.mark.parametrize("name", families.FAMILIES)
def bench_whole_program(timed, scaled, slow, name, num_ops):
    slow(num_ops > 10_000)
    graph = families.family(name, scaled(num_ops), ratio=1.0, seed=1)
    given = program(graph, families.unit_cluster())
    found = timed(
        f"whole program, {name}",
        graph.num_ops,
        lambda: relax(*given, whole_ops=graph.num_ops),
        rounds=1,
        series=f"favorites, {name}",
        is_baseline=True,
    )
    assert found.upper_bound <= found.lower_bound * (1 + 1e-8)


@pytest.mark.parametrize(("ratio", "most"), [(1.0, 0.001), (10.0, 0.06)])
def bench_layered_within_5_s(timed, scaled, ratio, most):
    graph = families.family("layered", scaled(10_000), ratio=ratio, seed=1)
    cluster = families.unit_cluster()
    found = timed(
        f"favorites within 5 s, layered, ratio {ratio:g}",
        graph.num_ops,
        lambda: baechi.favorites(graph, cluster, time_limit=5.0),
        rounds=1,
    )
    assert found.gap <= most


def bench_greedy(timed, scaled, make):
    graph, cluster = make.training(scaled(1_000_000)), make.cluster(8)
    timed(
        "favorites by the greedy rule, blocks",
        graph.num_ops,
        lambda: baechi.favorites(graph, cluster, "greedy"),
        rounds=3,
    )
