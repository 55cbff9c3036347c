"""Drafting: the plan that says what a search found."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import torch

from baechi import _core
from baechi.cluster import Cluster
from baechi.torch.asked import Asked
from baechi.torch.model_plan import Compared, ModelPlan, PlannedDevice
from baechi.torch.module_map import compress, digest
from baechi.torch.operator_plan import operator_plan
from baechi.torch.optimizers import Optimizer
from baechi.torch.outcomes import NEVER_NS, Outcome
from baechi.torch.tasks import Task, caps_of

__all__ = ["Context", "draft"]


@dataclasses.dataclass(frozen=True)
class Context:
    """What the plan says beside the placement."""

    cluster: Cluster
    mode: str
    optimizer: Optimizer | None
    granularity: str
    level: str
    reasons: tuple[str, ...]
    model: Mapping[str, str]
    inputs: tuple[str, ...]
    prices: Mapping[str, int]
    notes: tuple[str, ...]
    autocast: str
    asked: Asked


def draft(
    task: Task, outcome: Outcome, found: Mapping[str, Outcome], context: Context
) -> ModelPlan:
    """The plan that says what an outcome is."""
    cluster, units = task.cluster, task.units
    names = cluster.names
    by_path = {
        path: names[outcome.device_of_unit[unit]]
        for unit, paths in enumerate(units.members)
        for path in paths
    }
    steps = outcome.layout.device_of_step
    caps = caps_of(cluster)
    devices = tuple(
        PlannedDevice(
            name=names[at],
            cap_bytes=caps[at],
            peak_bytes=memory.peak_bytes,
            peak_at=memory.at,
            by_class=dict(memory.by_class),
            busy_ns=outcome.busy_ns[at],
            num_ops=steps.count(at),
        )
        for at, memory in enumerate(outcome.memory.devices)
    )
    moved = [m for m in outcome.memory.moved if m.source >= 0]
    optimizer = context.optimizer
    beside = _beside(task, found)
    modules = compress(by_path)
    ops = {task.trace.steps[step].key: names[d] for step, d in outcome.exceptions.items()}
    return ModelPlan(
        modules=modules,
        ops=ops,
        predicted_for=digest(modules, ops, names),
        together=tuple(
            (paths, names[outcome.device_of_unit[unit]])
            for unit, paths in enumerate(units.members)
            if len(paths) > 1
        ),
        cluster=cluster,
        mode=context.mode,
        objective=task.objective,
        optimizer=f"{optimizer.name} ({optimizer.implementation})" if optimizer else "",
        granularity=context.granularity,
        level=context.level,
        reasons=context.reasons,
        devices=devices,
        step_ns=outcome.step_ns,
        copies=len(moved),
        copied_bytes=sum(m.nbytes for m in moved),
        compared=_compared(task, beside),
        model=context.model,
        inputs=context.inputs,
        prices=context.prices,
        confirmed=(),
        module_level_peaks=(),
        notes=context.notes,
        versions={"baechi": _core.__version__, "torch": torch.__version__.partition("+")[0]},
        autocast=context.autocast,
        asked=context.asked,
        operator_plan=operator_plan(task, outcome, beside, context.notes),
    )


def _beside(task: Task, found: Mapping[str, Outcome]) -> dict[str, Outcome]:
    """One device (the best), unless pins need several, an even split and one by weights alone."""
    singles = [
        outcome
        for name, outcome in found.items()
        if name.startswith("only ") and len(set(outcome.device_of_unit)) <= 1
    ]
    rows = {}
    if singles:
        rows["one device"] = min(singles, key=lambda outcome: outcome.rank(task))
    rows |= {n: found[n] for n in ("even split", "weights-only split") if n in found}
    return {name: outcome for name, outcome in rows.items() if outcome.step_ns < NEVER_NS}


def _compared(task: Task, beside: Mapping[str, Outcome]) -> tuple[Compared, ...]:
    return tuple(
        Compared(
            name=name,
            step_ns=outcome.step_ns,
            missing_bytes=sum(
                max(0, peak - cap)
                for peak, cap in zip(outcome.memory.peaks, task.caps, strict=True)
            ),
        )
        for name, outcome in beside.items()
    )
