"""The independent checker of docs/rules.md: lists what a finished schedule does wrong.

Plain Python, written from the document and not from the package; slow, literal and short. It reads
the public columns of a graph and a cluster and the lists of a FinishedSchedule, nothing else.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from typing import Any

from checked_case import Case, FinishedSchedule, Wait

__all__ = ["FinishedSchedule", "check", "peaks"]

Key = tuple[int, int, int, int]  # time, phase, launch index, position
FORWARD = 0


def check(
    graph: Any, cluster: Any, schedule: Any, *, retention: str = "liveness", limits: bool = True
) -> list[str]:
    """Every violation of the rules, in words; an empty list means that there is none.

    Where the lists do not fit the graph, the placement is impossible or the transfers are not the
    ones needed, only that is reported: times and bytes then mean nothing.
    """
    case = Case(graph, cluster, schedule)
    for stage in (_shapes, _placement, _transfers_needed):
        if found := list(stage(case)):
            return found
    return [
        *_durations(case),
        *_precedence(case),
        *_exclusive(case),
        *_starts(case),
        *_bounds(case),
        *_memory(case, retention, limits),
    ]


def peaks(graph: Any, cluster: Any, schedule: Any, *, retention: str = "liveness") -> list[int]:
    """The peak of each device in bytes, by section 3."""
    return _peaks(Case(graph, cluster, schedule), retention)


def _shapes(case: Case) -> Iterator[str]:
    for name in ("device", "order", "start", "end", "op_wait"):
        if len(getattr(case, name)) != len(case.ops):
            yield f"{name} has {len(getattr(case, name))} entries for {len(case.ops)} ops"
    if len(case.transfer_wait) != len(case.transfers):
        yield f"{len(case.transfer_wait)} waits for {len(case.transfers)} transfers"
    if len(case.peak) != len(case.devices):
        yield f"{len(case.peak)} peaks for {len(case.devices)} devices"


def _placement(case: Case) -> Iterator[str]:
    for op in case.ops:
        if case.device[op] not in case.devices:
            yield f"op {op} has no device: {case.device[op]}"
        elif case.compute_ns(op, case.device[op]) is None:
            yield f"op {op} may not run on device {case.device[op]}"
    if len(set(case.order)) < len(case.order):
        yield "two ops have one launch index"
    for tensor in case.tensors:
        for op in case.consumers[tensor]:
            if case.order[op] <= case.order[case.producer[tensor]]:
                yield f"op {op} is launched before op {case.producer[tensor]}, which feeds it"
    for group in set(case.group) - {-1}:
        used = {case.device[op] for op in case.ops if case.group[op] == group}
        if len(used) > 1:
            yield f"group {group} is split over devices {sorted(used)}"


def _transfers_needed(case: Case) -> Iterator[str]:
    """Section 2, rule 1: which transfers there are, in which order, and which op causes each."""
    needed: list[tuple[int, int, int, int]] = []
    sent: set[tuple[int, int]] = set()
    for op in case.launched():
        here = case.device[op]
        for tensor in case.inputs[op]:
            source = case.device[case.producer[tensor]]
            if source != here and (tensor, here) not in sent:
                sent.add((tensor, here))
                needed.append((tensor, source, here, op))
    made = [(tensor, source, to, op) for tensor, source, to, _, _, op in case.transfers]
    for transfer in (Counter(needed) - Counter(made)).elements():
        yield "no transfer of tensor {} from device {} to {} for op {}".format(*transfer)
    for transfer in (Counter(made) - Counter(needed)).elements():
        yield "needless transfer of tensor {} from device {} to {} for op {}".format(*transfer)
    if sorted(made) == sorted(needed) and made != needed:
        yield f"transfers are in the order {made}, the rules give {needed}"


def _durations(case: Case) -> Iterator[str]:
    for op in case.ops:
        took, expected = case.end[op] - case.start[op], case.compute_ns(op, case.device[op])
        if took != expected:
            yield f"op {op} takes {took} ns, not {expected} ns"
    for k, (tensor, source, to, start, end, _) in enumerate(case.transfers):
        expected = case.transfer_ns(tensor, source, to)
        if end - start != expected:
            yield f"transfer {k} takes {end - start} ns, not {expected} ns"


def _precedence(case: Case) -> Iterator[str]:
    arrival = {(tensor, to): end for tensor, _, to, _, end, _ in case.transfers}
    for op in case.ops:
        if case.start[op] < 0:
            yield f"op {op} starts before 0"
        for tensor in case.inputs[op]:
            ready = arrival.get((tensor, case.device[op]), case.end[case.producer[tensor]])
            if case.start[op] < ready:
                yield f"op {op} starts at {case.start[op]} before its tensor {tensor} at {ready}"
    for k, (tensor, _, _, start, _, _) in enumerate(case.transfers):
        if start < case.end[case.producer[tensor]]:
            yield f"transfer {k} starts before tensor {tensor} is made"


def _exclusive(case: Case) -> Iterator[str]:
    """One op at a time per device in launch order, one transfer at a time per channel."""
    last_on: dict[int, int] = {}
    for op in case.launched():
        before = last_on.get(case.device[op])
        if before is not None and case.start[op] < case.end[before]:
            yield f"op {op} starts while op {before} runs on device {case.device[op]}"
        last_on[case.device[op]] = op
    holders: dict[int, list[tuple[int, int, int]]] = {}
    for k, (_, source, to, start, end, _) in enumerate(case.transfers):
        for channel in case.channels(source, to):
            holders.setdefault(channel, []).append((start, end, k))
    for channel, intervals in holders.items():
        intervals.sort()
        for (_, end, k), (start, _, after) in itertools.pairwise(intervals):
            if start < end:
                yield f"transfers {k} and {after} overlap on channel {channel}"


def _starts(case: Case) -> Iterator[str]:
    """Section 2, rules 2 to 5: each start follows from the reported ends of what came earlier."""
    event_end: dict[Wait, int] = {None: 0}
    clock = dict.fromkeys(range(-1, 1 + max(map(max, case.send + case.receive))), 0)
    last_end = dict.fromkeys(case.devices, 0)
    arrival: dict[tuple[int, int], int] = {}
    for op in case.launched():
        here = case.device[op]
        own = case.caused.get(op, [])
        yield from _waits(case, op, own, event_end)
        earliest = [last_end[here], event_end.get(case.op_wait[op], 0)]
        for k in own:
            tensor, source, _, start, end, _ = case.transfers[k]
            wait_end = event_end.get(case.transfer_wait[k], 0)
            begin = max(case.end[case.producer[tensor]], wait_end)
            channels = case.channels(source, here)
            if channels:
                begin = max(begin, *(clock[channel] for channel in channels))
                if start != begin:
                    yield f"transfer {k} starts at {start}, not at {begin}"
                clock.update(dict.fromkeys(channels, end))
                arrival[tensor, here] = end
            else:
                earliest.append(begin + case.transfer_ns(tensor, source, here))
                if end != case.start[op]:
                    yield f"transfer {k} ends at {end}, not just in time at {case.start[op]}"
        for tensor in case.inputs[op]:
            if (tensor, here) in arrival:
                earliest.append(arrival[tensor, here])
            elif case.device[case.producer[tensor]] == here:
                earliest.append(case.end[case.producer[tensor]])
        if case.start[op] != max(earliest):
            yield f"op {op} starts at {case.start[op]}, not at {max(earliest)}"
        last_end[here] = case.end[op]
        arrival |= {(case.transfers[k][0], here): case.transfers[k][4] for k in own}
        event_end |= {("transfer", k): case.transfers[k][4] for k in own}
        event_end["op", op] = case.end[op]


def _waits(case: Case, op: int, own: list[int], earlier: dict[Wait, int]) -> Iterator[str]:
    """Section 2, rule 5: a wait is on something earlier that can free memory where the op runs."""
    waits = [(f"transfer {k}", case.transfer_wait[k]) for k in own]
    for what, wait in [*waits, (f"op {op}", case.op_wait[op])]:
        if wait not in earlier:
            yield f"{what} waits for {wait}, which is not earlier"
        elif wait is not None:
            is_op = wait[0] == "op"
            freed_on = case.device[wait[1]] if is_op else case.transfers[wait[1]][1]
            if freed_on != case.device[op]:
                yield f"{what} waits for {wait}, which frees nothing on device {case.device[op]}"


def _bounds(case: Case) -> Iterator[str]:
    last = max(case.end, default=0)
    if case.makespan != last:
        yield f"makespan is {case.makespan} ns, the last op ends at {last} ns"
    fastest: list[int] = []
    for op in case.ops:
        times = [case.compute_ns(op, device) for device in case.devices]
        fastest.append(min(time_ns for time_ns in times if time_ns is not None))
    path = list(fastest)
    for op in case.launched():
        path[op] += max((path[case.producer[t]] for t in case.inputs[op]), default=0)
    if case.makespan < max(path, default=0):
        yield f"makespan {case.makespan} ns is below the critical path, {max(path)} ns"
    if case.makespan * len(case.devices) < sum(fastest):
        yield f"makespan {case.makespan} ns is below the work, {sum(fastest)} ns, over all devices"


def _memory(case: Case, retention: str, limits: bool) -> Iterator[str]:
    for device, peak in enumerate(_peaks(case, retention)):
        if case.peak[device] != peak:
            yield f"peak of device {device} is {case.peak[device]} bytes, by the rules {peak}"
        if limits and peak > case.cap[device]:
            yield f"device {device} needs {peak} bytes, its cap is {case.cap[device]}"


def _peaks(case: Case, retention: str) -> list[int]:
    """Section 3: the events of all devices in their order, and the greatest total on each."""
    if retention not in ("liveness", "training"):
        raise ValueError(f"unknown retention {retention!r}")
    op_key = [
        _keys(case.start[op], case.end[op], case.order[op], len(case.transfers)) for op in case.ops
    ]
    transfer_key = [
        _keys(start, end, case.order[op], k)
        for k, (_, _, _, start, end, op) in enumerate(case.transfers)
    ]
    events: list[tuple[Key, int, int]] = []  # key, device, bytes
    for op in case.ops:
        here = case.device[op]
        made = case.outputs[op]
        charge = case.scratch[op] + sum(case.bytes[tensor] for tensor in made)
        events.append((op_key[op][0], here, charge))
        events.append((op_key[op][1], here, -case.scratch[op]))
        for tensor in made:
            uses = [op_key[user][1] for user in case.consumers[tensor] if case.device[user] == here]
            uses += [transfer_key[k][1] for k in case.sends.get(tensor, [])]
            if uses and not (retention == "training" and case.role[op] == FORWARD):
                events.append((max(uses), here, -case.bytes[tensor]))
    for k, (tensor, _, to, _, _, _) in enumerate(case.transfers):
        uses = [op_key[user][1] for user in case.consumers[tensor] if case.device[user] == to]
        events.append((transfer_key[k][0], to, case.bytes[tensor]))
        events.append((max(uses), to, -case.bytes[tensor]))
    held = [
        sum(case.persistent[op] for op in case.ops if case.device[op] == device)
        for device in case.devices
    ]
    greatest = list(held)
    for _, same_event in itertools.groupby(sorted(events), key=lambda event: event[0]):
        for _, device, num_bytes in same_event:
            held[device] += num_bytes
        greatest = [max(pair) for pair in zip(greatest, held, strict=True)]
    return greatest


def _keys(start: int, end: int, launch: int, position: int) -> tuple[Key, Key]:
    """Where the start and the end of an op or a transfer stand among all events."""
    return (start, 1, launch, 2 * position), (
        end,
        0 if end > start else 1,
        launch,
        2 * position + 1,
    )
