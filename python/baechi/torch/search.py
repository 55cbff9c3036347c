"""Search: which device each unit goes to, judged by the ledger and the simulator.

Candidates are the core's placers, splits of the model's own order that fill devices up to their
limits, and the obvious ones (one device, an even split, a split by weights alone). Each is laid out
by the rules of `modules`, its memory replayed by the ledger in PyTorch's own order, its time
simulated. The best is then improved by moving units next to a cut. The same input gives the same
answer; no clock and no random number decides anything.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence

from baechi.errors import OutOfMemoryError, PlacementError
from baechi.placement import place
from baechi.torch.modules import lay_out
from baechi.torch.outcomes import Outcome, evaluate, times_of
from baechi.torch.splits import (
    device_orders,
    even_split,
    filled,
    split,
    unit_costs,
    unit_order,
    weights_only,
)
from baechi.torch.tasks import Task

__all__ = ["search"]

_PLACERS = ("m-etf", "m-sct", "m-topo", "contiguous")
_NUM_CORRECTIONS = 4
_NUM_IMPROVED = 3  # how many of the best candidates are improved
_MOST_REPLAYED = 40_000  # steps that improving one of them may replay


def search(task: Task) -> tuple[Outcome, dict[str, Outcome]]:
    """Finds a placement.

    Returns:
        The best outcome, which may not fit, and the candidates by name, for comparison.
    """
    trial = _Trial(task)
    num_units = len(task.units.names)
    for device in range(task.num_devices):
        trial.judge(f"only {task.cluster.names[device]}", [device] * num_units)
    if task.num_devices > 1:
        trial.judge("even split", even_split(task))
        trial.judge("weights-only split", weights_only(task))
        _fill(task, trial)
        _balance(task, trial)
        _place(task, trial)
    ranked = sorted(trial.known.values(), key=lambda outcome: outcome.rank(task))
    improved = [_improved(task, trial, outcome) for outcome in ranked[:_NUM_IMPROVED]]
    return min(improved, key=lambda outcome: outcome.rank(task)), trial.found


class _Trial:
    """Candidates judged so far, each placement once."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.found: dict[str, Outcome] = {}
        self.known: dict[tuple[tuple[int, ...], tuple[tuple[int, int], ...]], Outcome] = {}

    def pinned(self, devices: Sequence[int]) -> tuple[int, ...]:
        """The candidate with the pins kept."""
        return tuple(p if p >= 0 else d for p, d in zip(self.task.pinned, devices, strict=True))

    def judge(
        self, origin: str, devices: Sequence[int], exceptions: Mapping[int, int] | None = None
    ) -> Outcome:
        """Evaluates a candidate and remembers it under a name."""
        chosen = self.pinned(devices)
        key = (chosen, tuple(sorted((exceptions or {}).items())))
        if key not in self.known:
            self.known[key] = evaluate(self.task, chosen, origin, exceptions)
        self.found[origin] = self.known[key]
        return self.known[key]


def _fill(task: Task, trial: _Trial) -> None:
    """Fills devices in several orders, less and less, until one fits; then a little less still."""
    for name, order in device_orders(task):
        fitting = 0
        for percent in (100, 97, 94, 90, 85, 80, 70, 60, 50):
            outcome = trial.judge(f"filled to {percent} % ({name})", filled(task, order, percent))
            fitting += outcome.fits
            if fitting == 2:
                break


def _balance(task: Task, trial: _Trial) -> None:
    """Splits the model's order so that every device is full to the same share of its limit.

    What a unit adds to a peak depends on where the cuts are, so the shares are corrected by what
    the ledger finds.
    """
    _, memory, _ = unit_costs(task)
    for name, order in device_orders(task):
        shares = [float(task.caps[d]) for d in order]
        for round_ in range(_NUM_CORRECTIONS):
            total = sum(shares) or 1.0
            parts = split(unit_order(task), memory, [share / total for share in shares])
            outcome = trial.judge(f"balanced {round_} ({name})", [order[p] for p in parts])
            filled = [outcome.memory.peaks[d] / max(1, task.caps[d]) for d in order]
            mean = sum(filled) / len(filled)
            shares = [s * (mean / max(f, 1e-9)) ** 0.8 for s, f in zip(shares, filled, strict=True)]


def _place(task: Task, trial: _Trial) -> None:
    """Asks the core's placers, under the limits and, until one fits, under wider or closer ones.

    The graph's memory differs a little from the ledger's, which decides in the end.
    """
    for algorithm in _PLACERS:
        options = {"favorites": "greedy"} if algorithm == "m-sct" else {}
        for percent in (100, 90, 110, 80, 125):
            reserve = {device.name: device.reserve_bytes for device in task.cluster.devices}
            memory = {
                name: reserve[name] + cap * percent // 100
                for name, cap in zip(task.cluster.names, task.caps, strict=True)
            }
            cluster = task.cluster.with_memory(memory)
            try:
                plan = place(task.operators.graph, cluster, algorithm, **options)  # type: ignore[arg-type]
            except (PlacementError, OutOfMemoryError):
                continue
            at = plan.device.tolist()
            units = trial.pinned([at[op] for op in task.operators.of_unit])
            exceptions: dict[int, int] = {}
            if task.free_ops:
                rules = lay_out(task.trace, task.units, units).device_of_step
                exceptions = {
                    step: at[op]
                    for step, op in enumerate(task.operators.of_step)
                    if at[op] != rules[step] and task.units.of_step[step] < 0
                }
            if trial.judge(f"{algorithm} at {percent} %", units, exceptions).fits:
                break


def _improved(task: Task, trial: _Trial, best: Outcome) -> Outcome:
    """Moves units on either side of a cut across it, as long as that helps.

    A round judges the times of all neighbors in one call; the ledger is asked from the fastest on.
    """
    order = unit_order(task)
    left = max(8, _MOST_REPLAYED // max(1, len(task.trace.steps)))
    while left > 0:
        neighbors = [
            chosen
            for devices in _neighbors(order, best.device_of_unit, task.num_devices)
            if (chosen := trial.pinned(devices)) != best.device_of_unit
        ][:left]
        left -= len(neighbors)
        better = _first_better(task, best, list(dict.fromkeys(neighbors)))
        if better is None:
            return best
        best = better
    return best


def _first_better(
    task: Task, best: Outcome, neighbors: Sequence[tuple[int, ...]]
) -> Outcome | None:
    if not neighbors:
        return None
    layouts = [lay_out(task.trace, task.units, one, best.exceptions) for one in neighbors]
    times = times_of(task, list(zip(neighbors, layouts, strict=True)))
    for at in sorted(range(len(neighbors)), key=lambda i: (times[i], i)):
        if task.objective == "fastest" and best.fits and times[at] >= best.step_ns:
            return None
        outcome = evaluate(task, neighbors[at], best.origin, best.exceptions)
        if outcome.rank(task) < best.rank(task):
            return outcome
    return None


def _neighbors(
    order: Sequence[int], devices: Sequence[int], num_devices: int
) -> Iterator[list[int]]:
    """Candidates near one: cuts shifted by 1, 2, 4, ... units, and two devices exchanged."""
    cuts = [at for at in range(1, len(order)) if devices[order[at]] != devices[order[at - 1]]]
    for length in (16, 8, 4, 2, 1):
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
    for a, b in itertools.combinations(range(num_devices), 2):
        swap = {a: b, b: a}
        yield [swap.get(device, device) for device in devices]
