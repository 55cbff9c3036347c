"""Grouping: what is joined, what a fused op costs, and the way back to the ops themselves."""

from __future__ import annotations

import itertools
import random
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import baechi
from baechi import (
    Cluster,
    Device,
    Graph,
    GraphBuilder,
    Grouping,
    InputError,
    Link,
    OutOfMemoryError,
    PlacementError,
    Plan,
    PlanMismatchError,
    workloads,
)
from scheduled import violations
from strategies import Case, cases

LINK = Link(latency_ns=1, bytes_per_s=10**9)
ONE = Cluster([Device("d0", "gpu", 2**40)], LINK)

steps_of_grouping = st.lists(
    st.sampled_from(["colocation", "coplace", "fuse"]), unique=True, min_size=1
)


def chain(*groups: str | None, **fields: Any) -> GraphBuilder:
    """Ops a, b, ... in a row with 5 byte tensors; fields are of the last op."""
    builder = GraphBuilder()
    names = "abcdefgh"[: len(groups)]
    for name, group in zip(names, groups, strict=True):
        extra = fields if name == names[-1] else {}
        builder.op(name, **({"compute_ns": 1, "persistent_bytes": 2, "group": group} | extra))
    for producer, consumer in itertools.pairwise(names):
        builder.connect(producer, consumer, 5)
    return builder


def training_step() -> Graph:
    """Two layers: forward f0, f1; backward b1, b0; updates u0, u1 in the groups of their layers."""
    builder = GraphBuilder()
    for layer in "01":
        builder.op(f"f{layer}", 2, persistent_bytes=8, group=f"layer{layer}")
    for layer in "10":
        builder.op(f"b{layer}", 4, persistent_bytes=1, role="backward", forward_op=f"f{layer}")
    for layer in "01":
        builder.op(f"u{layer}", 1, role="update", group=f"layer{layer}")
    builder.op("log", 1, role="update")
    for pair in ("f0 f1", "f1 b1", "f0 b0", "b1 b0", "b1 u1", "b0 u0", "u1 log"):
        builder.connect(*pair.split(), 4)
    return builder.build()


def grouped(case: Case, steps: list[str], **options: Any) -> Grouping:
    made = baechi.group(case.graph, steps, **options)
    assert sorted(made.steps) == sorted(steps)
    return made


def plan_of(made: Grouping, cluster: Cluster, algorithm: str = "m-etf", **options: Any) -> Plan:
    try:
        return baechi.place(made.graph, cluster, algorithm, **options)
    except OutOfMemoryError:
        assume(False)
        raise


@given(case=cases(), steps=steps_of_grouping)
def test_grouping_conserves_compute_times_and_persistent_bytes(
    case: Case, steps: list[str]
) -> None:
    made, graph = grouped(case, steps), case.graph
    persistent = np.bincount(made.node_of, graph.persistent_bytes, made.graph.num_ops)
    assert persistent.tolist() == made.graph.persistent_bytes.tolist()
    for row in range(graph.num_kinds):
        for node in range(made.graph.num_ops):
            times = graph.compute_ns[row, made.node_of == node]
            expected = -1 if (times < 0).any() else times.sum()
            assert made.graph.compute_ns[row, node] == expected


@given(case=cases(), steps=steps_of_grouping)
def test_what_a_grouped_op_is_made_of_may_run_wherever_it_may(case: Case, steps: list[str]) -> None:
    made = grouped(case, steps)
    try:
        plan = baechi.place(made.graph, case.cluster.with_memory("1KiB"), "round-robin")
    except PlacementError:
        raise AssertionError("grouping left an op without a device") from None
    expanded = made.expand(plan)
    assert [expanded.device[op] for op in range(case.graph.num_ops)] == [
        plan.device[node] for node in made.node_of
    ]


