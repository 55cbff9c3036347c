"""Placing: decisions equal those of a slow literal oracle, and small cases that show one rule."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import baechi
from baechi import (
    Cluster,
    Device,
    Graph,
    GraphBuilder,
    InputError,
    Link,
    OutOfMemoryError,
    PlacementError,
    Plan,
    relaxation,
    workloads,
)
from limits_oracle import schedule as scheduled_within_limits
from physical_oracle import DoesNotFit, decide
from strategies import Case, cases, dense_case, favorites

FREE = Link(latency_ns=0, bytes_per_s=0)


def launches(plan: Plan) -> list[tuple[int, int]]:
    """(op, device) in launch order."""
    return [(op, int(plan.device[op])) for op in np.argsort(plan.order).tolist()]


def assert_as_decided_by_the_oracle(
    case: Case, algorithm: str, chosen: list[int] | None, retention: str
) -> None:
    graph, cluster = case.graph, case.cluster
    reserve = algorithm.endswith("-reserve")
    try:
        expected: Any = decide(
            graph, cluster, retention=retention, reserve=reserve, favorites=chosen
        )
    except DoesNotFit as failure:
        expected = failure
    try:
        plan = baechi.place(
            graph, cluster, algorithm, favorites=chosen, retention=retention, repair=False
        )
    except OutOfMemoryError as failure:
        error = failure
    else:
        assert launches(plan) == expected
        return
    assert isinstance(expected, DoesNotFit)
    assert error.op == graph.op_names[expected.op]
    assert error.device == cluster.names[expected.device]
    assert (error.needed_bytes, error.free_bytes) == (expected.needed, expected.free)
    placed = zip(error.placed_ops.tolist(), error.placed_devices.tolist(), strict=True)
    assert list(placed) == expected.decided


@pytest.mark.parametrize("algorithm", ["m-etf", "m-etf-reserve"])
@given(case=cases(), retention=st.sampled_from(["liveness", "training"]))
def test_m_etf_decides_as_the_literal_oracle(algorithm: str, case: Case, retention: str) -> None:
    assert_as_decided_by_the_oracle(case, algorithm, None, retention)


@pytest.mark.parametrize("algorithm", ["m-sct", "m-sct-reserve"])
@given(data=st.data(), retention=st.sampled_from(["liveness", "training"]))
def test_m_sct_decides_as_the_literal_oracle(
    algorithm: str, data: st.DataObject, retention: str
) -> None:
    case = data.draw(cases())
    chosen: Any = data.draw(favorites(case))
    if chosen == "none":
        chosen = [-1] * case.graph.num_ops
    elif isinstance(chosen, str):
        method: Any = chosen
        chosen = relaxation.favorites(case.graph, case.cluster, method).child.tolist()
    assert_as_decided_by_the_oracle(case, algorithm, chosen, retention)


@given(seed=st.integers(0, 2**32), retention=st.sampled_from(["liveness", "training"]))
def test_tight_m_etf_decides_as_the_literal_oracle(seed: int, retention: str) -> None:
    case = dense_case(seed, max_ops=25, max_devices=5)
    assert_as_decided_by_the_oracle(case, "m-etf", None, retention)


@pytest.mark.parametrize("algorithm", ["m-topo", "m-etf", "random", "contiguous"])
@given(seed=st.integers(0, 2**32), retention=st.sampled_from(["liveness", "training"]))
def test_a_decision_is_scheduled_within_the_limits_as_the_rules_say(
    algorithm: str, seed: int, retention: str
) -> None:
    case = dense_case(seed)
    graph, cluster = case.graph, case.cluster
    try:
        plan = baechi.place(graph, cluster, algorithm, seed=seed, retention=retention)
    except OutOfMemoryError:
        return
    expected = scheduled_within_limits(graph, cluster, launches(plan), retention=retention)
    schedule = baechi.simulate(graph, cluster, plan)
    assert expected is not None
    assert dict(enumerate(schedule.start_ns.tolist())) == expected.start
    moved = schedule.transfers
    columns = (moved.tensor, moved.destination, moved.start_ns, moved.end_ns)
    assert list(zip(*(c.tolist() for c in columns), strict=True)) == expected.transfers


def figure_1() -> Graph:
    """The example of the paper's Fig. 1: costs and bytes as there, every transfer takes 1."""
    builder = GraphBuilder()
    for name, cost, size in zip("123456", [1, 3, 3, 1, 3, 1], [1, 2, 2, 1, 1, 1], strict=True):
        builder.op(name, cost, persistent_bytes=size)
    for producer, consumer in ("12", "23", "34", "15", "56", "64"):
        builder.connect(producer, consumer, transfer_ns=1)
    return builder.build()


