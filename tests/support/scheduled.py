"""A `baechi.Schedule` as the lists that the independent checker reads."""

from __future__ import annotations

from baechi.schedules import Schedule
from checked_case import FinishedSchedule, Wait
from checker import check

__all__ = ["finished", "violations"]


def finished(schedule: Schedule) -> FinishedSchedule:
    """The same schedule as plain lists."""
    moved = schedule.transfers
    columns = (moved.tensor, moved.source, moved.destination, moved.start_ns, moved.end_ns)
    rows = (column.tolist() for column in (*columns, moved.consumer))
    return FinishedSchedule(
        device=schedule.device.tolist(),
        order=schedule.order.tolist(),
        start_ns=schedule.start_ns.tolist(),
        end_ns=schedule.end_ns.tolist(),
        transfers=list(zip(*rows, strict=True)),
        op_wait=[_wait(code) for code in schedule.op_wait.tolist()],
        transfer_wait=[_wait(code) for code in moved.wait.tolist()],
        makespan_ns=schedule.makespan_ns,
        peak_bytes=schedule.peak_bytes.tolist(),
    )


def violations(schedule: Schedule, *, limits: bool = True) -> list[str]:
    """What the checker finds wrong."""
    return check(
        schedule.graph,
        schedule.cluster,
        finished(schedule),
        retention=schedule.retention,
        limits=limits,
    )


def _wait(code: int) -> Wait:
    if code < 0:
        return None
    return ("transfer" if code % 2 else "op", code // 2)
