"""Favorite children for m-SCT."""

import pytest

from baechi.relaxation import favorites


@pytest.mark.parametrize("num_ops", [1_000, 3_000])
def bench_linear_program(timed, scaled, make, num_ops):
    graph, cluster = make.layered(scaled(num_ops)), make.cluster(4)
    timed(
        "favorites by the linear program, layered",
        graph.num_ops,
        lambda: favorites(graph, cluster, "lp"),
        rounds=3,
    )


def bench_greedy(timed, scaled, make):
    graph, cluster = make.training(scaled(1_000_000)), make.cluster(8)
    timed(
        "favorites by the greedy rule, blocks",
        graph.num_ops,
        lambda: favorites(graph, cluster, "greedy"),
        rounds=3,
    )
