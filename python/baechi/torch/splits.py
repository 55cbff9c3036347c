"""Splits: a model's units cut in the order in which it runs them."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence

import numpy as np

from baechi.torch.tasks import Task

__all__ = ["UnitCosts", "device_orders", "filled", "measure_units", "split"]

_MOST_ORDERS = 24


@dataclasses.dataclass(frozen=True)
class UnitCosts:
    """The units of a task one by one.

    Attributes:
        order: units in the order in which the model first runs them; unused ones where they are
            named.
        free: those of them that no pin holds.
        weights: bytes of the weights of each unit.
        memory: the same with gradients, optimizer state and what autograd saves.
        time_ns: forward and backward, on the first device's kind.
        parts: the units, free ones, of each module that has several of them, but not all; the
            smaller ones first.
        beside: for each unit those that it exchanges values with, directly or over glue.
    """

    order: tuple[int, ...]
    free: tuple[int, ...]
    weights: tuple[int, ...]
    memory: tuple[int, ...]
    time_ns: tuple[int, ...]
    parts: tuple[tuple[int, ...], ...]
    beside: tuple[tuple[int, ...], ...]


def measure_units(task: Task) -> UnitCosts:
    """What each unit costs, as far as that can be said without a placement."""
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
    compute = task.operators.graph.compute_ns[0].tolist()
    last, kept = 0, set[int]()
    for at, unit in enumerate(units.of_step):
        last = unit if unit >= 0 else last
        for saved in trace.steps[at].saved:
            if trace.storages[saved.storage].kind == "made" and saved.storage not in kept:
                kept.add(saved.storage)
                memory[last] += trace.storages[saved.storage].nbytes
        time[last] += compute[task.operators.of_step[at]]
        backward = task.operators.backward_of_step[at]
        time[last] += compute[backward] if backward >= 0 else 0
    order = _order(task)
    free = tuple(unit for unit in order if task.pinned[unit] < 0)
    parts = _parts(task, free)
    return UnitCosts(order, free, tuple(weights), tuple(memory), tuple(time), parts, _beside(task))


def _beside(task: Task) -> tuple[tuple[int, ...], ...]:
    graph, num_units = task.operators.graph, len(task.units.names)
    makers = graph.group[graph.tensor_producer[graph.edge_tensor]].tolist()
    readers = graph.group[graph.edge_consumer].tolist()
    adjacent: dict[int, set[int]] = {}
    for one, other in {(a, b) for a, b in zip(makers, readers, strict=True) if a != b}:
        adjacent.setdefault(one, set()).add(other)
        adjacent.setdefault(other, set()).add(one)
    found = []
    for unit in range(num_units):
        groups = adjacent.get(unit, set())
        over_glue = (adjacent[group] for group in groups if group >= num_units)
        found.append(sorted(groups.union(*over_glue) - {unit}))
    return tuple(tuple(one for one in groups if one < num_units) for groups in found)


def _parts(task: Task, free: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    inside: dict[str, list[int]] = {}
    for unit in free:
        path = task.units.names[unit]
        while path:
            inside.setdefault(path, []).append(unit)
            path = path.rpartition(".")[0]
    found = {tuple(units) for units in inside.values() if 1 < len(units) < len(free)}
    return tuple(sorted(found, key=lambda units: (len(units), units)))


def _order(task: Task) -> tuple[int, ...]:
    first: dict[int, int] = {}
    for at, unit in enumerate(task.units.of_step):
        if unit >= 0:
            first.setdefault(unit, at)
    last = 0
    ranks = []
    for unit in range(len(task.units.names)):
        last = first.get(unit, last)
        ranks.append((last, unit))
    return tuple(unit for _, unit in sorted(ranks))


def device_orders(task: Task) -> list[tuple[int, ...]]:
    """Orders in which devices are filled: as given, the fastest first, the largest first, others.

    Of orders in which only like devices are exchanged, one counts.
    """
    cluster, graph = task.cluster, task.operators.graph
    given = tuple(range(task.num_devices))
    rows = [graph.device_kinds.index(kind) for kind in cluster.kinds]
    pace = [
        float(np.maximum(graph.compute_ns[row], 0).sum()) / speed
        for row, speed in zip(rows, cluster.speed.tolist(), strict=True)
    ]
    like = [(task.caps[d], pace[d]) for d in given]
    fastest = tuple(sorted(given, key=lambda d: (pace[d], d)))
    largest = tuple(sorted(given, key=lambda d: (-task.caps[d], d)))
    rest = itertools.islice(itertools.permutations(given), 8 * _MOST_ORDERS)
    found: dict[tuple[tuple[int, float], ...], tuple[int, ...]] = {}
    for order in (given, fastest, largest, given[::-1], *rest):
        found.setdefault(tuple(like[d] for d in order), order)
    return list(found.values())[:_MOST_ORDERS]


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


def filled(costs: UnitCosts, caps: Sequence[int], order: Sequence[int], percent: int) -> list[int]:
    """Devices one after the other, each up to a part of its limit, the last takes the rest."""
    devices, used, at = [0] * len(costs.memory), 0, 0
    for unit in costs.order:
        cap = caps[order[at]] * percent // 100
        while at < len(order) - 1 and used + costs.memory[unit] > cap:
            at, used = at + 1, 0
            cap = caps[order[at]] * percent // 100
        devices[unit] = order[at]
        used += costs.memory[unit]
    return devices
