"""Improving: local search from the best candidates, by moving cuts, parts and single units.

First the best candidates are descended from: every neighbor is judged by the core, a few at a time,
and the best of those is taken if it is better. From the best of all a walk goes on, which takes the
best of a few random neighbors also where it is a little worse, the less so the longer it lasts
(threshold accepting: Dueck and Scheuer, 1990). A last descent ends it. The number of judged
candidates is bounded. As long as nothing fits, descents from shaken placements take the walk's
place. Where there are few placements, all are judged.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence

from baechi.torch.outcomes import Candidate
from baechi.torch.random_moves import random_move, shaken
from baechi.torch.splits import UnitCosts
from baechi.torch.tasks import Task
from baechi.torch.trials import Trials

__all__ = ["budget_of", "improve"]

_NUM_STARTS = 4
_AT_A_TIME = 24
_FIRST, _LAST = 0.25, 0.15  # shares of all candidates, of the first descents and of the last one
_FIRST_OF_TIGHT = 0.5  # the same of the first descents where nothing fits yet
_STEPS_AT_A_TIME = 12  # of a walk
_WORSE = 0.03  # how much worse a walk may become at its start, in one step
_LOST = 60  # steps of a walk without a better placement, after which it goes back to the best
_WORK = 8_000_000  # steps and functions that are replayed in all
_FEWEST, _MOST, _FOR_EACH_UNIT = 200, 8_000, 200  # candidates
_LONGEST_SHIFT = 64
_MOST_MOVES = 400  # of single units, from one placement


def improve(task: Task, costs: UnitCosts, trials: Trials) -> Candidate:
    """The best placement that the local search finds."""
    starts = trials.best(_NUM_STARTS)
    if task.num_devices == 1 or not costs.free:
        return starts[0]
    budget = budget_of(task)
    if task.num_devices ** len(costs.free) * len(starts) <= budget:
        _judge_all(task, costs, trials, starts)
        return trials.best(1)[0]
    first = _FIRST if starts[0].fits else _FIRST_OF_TIGHT
    found = [
        _descend(task, costs, trials, start, _Left(int(budget * first) // _NUM_STARTS))
        for start in starts
    ]
    best = min(found, key=lambda one: one.rank)
    left = _Left(int(budget * (1 - first - _LAST)))
    best = _walk(task, costs, trials, _made_to_fit(task, costs, trials, best, left), left)
    return _descend(task, costs, trials, best, _Left(int(budget * _LAST)))


def budget_of(task: Task) -> int:
    """How many candidates may be judged, the fewer the longer the step."""
    size = len(task.trace.steps) + len(task.trace.functions)
    most = min(_MOST, _FEWEST + _FOR_EACH_UNIT * len(task.units.names))
    return min(most, max(_FEWEST, _WORK // max(1, size)))


def _judge_all(task: Task, costs: UnitCosts, trials: Trials, starts: Sequence[Candidate]) -> None:
    """Judges all placements of what no pin holds, with the exceptions of each start."""
    for start in starts:
        placements = []
        for devices in itertools.product(range(task.num_devices), repeat=len(costs.free)):
            placement = list(start.device_of_unit)
            for unit, device in zip(costs.free, devices, strict=True):
                placement[unit] = device
            placements.append(trials.canonical(placement, start.exceptions))
        trials.judge_all(start.origin, placements, start.exceptions)


class _Left:
    """How many candidates may still be judged."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.taken = 0

    def take(self, count: int) -> None:
        self.count -= count
        self.taken += count


def _descend(
    task: Task, costs: UnitCosts, trials: Trials, best: Candidate, left: _Left
) -> Candidate:
    """Takes better neighbors as long as there are any."""
    while left.count > 0:
        better = _better(task, costs, trials, best, left)
        if better is None:
            return best
        best = better
    return best


def _better(
    task: Task, costs: UnitCosts, trials: Trials, best: Candidate, left: _Left
) -> Candidate | None:
    kept = best.exceptions
    neighbors = (trials.canonical(one, kept) for one in _neighbors(task, costs, best))
    new = (one for one in neighbors if not trials.is_known(one, kept))
    while left.count > 0:
        some = list(itertools.islice(new, min(_AT_A_TIME, left.count)))
        if not some:
            return None
        left.take(len(some))
        judged = trials.judge_all(best.origin, some, kept)
        found = min(judged, key=lambda one: one.rank)
        if found.rank < best.rank:
            return found
    return None


def _neighbors(task: Task, costs: UnitCosts, best: Candidate) -> Iterator[list[int]]:
    """Cuts shifted, devices exchanged, then single units moved."""
    devices = best.device_of_unit
    yield from _shifts(costs.free, devices)
    for a, b in itertools.combinations(range(task.num_devices), 2):
        swap = {a: b, b: a}
        yield [swap.get(device, device) for device in devices]
    yield from _parts(task, costs, devices)
    yield from itertools.islice(_moves(task, costs, best), _MOST_MOVES)