@given(case=cases(grouped=False), seed=st.integers(0, 999), num_labels=st.integers(1, 3))
def test_fusion_never_makes_a_cycle_and_stops_only_where_it_would(
    case: Case, seed: int, num_labels: int
) -> None:
    rng = random.Random(seed)
    labels = [rng.randrange(-1, num_labels) for _ in range(case.graph.num_ops)]
    columns = {name: getattr(case.graph, name) for name in ("persistent_bytes", "scratch_bytes")}
    columns |= {name: getattr(case.graph, name) for name in ("edge_tensor", "edge_consumer")}
    columns |= {name: getattr(case.graph, name) for name in ("tensor_producer", "tensor_bytes")}
    graph = Graph.from_arrays(group=labels, **columns)
    fused = baechi.group(graph, ["colocation", "fuse"]).graph  # from_arrays refuses cycles
    children: dict[int, set[int]] = {op: set() for op in range(fused.num_ops)}
    parents: dict[int, set[int]] = {op: set() for op in range(fused.num_ops)}
    producers = fused.tensor_producer[fused.edge_tensor].tolist()
    for producer, consumer in zip(producers, fused.edge_consumer.tolist(), strict=True):
        children[producer].add(consumer)
        parents[consumer].add(producer)
    for producer, consumers in children.items():
        for consumer in consumers:
            if fused.group[producer] >= 0 and fused.group[producer] == fused.group[consumer]:
                assert len(consumers) > 1
                assert len(parents[consumer]) > 1


@given(case=cases(), retention=st.sampled_from(["liveness", "training"]))
def test_a_fused_graph_needs_at_least_what_its_ops_need_one_after_the_other(
    case: Case, retention: str
) -> None:
    made = grouped(case, ["colocation", "coplace", "fuse"], retention=retention)
    original, fused = bare(case.graph), bare(made.graph)
    plan = baechi.place(fused, ONE, "single", retention=retention)
    position = np.argsort(original.topological_order())
    launch = np.lexsort((position, plan.order[made.node_of]))
    _, peaks = baechi.simulate_many(
        original,
        ONE,
        np.zeros((1, original.num_ops), np.int32),
        np.argsort(launch)[None],
        retention=retention,
    )
    assert plan.peak_bytes["d0"] >= peaks[0, 0]
    if made.graph.num_ops == 1:
        assert plan.peak_bytes["d0"] == peaks[0, 0]


def bare(graph: Graph) -> Graph:
    """Bytes, roles and edges only, so that everything may run on one device."""
    names = ("persistent_bytes", "scratch_bytes", "role", "tensor_producer", "tensor_bytes")
    columns = {name: getattr(graph, name) for name in (*names, "edge_tensor", "edge_consumer")}
    return Graph.from_arrays(compute_ns=np.ones(graph.num_ops, np.int64), **columns)


@given(case=cases(max_ops=12), steps=steps_of_grouping)
def test_an_expanded_plan_is_a_right_schedule_of_the_original_ops(
    case: Case, steps: list[str]
) -> None:
    made = grouped(case, steps)
    expanded = made.expand(plan_of(made, case.cluster))
    schedule = baechi.simulate(case.graph, case.cluster, expanded)
    assert schedule.makespan_ns == expanded.makespan_ns
    assert schedule.peak_bytes.tolist() == list(expanded.peak_bytes.values())
    found = violations(schedule, limits=False)
    if "colocation" not in steps:
        found = [what for what in found if not what.startswith("group ")]
    assert found == []


@given(case=cases(max_ops=12), retention=st.sampled_from(["liveness", "training"]))
def test_an_expanded_plan_fits_where_the_plan_of_the_groups_fits(
    case: Case, retention: str
) -> None:
    made = grouped(case, ["colocation", "coplace", "fuse"], retention=retention)
    plan = plan_of(made, case.cluster, retention=retention)
    expanded = made.expand(plan)
    assert plan.fits
    assert expanded.fits
    assert expanded.retention == retention
    schedule = baechi.simulate(case.graph, case.cluster, expanded)
    assert violations(schedule) == []


@given(case=cases(max_ops=12))
def test_backward_ops_follow_their_forward_ops(case: Case) -> None:
    made = grouped(case, ["colocation", "forward"])
    assume(made.graph.num_ops)
    plan = plan_of(made, case.cluster, retention="training")
    device, graph = made.devices(plan), case.graph
    for op in np.flatnonzero(graph.forward_op >= 0).tolist():
        if graph.group[op] < 0:
            assert device[op] == device[graph.forward_op[op]]
    for group in range(len(graph.group_names)):
        assert len(set(device[graph.group == group].tolist())) <= 1


def test_a_chain_of_one_group_becomes_one_op() -> None:
    fused = baechi.group(chain("g", "g", "g", scratch_bytes=3).build(), ["colocation", "fuse"])
    assert fused.members == {"a": ("a", "b", "c")}
    assert fused.graph.compute_ns.tolist() == [[3]]
    assert fused.graph.persistent_bytes.tolist() == [6]
    assert fused.graph.scratch_bytes.tolist() == [10]


