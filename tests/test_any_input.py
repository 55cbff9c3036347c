"""Any input: a typed error that names the culprit and its numbers, or a right answer."""

from __future__ import annotations

import functools
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from baechi.cluster import Cluster, Device
from baechi.comparison import compare
from baechi.errors import InputError, OutOfMemoryError
from baechi.graph import Graph
from baechi.grouping import group
from baechi.placement import place
from baechi.rules import RULES
from baechi.simulation import simulate
from refusals import Refusal, table
from refused_calls import REFUSED_CALLS
from refused_clusters import REFUSED_CLUSTERS
from refused_files import REFUSED_FILES
from refused_graphs import REFUSED_GRAPHS
from refused_plans import REFUSED_PLANS

MOST_SECONDS = 60  # an explosion takes hours; a busy machine is slow
REFUSED = table(REFUSED_GRAPHS, REFUSED_CLUSTERS, REFUSED_FILES, REFUSED_PLANS, REFUSED_CALLS)


@pytest.mark.parametrize("row", REFUSED, ids=[row.name for row in REFUSED])
def test_what_cannot_be_used_is_refused_by_name(row: Refusal, tmp_path: Path) -> None:
    with pytest.raises(row.error) as caught:
        row.call(tmp_path)
    assert type(caught.value) is row.error
    assert [word for word in row.words if word not in str(caught.value)] == [], caught.value


def star(num_ops: int, *, inward: bool, **columns: Any) -> Graph:
    """One op and all others: inward each sends it a tensor, outward all take its one tensor."""
    others = np.arange(num_ops - 1, dtype=np.int32)
    hub = np.full(num_ops - 1, num_ops - 1 if inward else 0, np.int32)
    return Graph.from_arrays(
        compute_ns=np.full(num_ops, 1_000),
        persistent_bytes=np.full(num_ops, 8),
        tensor_producer=others if inward else [0],
        tensor_bytes=np.full(num_ops - 1 if inward else 1, 64),
        edge_tensor=others if inward else np.zeros(num_ops - 1, np.int32),
        edge_consumer=hub if inward else others + 1,
        **columns,
    )


def long_chain(num_ops: int) -> Graph:
    others = np.arange(num_ops - 1, dtype=np.int32)
    return Graph.from_arrays(
        compute_ns=np.full(num_ops, 1_000),
        persistent_bytes=np.full(num_ops, 8),
        tensor_producer=others,
        tensor_bytes=np.full(num_ops - 1, 64),
        edge_tensor=others,
        edge_consumer=others + 1,
    )


MILLION = 1_000_000
LARGE = {
    "chain": functools.cache(lambda: long_chain(MILLION)),
    "star out": functools.cache(lambda: star(MILLION, inward=False)),
    "star in": functools.cache(lambda: star(MILLION, inward=True)),
}


@pytest.mark.parametrize("shape", LARGE)
@pytest.mark.parametrize("algorithm", ["m-topo", "m-etf", "m-sct", "contiguous"])
def test_a_million_ops_in_one_chain_or_star_are_placed(shape: str, algorithm: str) -> None:
    graph = LARGE[shape]()
    started = time.monotonic()
    plan = place(graph, Cluster("4x1TiB", channels="serial"), algorithm, favorites="greedy")
    assert time.monotonic() - started < MOST_SECONDS
    assert plan.fits
    assert plan.makespan_ns >= 250 * MILLION
    assert sum(plan.busy_ns.values()) == 1_000 * MILLION


@pytest.mark.parametrize("shape", LARGE)
def test_a_million_ops_are_grouped(shape: str) -> None:
    graph = LARGE[shape]()
    started = time.monotonic()
    grouping = group(graph)
    assert time.monotonic() - started < MOST_SECONDS
    assert grouping.graph.num_ops == (MILLION if shape == "star out" else 1)


@pytest.mark.parametrize("rules", RULES)
@pytest.mark.parametrize("inward", [False, True])
def test_no_algorithm_explodes_on_a_star_of_ten_thousand(rules: str, inward: bool) -> None:
    graph = star(10_000, inward=inward)
    started = time.monotonic()
    table = compare(graph, Cluster("4x1TiB"), rules=rules, favorites="greedy")
    assert time.monotonic() - started < MOST_SECONDS
    failed = [row.algorithm for row in table.rows if row.plan is None]
    # The PyTorch m-TOPO fills equal shares, and the tensors of a star do not divide.
    assert failed == (["m-topo"] if rules == "baechi-torch" and not inward else [])


@pytest.mark.parametrize("inward", [False, True])
def test_a_hundred_devices_are_no_trouble(inward: bool) -> None:
    cluster = Cluster("100x1GiB")
    graph = star(2_000, inward=inward)
    started = time.monotonic()
    table = compare(graph, cluster, favorites="greedy")
    assert time.monotonic() - started < MOST_SECONDS
    assert all(row.plan is not None and row.plan.fits for row in table.rows)


@pytest.mark.parametrize("rules", RULES)
def test_a_group_of_everything_stays_on_one_device(rules: str) -> None:
    graph = star(3_000, inward=True, group=np.zeros(3_000, np.int32))
    for algorithm in ("m-etf", "m-sct", "m-topo", "round-robin", "contiguous"):
        plan = place(graph, Cluster("3x1GiB"), algorithm, rules, favorites="greedy")
        if rules != "baechi-torch":  # it knows no groups
            assert len(set(plan.device.tolist())) == 1, algorithm


