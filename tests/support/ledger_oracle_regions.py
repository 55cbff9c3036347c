"""Checkpointed regions in the memory ledger: forgotten in forward, computed again in backward.

As torch's non-reentrant checkpoint does it: autograd saves nothing inside a region; the region's
arguments stay until its last function has run; the first function that needs something saved makes
the region run again, up to the last op that saves something.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from baechi.torch.memory import Place

if TYPE_CHECKING:
    from ledger_oracle_forward import Replay


class Regions:
    """The regions of one replay."""

    def __init__(self, replay: Replay) -> None:
        """Finds what each region takes from outside, and which functions need it again."""
        self.replay = replay
        trace = replay.trace
        self.of_step = {at: number for number, r in enumerate(trace.regions) for at in r}
        self.first = {steps[0]: number for number, steps in enumerate(trace.regions)}
        self.last = {steps[-1]: number for number, steps in enumerate(trace.regions)}
        self.arguments: dict[int, list[int]] = {}  # instances that checkpoint holds
        self.waiting: dict[int, set[int]] = defaultdict(set)  # functions that are yet to run
        self.again: set[int] = set()  # regions that have run again
        for number, steps in enumerate(trace.regions):
            for at in steps:
                self.waiting[number].update(saved.function for saved in trace.steps[at].saved)

    def enter(self, at: int) -> None:
        """Before the first step of a region: its arguments are held."""
        number = self.first.get(at)
        if number is None:
            return
        replay, trace = self.replay, self.replay.trace
        inside = set(trace.regions[number])
        found: dict[int, None] = {}
        for step in trace.regions[number]:
            for value in trace.steps[step].reads:
                maker = trace.values[value].step
                if maker >= 0 and maker not in inside:
                    place = replay.place(value, step)
                    if place not in replay.copies:
                        place = (value, replay.home(value), -1)
                    found[replay.instance_at(place)] = None
        self.arguments[number] = list(found)
        for instance in found:
            replay.holders[instance] += 1

    def leave(self, at: int) -> None:
        """After the last step of a region: without a backward its arguments go."""
        number = self.last.get(at)
        if number is None:
            return
        if not self.waiting[number]:
            self._drop_arguments(number)
        for place in [place for place in self.replay.copies if place[2] == number]:
            del self.replay.copies[place]  # dropped after its last use

    def need(self, function: int) -> None:
        """Before a function runs: its region is computed again, if that has not been done."""
        number = self._region_of(function)
        if number is not None and number not in self.again:
            self.again.add(number)
            self._recompute(number)

    def ran(self, function: int) -> None:
        """A function has run; after the last one of its region the arguments go."""
        number = self._region_of(function)
        if number is not None:
            self.waiting[number].discard(function)
            if not self.waiting[number]:
                self._drop_arguments(number)

    def _region_of(self, function: int) -> int | None:
        step = self.replay.trace.functions[function].step
        number = self.of_step.get(step)
        if number is None or function not in self.waiting[number]:
            return None
        return number

    def _drop_arguments(self, number: int) -> None:
        for instance in self.arguments.pop(number, ()):
            self.replay.drop(instance)

    def _recompute(self, number: int) -> None:
        """Runs the region's steps again, up to the last that saves; then its locals go."""
        replay, trace = self.replay, self.replay.trace
        saving = [at for at in trace.regions[number] if trace.steps[at].saved]
        again = [at for at in trace.regions[number] if at <= saving[-1]]
        dies, left = self._local_uses(again)
        for at in again:
            replay.copy_reads(at, backward=True)
            born = set(trace.steps[at].born)
            if at == again[-1] and not any(s.storage in born for s in trace.steps[at].saved):
                # It stops at what this op saves, before the op runs.
                read = replay.read(at)
                for saved in trace.steps[at].saved:
                    instance = read.get(saved.storage, replay.own.get(saved.storage))
                    if instance is not None:
                        replay.save(saved.function, instance)
                left -= {(value, replay.device_of_step[at], -1) for value in trace.steps[at].makes}
                continue
            replay.compute(at, keeps=True)
            replay.drop_used(at, dies.get(at, ()))
        for place in sorted(left):
            replay.drop(replay.instance_at(place))

    def _local_uses(self, steps: list[int]) -> tuple[dict[int, list[Place]], set[Place]]:
        """What goes after which step, and what is left when the last has run."""
        replay, trace = self.replay, self.replay.trace
        inside = set(steps)
        last: dict[Place, int] = {}
        for at in steps:
            for value in trace.steps[at].makes:
                last[value, replay.device_of_step[at], -1] = at
            for value in trace.steps[at].reads:
                place = replay.place(value, at)
                if trace.values[value].step in inside:
                    last[value, replay.home(value), -1] = at
                if place[2] >= 0:
                    last[place] = at
        dies: dict[int, list[Place]] = defaultdict(list)
        final = steps[-1]
        left = {place for place, at in last.items() if at == final}
        for place, at in last.items():
            if at != final:
                dies[at].append(place)
        return dies, left
