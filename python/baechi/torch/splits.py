"""Splits: a model's units cut in the order in which it runs them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import numpy as np

from baechi.torch.tasks import Task

__all__ = [
    "device_orders",
    "even_split",
    "filled",
    "split",
    "unit_costs",
    "unit_order",
    "weights_only",
]


def device_orders(task: Task) -> Iterator[tuple[str, list[int]]]:
    """Orders in which devices are filled: as given, the fastest first, the largest first."""
    given = list(range(task.num_devices))
    graph = task.operators.graph
    rows = [graph.device_kinds.index(kind) for kind in task.cluster.kinds]
    pace = [
        float(np.maximum(graph.compute_ns[row], 0).sum()) / speed
        for row, speed in zip(rows, task.cluster.speed.tolist(), strict=True)
    ]
    seen: list[list[int]] = []
    fastest = sorted(given, key=lambda d: (pace[d], d))
    largest = sorted(given, key=lambda d: (-task.caps[d], d))
    named = (("as given", given), ("fastest first", fastest), ("largest first", largest))
    for name, order in named:
        if order not in seen:
            seen.append(order)
            yield name, order


def unit_order(task: Task) -> list[int]:
    """Units in the order in which the model first runs them; unused ones where they are named."""
    first: dict[int, int] = {}
    for at, unit in enumerate(task.units.of_step):
        if unit >= 0:
            first.setdefault(unit, at)
    last = 0
    ranks = []
    for unit in range(len(task.units.names)):
        last = first.get(unit, last)
        ranks.append((last, unit))
    return [unit for _, unit in sorted(ranks)]


def unit_costs(task: Task) -> tuple[list[int], list[int], list[int]]:
    """Weights, all memory, and time on the first device's kind, of each unit."""
    trace, units = task.trace, task.units
    weights = [0] * len(units.names)
    memory = [0] * len(units.names)
    time = [0] * len(units.names)
    trained = {storage for storage, _, _ in task.parameters}
    ratio = task.optimizer.state_ratio if task.optimizer is not None else 0.0
    for storage, unit in units.of_storage.items():
        nbytes = trace.storages[storage].nbytes
        weights[unit] += nbytes
        memory[unit] += nbytes
        if storage in trained:
            memory[unit] += int(nbytes * (1 + ratio))
    compute = task.operators.graph.compute_ns[0]
    last, kept = 0, set[int]()
    for at, unit in enumerate(units.of_step):
        last = unit if unit >= 0 else last
        for saved in trace.steps[at].saved:
            if trace.storages[saved.storage].kind == "made" and saved.storage not in kept:
                kept.add(saved.storage)
                memory[last] += trace.storages[saved.storage].nbytes
        time[last] += int(compute[task.operators.of_step[at]])
        backward = task.operators.backward_of_step[at]
        time[last] += int(compute[backward]) if backward >= 0 else 0
    return weights, memory, time


def split(order: Sequence[int], costs: Sequence[int], shares: Sequence[float]) -> list[int]:
    """Cuts units in order so that each device gets its share of the costs."""
    total = sum(costs)
    bounds = [total * s for s in itertools.accumulate(shares)]
    devices, done, at = [0] * len(costs), 0.0, 0
    for unit in order:
        while at < len(shares) - 1 and done + costs[unit] / 2 > bounds[at]:
            at += 1
        devices[unit] = at
        done += costs[unit]
    return devices


def even_split(task: Task) -> list[int]:
    """As many equal parts of the time as there are devices, in the model's order."""
    _, _, time = unit_costs(task)
    share = 1 / task.num_devices
    return split(unit_order(task), time, [share] * task.num_devices)


def weights_only(task: Task) -> list[int]:
    """Parts of the weights in proportion to the devices' memory, as ``device_map`` tools do."""
    weights, _, _ = unit_costs(task)
    total = max(1, sum(task.caps))
    return split(unit_order(task), weights, [cap / total for cap in task.caps])


def filled(task: Task, order: Sequence[int], percent: int) -> list[int]:
    """Devices one after the other, each up to a part of its limit, the last takes the rest."""
    _, memory, _ = unit_costs(task)
    devices, used, at = [0] * len(memory), 0, 0
    for unit in unit_order(task):
        cap = task.caps[order[at]] * percent // 100
        while at < len(order) - 1 and used + memory[unit] > cap:
            at, used = at + 1, 0
            cap = task.caps[order[at]] * percent // 100
        devices[unit] = order[at]
        used += memory[unit]
    return devices