def _shifts(order: Sequence[int], devices: Sequence[int]) -> Iterator[list[int]]:
    """Each cut shifted by 1, 2, 4, ... units, to either side."""
    cuts = [at for at in range(1, len(order)) if devices[order[at]] != devices[order[at - 1]]]
    length = 1
    while length <= min(_LONGEST_SHIFT, len(order)):
        for cut in cuts:
            left, right = devices[order[cut - 1]], devices[order[cut]]
            for first, last, device in (
                (cut, min(len(order), cut + length), left),
                (max(0, cut - length), cut, right),
            ):
                moved = list(devices)
                for at in range(first, last):
                    moved[order[at]] = device
                yield moved
        length *= 2


def _parts(task: Task, costs: UnitCosts, devices: Sequence[int]) -> Iterator[list[int]]:
    """Modules with all that is in them to other devices, such as one of several branches."""
    for part in costs.parts:
        for device in range(task.num_devices):
            if any(devices[unit] != device for unit in part):
                moved = list(devices)
                for unit in part:
                    moved[unit] = device
                yield moved


def _moves(task: Task, costs: UnitCosts, best: Candidate) -> Iterator[list[int]]:
    """Single units to other devices, and two units exchanged.

    From a device over its limit, units that take about what is too much come first; otherwise the
    largest.
    """
    devices = best.device_of_unit
    over = [peak - cap for peak, cap in zip(best.peaks, task.caps, strict=True)]
    worst = max(range(task.num_devices), key=lambda d: (over[d], -d))
    free = [unit for unit in range(len(devices)) if task.pinned[unit] < 0]
    if over[worst] <= 0:
        for unit in sorted(free, key=lambda u: (-costs.memory[u], u)):
            yield from _moved(devices, unit, task.num_devices)
        return
    here = sorted(
        (unit for unit in free if devices[unit] == worst),
        key=lambda u: (abs(costs.memory[u] - over[worst]), u),
    )
    for unit in here[: _MOST_MOVES // 4]:
        yield from _moved(devices, unit, task.num_devices)
    others = [unit for unit in free if devices[unit] != worst]
    pairs = sorted(
        (abs(costs.memory[one] - costs.memory[other] - over[worst]), one, other)
        for one in sorted(here, key=lambda u: (-costs.memory[u], u))[:40]
        for other in sorted(others, key=lambda u: (-costs.memory[u], u))[:40]
    )
    for _, one, other in pairs:
        moved = list(devices)
        moved[one], moved[other] = devices[other], devices[one]
        yield moved


def _moved(devices: Sequence[int], unit: int, num_devices: int) -> Iterator[list[int]]:
    for device in range(num_devices):
        if device != devices[unit]:
            moved = list(devices)
            moved[unit] = device
            yield moved


def _made_to_fit(
    task: Task, costs: UnitCosts, trials: Trials, best: Candidate, left: _Left
) -> Candidate:
    """Descends again and again from the best placement, shaken, for as long as it does not fit.

    Descents know which units to move away from a full device; a walk does not.
    """
    rng = random.Random(0)
    while left.count > 0 and not best.fits:
        devices = shaken(rng, costs, best.device_of_unit, task.num_devices)
        devices = trials.canonical(devices, best.exceptions)
        start = trials.judge(best.origin, devices, best.exceptions)
        left.take(1)
        again = _descend(task, costs, trials, start, left)
        best = min(best, again, key=lambda one: one.rank)
    return best


def _walk(task: Task, costs: UnitCosts, trials: Trials, best: Candidate, left: _Left) -> Candidate:
    """The best placement on a walk of random moves that may make it worse, less and less."""
    rng = random.Random(0)
    here, num_lost, whole = best, 0, max(1, left.count)
    while left.count > 0:
        some = _some_random(rng, task, costs, trials, here)[: left.count]
        left.take(max(_STEPS_AT_A_TIME // 2, len(some)))  # where little is new, the walk is short
        if not some:
            here = best
            continue
        found = min(trials.judge_all(here.origin, some, here.exceptions), key=lambda one: one.rank)
        if found.rank < here.rank or _is_near(found, here, _WORSE * left.count / whole):
            here = found
        num_lost = 0 if found.rank < best.rank else num_lost + 1
        best = min(best, found, key=lambda one: one.rank)
        if num_lost > _LOST:
            here, num_lost = best, 0
    return best


def _is_near(found: Candidate, here: Candidate, slack: float) -> bool:
    """Whether a candidate fits, and is worse by that share at most by the objective."""
    return found.fits and found.rank[2] <= here.rank[2] * (1 + slack)


def _some_random(
    rng: random.Random, task: Task, costs: UnitCosts, trials: Trials, here: Candidate
) -> list[list[int]]:
    """A few random neighbors that have not been judged yet; none where chance finds none."""
    found: list[list[int]] = []
    for _ in range(4 * _STEPS_AT_A_TIME):
        moved = random_move(rng, costs, here.device_of_unit, task.num_devices)
        moved = trials.canonical(moved, here.exceptions)
        if moved not in found and not trials.is_known(moved, here.exceptions):
            found.append(moved)
        if len(found) == _STEPS_AT_A_TIME:
            break
    return found
