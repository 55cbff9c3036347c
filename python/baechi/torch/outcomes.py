"""Outcomes: what a candidate placement costs, in memory by the ledger and in time simulated."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from baechi.simulation import simulate_many
from baechi.torch.ledger import replay
from baechi.torch.memory import Memory
from baechi.torch.modules import Layout, lay_out
from baechi.torch.tasks import Task

__all__ = ["Outcome", "devices_of_ops", "evaluate", "launch_order", "remember", "times_of"]


@dataclasses.dataclass(frozen=True)
class Outcome:
    """A candidate and what it costs.

    Attributes:
        origin: which method found it.
        device_of_unit: device index of each unit.
        exceptions: device index of each step that goes elsewhere than the rules say.
    """

    origin: str
    device_of_unit: tuple[int, ...]
    exceptions: Mapping[int, int]
    layout: Layout
    memory: Memory
    step_ns: int
    busy_ns: tuple[int, ...]
    fits: bool

    def rank(self, task: Task) -> tuple[float, ...]:
        """What is compared: the smaller, the better."""
        over = sum(
            max(0, peak - cap) for peak, cap in zip(self.memory.peaks, task.caps, strict=True)
        )
        share = max(
            peak / cap if cap else float(peak > 0)
            for peak, cap in zip(self.memory.peaks, task.caps, strict=True)
        )
        used = len(set(self.layout.device_of_step) | set(self.device_of_unit))
        if task.objective == "fewest-devices":
            return (over, used, self.step_ns, share)
        if task.objective == "most-headroom":
            return (over, share, self.step_ns, used)
        return (over, self.step_ns, used, share)


def evaluate(
    task: Task,
    device_of_unit: Sequence[int],
    origin: str,
    exceptions: Mapping[int, int] | None = None,
) -> Outcome:
    """Lays a candidate out and finds its memory and time."""
    trace = task.trace
    layout = lay_out(trace, task.units, device_of_unit, exceptions)
    memory = remember(task, layout)
    devices = devices_of_ops(task, device_of_unit, layout)
    fits = all(peak <= cap for peak, cap in zip(memory.peaks, task.caps, strict=True))
    return Outcome(
        origin,
        tuple(device_of_unit),
        dict(exceptions or {}),
        layout,
        memory,
        times_of(task, [(device_of_unit, layout)])[0],
        _busy(task, devices),
        fits,
    )


def remember(task: Task, layout: Layout) -> Memory:
    """The memory of a layout, from the ledger."""
    state: dict[int, int] = {}
    scratch = [0] * task.num_devices
    if task.optimizer is not None:
        homes = layout.home_of_storage
        for storage, nbytes, shape in task.parameters:
            state[storage] = task.optimizer.state_bytes(nbytes, shape)
        placed = [(homes[storage], nbytes, shape) for storage, nbytes, shape in task.parameters]
        scratch = task.optimizer.scratch_bytes(placed, task.num_devices)
    return replay(
        task.trace,
        layout.device_of_step,
        layout.home_of_storage,
        task.num_devices,
        optimizer_bytes=state,
        optimizer_scratch=scratch,
        accumulate_in_place=task.accumulate_in_place,
    )


def devices_of_ops(
    task: Task, device_of_unit: Sequence[int], layout: Layout
) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    """Device index of every op of the operator graph."""
    operators = task.operators
    devices = np.zeros(operators.graph.num_ops, np.int32)
    units = np.array(device_of_unit, np.int32)
    steps = np.array(layout.device_of_step, np.int32)
    devices[list(operators.of_unit)] = units
    if operators.updates:
        devices[list(operators.updates)] = units
    devices[list(operators.of_step)] = steps
    backward = np.array(operators.backward_of_step, np.int64)
    known = backward >= 0
    devices[backward[known]] = steps[known]
    return devices


def launch_order(task: Task) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    """Launch index of every op of the operator graph, as PyTorch issues them."""
    order = np.array(task.operators.order, np.int64)
    launch = np.empty(len(order), np.int32)
    launch[order] = np.arange(len(order), dtype=np.int32)
    return launch


def times_of(task: Task, candidates: Sequence[tuple[Sequence[int], Layout]]) -> list[int]:
    """Step times in ns, ops being launched in PyTorch's own order."""
    launch = launch_order(task)
    devices = np.stack([devices_of_ops(task, units, layout) for units, layout in candidates])
    launches = np.broadcast_to(launch, devices.shape)
    graph, cluster = task.operators.graph, task.cluster
    makespans, _ = simulate_many(graph, cluster, devices, launches, peaks=False)
    return [int(ns) for ns in makespans]


def _busy(task: Task, devices: np.ndarray[tuple[int], np.dtype[np.int32]]) -> tuple[int, ...]:
    graph, cluster = task.operators.graph, task.cluster
    rows = [graph.device_kinds.index(kind) for kind in cluster.kinds]
    busy = []
    for at in range(task.num_devices):
        here = devices == at
        busy.append(int(graph.compute_ns[rows[at]][here].sum() / cluster.speed[at]))
    return tuple(busy)