@pytest.mark.parametrize("rules", ["physical", "baechi-tf", "baechi-torch"])
@pytest.mark.parametrize("algorithm", ["m-etf", "m-sct"])
def test_the_papers_figure_1_takes_8(algorithm: str, rules: str) -> None:
    cluster = Cluster([Device("a", "gpu", 100), Device("b", "gpu", 100)], FREE)
    assert baechi.place(figure_1(), cluster, algorithm, rules).makespan_ns == 8


def test_one_tensor_for_two_consumers_on_one_device_is_sent_once() -> None:
    builder = GraphBuilder()
    builder.op("a", 1, allowed_devices="d0")
    builder.op("b", 1, allowed_devices="d1")
    builder.op("c", 1, allowed_devices="d1")
    tensor = builder.tensor("a", 8)
    builder.edge(tensor, "b")
    builder.edge(tensor, "c")
    plan = baechi.place(builder.build(), {"d0": 100, "d1": 100}, "m-etf")
    assert (plan.num_transfers, plan.transferred_bytes) == (1, 8)


def test_ties_go_to_the_least_topological_position_then_the_first_device() -> None:
    graph = Graph.from_arrays(compute_ns=[5, 5, 5])
    plan = baechi.place(graph, "2x1KiB", "m-etf")
    assert launches(plan) == [(0, 0), (1, 1), (2, 0)]


def test_more_devices_than_bits_in_a_word() -> None:
    graph = workloads.fan_out(80, compute_ns=90, tensor_bytes=1)
    case = Case(graph, Cluster("70x1KiB", Link(1, 10**9), "parallel"))
    assert_as_decided_by_the_oracle(case, "m-etf", None, "liveness")
    plan = baechi.place(graph, case.cluster, "m-etf")
    assert set(plan.device.tolist()) == set(range(70))


@pytest.mark.parametrize("rules", ["physical", "baechi-tf", "baechi-torch"])
def test_a_graph_without_ops_takes_no_time(rules: str) -> None:
    plan = baechi.place(Graph.from_arrays(num_ops=0), "2x1KiB", rules=rules)
    assert (plan.makespan_ns, dict(plan.placement)) == (0, {})


def test_a_pinned_op_that_is_too_large_is_named_before_anything_is_placed() -> None:
    builder = GraphBuilder()
    builder.op("small", 1)
    builder.op("large", 1, persistent_bytes=50, allowed_devices="d1")
    with pytest.raises(OutOfMemoryError) as caught:
        baechi.place(builder.build(), {"d0": 100, "d1": 20}, "m-etf")
    error = caught.value
    assert (error.op, error.device) == ("large", "d1")
    assert (error.needed_bytes, error.free_bytes, error.num_placed) == (50, 20, None)


def test_room_is_kept_for_what_may_run_on_one_device_only() -> None:
    builder = GraphBuilder()
    builder.op("free", 1, persistent_bytes=10)
    builder.op("pinned", 1, persistent_bytes=10, allowed_devices="d0")
    plan = baechi.place(builder.build(), {"d0": 15, "d1": 15}, "m-etf")
    assert plan.placement == {"free": "d1", "pinned": "d0"}


def test_a_group_is_booked_whole_with_its_first_op() -> None:
    builder = GraphBuilder()
    builder.op("a", 1, persistent_bytes=4, group="g")
    builder.op("b", 1, persistent_bytes=8, group="g")
    plan = baechi.place(builder.build(), {"d0": 10, "d1": 12}, "m-etf")
    assert plan.placement == {"a": "d1", "b": "d1"}


def test_a_group_without_a_common_device_is_refused_by_name() -> None:
    builder = GraphBuilder()
    builder.op("a", 1, group="g", allowed_devices="d0")
    builder.op("b", 1, group="g", allowed_devices="d1")
    with pytest.raises(PlacementError, match='the group of op "a" has no device'):
        baechi.place(builder.build(), {"d0": 10, "d1": 12})