def test_groups_are_kept_without_fusion() -> None:
    made = baechi.group(chain("g", "g", None).build(), ["colocation"])
    assert made.graph.num_ops == 3
    assert made.graph.group.tolist() == [0, 0, -1]
    assert made.graph.group_names == ("g",)


def test_only_children_join_their_producers() -> None:
    builder = chain(None, None, None)
    builder.op("second", 1)
    builder.connect("b", "second", 1)
    made = baechi.group(builder.build(), ["coplace"])
    assert made.graph.group.tolist() == [0, 0, -1, -1]


def test_coplacement_stops_at_the_most_bytes() -> None:
    made = baechi.group(chain(None, None, None, None).build(), ["coplace"], most_bytes=4)
    assert made.graph.group.tolist() == [0, 0, 1, 1]


def test_pinned_ops_join_only_what_may_run_where_they_are() -> None:
    same = chain(None, None, allowed_devices="d0").build()
    assert baechi.group(same, ["coplace"]).graph.group.tolist() == [0, 0]
    builder = GraphBuilder(["gpu", "cpu"])
    builder.op("a", 1, allowed_devices="d0")
    builder.op("b", {"gpu": 1})
    builder.connect("a", "b", 1)
    assert baechi.group(builder.build(), ["coplace"]).graph.group.tolist() == [-1, -1]


def test_members_of_a_group_with_different_pins_keep_them() -> None:
    builder = GraphBuilder()
    builder.op("a", 1, group="g", allowed_devices=["d0", "d1"])
    builder.op("b", 1, group="g", allowed_devices=["d1", "d2"])
    builder.connect("a", "b", 1)
    made = baechi.group(builder.build(), ["colocation", "fuse"])
    plan = made.expand(baechi.place(made.graph, {"d0": 9, "d1": 9, "d2": 9}, "m-etf"))
    assert set(plan.placement.values()) == {"d1"}


def test_the_forward_half_holds_what_its_backward_ops_hold() -> None:
    made = baechi.group(training_step(), ["colocation", "forward"])
    assert made.graph.op_names == ("f0", "f1")
    assert made.graph.persistent_bytes.tolist() == [9, 9]
    assert made.node_of.tolist() == [0, 1, -1, -1, -1, -1, -1]


def test_what_is_left_out_follows_its_group_its_forward_op_or_its_producer() -> None:
    graph = training_step()
    made = baechi.group(graph, ["colocation", "forward"])
    cluster = Cluster([Device("d0", "gpu", 25), Device("d1", "gpu", 25)], LINK)
    plan = baechi.place(made.graph, cluster, "round-robin", retention="training")
    homes = dict(zip(graph.op_names, made.devices(plan).tolist(), strict=True))
    assert homes == {"f0": 0, "f1": 1, "b1": 1, "b0": 0, "u0": 0, "u1": 1, "log": 1}


def test_expanding_on_a_cluster_in_another_order_keeps_the_names() -> None:
    made = baechi.group(chain("g", "g", None).build(), ["colocation", "fuse"])
    cluster = Cluster([Device("d0", "gpu", 99), Device("d1", "gpu", 99)], LINK)
    plan = baechi.place(made.graph, cluster, "round-robin")
    turned = Cluster([Device("d1", "gpu", 99), Device("d0", "gpu", 99)], LINK)
    assert made.expand(plan, turned).placement == made.expand(plan).placement


def test_a_plan_for_another_graph_is_not_expanded() -> None:
    made = baechi.group(chain("g", "g", None).build())
    plan = baechi.place(workloads.chain(3, seed=1), ONE)
    with pytest.raises(PlanMismatchError):
        made.expand(plan)


def test_a_graph_of_backward_ops_alone_has_an_empty_forward_half() -> None:
    builder = GraphBuilder()
    builder.op("b", 1, role="backward")
    made = baechi.group(builder.build(), ["forward"])
    plan = baechi.place(made.graph, ONE, retention="training")
    assert made.expand(plan).placement == {"b": "d0"}


def test_an_unknown_step_is_an_input_error() -> None:
    with pytest.raises(InputError, match='no step "melt"'):
        baechi.group(workloads.chain(3, seed=1), ["melt"])


def test_a_graph_without_ops_for_several_kinds_of_device_is_grouped_as_it_is() -> None:
    graph = Graph.from_arrays(compute_ns=np.zeros((2, 0)), device_kinds=("gpu", "cpu"))
    assert baechi.group(graph).graph.num_ops == 0
