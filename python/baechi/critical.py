"""Critical path: the chain of ops and transfers that makes a step as long as it is."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from baechi.schedules import Schedule

__all__ = ["REASONS", "Causes", "Step", "causes", "critical_path"]

REASONS = ("nothing", "input", "memory", "busy", "decision")
"""What something waited for: nothing (it starts at time 0), data, memory that something else held,
its device or channel, or (the originals' rules) the moment in which its launch was decided."""

_NOTHING, _INPUT, _MEMORY, _BUSY, _DECISION = range(len(REASONS))
Int64s = npt.NDArray[np.int64]


class Causes(NamedTuple):
    """What every op and every transfer waited for last.

    A code is 2 i for op i and 2 j + 1 for transfer j, as in `Schedule.op_wait`; -1 for none.
    """

    op: Int64s
    op_reason: npt.NDArray[np.uint8]
    """Index into `REASONS`."""
    transfer: Int64s
    transfer_reason: npt.NDArray[np.uint8]


class Step(NamedTuple):
    """One op or transfer of the critical path."""

    op: int
    """Index of the op, -1 for a transfer."""
    transfer: int
    """Index of the transfer, -1 for an op."""
    start_ns: int
    end_ns: int
    reason: str
    """Why it did not start earlier, one of `REASONS`."""
    gap_ns: int
    """Time between the end of the step before and this start; 0 under physical rules."""


def critical_path(schedule: Schedule) -> tuple[Step, ...]:
    """The chain that ends with the last op: each starts when the one before it has ended.

    Where an op waited for several things to the same moment, the path follows its inputs, then
    memory, then the device.
    """
    if not len(schedule.device):
        return ()
    found, transfers = causes(schedule), schedule.transfers
    steps: list[Step] = []
    code = 2 * int(np.argmax(schedule.end_ns))
    while code >= 0:
        at = code // 2
        if code % 2:
            times = int(transfers.start_ns[at]), int(transfers.end_ns[at])
            steps.append(Step(-1, at, *times, REASONS[found.transfer_reason[at]], 0))
            code = int(found.transfer[at])
        else:
            times = int(schedule.start_ns[at]), int(schedule.end_ns[at])
            steps.append(Step(at, -1, *times, REASONS[found.op_reason[at]], 0))
            code = int(found.op[at])
    steps.reverse()
    before = [0, *(step.end_ns for step in steps)]
    return tuple(
        step._replace(gap_ns=max(step.start_ns - end, 0))
        for step, end in zip(steps, before, strict=False)
    )


def causes(schedule: Schedule) -> Causes:
    """What everything waited for: of all that ended before its start, what ended last."""
    num_ops, num_moves = len(schedule.device), len(schedule.transfers.tensor)
    op, move = _Latest(num_ops), _Latest(num_moves)
    ends = np.zeros(2 * max(num_ops, num_moves), np.int64)
    ends[: 2 * num_ops : 2] = schedule.end_ns
    ends[1 : 2 * num_moves : 2] = schedule.transfers.end_ns
    _wait_for_inputs(schedule, op, move, ends)
    for latest, waits in ((op, schedule.op_wait), (move, schedule.transfers.wait)):
        rows = np.flatnonzero(waits >= 0)
        latest.offer(rows, ends[waits[rows]], waits[rows], _MEMORY)
    _wait_for_room(schedule, op, move)
    if len(schedule.not_before_ns):
        rows = np.flatnonzero(schedule.not_before_ns > op.end_ns)
        op.reason[rows] = _DECISION
    return Causes(op.code, op.reason, move.code, move.reason)


class _Latest:
    """What ended last before each of some things, the first offered on a tie."""

    def __init__(self, num: int) -> None:
        self.end_ns = np.zeros(num, np.int64)
        self.code = np.full(num, -1, np.int64)
        self.reason = np.zeros(num, np.uint8)

    def offer(self, rows: npt.NDArray[np.intp], end_ns: Int64s, code: Int64s, reason: int) -> None:
        """A candidate for each of the rows; of several for one row the latest, then the first."""
        order = np.lexsort((-np.arange(len(rows)), end_ns, rows))
        rows, end_ns, code = rows[order], end_ns[order], code[order]
        last = np.flatnonzero(np.append(rows[1:] != rows[:-1], True)[: len(rows)])
        rows, end_ns, code = rows[last], end_ns[last], code[last]
        # What ended at time 0 is waited for only where nothing else was.
        better = (end_ns > self.end_ns[rows]) | ((self.code[rows] < 0) & (end_ns > 0))
        self.end_ns[rows[better]] = end_ns[better]
        self.code[rows[better]] = code[better]
        self.reason[rows[better]] = reason


def _wait_for_inputs(schedule: Schedule, op: _Latest, move: _Latest, ends: Int64s) -> None:
    graph, transfers, num_devices = schedule.graph, schedule.transfers, schedule.cluster.num_devices
    producer = graph.tensor_producer[graph.edge_tensor]
    consumer = graph.edge_consumer
    ready, code = schedule.end_ns[producer], 2 * producer.astype(np.int64)
    remote = np.flatnonzero(schedule.device[producer] != schedule.device[consumer])
    made = graph.tensor_producer[transfers.tensor]
    if len(remote):
        sent = transfers.tensor.astype(np.int64) * num_devices + transfers.destination
        by_sent = np.argsort(sent)
        wanted = graph.edge_tensor[remote].astype(np.int64) * num_devices
        wanted += schedule.device[consumer[remote]]
        at = by_sent[np.searchsorted(sent[by_sent], wanted)]
        arrival = transfers.end_ns[at].copy()
        # A transfer without a channel is shown just in time: it could have ended earlier.
        cluster = schedule.cluster
        source, destination = transfers.source[at], transfers.destination[at]
        free = (cluster.send_channel[source, destination] < 0) & (
            cluster.recv_channel[source, destination] < 0
        )
        free &= transfers.consumer[at] == consumer[remote]
        earliest = np.maximum(schedule.end_ns[made[at]], np.where(
            transfers.wait[at] >= 0, ends[transfers.wait[at]], 0
        ))  # fmt: skip
        duration = transfers.end_ns[at] - transfers.start_ns[at]
        arrival[free] = (earliest + duration)[free]
        ready[remote], code[remote] = arrival, 2 * at + 1
    op.offer(consumer.astype(np.intp), ready, code, _INPUT)
    move.offer(np.arange(len(made)), schedule.end_ns[made], 2 * made.astype(np.int64), _INPUT)


def _wait_for_room(schedule: Schedule, op: _Latest, move: _Latest) -> None:
    """The op before on the same device, the transfers before over the same channels."""
    before, after = _neighbors(schedule.device, schedule.order)
    op.offer(after, schedule.end_ns[before], 2 * before.astype(np.int64), _BUSY)
    cluster, transfers = schedule.cluster, schedule.transfers
    number = np.arange(len(transfers.tensor))
    send = cluster.send_channel[transfers.source, transfers.destination]
    recv = cluster.recv_channel[transfers.source, transfers.destination]
    # A serial channel is used in both directions, so both ends of a transfer may hold it.
    channel, held_by = np.concatenate([send, recv]), np.concatenate([number, number])
    rows = np.flatnonzero(channel >= 0)
    before, after = _neighbors(channel[rows], held_by[rows])
    first, then = held_by[rows][before], held_by[rows][after]
    different = first != then
    first, then = first[different], then[different]
    move.offer(then, transfers.end_ns[first], 2 * first.astype(np.int64) + 1, _BUSY)


def _neighbors(
    key: npt.NDArray[Any], rank: npt.NDArray[Any]
) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
    """Pairs of positions that follow each other by rank among those of one key."""
    order = np.lexsort((rank, key))
    same = key[order[1:]] == key[order[:-1]]
    return order[:-1][same], order[1:][same]
