"""Holdings: what every device holds during a step, from which event to which (docs/rules.md, 3)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from baechi.graph import MEMORY_CLASSES
from baechi.schedules import Schedule

__all__ = ["CATEGORIES", "Holdings", "at_peaks", "curve", "holders", "holdings"]

CATEGORIES = ("persistent", *MEMORY_CLASSES, "copy", "scratch")
"""Persistent bytes of ops, outputs by class of the tensor, received copies, scratch bytes."""

_PERSISTENT, _COPY, _SCRATCH = 0, len(CATEGORIES) - 2, len(CATEGORIES) - 1
_ALWAYS = -1  # the event before the first

Int64s = npt.NDArray[np.int64]


class Holdings(NamedTuple):
    """One row per thing that is held; nothing of 0 bytes.

    Events are counted over all devices in the order of docs/rules.md, section 3. A thing is held
    from its event `begin` on, and not from its event `end` on.
    """

    device: npt.NDArray[np.int32]
    category: npt.NDArray[np.uint8]
    """Index into `CATEGORIES`."""
    num_bytes: Int64s
    begin: Int64s
    """An event, or -1: from time 0."""
    end: Int64s
    """An event, or the number of events: to the end of the step."""
    op: npt.NDArray[np.int32]
    """The op it belongs to: of an output or a copy, the producer."""
    tensor: npt.NDArray[np.int32]
    """The output or what was copied; -1 for bytes of ops."""
    event_ns: Int64s
    """[events], not one per row: when each event happens."""


def holdings(schedule: Schedule) -> Holdings:
    """Everything that is held under the physical rules."""
    graph, transfers = schedule.graph, schedule.transfers
    num_ops = graph.num_ops
    op_start, op_end, move_start, move_end, event_ns = _events(schedule)
    last, kept = len(event_ns), np.arange(num_ops, dtype=np.int32)
    output_end, copy_end = _last_uses(schedule, op_end, move_end, last)
    made, transferred = graph.tensor_producer, transfers.tensor
    nothing = np.full(num_ops, -1, np.int32)
    always, never = np.full(num_ops, _ALWAYS, np.int64), np.full(num_ops, last, np.int64)
    tensors = np.arange(graph.num_tensors, dtype=np.int32)
    # One list per column, and in each one part per kind of thing.
    columns: tuple[list[npt.ArrayLike], ...] = (
        [schedule.device, schedule.device[made], transfers.destination, schedule.device],
        [_PERSISTENT, 1 + graph.tensor_class, _COPY, _SCRATCH],
        [always, op_start[made], move_start, op_start],
        [never, output_end, copy_end, op_end],
        [kept, made, made[transferred], kept],
        [nothing, tensors, transferred, nothing],
    )
    sizes = [graph.persistent_bytes, graph.tensor_bytes, graph.tensor_bytes[transferred]]
    sizes.append(graph.scratch_bytes)

    def column(parts: list[npt.ArrayLike]) -> npt.NDArray[Any]:
        pairs = zip(parts, sizes, strict=True)
        return np.concatenate([np.broadcast_to(part, size.shape)[size > 0] for part, size in pairs])

    device, category, begin, end, op, tensor = map(column, columns)
    return Holdings(
        device, category.astype(np.uint8), column(list(sizes)), begin, end, op, tensor, event_ns
    )


def at_peaks(schedule: Schedule, held: Holdings | None = None) -> tuple[Mapping[str, int], ...]:
    """What makes up the peak of every device: bytes by category, those of 0 bytes left out.

    Under the originals' rules peaks are counted in another way, so nothing is said of them: the
    mappings are empty.
    """
    if schedule.rules != "physical":
        return tuple({} for _ in schedule.cluster.names)
    held = holdings(schedule) if held is None else held
    found = []
    for device in range(schedule.cluster.num_devices):
        rows = _rows_at_peak(held, device)
        sums = np.zeros(len(CATEGORIES), np.int64)
        np.add.at(sums, held.category[rows], held.num_bytes[rows])
        found.append({CATEGORIES[at]: int(sums[at]) for at in np.flatnonzero(sums)})
    return tuple(found)


def holders(
    schedule: Schedule, device: int, held: Holdings | None = None
) -> list[tuple[str, str, int]]:
    """What a device holds at its peak: (name, category, bytes), the largest first."""
    held = holdings(schedule) if held is None else held
    rows = _rows_at_peak(held, device)
    graph = schedule.graph
    return [
        (
            graph.op_names[held.op[row]]
            if held.tensor[row] < 0
            else graph.tensor_name(int(held.tensor[row])),
            CATEGORIES[held.category[row]],
            int(held.num_bytes[row]),
        )
        for row in rows[np.argsort(-held.num_bytes[rows], kind="stable")].tolist()
    ]


def curve(held: Holdings, device: int) -> tuple[Int64s, Int64s]:
    """Use of a device over time by category.

    Returns:
        int64[moments], the times in ns, and int64[categories, moments], the bytes held from then
        on; the first moment is time 0 before anything starts.
    """
    rows = np.flatnonzero(held.device == device)
    ends = rows[held.end[rows] < len(held.event_ns)]
    events = np.concatenate([held.begin[rows], held.end[ends], [_ALWAYS]])
    moments, position = np.unique(events, return_inverse=True)
    change = np.zeros((len(CATEGORIES), len(moments)), np.int64)
    category = np.concatenate([held.category[rows], held.category[ends], [0]])
    num_bytes = np.concatenate([held.num_bytes[rows], -held.num_bytes[ends], [0]])
    np.add.at(change, (category, position), num_bytes)
    times = np.append(held.event_ns, 0)[moments]  # -1 is the last of these
    return times, change.cumsum(axis=1)


def _rows_at_peak(held: Holdings, device: int) -> npt.NDArray[np.intp]:
    rows: npt.NDArray[np.intp] = np.flatnonzero(held.device == device)
    begin, end, num_bytes = held.begin[rows], held.end[rows], held.num_bytes[rows]
    events = np.concatenate([begin, end])
    order = np.argsort(events, kind="stable")
    total = np.concatenate([num_bytes, -num_bytes])[order].cumsum()
    events = events[order]
    if not len(events):
        return rows
    # Of several changes by one event only the total after all of them counts.
    complete = np.flatnonzero(np.append(events[1:] != events[:-1], True))
    peak = events[complete[np.argmax(total[complete])]]
    at_peak: npt.NDArray[np.intp] = rows[(begin <= peak) & (end > peak)]
    return at_peak


def _events(schedule: Schedule) -> tuple[Int64s, Int64s, Int64s, Int64s, Int64s]:
    """Positions of starts and ends of ops and of transfers among all events; the events' times."""
    transfers, num_moves = schedule.transfers, len(schedule.transfers.tensor)
    num_ops = len(schedule.device)
    start = np.concatenate([schedule.start_ns, transfers.start_ns])
    end = np.concatenate([schedule.end_ns, transfers.end_ns])
    # Within one launch the transfers come in their order, then the op.
    rank = np.concatenate([schedule.order, schedule.order[transfers.consumer]]).astype(np.int64)
    place = np.concatenate([np.full(num_ops, num_moves), np.arange(num_moves)])
    time = np.concatenate([start, end])
    phase = np.concatenate([np.ones(len(start), bool), end == start])
    place = np.concatenate([2 * place, 2 * place + 1])
    order = np.lexsort((place, np.concatenate([rank, rank]), phase, time))
    position = np.empty(len(order), np.int64)
    position[order] = np.arange(len(order))
    starts, ends = position[: len(start)], position[len(start) :]
    return starts[:num_ops], ends[:num_ops], starts[num_ops:], ends[num_ops:], time[order]


