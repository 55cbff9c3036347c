"""Outcomes: what a candidate placement costs, in memory by the ledger and in time simulated."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from baechi import _core
from baechi.rules import with_names
from baechi.torch.flat_trace import exception_rows, lay_out
from baechi.torch.ledger import replay
from baechi.torch.memory import Memory
from baechi.torch.modules import Layout
from baechi.torch.tasks import Task

__all__ = [
    "NEVER_NS",
    "Candidate",
    "Outcome",
    "devices_of_ops",
    "evaluate",
    "judge",
    "launch_order",
]

NEVER_NS = 2**61
"""The step time of a candidate that puts an op where it cannot run."""


@dataclasses.dataclass(frozen=True, slots=True)
class Candidate:
    """A placement and what it costs, in short.

    Attributes:
        origin: which method found it.
        device_of_unit: device index of each unit.
        exceptions: device index of each step that goes elsewhere than the rules say.
        peaks: peak bytes by device.
        num_used: how many devices have an op or a unit.
        rank: what is compared, the smaller, the better.
    """

    origin: str
    device_of_unit: tuple[int, ...]
    exceptions: Mapping[int, int]
    step_ns: int
    peaks: tuple[int, ...]
    num_used: int
    rank: tuple[float, ...]

    @property
    def fits(self) -> bool:
        """Whether every op can run on its device and no device exceeds its limit."""
        return not any(self.rank[:2])


@dataclasses.dataclass(frozen=True)
class Outcome:
    """A candidate in full."""

    origin: str
    device_of_unit: tuple[int, ...]
    exceptions: Mapping[int, int]
    layout: Layout
    memory: Memory
    step_ns: int
    busy_ns: tuple[int, ...]
    fits: bool

    def rank(self, task: Task, peaks: Sequence[int] | None = None) -> tuple[float, ...]:
        """What is compared: the smaller, the better; by the ledger's peaks or others."""
        used = len(set(self.layout.device_of_step) | set(self.device_of_unit))
        return _rank(task, self.step_ns, self.memory.peaks if peaks is None else peaks, used)


def judge(
    task: Task,
    placements: Sequence[Sequence[int]],
    origin: str,
    exceptions: Mapping[int, int] | None = None,
) -> list[Candidate]:
    """What each placement of the units costs; `exceptions` hold for all of them."""
    flat = task.flat
    devices = np.array(placements, np.int32).reshape(len(placements), len(task.units.names))
    with with_names(task.operators.graph, task.cluster):
        times, peaks, used = _core.judge_placements(
            flat.trace,
            flat.units,
            flat.graph,
            flat.cluster,
            flat.ops,
            flat.updates.rows,
            flat.updates.together,
            task.accumulate_in_place,
            devices,
            exception_rows(exceptions),
        )
    kept = dict(exceptions or {})
    candidates = []
    rows = zip(placements, times.tolist(), peaks.tolist(), used.tolist(), strict=True)
    for placement, time, row, num_used in rows:
        step_ns = time if time >= 0 else NEVER_NS
        rank = _rank(task, step_ns, row, num_used)
        candidates.append(
            Candidate(origin, tuple(placement), kept, step_ns, tuple(row), num_used, rank)
        )
    return candidates


def _rank(task: Task, step_ns: int, peaks: Sequence[int], num_used: int) -> tuple[float, ...]:
    caps = task.caps
    over = sum(max(0, peak - cap) for peak, cap in zip(peaks, caps, strict=True))
    share = max(
        peak / cap if cap else float(peak > 0) for peak, cap in zip(peaks, caps, strict=True)
    )
    cannot_run = step_ns >= NEVER_NS
    if task.objective == "fewest-devices":
        return (cannot_run, over, num_used, step_ns, share)
    if task.objective == "most-headroom":
        return (cannot_run, over, share, step_ns, num_used)
    return (cannot_run, over, step_ns, num_used, share)


def evaluate(
    task: Task,
    device_of_unit: Sequence[int],
    origin: str,
    exceptions: Mapping[int, int] | None = None,
) -> Outcome:
    """Finds all that a plan says of a placement."""
    candidate = judge(task, [device_of_unit], origin, exceptions)[0]
    flat = task.flat
    layout = lay_out(flat.trace, flat.units, device_of_unit, task.num_devices, exceptions)
    memory = replay(
        task.trace,
        flat.trace,
        layout,
        task.num_devices,
        updates=flat.updates,
        accumulate_in_place=task.accumulate_in_place,
    )
    return Outcome(
        origin,
        candidate.device_of_unit,
        candidate.exceptions,
        layout,
        memory,
        candidate.step_ns,
        _busy(task, devices_of_ops(task, device_of_unit, layout)),
        candidate.fits,
    )


def devices_of_ops(
    task: Task, device_of_unit: Sequence[int], layout: Layout
) -> npt.NDArray[np.int32]:
    """Device index of every op of the operator graph."""
    units, steps, _ = task.flat.ops
    devices = np.zeros(len(units), np.int32)
    devices[units >= 0] = np.array(device_of_unit, np.int32)[units[units >= 0]]
    devices[steps >= 0] = np.array(layout.device_of_step, np.int32)[steps[steps >= 0]]
    return devices


def launch_order(task: Task) -> npt.NDArray[np.int32]:
    """Launch index of every op of the operator graph, as PyTorch issues them."""
    order: npt.NDArray[np.int32] = task.flat.ops[2]
    return order


def _busy(task: Task, devices: npt.NDArray[np.int32]) -> tuple[int, ...]:
    graph, cluster = task.operators.graph, task.cluster
    rows = [graph.device_kinds.index(kind) for kind in cluster.kinds]
    busy = []
    for at in range(task.num_devices):
        here = devices == at
        busy.append(int(graph.compute_ns[rows[at]][here].sum() / cluster.speed[at]))
    return tuple(busy)
