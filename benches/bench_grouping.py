"""Grouping: a graph in, a smaller one out."""

import baechi


def bench_group(timed, scaled, make):
    graph = make.training(scaled(100_000))
    grouping = timed("`group`, blocks", graph.num_ops, lambda: baechi.group(graph), rounds=3)
    assert grouping.graph.num_ops < graph.num_ops


def bench_expand(timed, scaled, make):
    graph, cluster = make.training(scaled(100_000)), make.cluster(8)
    grouping = baechi.group(graph)
    plan = baechi.place(grouping.graph, cluster, "m-etf")
    expanded = timed(
        "`Grouping.expand`, blocks",
        graph.num_ops,
        lambda: grouping.expand(plan),
        rounds=3,
    )
    assert len(expanded.op_names) == graph.num_ops