@pytest.mark.parametrize("rules", RULES)
@pytest.mark.parametrize("num_ops", [0, 1, 7])
def test_times_and_bytes_of_zero_are_legal(rules: str, num_ops: int) -> None:
    edges = np.arange(max(num_ops - 1, 0))
    graph = Graph.from_arrays(
        device_kinds=("gpu", "cpu"),
        compute_ns=np.zeros((2, num_ops), np.int64),
        tensor_producer=edges,
        edge_tensor=edges,
        edge_consumer=edges + 1,
    )
    plan = place(graph, Cluster("gpu:0,cpu:0"), "best", rules)
    steps = num_ops if rules != "physical" else 0  # the originals lift 0 ns to 1
    assert (plan.makespan_ns, set(plan.peak_bytes.values())) == (steps, {0})


def test_arrays_of_any_layout_make_the_same_graph() -> None:
    times = np.arange(12, dtype=np.int64).reshape(2, 6)
    bytes_ = np.arange(6, dtype=np.int64)
    plain = Graph.from_arrays(
        compute_ns=times, persistent_bytes=bytes_, device_kinds=("gpu", "cpu")
    )
    wide = np.zeros((4, 12), np.int64)
    wide[::2, ::2] = times
    for given, held in [
        (np.asfortranarray(times), bytes_[::-1].copy()[::-1]),
        (wide[::2, ::2], bytes_.astype(">i8")),
        (times.astype(np.uint8), bytes_.astype(np.float64)),
        (times.tolist(), bytes_.astype(np.int8)),
        (np.frombuffer(b"\0" + times.tobytes(), np.uint8)[1:].view("i8").reshape(2, 6), bytes_),
    ]:
        graph = Graph.from_arrays(
            compute_ns=given, persistent_bytes=held, device_kinds=("gpu", "cpu")
        )
        assert graph == plain
        assert place(graph, "gpu:1KB,cpu:1KB", "m-etf").fits


def test_a_graph_does_not_change_with_the_arrays_it_was_made_of() -> None:
    times = np.array([1, 2])
    graph = Graph.from_arrays(compute_ns=times)
    times[0] = 99
    assert graph.compute_ns.tolist() == [[1, 2]]


def test_groups_may_have_any_numbers_that_have_names() -> None:
    names = [f"g{at}" for at in range(9)]
    graph = Graph.from_arrays(compute_ns=[1, 1], group=[8, 8], group_names=names)
    assert place(graph, "2x1KB", "m-etf").fits


EDGE = 2**61 - 1


@pytest.mark.parametrize("rules", RULES)
def test_bytes_just_below_the_limit_are_counted_exactly(rules: str) -> None:
    graph = Graph.from_arrays(compute_ns=[5, 5], persistent_bytes=[EDGE - 1, 1])
    table = compare(graph, {"big": 2**62 - 1, "small": 1}, rules=rules)
    placed = [row.plan for row in table.rows if row.plan is not None]
    assert placed
    for plan in placed:
        assert sum(plan.peak_bytes.values()) == EDGE


@pytest.mark.parametrize("rules", RULES)
def test_transfers_just_below_the_limit_do_not_wrap(rules: str) -> None:
    graph = Graph.from_arrays(
        compute_ns=[1, 1, 1],
        tensor_producer=[0, 1],
        tensor_transfer_ns=[2**60 - 4, 2**60 - 4],
        edge_tensor=[0, 1],
        edge_consumer=[1, 2],
    )
    schedule = simulate(graph, "2x1KB", [0, 1, 0], rules=rules)
    assert schedule.makespan_ns == 2**61 - 5
    for row in compare(graph, "3x1KB", rules=rules, favorites="greedy").rows:
        assert row.plan is not None
        assert 3 <= row.plan.makespan_ns < 2**61


def test_memory_that_together_exceeds_64_bits_is_no_proof_of_too_little() -> None:
    graph = Graph.from_arrays(
        compute_ns=[5, 5],
        persistent_bytes=[1, 0],
        scratch_bytes=[0, 3],
        allowed_set=[-1, 0],
        allowed_sets=[["small"]],
    )
    sizes = {f"gpu:{at}": 2**62 - 1 for at in range(8)} | {"small": 2}
    with pytest.raises(OutOfMemoryError) as caught:
        place(graph, sizes, "m-etf")
    assert 'op "op1" needs 3 B' in str(caught.value)
    assert "persistent bytes are" not in str(caught.value)


def test_what_is_short_by_a_byte_is_told_in_bytes() -> None:
    error = OutOfMemoryError("a", "gpu:0", 2**20 + 2, 2**20 + 1)
    assert "needs 1048578 B" in str(error)
    assert "has 1048577 B free" in str(error)


def test_compute_times_just_below_the_limit_do_not_wrap() -> None:
    graph = Graph.from_arrays(compute_ns=[2**60, 2**60 - 1])
    assert place(graph, "1KB", "m-etf").makespan_ns == 2**61 - 1
    fast = Cluster([Device("d", "gpu", 5, speed=2.0)])
    longer = Graph.from_arrays(compute_ns=[2**61, 2**60])
    assert place(longer, fast, "m-etf").makespan_ns == 3 * 2**59
    with pytest.raises(InputError, match="64-bit"):
        place(longer, "1KB", "m-etf")