def _last_uses(
    schedule: Schedule, op_end: Int64s, move_end: Int64s, last: int
) -> tuple[Int64s, Int64s]:
    """The events that free each tensor where it was made, and each copy."""
    graph, transfers = schedule.graph, schedule.transfers
    num_devices = schedule.cluster.num_devices
    tensor, consumer = graph.edge_tensor, graph.edge_consumer
    there = schedule.device[consumer]
    is_local = there == schedule.device[graph.tensor_producer[tensor]]
    output_end = np.full(graph.num_tensors, _ALWAYS, np.int64)
    np.maximum.at(output_end, tensor[is_local], op_end[consumer[is_local]])
    np.maximum.at(output_end, transfers.tensor, move_end)
    output_end[output_end == _ALWAYS] = last  # nobody consumes it
    if schedule.retention == "training":
        output_end[graph.role[graph.tensor_producer] == 0] = last
    copies = transfers.tensor.astype(np.int64) * num_devices + transfers.destination
    by_copy = np.argsort(copies)
    used = tensor[~is_local].astype(np.int64) * num_devices + there[~is_local]
    copy_end = np.full(len(copies), _ALWAYS, np.int64)
    found = by_copy[np.searchsorted(copies[by_copy], used)]
    np.maximum.at(copy_end, found, op_end[consumer[~is_local]])
    return output_end, copy_end
