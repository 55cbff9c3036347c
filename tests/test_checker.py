import dataclasses
from typing import Any

import pytest

from baechi.builder import GraphBuilder
from baechi.cluster import Cluster, Device, Link
from baechi.graph import Graph
from checker import FinishedSchedule, check

# 1 ns per byte on top of 10 ns.
LINK = Link(latency_ns=10, bytes_per_s=10**9)
# The two transfers of the right schedule below.
TO_C = (0, 0, 1, 10, 120, 2)
TO_D = (2, 1, 0, 150, 210, 3)


def fork(**fields: Any) -> Graph:
    """a feeds b and c, both feed d; further fields go to c."""
    builder = GraphBuilder()
    builder.op("a", 10, persistent_bytes=1000)
    builder.op("b", 20, scratch_bytes=7)
    builder.op("c", 30, persistent_bytes=500, **fields)
    builder.op("d", 5)
    shared = builder.tensor("a", 100)
    builder.edge(shared, "b")
    builder.edge(shared, "c")
    builder.connect("b", "d", bytes=50)
    builder.connect("c", "d", bytes=50)
    return builder.build()


def two(channels: str = "duplex", memory: int = 2000) -> Cluster:
    return Cluster([Device("gpu:0", "gpu", memory), Device("gpu:1", "gpu", memory)], LINK, channels)


def fork_schedule(**changes: Any) -> FinishedSchedule:
    """c on device 1, the rest on device 0."""
    right = FinishedSchedule(
        device=[0, 0, 1, 0],
        order=[0, 1, 2, 3],
        start_ns=[0, 10, 120, 210],
        end_ns=[10, 30, 150, 215],
        transfers=[TO_C, TO_D],
        op_wait=[None] * 4,
        transfer_wait=[None] * 2,
        makespan_ns=215,
        peak_bytes=[1157, 650],
    )
    return dataclasses.replace(right, **changes)


@pytest.mark.parametrize("channels", ["duplex", "serial", "parallel"])
def test_a_right_schedule_has_no_violations(channels: str) -> None:
    assert check(fork(), two(channels), fork_schedule()) == []


def test_a_schedule_on_one_device_needs_no_transfers() -> None:
    schedule = fork_schedule(
        device=[1] * 4,
        order=[5, 9, 7, 12],
        start_ns=[0, 40, 10, 60],
        end_ns=[10, 60, 40, 65],
        transfers=[],
        transfer_wait=[],
        makespan_ns=65,
        peak_bytes=[0, 1707],
    )
    assert check(fork(), two(), schedule) == []


@pytest.mark.parametrize(
    ("message", "changes"),
    [
        ("start has 3 entries for 4 ops", {"start_ns": [0, 10, 120]}),
        ("1 waits for 2 transfers", {"transfer_wait": [None]}),
        ("1 peaks for 2 devices", {"peak_bytes": [1157]}),
        ("op 3 has no device: 2", {"device": [0, 0, 1, 2]}),
        ("two ops have one launch index", {"order": [0, 1, 1, 3]}),
        ("op 3 is launched before op 2", {"order": [0, 1, 3, 2]}),
        (
            "no transfer of tensor 2 from device 1 to 0 for op 3",
            {"transfers": [TO_C], "transfer_wait": [None]},
        ),
        (
            "needless transfer of tensor 1 from device 0 to 1 for op 3",
            {"transfers": [TO_C, TO_D, (1, 0, 1, 120, 180, 3)], "transfer_wait": [None] * 3},
        ),
        (
            "needless transfer of tensor 0 from device 0 to 1 for op 2",
            {"transfers": [TO_C, TO_C, TO_D], "transfer_wait": [None] * 3},
        ),
        (
            "needless transfer of tensor 0 from device 0 to 1 for op 3",
            {"transfers": [(0, 0, 1, 10, 120, 3), TO_D]},
        ),
        ("transfers are in the order", {"transfers": [TO_D, TO_C]}),
        ("op 3 takes 6 ns, not 5 ns", {"end_ns": [10, 30, 150, 216], "makespan_ns": 216}),
        ("transfer 1 takes 59 ns, not 60 ns", {"transfers": [TO_C, (2, 1, 0, 150, 209, 3)]}),
        ("op 1 starts at 11, not at 10", {"start_ns": [0, 11, 120, 210]}),
        ("op 0 starts before 0", {"start_ns": [-1, 10, 120, 210]}),
        (
            "op 2 starts at 119 before its tensor 0 at 120",
            {"start_ns": [0, 10, 119, 210], "end_ns": [10, 30, 149, 215]},
        ),
        ("op 1 starts while op 0 runs on device 0", {"start_ns": [0, 9, 120, 210]}),
        ("transfer 0 starts before tensor 0 is made", {"transfers": [(0, 0, 1, 9, 119, 2), TO_D]}),
        ("transfer 0 starts at 11, not at 10", {"transfers": [(0, 0, 1, 11, 121, 2), TO_D]}),
        ("op 3 waits for ('op', 3), which is not", {"op_wait": [None, None, None, ("op", 3)]}),
        (
            "transfer 0 waits for ('transfer', 1), which is not earlier",
            {"transfer_wait": [("transfer", 1), None]},
        ),
        (
            "op 3 waits for ('op', 2), which frees nothing on device 0",
            {"op_wait": [None, None, None, ("op", 2)]},
        ),
        (
            "transfer 0 waits for ('op', 1), which frees nothing on device 1",
            {"transfer_wait": [("op", 1), None]},
        ),
        ("makespan is 214 ns, the last op ends at 215 ns", {"makespan_ns": 214}),
        ("makespan 44 ns is below the critical path, 45 ns", {"makespan_ns": 44}),
        ("makespan 32 ns is below the work, 65 ns, over all devices", {"makespan_ns": 32}),
        ("peak of device 1 is 649 bytes, by the rules 650", {"peak_bytes": [1157, 649]}),
    ],
)
def test_a_planted_fault_is_found(message: str, changes: dict[str, Any]) -> None:
    found = check(fork(), two(), fork_schedule(**changes))
    assert any(violation.startswith(message) for violation in found), found


