"""Simulating: placements without an order, plans with one, many at once, and other executors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import baechi
from baechi import Cluster, Device, Graph, GraphBuilder, InputError, Link
from limits_oracle import schedule as scheduled_by_the_oracle
from physical_oracle import decide
from scheduled import violations
from strategies import Case, cases, placements

# 1 ns per byte on top of 10 ns.
LINK = Link(latency_ns=10, bytes_per_s=10**9)


def two(channels: str = "duplex", memory: int = 1000) -> Cluster:
    return Cluster([Device("d0", "gpu", memory), Device("d1", "gpu", memory)], LINK, channels)


def fork() -> Graph:
    """a makes one tensor for b and c; both feed d."""
    builder = GraphBuilder()
    for name, compute_ns in {"a": 10, "b": 20, "c": 30, "d": 5}.items():
        builder.op(name, compute_ns)
    shared = builder.tensor("a", 100)
    builder.edge(shared, "b")
    builder.edge(shared, "c")
    builder.connect("b", "d", 50)
    builder.connect("c", "d", 50)
    return builder.build()


def random_orders(case: Case) -> st.SearchStrategy[list[int]]:
    """Launch indices of an order in which producers come first, by random priorities."""
    graph = case.graph
    parents: list[set[int]] = [set() for _ in range(graph.num_ops)]
    producers = graph.tensor_producer[graph.edge_tensor].tolist()
    for producer, consumer in zip(producers, graph.edge_consumer.tolist(), strict=True):
        parents[consumer].add(producer)

    def launched(priority: list[int]) -> list[int]:
        order: list[int] = []
        while len(order) < len(priority):
            ready = [
                op for op in range(len(priority)) if op not in order and parents[op] <= set(order)
            ]
            order.append(min(ready, key=priority.__getitem__))
        return np.argsort(order).tolist()

    return st.permutations(range(graph.num_ops)).map(launched)


@given(data=st.data(), retention=st.sampled_from(["liveness", "training"]))
def test_a_placement_is_scheduled_by_the_rules(data: st.DataObject, retention: str) -> None:
    case = data.draw(cases(grouped=False))
    device = data.draw(placements(case))
    schedule = baechi.simulate(case.graph, case.cluster, device, retention=retention)
    assert schedule.device.tolist() == device
    assert violations(schedule, limits=False) == []


@given(data=st.data())
def test_a_placement_is_launched_in_the_order_of_the_literal_oracle(data: st.DataObject) -> None:
    case = data.draw(cases(grouped=False))
    device = data.draw(placements(case))
    schedule = baechi.simulate(case.graph, case.cluster, device)
    launched = [(op, device[op]) for op in np.argsort(schedule.order).tolist()]
    assert launched == decide(case.graph, case.cluster, fixed=device)


@given(data=st.data(), retention=st.sampled_from(["liveness", "training"]))
def test_many_placements_are_simulated_as_one_by_one(data: st.DataObject, retention: str) -> None:
    case = data.draw(cases())
    rows = data.draw(st.lists(placements(case), min_size=1, max_size=3))
    makespans, peaks = baechi.simulate_many(case.graph, case.cluster, rows, retention=retention)
    for device, makespan, peak in zip(rows, makespans, peaks, strict=True):
        alone = baechi.simulate(case.graph, case.cluster, device, retention=retention)
        assert (alone.makespan_ns, alone.peak_bytes.tolist()) == (makespan, peak.tolist())


@given(data=st.data())
def test_a_given_launch_order_is_scheduled_by_the_rules(data: st.DataObject) -> None:
    case = data.draw(cases())
    device, order = data.draw(placements(case)), data.draw(random_orders(case))
    makespans, _ = baechi.simulate_many(case.graph, case.cluster, [device], [order])
    decision = [(op, device[op]) for op in np.argsort(order).tolist()]
    expected = scheduled_by_the_oracle(
        case.graph, case.cluster, decision, retention="liveness", enforced=False
    )
    assert expected is not None
    ends = [
        start + int(np.ceil(case.graph.compute_ns[row(case, device[op]), op] / speed))
        for op, start in expected.start.items()
        for speed in [case.cluster.speed[device[op]]]
    ]
    assert makespans.tolist() == [max(ends)]


def row(case: Case, device: int) -> int:
    graph = case.graph
    return 0 if graph.num_kinds == 1 else graph.device_kinds.index(case.cluster.kinds[device])


@given(data=st.data())
def test_a_plans_own_order_in_a_batch_gives_its_times(data: st.DataObject) -> None:
    case = data.draw(cases(limits="ample"))
    plan = baechi.place(case.graph, case.cluster, "m-etf")
    makespans, peaks = baechi.simulate_many(
        case.graph, case.cluster, plan.device[None], plan.order[None]
    )
    assert makespans.tolist() == [plan.makespan_ns]
    assert peaks.tolist() == [list(plan.peak_bytes.values())]


def test_times_and_transfers_of_a_fork() -> None:
    schedule = baechi.simulate(fork(), two(), {"a": "d0", "b": "d0", "c": "d1", "d": "d0"})
    assert schedule.start_ns.tolist() == [0, 10, 120, 210]
    assert schedule.transfers.start_ns.tolist() == [10, 150]
    assert schedule.transfers.end_ns.tolist() == [120, 210]
    assert schedule.makespan_ns == 215
    assert schedule.busy_ns.tolist() == [35, 30]
    assert schedule.peak_bytes.tolist() == [150, 150]


def test_a_transfer_without_a_channel_is_just_in_time() -> None:
    builder = GraphBuilder()
    for name in ("a", "long", "b"):
        builder.op(name, 100 if name == "long" else 1)
    builder.connect("a", "b", 5)
    builder.connect("long", "b", 0)
    placement = {"a": "d0", "long": "d1", "b": "d1"}
    schedule = baechi.simulate(builder.build(), two("parallel"), placement)
    assert schedule.transfers.end_ns.tolist() == schedule.start_ns[2:].tolist() == [100]


def test_limits_are_not_enforced_but_reported() -> None:
    schedule = baechi.simulate(fork(), two(memory=120), [0, 0, 0, 0])
    assert not schedule.fits
    assert schedule.over_limit == ("d0",)


def test_a_split_group_may_be_simulated() -> None:
    builder = GraphBuilder()
    builder.op("a", 1, group="g")
    builder.op("b", 1, group="g")
    assert baechi.simulate(builder.build(), two(), [0, 1]).makespan_ns == 1


def test_fifo_is_the_original_schedulers_order() -> None:
    plan = baechi.place(fork(), two(), "single", "baechi-tf")
    assert plan.executor == "fifo"
    schedule = baechi.simulate(fork(), two(), plan)
    assert schedule.executor == "fifo"
    again = baechi.simulate(fork(), two(), [0, 0, 0, 0], rules="baechi-tf", executor="fifo")
    assert again == schedule


def test_a_plan_may_be_simulated_under_other_rules_and_on_other_clusters() -> None:
    plan = baechi.place(fork(), two(), "m-etf", "baechi-tf")
    assert baechi.simulate(fork(), two(), plan, rules="physical").rules == "physical"
    slow = Cluster([Device("d1", "gpu", 1000), Device("d0", "gpu", 1000, speed=0.5)], LINK)
    schedule = baechi.simulate(fork(), slow, baechi.place(fork(), two(), "single"))
    assert schedule.makespan_ns == 130
    assert schedule.device.tolist() == [1, 1, 1, 1]


def test_a_schedule_is_frozen() -> None:
    schedule = baechi.simulate(fork(), two(), [0, 0, 0, 0])
    with pytest.raises(AttributeError, match="frozen"):
        schedule.makespan_ns = 1
    with pytest.raises(ValueError, match="read-only"):
        schedule.start_ns[0] = 1


@pytest.mark.parametrize(
    ("placement", "options", "message"),
    [
        ({"a": "d0"}, {}, 'no device for op "b"'),
        ({"a": "d0", "b": "d0", "c": "d0", "d": "d9"}, {}, 'no device "d9"'),
        ({"a": "d0", "b": "d0", "c": "d0", "d": "d0", "e": "d0"}, {}, 'no op "e"'),
        ([0, 0, 0], {}, "expected int"),
        ([0, 0, 0, 5], {}, 'op "d" cannot run on device 5'),
        ([0, 0, 0, -1], {}, "negative or too large"),
        ([0, 0, 0, 2**40], {}, "negative or too large"),
        ([0.0, 0, 0, 0], {}, "expected int"),
        ([True, True, True, True], {}, "expected int"),
        ([0, 0, 0, 0], {"executor": "launch"}, "without a launch order"),
        ([0, 0, 0, 0], {"executor": "fifo"}, "belongs to the rules"),
        ([0, 0, 0, 0], {"executor": "magic"}, 'no executor "magic"'),
        ([0, 0, 0, 0], {"rules": "magic"}, 'no rules "magic"'),
    ],
)
def test_a_wrong_placement_is_an_input_error(
    placement: Any, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        baechi.simulate(fork(), two(), placement, **options)


@pytest.mark.parametrize(
    ("devices", "order", "message"),
    [
        ([0, 0, 0, 0], None, "expected int\\[batch, ops\\]"),
        ([[0, 0, 0]], None, "expected int"),
        ([[0, 0, 0, 0]], [[0, 1, 2, 3], [0, 1, 2, 3]], "order has shape"),
        ([[0, 0, 0, 0]], [[0, 1, 2, 2]], "is launched twice"),
        ([[0, 0, 0, 0]], [[0, 1, 3, 2]], 'op "d" is launched twice, never, or before'),
        ([[0, 0, 0, 7]], [[0, 1, 2, 3]], 'op "d" cannot run on device 7'),
        (None, None, "devices: None"),
    ],
)
def test_a_wrong_batch_is_an_input_error(devices: Any, order: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        baechi.simulate_many(fork(), two(), devices, order)


def test_an_empty_batch_and_a_graph_without_ops_keep_their_shapes() -> None:
    makespans, peaks = baechi.simulate_many(fork(), two(), np.zeros((0, 4), np.int32))
    assert (makespans.shape, peaks.shape) == ((0,), (0, 2))
    nothing = Graph.from_arrays(num_ops=0)
    makespans, peaks = baechi.simulate_many(nothing, two(), np.zeros((3, 0), np.int32))
    assert (makespans.tolist(), peaks.tolist()) == ([0, 0, 0], [[0, 0]] * 3)
