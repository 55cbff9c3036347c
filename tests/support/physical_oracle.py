"""m-ETF and m-SCT under physical rules, slow and literal: everything is scored after each decision.

Written from docs/rules.md, sections 2 to 4, in plain Python. It answers what was decided; what the
decision takes in time is in `limits_oracle`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from checked_case import Case, FinishedSchedule

__all__ = ["Decision", "DoesNotFit", "decide", "plain"]

FORWARD = 0
Decision = list[tuple[int, int]]  # (op, device) in launch order


class DoesNotFit(Exception):
    """No device can take a ready op and nothing runs any more.

    The op is the first ready one in topological order, or the pinned one that is too large; the
    device is the one that lacks the fewest bytes.
    """

    def __init__(self, op: int, device: int, needed: int, free: int, decided: Decision) -> None:
        """Bytes are those of the test that failed."""
        super().__init__(op, device, needed, free)
        self.op = op
        self.device = device
        self.needed = needed
        self.free = free
        self.decided = decided


def plain(graph: Any, cluster: Any) -> Case:
    """The graph and the cluster as lists, without a schedule."""
    return Case(graph, cluster, FinishedSchedule([], [], [], [], [], [], [], 0, []))


def decide(
    graph: Any,
    cluster: Any,
    *,
    retention: str = "liveness",
    reserve: bool = False,
    favorites: Sequence[int] | None = None,
    fixed: Sequence[int] | None = None,
) -> Decision:
    """Devices and launch order by m-ETF, or with favorites by m-SCT.

    With fixed devices only the order is decided: groups, pins and limits are not looked at.
    """
    state = _State(plain(graph, cluster), graph.topological_order().tolist(), retention, reserve)
    state.fixed = fixed
    if fixed is None:
        state.book_pinned()
    while len(state.decided) < len(state.case.ops):
        state.end_what_ended()
        found, later = state.candidates(favorites)
        if found:
            _, device, op = min(found)
            state.commit(op, device)
        elif later:
            state.now = min(later)
        else:
            raise state.does_not_fit()
    return state.decided


@dataclasses.dataclass
class _Running:
    op: int
    end: int
    leaving: list[int]  # tensors that go when it ends


class _State:
    """Clocks, and the book of what is held where at the moment of decision."""

    def __init__(self, case: Case, order: list[int], retention: str, reserve: bool) -> None:
        self.case = case
        self.position = {op: rank for rank, op in enumerate(order)}
        self.training = retention == "training"
        self.reserve = reserve
        self.fixed: Sequence[int] | None = None
        self.now = 0
        self.decided: Decision = []
        self.home: dict[int, int] = {}
        self.end: dict[int, int] = {}
        self.ended: set[int] = set()
        self.free_at = dict.fromkeys(case.devices, 0)
        self.running: dict[int, _Running] = {}
        self.last: dict[int, int] = {}
        self.clock: dict[int, int] = {}
        self.here: dict[int, set[int]] = {device: set() for device in case.devices}  # tensors
        self.reached: dict[int, set[int]] = {device: set() for device in case.devices}
        self.persistent = dict.fromkeys(case.devices, 0)
        self.peak = dict.fromkeys(case.devices, 0)
        self.booked: set[int] = set()  # ops whose persistent bytes are in the book

    def team(self, op: int) -> list[int]:
        group = self.case.group[op]
        return [op] if group < 0 else [o for o in self.case.ops if self.case.group[o] == group]

    def group_home(self, op: int) -> int | None:
        homes = {self.home[member] for member in self.team(op) if member in self.home}
        return homes.pop() if homes else None

    def may_run(self, op: int, device: int) -> bool:
        return all(self.case.compute_ns(member, device) is not None for member in self.team(op))

    def book_pinned(self) -> None:
        """What only one device may run has its persistent bytes there from the start."""
        for op in self.case.ops:
            homes = [device for device in self.case.devices if self.may_run(op, device)]
            if len(homes) == 1:
                needed = self.case.persistent[op]
                free = self.case.cap[homes[0]] - self.persistent[homes[0]]
                if needed > free:
                    raise DoesNotFit(op, homes[0], needed, free, [])
                self.persistent[homes[0]] += needed
                self.booked.add(op)
        self.peak = dict(self.persistent)

    def ready(self) -> list[int]:
        case = self.case
        return [
            op
            for op in case.ops
            if op not in self.home and all(case.producer[t] in self.ended for t in case.inputs[op])
        ]

    def end_what_ended(self) -> None:
        for device, run in list(self.running.items()):
            if run.end <= self.now:
                self.ended.add(run.op)
                self.here[device] -= set(run.leaving)
                del self.running[device]

    def used(self, device: int) -> int:
        scratch = self.case.scratch[self.running[device].op] if device in self.running else 0
        held = sum(self.case.bytes[tensor] for tensor in self.here[device])
        return self.persistent[device] + held + scratch

    def new_persistent(self, op: int) -> int:
        return sum(self.case.persistent[o] for o in self.team(op) if o not in self.booked)

    def missing(self, op: int, device: int) -> list[int]:
        return [t for t in self.case.inputs[op] if t not in self.reached[device]]

    def own_bytes(self, op: int) -> int:
        return self.case.scratch[op] + sum(self.case.bytes[t] for t in self.case.outputs[op])

    def guard(self, op: int, device: int) -> int:
        """Bytes kept free on the device for groups that are not complete, the op's own excepted."""
        if not self.reserve:
            return 0
        total = 0
        for group in set(self.case.group) - {-1, self.case.group[op]}:
            members = [member for member in self.case.ops if self.case.group[member] == group]
            placed = [member for member in members if member in self.home]
            if placed and len(placed) < len(members) and self.home[placed[0]] == device:
                total += max(map(self.own_bytes, members))
        return total

    def allowed(self, op: int, device: int) -> bool:
        if self.fixed is not None:
            return self.fixed[op] == device
        return self.group_home(op) in (None, device) and self.may_run(op, device)

    def lacks(self, op: int, device: int) -> tuple[int, int] | None:
        """Bytes needed and free on an allowed device, where that is not enough."""
        if self.fixed is not None:
            return None
        new = self.new_persistent(op)
        copies = sum(self.case.bytes[tensor] for tensor in self.missing(op, device))
        needed = new + copies + self.own_bytes(op)
        free = self.case.cap[device] - self.guard(op, device) - self.used(device)
        if needed > free:
            return needed, free
        # What is there from time 0 must have fitted at every moment so far.
        free = self.case.cap[device] - self.peak[device]
        return (new, free) if new > free and new else None

    def fits(self, op: int, device: int) -> bool:
        return self.allowed(op, device) and self.lacks(op, device) is None

    def does_not_fit(self) -> DoesNotFit:
        op = min(self.ready(), key=self.position.__getitem__)
        lacking = []
        for device in self.case.devices:
            found = self.lacks(op, device) if self.allowed(op, device) else None
            if found is not None:
                lacking.append((found[0] - found[1], device, *found))
        return DoesNotFit(op, *min(lacking)[1:], self.decided)

    def sends(self, op: int, device: int, clock: dict[int, int]) -> int:
        """Sends the op's missing inputs in order on these clocks; when the last one is there."""
        arrival = 0
        for tensor in self.missing(op, device):
            source = self.home[self.case.producer[tensor]]
            held = self.case.channels(source, device)
            start = max([self.end[self.case.producer[tensor]], *(clock.get(c, 0) for c in held)])
            end = start + self.case.transfer_ns(tensor, source, device)
            clock.update(dict.fromkeys(held, end))
            arrival = max(arrival, end)
        return arrival

    def start(self, op: int, device: int) -> int:
        return max(self.now, self.free_at[device], self.sends(op, device, dict(self.clock)))

    def candidates(
        self, favorites: Sequence[int] | None
    ) -> tuple[list[tuple[int, int, int]], list[int]]:
        """(position, device, op) of all that may start now, and all later moments to look again."""
        found: list[tuple[int, int, int]] = []
        later = [run.end for run in self.running.values()]
        ready = self.ready()
        for device in self.case.devices:
            if device in self.running:
                continue
            able = {op: self.start(op, device) for op in ready if self.fits(op, device)}
            favorite = self.waits_for(device, ready, favorites)
            if favorite is not None:
                urgent = sorted((self.urgent(op), self.position[op], op) for op in ready)
                later += [when for when, _, _ in urgent if when > self.now]
                later += [begin for begin in able.values() if begin > self.now]
                due = [op for when, _, op in urgent if when <= self.now and op in able]
                able = {op: able[op] for op in [*due, favorite] if able[op] <= self.now}
                able = dict(list(able.items())[:1])
            later += [begin for begin in able.values() if begin > self.now]
            found += [
                (self.position[op], device, op) for op, begin in able.items() if begin <= self.now
            ]
        return found, later

    def waits_for(
        self, device: int, ready: list[int], favorites: Sequence[int] | None
    ) -> int | None:
        """The favorite child that an idle device stays free for, if no other starts it earlier."""
        if favorites is None or device not in self.last:
            return None
        favorite = favorites[self.last[device]]
        if favorite not in ready or self.group_home(favorite) is not None:
            return None
        if not self.fits(favorite, device):
            return None
        own = self.start(favorite, device)
        others = [at for at in self.case.devices if at != device and self.fits(favorite, at)]
        return None if any(self.start(favorite, at) < own for at in others) else favorite

    def urgent(self, op: int) -> int:
        """When the inputs of an op could be on any device."""
        times = [0]
        for tensor in self.case.inputs[op]:
            source = self.home[self.case.producer[tensor]]
            others = [at for at in self.case.devices if at != source]
            longest = max((self.case.transfer_ns(tensor, source, at) for at in others), default=0)
            times.append(self.end[self.case.producer[tensor]] + longest)
        return max(times)

    def commit(self, op: int, device: int) -> None:
        new = self.new_persistent(op)
        self.booked |= set(self.team(op))
        begin = self.start(op, device)
        self.sends(op, device, self.clock)
        self.persistent[device] += new
        self.peak[device] += new
        arrived = {*self.missing(op, device), *self.case.outputs[op]}
        self.here[device] |= arrived
        self.reached[device] |= arrived
        self.home[op] = device
        self.decided.append((op, device))
        time_ns = self.case.compute_ns(op, device)
        assert time_ns is not None
        self.end[op] = self.free_at[device] = begin + time_ns
        self.last[device] = op
        self.running[device] = _Running(op, self.end[op], [])
        self.peak[device] = max(self.peak[device], self.used(device))
        for tensor in self.case.inputs[op]:
            if all(user in self.home for user in self.case.consumers[tensor]):
                self.leave(tensor)

    def leave(self, tensor: int) -> None:
        """All consumers are placed: nothing more can land, so the tensor goes when it is used."""
        if self.training and self.case.role[self.case.producer[tensor]] == FORWARD:
            return
        for device in self.case.devices:
            if tensor in self.here[device]:
                run = self.running.get(device)
                if run is not None and tensor in self.case.inputs[run.op]:
                    run.leaving.append(tensor)
                else:
                    self.here[device].discard(tensor)