def test_a_split_group_is_found() -> None:
    builder = GraphBuilder()
    builder.op("a", 1, group="g")
    builder.op("b", 1, group="g")
    schedule = FinishedSchedule(
        [0, 1], [0, 1], [0, 0], [1, 1], [], [None, None], [], 1, peak_bytes=[0, 0]
    )
    assert check(builder.build(), two(), schedule) == ["group 0 is split over devices [0, 1]"]


def test_an_op_off_its_allowed_devices_is_found() -> None:
    graph = fork(allowed_devices=["gpu:0"])
    assert check(graph, two(), fork_schedule()) == ["op 2 may not run on device 1"]


# Fast, and of another kind.
MIXED = Cluster([Device("g", "gpu", 9, speed=3.0), Device("c", "cpu", 9)])


def kinds(*, b_on_cpu: int | None) -> Graph:
    builder = GraphBuilder(device_kinds=("gpu", "cpu"))
    builder.op("a", {"gpu": 10, "cpu": 100})
    builder.op("b", {"gpu": 10, "cpu": b_on_cpu})
    return builder.build()


def kinds_schedule(b_ns: int) -> FinishedSchedule:
    return FinishedSchedule(
        [0, 1], [0, 1], [0, 0], [4, b_ns], [], [None, None], [], b_ns, peak_bytes=[0, 0]
    )


def test_a_kind_that_cannot_run_the_op_is_found() -> None:
    found = check(kinds(b_on_cpu=None), MIXED, kinds_schedule(70))
    assert found == ["op 1 may not run on device 1"]


def test_compute_times_follow_kind_and_speed_rounded_up() -> None:
    assert check(kinds(b_on_cpu=70), MIXED, kinds_schedule(70)) == []


def test_a_device_over_its_cap_is_found_unless_limits_are_off() -> None:
    devices = [Device("gpu:0", "gpu", 1200, reserve_bytes=44), Device("gpu:1", "gpu", 2000)]
    cluster = Cluster(devices, LINK)
    message = "device 0 needs 1157 bytes, its cap is 1156"
    assert check(fork(), cluster, fork_schedule()) == [message]
    assert check(fork(), cluster, fork_schedule(), limits=False) == []


def pair(*, bytes: int, transfer_ns: int | None = None) -> Graph:
    builder = GraphBuilder()
    builder.op("a", 10)
    builder.op("b", 20)
    builder.edge(builder.tensor("a", bytes, transfer_ns=transfer_ns), "b")
    return builder.build()


def pair_schedule(transfer_ns: int, num_bytes: int) -> FinishedSchedule:
    end = 10 + transfer_ns
    transfers = [(0, 0, 1, 10, end, 1)]
    peak = [num_bytes, num_bytes]
    return FinishedSchedule(
        [0, 1], [0, 1], [0, end], [10, end + 20], transfers, [None] * 2, [None], end + 20, peak
    )


