"""A decided placement in its launch order within the limits: docs/rules.md, 2 to 4, literally.

Slow and short: after every launch, the use of memory is added up anew from everything launched so
far. What has uses that are not launched yet is held for good.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from checked_case import Case
from physical_oracle import Decision, plain

__all__ = ["Times", "schedule"]

FORWARD = 0
Key = tuple[int, int, int, int]  # time, phase, launch index, position


@dataclasses.dataclass
class Times:
    """Starts of ops, and of transfers in commit order."""

    start: dict[int, int]
    transfers: list[tuple[int, int, int, int]]  # tensor, destination, start, end


def schedule(
    graph: Any, cluster: Any, decision: Decision, *, retention: str, enforced: bool = True
) -> Times | None:
    """The times of a decision; None where an op never fits.

    What fits without enforcing the limits is left as it is.
    """
    free = _Launches(plain(graph, cluster), decision, retention, enforced=False)
    assert free.run()
    if not enforced or free.fits_as_it_is():
        return free.times()
    held = _Launches(plain(graph, cluster), decision, retention, enforced=True)
    return held.times() if held.run() else None


@dataclasses.dataclass
class _Transfer:
    tensor: int
    to: int
    rank: int
    at: int
    start: int
    end: int

    def keys(self) -> tuple[Key, Key]:
        return _keys(self.start, self.end, self.rank, self.at)


def _keys(start: int, end: int, rank: int, at: int) -> tuple[Key, Key]:
    return (start, 1, rank, 2 * at), (end, 0 if end > start else 1, rank, 2 * at + 1)


class _Launches:
    def __init__(self, case: Case, decision: Decision, retention: str, *, enforced: bool) -> None:
        self.case = case
        self.decision = decision
        self.training = retention == "training"
        self.enforced = enforced
        self.home = dict(decision)
        self.rank = {op: rank for rank, (op, _) in enumerate(decision)}
        self.start: dict[int, int] = {}
        self.end: dict[int, int] = {}
        self.transfers: list[_Transfer] = []
        self.clock: dict[int, int] = {}

    def run(self) -> bool:
        return all(self.launch(op, device) for op, device in self.decision)

    def times(self) -> Times:
        return Times(self.start, [(t.tensor, t.to, t.start, t.end) for t in self.transfers])

    def launch(self, op: int, here: int) -> bool:
        case = self.case
        earliest = [0, *(self.end[o] for o in self.start if self.home[o] == here)]
        sent = {(t.tensor, t.to): t.end for t in self.transfers}
        just_in_time: list[tuple[int, int]] = []  # tensor, duration
        for tensor in case.inputs[op]:
            producer = case.producer[tensor]
            source = self.home[producer]
            if source == here or (tensor, here) in sent:
                earliest.append(sent.get((tensor, here), self.end[producer]))
                continue
            duration = case.transfer_ns(tensor, source, here)
            channels = case.channels(source, here)
            if not channels:
                just_in_time.append((tensor, duration))
                earliest.append(self.end[producer] + duration)
                self.transfers.append(_Transfer(tensor, here, self.rank[op], -1, 0, 0))
                continue
            wish = max([self.end[producer], *(self.clock.get(c, 0) for c in channels)])
            at = len(self.transfers)
            copy = [(0, at, case.bytes[tensor])]
            begin = self.first_fit(op, here, wish, copy)
            if begin is None:
                return False
            self.clock.update(dict.fromkeys(channels, begin + duration))
            end = begin + duration
            self.transfers.append(_Transfer(tensor, here, self.rank[op], at, begin, end))
            earliest.append(end)
        last = len(case.tensors) * len(case.devices)  # an op comes after its transfers
        made = case.scratch[op] + sum(case.bytes[tensor] for tensor in case.outputs[op])
        numbers = [k for k, t in enumerate(self.transfers) if t.at < 0]
        charges = [
            (duration, k, case.bytes[tensor])
            for k, (tensor, duration) in zip(numbers, just_in_time, strict=True)
        ]
        found = self.first_fit(op, here, max(earliest), [*charges, (0, last, made)])
        if found is None:
            return False
        for k, (_, duration) in zip(numbers, just_in_time, strict=True):
            self.transfers[k].at = k
            self.transfers[k].start, self.transfers[k].end = found - duration, found
        time_ns = case.compute_ns(op, here)
        assert time_ns is not None
        self.start[op], self.end[op] = found, found + time_ns
        return True

    def first_fit(
        self, op: int, here: int, wish: int, charges: list[tuple[int, int, int]]
    ) -> int | None:
        """First moment from the wish on from which the charges fit: (lead, position, bytes)."""
        if not self.enforced:
            return wish
        events = list(self.events(here))
        moments = {key[0] + lead for key, _ in events for lead, _, _ in charges}
        for moment in [wish, *sorted(m for m in moments if m > wish)]:
            new = [
                ((moment - lead, 1, self.rank[op], 2 * position), num_bytes)
                for lead, position, num_bytes in charges
            ]
            first = min(key for key, _ in new)
            if self.greatest([*events, *new], here, first) <= self.case.cap[here]:
                return moment
        return None

    def greatest(self, events: list[tuple[Key, int]], here: int, first: Key) -> int:
        """The greatest total after any event from `first` on."""
        case = self.case
        held = sum(case.persistent[op] for op in case.ops if self.home[op] == here)
        most = 0
        events = sorted(events)
        for number, (key, change) in enumerate(events):
            held += change
            whole = number + 1 == len(events) or events[number + 1][0] != key
            if key >= first and whole:
                most = max(most, held)
        return most

    def events(self, here: int) -> Iterator[tuple[Key, int]]:
        """Charges and frees of everything launched so far on a device."""
        case, last = self.case, len(self.case.tensors) * len(self.case.devices)
        op_keys = {
            op: _keys(self.start[op], self.end[op], self.rank[op], last) for op in self.start
        }
        done = [transfer for transfer in self.transfers if transfer.at >= 0]
        for op, (begin, end) in op_keys.items():
            if self.home[op] != here:
                continue
            yield begin, case.scratch[op] + sum(case.bytes[t] for t in case.outputs[op])
            yield end, -case.scratch[op]
            for tensor in case.outputs[op]:
                kept = self.training and case.role[op] == FORWARD
                local = [user for user in case.consumers[tensor] if self.home[user] == here]
                away = {self.home[user] for user in case.consumers[tensor]} - {here}
                sent = [t for t in done if t.tensor == tensor]
                complete = len(sent) == len(away) and all(user in op_keys for user in local)
                if case.consumers[tensor] and complete and not kept:
                    uses = [op_keys[user][1] for user in local] + [t.keys()[1] for t in sent]
                    yield max(uses), -case.bytes[tensor]
        for transfer in done:
            if transfer.to == here:
                yield transfer.keys()[0], case.bytes[transfer.tensor]
                users = [u for u in case.consumers[transfer.tensor] if self.home[u] == here]
                if all(user in op_keys for user in users):
                    yield max(op_keys[user][1] for user in users), -case.bytes[transfer.tensor]

    def fits_as_it_is(self) -> bool:
        first = (0, 0, 0, 0)
        return all(
            max(self.greatest(list(self.events(device)), device, first), self.bare(device))
            <= self.case.cap[device]
            for device in self.case.devices
        )

    def bare(self, here: int) -> int:
        return sum(self.case.persistent[op] for op in self.case.ops if self.home[op] == here)
