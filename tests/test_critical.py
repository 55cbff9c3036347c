"""The critical path: a chain without gaps from time 0 to the end of the step."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

import baechi
from baechi import Cluster, Device, Graph, GraphBuilder, Link, OutOfMemoryError, workloads
from baechi.critical import critical_path
from strategies import CHANNELS, cases, placements

# 1 ns per byte on top of 10 ns.
LINK = Link(latency_ns=10, bytes_per_s=10**9)


def two(channels: str = "duplex") -> Cluster:
    return Cluster([Device("d0", "gpu", 1000), Device("d1", "gpu", 1000)], LINK, channels)


def named(graph: Graph, schedule: baechi.Schedule) -> list[tuple[str, str]]:
    return [
        (
            graph.op_names[step.op]
            if step.op >= 0
            else graph.tensor_name(int(schedule.transfers.tensor[step.transfer])),
            step.reason,
        )
        for step in critical_path(schedule)
    ]


@given(data=st.data())
def test_the_path_has_no_gap_and_ends_with_the_step(data: st.DataObject) -> None:
    case = data.draw(cases(channels=data.draw(st.sampled_from(CHANNELS))))
    schedule = baechi.simulate(case.graph, case.cluster, data.draw(placements(case)))
    assert_gapless(schedule)


@given(data=st.data())
def test_the_path_of_a_plan_that_waits_for_memory_has_no_gap(data: st.DataObject) -> None:
    case = data.draw(cases(limits="tight"))
    try:
        plan = baechi.place(case.graph, case.cluster, "m-etf")
    except (OutOfMemoryError, baechi.PlacementError):
        return
    assert_gapless(baechi.simulate(case.graph, case.cluster, plan))


def assert_gapless(schedule: baechi.Schedule) -> None:
    steps = critical_path(schedule)
    assert steps[-1].end_ns == schedule.makespan_ns
    assert steps[0].start_ns == 0
    assert [step.gap_ns for step in steps] == [0] * len(steps)


def test_it_goes_through_a_transfer_to_what_made_it() -> None:
    builder = GraphBuilder()
    builder.op("a", 10)
    builder.op("b", 20)
    builder.connect("a", "b", 50)
    graph = builder.build()
    for channels in ("duplex", "serial", "parallel"):
        schedule = baechi.simulate(graph, two(channels), {"a": "d0", "b": "d1"})
        assert named(graph, schedule) == [("a", "nothing"), ("a:0", "input"), ("b", "input")]


def test_an_op_may_wait_for_its_device_and_a_transfer_for_its_channel() -> None:
    builder = GraphBuilder()
    for name, compute_ns in {"a": 1, "b": 2, "c": 1, "d": 1}.items():
        builder.op(name, compute_ns)
    builder.connect("a", "c", 100)
    builder.connect("b", "d", 100)
    graph = builder.build()
    homes = {"a": "d0", "b": "d0", "c": "d1", "d": "d1"}
    schedule = baechi.simulate(graph, two(), homes)
    assert named(graph, schedule) == [
        ("a", "nothing"),
        ("a:0", "input"),
        ("b:0", "busy"),
        ("d", "input"),
    ]


def test_originals_rules_may_leave_gaps_that_are_counted() -> None:
    graph = workloads.diamond(3, compute_ns=100, tensor_bytes=10)
    for rules in ("baechi-tf", "baechi-torch"):
        plan = baechi.place(graph, two(), "m-etf", rules)
        schedule = baechi.simulate(graph, two(), plan)
        steps = critical_path(schedule)
        total = sum(step.end_ns - step.start_ns + step.gap_ns for step in steps)
        assert total == schedule.makespan_ns


def test_an_empty_graph_has_none() -> None:
    graph = Graph.from_arrays(num_ops=0)
    assert critical_path(baechi.simulate(graph, two(), [])) == ()
