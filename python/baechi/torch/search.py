"""Search: which device each unit goes to, judged by the ledger and the simulator.

Candidates are the core's placers, cuts of the model's own order that fill devices up to their
limits, and the obvious ones (one device, an even split, a split by weights alone). Each is laid out
by the rules of `modules`, its memory replayed in PyTorch's own order, its time simulated, all in
the core. The best are then improved (`improving`). The same input gives the same answer: the number
of candidates is bounded, no clock decides anything, and random numbers have a fixed seed.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping, Sequence

from baechi.errors import OutOfMemoryError, PlacementError
from baechi.placement import place
from baechi.torch.flat_trace import lay_out
from baechi.torch.improving import budget_of, improve
from baechi.torch.outcomes import NEVER_NS, Candidate, Outcome, evaluate
from baechi.torch.splits import UnitCosts, device_orders, filled, measure_units, split
from baechi.torch.tasks import Task
from baechi.torch.trials import Trials

__all__ = ["search"]

_PLACERS = ("m-etf", "m-sct", "m-topo", "contiguous")
_NUM_CORRECTIONS = 4
_NEARLY = 1.05  # times the smallest share


def search(task: Task) -> tuple[Outcome, dict[str, Outcome]]:
    """Finds a placement.

    Returns:
        The best outcome, which may not fit, and obvious ones by name, for comparison.

    Raises:
        PlacementError: no candidate puts every op on a device that can run it.
    """
    costs = measure_units(task)
    obvious = _obvious(task, costs)
    trials, best = _best(task, costs, obvious)
    if best.step_ns >= NEVER_NS:
        raise PlacementError(
            "no placement was found in which every op can run on its device",
            hint="add a device of a kind that runs all ops",
        )
    if task.objective == "most-headroom" and best.fits:
        best = _fastest_near(task, costs, obvious, best)
    found = {
        name: evaluate(task, trials.pinned(devices), name) for name, devices in obvious.items()
    }
    return evaluate(task, best.device_of_unit, best.origin, best.exceptions), found


def _best(
    task: Task, costs: UnitCosts, obvious: Mapping[str, Sequence[int]]
) -> tuple[Trials, Candidate]:
    """The best candidate, and all that were judged on the way."""
    trials = Trials(task, costs.order)
    for name, devices in obvious.items():
        trials.judge(name, devices)
    if task.num_devices > 1:
        for order in device_orders(task)[: _num_orders(task)]:
            _fill(task, costs, trials, order)
            _fill_exactly(task, costs, trials, order)
            _balance(task, costs, trials, order)
        _place(task, trials)
    best = _on_fewer_devices(task, trials, improve(task, costs, trials))
    return trials, min(_canonical(trials, best), best, key=lambda one: one.rank)


def _fastest_near(
    task: Task, costs: UnitCosts, obvious: Mapping[str, Sequence[int]], best: Candidate
) -> Candidate:
    """The fastest candidate whose fullest device has nearly as much headroom as the best one's.

    The last bytes of headroom cost many copies: cuts in the middle of blocks, and modules
    scattered to where there happens to be room.
    """
    share = max(peak / cap for peak, cap in zip(best.peaks, task.caps, strict=True) if cap > 0)
    caps = tuple(min(cap, int(cap * share * _NEARLY)) for cap in task.caps)
    near = dataclasses.replace(task, caps=caps, objective="fastest")
    _, found = _best(near, costs, obvious)
    return found if found.fits else best


def _on_fewer_devices(task: Task, trials: Trials, best: Candidate) -> Candidate:
    """Of plans that are as fast to within 1 %, one that uses fewer devices is better."""
    if task.objective != "fastest" or not best.fits:
        return best
    near = best.step_ns + best.step_ns // 100
    as_fast = [one for one in trials.known.values() if one.fits and one.step_ns <= near]
    return min(as_fast, key=lambda one: (one.num_used, one.rank), default=best)


def _canonical(trials: Trials, best: Candidate) -> Candidate:
    devices = trials.canonical(best.device_of_unit, best.exceptions)
    return trials.judge(best.origin, devices, best.exceptions)


def _obvious(task: Task, costs: UnitCosts) -> dict[str, list[int]]:
    """What a plan is compared with."""
    found = {
        f"only {name}": [device] * len(task.units.names)
        for device, name in enumerate(task.cluster.names)
    }
    if task.num_devices > 1:
        even = [1 / task.num_devices] * task.num_devices
        found["even split"] = split(costs.order, costs.time_ns, even)
        total = max(1, sum(task.caps))
        by_memory = [cap / total for cap in task.caps]
        found["weights-only split"] = split(costs.order, costs.weights, by_memory)
    return found


def _num_orders(task: Task) -> int:
    """How many orders of the devices are tried: they take up to half of all candidates."""
    for_one = 13 + 10 * task.num_devices
    return max(3, budget_of(task) // (2 * for_one))


def _fill(task: Task, costs: UnitCosts, trials: Trials, order: Sequence[int]) -> None:
    """Fills devices less and less by what units take on their own."""
    percents = (100, 97, 94, 90, 85, 80, 70, 60, 50)
    trials.judge_all("filled", [filled(costs, task.caps, order, p) for p in percents])


def _fill_exactly(task: Task, costs: UnitCosts, trials: Trials, order: Sequence[int]) -> None:
    """Fills each device up to its limit as the ledger sees it, the next one taking the rest.

    A device holds more the later it is cut, nearly always; so a cut is found by halving.
    """
    units = costs.order
    devices = [order[0]] * len(units)
    first = 0
    for this, following in itertools.pairwise(order):
        low, high = first, len(units)  # the cut is at `low` or after it, and before `high`
        while low < high:
            middle = (low + high + 1) // 2
            for at, unit in enumerate(units[first:], first):
                devices[unit] = this if at < middle else following
            if trials.judge("filled", devices).peaks[this] <= task.caps[this]:
                low = middle
            else:
                high = middle - 1
        for at, unit in enumerate(units[first:], first):
            devices[unit] = this if at < low else following
        first = low
    trials.judge("filled", devices)


def _balance(task: Task, costs: UnitCosts, trials: Trials, order: Sequence[int]) -> None:
    """Cuts the model's order so that every device is full to the same share of its limit.

    What a unit adds to a peak depends on where the cuts are, so the shares are corrected by what
    the ledger finds.
    """
    shares = [float(task.caps[d]) for d in order]
    for _ in range(_NUM_CORRECTIONS):
        total = sum(shares) or 1.0
        parts = split(costs.order, costs.memory, [share / total for share in shares])
        peaks = trials.judge("balanced", [order[part] for part in parts]).peaks
        full = [peaks[d] / max(1, task.caps[d]) for d in order]
        mean = sum(full) / len(full)
        shares = [s * (mean / max(f, 1e-9)) ** 0.8 for s, f in zip(shares, full, strict=True)]


def _place(task: Task, trials: Trials) -> None:
    """Asks the core's placers, under the limits and, until one fits, under wider or closer ones.

    The graph's memory differs a little from the ledger's, which decides in the end. What runs out
    of memory is not repaired here: the local search does that with the ledger's numbers.
    """
    graph = task.operators.graph
    for algorithm in _PLACERS:
        options = {"favorites": "greedy"} if algorithm == "m-sct" else {}
        for percent in (100, 90, 110, 80, 125, 150):
            reserve = {device.name: device.reserve_bytes for device in task.cluster.devices}
            memory = {
                name: reserve[name] + cap * percent // 100
                for name, cap in zip(task.cluster.names, task.caps, strict=True)
            }
            cluster = task.cluster.with_memory(memory)
            try:
                plan = place(graph, cluster, algorithm, repair=False, **options)  # type: ignore[arg-type]
            except (PlacementError, OutOfMemoryError):
                continue
            at = plan.device.tolist()
            units = trials.pinned([at[op] for op in task.operators.of_unit])
            if trials.judge(algorithm, units, _exceptions(task, units, at)).fits:
                break


def _exceptions(task: Task, units: Sequence[int], device_of_op: Sequence[int]) -> Mapping[int, int]:
    """Glue that a placer sends elsewhere than the rules do, where it may be placed op by op."""
    if not task.free_ops:
        return {}
    flat = task.flat
    rules = lay_out(flat.trace, flat.units, units, task.num_devices).device_of_step
    return {
        step: device_of_op[op]
        for step, op in enumerate(task.operators.of_step)
        if device_of_op[op] != rules[step] and task.units.of_step[step] < 0
    }
