"""Placing: a graph in, a plan out."""

import numpy as np
import pytest

import baechi
import baseline_tf
from baechi.original import tf

LAYERED = "m-etf, `baechi-tf` rules, layered"


@pytest.mark.parametrize("num_ops", [300, 1_000, 3_000, 10_000])
def bench_m_etf_in_plain_python(timed, scaled, make, num_ops, request):
    slow = request.config.getoption("slow_baseline")
    if num_ops == 10_000 and not slow and not request.config.getoption("benchmark_disable"):
        pytest.skip("20 s: give --slow-baseline")
    num_ops = scaled(num_ops)
    graphs = make.as_originals(make.layered(num_ops), 4)
    timed(
        "literal Python",
        num_ops,
        lambda: baseline_tf.m_etf(*graphs),
        rounds=3 if num_ops < 3_000 else 1,
        series=LAYERED,
        is_baseline=True,
    )


@pytest.mark.parametrize("num_ops", [300, 1_000, 3_000, 10_000])
def bench_m_etf_by_the_original_rules(timed, scaled, make, num_ops):
    num_ops = scaled(num_ops)
    graph, cluster = make.layered(num_ops), make.cluster(4)
    plan = timed(
        "`baechi.place`",
        num_ops,
        lambda: baechi.place(graph, cluster, "m-etf", rules="baechi-tf"),
        rounds=15,
        series=LAYERED,
    )
    if num_ops <= 1_000:
        by_hand = baseline_tf.m_etf(*make.as_originals(graph, 4))
        # The reported makespan is the last moment of the original's loop.
        assert plan.makespan_ns == max(end for _, end in by_hand.nodes(data="end_ts"))


@pytest.mark.parametrize("num_ops", [300, 1_000, 3_000, 10_000])
def bench_m_etf_through_the_drop_in(timed, scaled, make, num_ops):
    num_ops = scaled(num_ops)
    graphs = make.as_originals(make.layered(num_ops), 4)
    timed(
        "`baechi.original.tf.m_etf`",
        num_ops,
        lambda: tf.m_etf(*graphs),
        rounds=15,
        series=LAYERED,
    )


@pytest.mark.parametrize("num_ops", [10_000, 100_000, 1_000_000])
def bench_m_etf_by_physical_rules(timed, scaled, make, num_ops):
    num_ops = scaled(num_ops)
    graph, cluster = make.training(num_ops), make.cluster(8)
    timed(
        "m-etf, `physical`, blocks",
        num_ops,
        lambda: baechi.place(graph, cluster, "m-etf"),
        rounds=5 if num_ops <= 100_000 else 3,
    )


def least_memory(graph, make):
    """Bytes per device with which m-ETF finds a placement without repair, to one part in 64."""

    def fits(memory):
        try:
            baechi.place(graph, make.cluster(8, memory), "m-etf", repair=False)
        except baechi.OutOfMemoryError:
            return False
        return True

    ample = baechi.place(graph, make.cluster(8), "m-etf")
    high = max(device.peak_bytes for device in ample.devices)
    low = high // 4
    while not fits(high):
        low, high = high, high + high // 8
    for _ in range(6):
        middle = (low + high) // 2
        low, high = (low, middle) if fits(middle) else (middle, high)
    return high


def bench_m_etf_under_tight_limits(timed, scaled, make):
    num_ops = scaled(1_000_000)
    graph = make.training(num_ops)
    cluster = make.cluster(8, least_memory(graph, make) * 12 // 10)
    timed(
        "m-etf, `physical`, blocks, 1.2 x the least memory that works",
        num_ops,
        lambda: baechi.place(graph, cluster, "m-etf"),
        rounds=3,
    )


def bench_m_etf_on_wide_blocks(timed, scaled, make):
    num_ops = scaled(1_000_000)
    graph, cluster = make.training(num_ops, branches=32), make.cluster(8)
    timed(
        "m-etf, `physical`, blocks of 32 branches",
        num_ops,
        lambda: baechi.place(graph, cluster, "m-etf"),
        rounds=3,
    )


def bench_m_etf_on_one_op_with_many_outputs(timed, scaled, make):
    """Thousands of ready ops wait for one channel: they are not scored for each transfer."""
    num_outputs = scaled(20_000)
    rng = np.random.default_rng(1)
    graph = baechi.Graph.from_arrays(
        compute_ns=rng.integers(1_000, 100_000, num_outputs + 1),
        tensor_producer=np.zeros(num_outputs, np.int32),
        tensor_bytes=rng.integers(1, 200_000, num_outputs),
        edge_tensor=np.arange(num_outputs, dtype=np.int32),
        edge_consumer=np.arange(1, num_outputs + 1, dtype=np.int32),
    )
    timed(
        "m-etf, `physical`, one op with as many outputs, 4 devices",
        graph.num_ops - 1,
        lambda: baechi.place(graph, make.cluster(4), "m-etf"),
        rounds=3,
    )


@pytest.mark.parametrize("algorithm", ["m-topo", "m-sct", "contiguous"])
def bench_other_algorithms(timed, scaled, make, algorithm):
    num_ops = scaled(100_000)
    graph, cluster = make.training(num_ops), make.cluster(8)
    favorites = ", greedy favorites" if algorithm == "m-sct" else ""
    timed(
        f"{algorithm}{favorites}, `physical`, blocks",
        num_ops,
        lambda: baechi.place(graph, cluster, algorithm, favorites="greedy"),
        rounds=3,
    )