def test_an_op_that_no_device_may_run_is_refused_by_name() -> None:
    builder = GraphBuilder(["gpu", "cpu"])
    builder.op("a", {"gpu": 1})
    builder.op("b", {"cpu": 1})
    with pytest.raises(PlacementError, match='op "b" may run on no device'):
        baechi.place(builder.build(), Cluster([Device("d0", "gpu", 10)]))


def test_an_op_without_a_time_for_a_kind_goes_to_another_kind() -> None:
    builder = GraphBuilder(["gpu", "cpu"])
    builder.op("a", {"gpu": 1, "cpu": 9})
    builder.op("b", {"cpu": 5})
    builder.connect("a", "b", 1)
    cluster = Cluster([Device("d0", "gpu", 10), Device("d1", "cpu", 10)], FREE)
    for algorithm in baechi.ALGORITHMS:
        assert baechi.place(builder.build(), cluster, algorithm).placement["b"] == "d1"


def test_a_faster_device_is_preferred_by_single() -> None:
    cluster = Cluster([Device("d0", "gpu", 10), Device("d1", "gpu", 10, speed=2.0)])
    plan = baechi.place(Graph.from_arrays(compute_ns=[5]), cluster, "single")
    assert (plan.placement["op0"], plan.makespan_ns) == ("d1", 3)


def test_training_keeps_forward_outputs_to_the_end() -> None:
    graph = workloads.chain(3, compute_ns=1, tensor_bytes=5)
    assert baechi.place(graph, "1x1KiB", "single").peak_bytes == {"gpu:0": 10}
    plan = baechi.place(graph, "1x1KiB", "single", retention="training")
    assert plan.peak_bytes == {"gpu:0": 15}


def test_the_same_seed_draws_the_same_random_placement() -> None:
    graph = Graph.from_arrays(compute_ns=[1] * 50)
    one, same, other = (baechi.place(graph, "3x1KiB", "random", seed=seed) for seed in (7, 7, 8))
    assert one == same
    assert one.placement != other.placement


def test_the_originals_rules_lift_zero_times_and_say_so() -> None:
    plan = baechi.place(Graph.from_arrays(compute_ns=[0, 2]), "1x1KiB", "single", "baechi-tf")
    assert plan.makespan_ns == 3
    assert any("lift compute times of 0" in note for note in plan.provenance.notes)


def test_torch_rules_say_that_they_know_no_groups() -> None:
    builder = GraphBuilder()
    builder.op("a", 1, group="g")
    plan = baechi.place(builder.build(), "1x1KiB", "m-etf", "baechi-torch")
    assert any("no colocation groups" in note for note in plan.provenance.notes)


def test_assumed_links_are_named() -> None:
    plan = baechi.place(Graph.from_arrays(compute_ns=[1]), "2x1KiB")
    assert any("10 us and 12 GB/s assumed" in note for note in plan.provenance.notes)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"algorithm": "m-magic"}, 'no algorithm "m-magic"'),
        ({"rules": "wrong"}, 'no rules "wrong"'),
        ({"retention": "forever"}, 'no retention "forever"'),
        ({"rules": "baechi-tf", "retention": "training"}, "belongs to physical rules"),
        ({"algorithm": "m-sct", "favorites": "wrong"}, 'no method "wrong"'),
        ({"algorithm": "m-sct", "favorites": {"op0": "nothing"}}, 'no op "nothing"'),
        ({"algorithm": "m-sct", "favorites": [0, 1, 2]}, "favorites: expected"),
        ({"algorithm": "m-sct", "favorites": [2**32, -1]}, "favorites"),
        ({"algorithm": "m-sct", "favorites": [0.5, -1]}, "favorites: expected"),
        ({"algorithm": "m-sct", "favorites": [5, -1]}, "favorites"),
        ({"seed": -1}, "seed -1"),
        ({"algorithm": "m-etf-reserve", "rules": "baechi-torch"}, "reserving"),
    ],
)
def test_a_wrong_option_is_an_input_error(options: dict[str, Any], message: str) -> None:
    graph = Graph.from_arrays(compute_ns=[1, 2])
    with pytest.raises(InputError, match=message):
        baechi.place(graph, "2x1KiB", **options)


def test_without_a_cluster_the_graphs_own_is_taken() -> None:
    graph = Graph.from_arrays(compute_ns=[1], default_cluster=Cluster("3x1KiB"))
    assert len(baechi.place(graph).devices) == 3
    with pytest.raises(InputError, match="no cluster was given"):
        baechi.place(Graph.from_arrays(compute_ns=[1]))
