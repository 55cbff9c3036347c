import dataclasses
from collections.abc import Callable

from baechi.builder import GraphBuilder
from baechi.cluster import Cluster, Link
from checker import FinishedSchedule, check, peaks

TWO = Cluster("2x2GiB", Link(latency_ns=10, bytes_per_s=10**9))


def lone(build: Callable[[GraphBuilder], None], *times: int) -> list[int]:
    """Peaks of ops that run one after the other on device 0, given how long each takes."""
    builder = GraphBuilder()
    build(builder)
    ends = [sum(times[: k + 1]) for k in range(len(times))]
    starts = [end - time_ns for end, time_ns in zip(ends, times, strict=True)]
    count = len(times)
    schedule = FinishedSchedule(
        [0] * count, list(range(count)), starts, ends, [], [None] * count, [], ends[-1], [0, 0]
    )
    return peaks(builder.build(), TWO, schedule)


def test_frees_come_before_charges_at_the_same_time() -> None:
    def build(builder: GraphBuilder) -> None:
        builder.op("a", 5, scratch_bytes=8)
        builder.op("b", 5, scratch_bytes=9)

    assert lone(build, 5, 5) == [9, 0]


def test_an_op_that_takes_no_time_still_counts() -> None:
    def build(builder: GraphBuilder) -> None:
        builder.op("a", 5, scratch_bytes=8)
        builder.op("b", 0, scratch_bytes=90)
        builder.op("c", 0, scratch_bytes=91)

    assert lone(build, 5, 0, 0) == [91, 0]


def test_an_output_that_nobody_consumes_stays_to_the_end() -> None:
    def build(builder: GraphBuilder) -> None:
        builder.op("a", 5)
        builder.tensor("a", 30)
        builder.op("b", 5, scratch_bytes=4)

    assert lone(build, 5, 5) == [34, 0]


def test_training_keeps_outputs_of_forward_ops_only() -> None:
    builder = GraphBuilder()
    for name, role in (("a", "forward"), ("b", "backward"), ("c", "backward"), ("d", "update")):
        builder.op(name, 1, role=role)
    builder.connect("a", "b", bytes=10)
    builder.connect("b", "c", bytes=20)
    builder.connect("c", "d", bytes=40)
    schedule = FinishedSchedule(
        [0] * 4, [0, 1, 2, 3], [0, 1, 2, 3], [1, 2, 3, 4], [], [None] * 4, [], 4, [60, 0]
    )
    graph = builder.build()
    assert peaks(graph, TWO, schedule) == [60, 0]
    assert peaks(graph, TWO, schedule, retention="training") == [70, 0]
    assert check(graph, TWO, schedule) == []
    found = check(graph, TWO, schedule, retention="training")
    assert found == ["peak of device 0 is 60 bytes, by the rules 70"]


def test_a_source_keeps_its_output_until_its_last_send_ends() -> None:
    builder = GraphBuilder()
    builder.op("a", 10)
    builder.op("b", 20, scratch_bytes=7)
    builder.op("c", 30)
    builder.connect("a", "c", bytes=100)
    schedule = FinishedSchedule(
        device=[0, 0, 1],
        order=[0, 1, 2],
        start_ns=[0, 120, 120],
        end_ns=[10, 140, 150],
        transfers=[(0, 0, 1, 10, 120, 2)],
        op_wait=[None] * 3,
        transfer_wait=[None],
        makespan_ns=150,
        peak_bytes=[100, 100],
    )
    assert peaks(builder.build(), TWO, schedule) == [100, 100]
    early = dataclasses.replace(schedule, start_ns=[0, 119, 120])
    assert peaks(builder.build(), TWO, early) == [107, 100]


def test_an_empty_graph_has_an_empty_schedule() -> None:
    schedule = FinishedSchedule([], [], [], [], [], [], [], 0, [0, 0])
    assert check(GraphBuilder().build(), TWO, schedule) == []