@pytest.mark.parametrize(
    ("num_bytes", "given_ns", "link", "transfer_ns"),
    [
        (7, None, Link(10, 2 * 10**9), 14),
        (7, None, Link(10, 0), 10),
        (0, None, Link(10, 1), 10),
        (7, 3, Link(10, 1), 3),
        (7, 0, Link(10, 1), 0),
        (2**59 + 1, None, Link(0, 2**59), 10**9 + 1),
    ],
)
def test_a_transfer_takes_its_exact_time(
    num_bytes: int, given_ns: int | None, link: Link, transfer_ns: int
) -> None:
    cluster = Cluster("2x2TiB", link).with_memory(2**61)
    graph = pair(bytes=num_bytes, transfer_ns=given_ns)
    assert check(graph, cluster, pair_schedule(transfer_ns, num_bytes)) == []
    found = check(graph, cluster, pair_schedule(transfer_ns + 1, num_bytes))
    assert f"transfer 0 takes {transfer_ns + 1} ns, not {transfer_ns} ns" in found


def exchange() -> Graph:
    """Two sources that feed each other's device."""
    builder = GraphBuilder()
    for name in ("a", "b", "after a", "after b"):
        builder.op(name, 10)
    builder.connect("a", "after a", bytes=20)
    builder.connect("b", "after b", bytes=20)
    return builder.build()


def exchange_schedule(second_start: int) -> FinishedSchedule:
    """The outputs of a and b cross; the transfer of b's starts when it may."""
    end = second_start + 30
    return FinishedSchedule(
        device=[0, 1, 1, 0],
        order=[0, 1, 2, 3],
        start_ns=[0, 0, 40, end],
        end_ns=[10, 10, 50, end + 10],
        transfers=[(0, 0, 1, 10, 40, 2), (1, 1, 0, second_start, end, 3)],
        op_wait=[None] * 4,
        transfer_wait=[None] * 2,
        makespan_ns=end + 10,
        peak_bytes=[40, 40] if second_start < 40 else [20, 40],
    )


def test_serial_channels_queue_both_directions_and_duplex_ones_do_not() -> None:
    assert check(exchange(), two("serial"), exchange_schedule(40)) == []
    assert check(exchange(), two("duplex"), exchange_schedule(10)) == []


def test_channels_that_overlap_or_idle_are_found() -> None:
    found = check(exchange(), two("serial"), exchange_schedule(10))
    assert "transfer 1 starts at 10, not at 40" in found
    assert "transfers 0 and 1 overlap on channel 0" in found
    found = check(exchange(), two("duplex"), exchange_schedule(40))
    assert found == ["transfer 1 starts at 40, not at 10"]


def relay(channels: str, **changes: Any) -> tuple[Graph, Cluster, FinishedSchedule]:
    """A copy that arrives while its device is busy until 100."""
    builder = GraphBuilder()
    builder.op("a", 10)
    builder.op("busy", 100)
    builder.op("b", 5)
    builder.connect("a", "b", bytes=20)
    first = 70 if channels == "parallel" else 10
    schedule = FinishedSchedule(
        device=[0, 1, 1],
        order=[0, 1, 2],
        start_ns=[0, 0, 100],
        end_ns=[10, 100, 105],
        transfers=[(0, 0, 1, first, first + 30, 2)],
        op_wait=[None] * 3,
        transfer_wait=[None],
        makespan_ns=105,
        peak_bytes=[20, 20],
    )
    return builder.build(), two(channels), dataclasses.replace(schedule, **changes)


@pytest.mark.parametrize("channels", ["serial", "duplex", "parallel"])
def test_queued_transfers_go_early_and_unlimited_ones_just_in_time(channels: str) -> None:
    assert check(*relay(channels)) == []


def test_an_unlimited_transfer_that_is_not_just_in_time_is_found() -> None:
    found = check(*relay("parallel", transfers=[(0, 0, 1, 60, 90, 2)]))
    assert found == ["transfer 0 ends at 90, not just in time at 100"]


def test_a_wait_delays_what_it_is_on() -> None:
    waiting = {"transfers": [(0, 0, 1, 100, 130, 2)], "transfer_wait": [("op", 1)]}
    late = {"start_ns": [0, 0, 130], "end_ns": [10, 100, 135], "makespan_ns": 135}
    for channels in ("serial", "duplex", "parallel"):
        assert check(*relay(channels, **waiting, **late)) == []
    found = check(*relay("duplex", transfer_wait=[("op", 1)]))
    assert found == ["transfer 0 starts at 10, not at 100"]
    found = check(*relay("parallel", transfer_wait=[("op", 1)]))
    assert found == ["op 2 starts at 100, not at 130"]
