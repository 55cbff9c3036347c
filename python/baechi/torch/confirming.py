"""Confirming: a dry rehearsal of a plan, and a new search where it takes more than predicted."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from baechi.cluster import Cluster
from baechi.torch.both_levels import measure
from baechi.torch.drafting import draft
from baechi.torch.predictions import TOLERANCE
from baechi.torch.search import search
from baechi.torch.simdev import NoValuesError
from baechi.units import format_bytes

if TYPE_CHECKING:
    from baechi.torch.planning import Planned

__all__ = ["confirmed", "replanned"]

_ROUNDS = 4
_MAY_BE_EXPECTED = 1.5
"""By how much a prediction at module level may exceed a limit, and the rehearsal keep it."""


def confirmed(
    planned: Planned, model: torch.nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Planned:
    """Rehearses a plan without numbers and notes the measured peaks and copies in it.

    Where a device takes over 2 % more or less than predicted, what it takes is what the plan says.
    Where a device takes over 2 % more than predicted, or more than its limit, the limits of the
    search are lowered by what was too much and the model is planned again, until the rehearsal says
    what was predicted, a plan repeats, or after four rounds. Of the plans that were rehearsed, the
    one that is best by its measured peaks is returned, the earlier of equals. A plan whose
    prediction does not fit is rehearsed only at module level, where predictions may be too high.
    """
    caps = planned.task.caps
    rehearsed: list[Planned] = []
    tried = set()
    while len(rehearsed) < _ROUNDS and (_may_fit(planned) or planned.plan.is_within_limits):
        placement = (planned.outcome.device_of_unit, tuple(planned.outcome.exceptions.items()))
        if placement in tried:
            break
        tried.add(placement)
        try:
            rehearsed.append(_rehearsed(planned, model, args, kwargs))
        except NoValuesError as error:
            return _noted(
                planned, f"not rehearsed, so peaks are unconfirmed: {str(error).splitlines()[0]}"
            )
        closer = _closer_caps(rehearsed[-1])
        if closer == rehearsed[-1].task.caps:
            break
        planned = replanned(planned, closer)
    if not rehearsed:
        return planned
    best = min(rehearsed, key=lambda one: _measured_rank(one, caps))
    return _noted(best, *_surprises(best))


def _may_fit(planned: Planned) -> bool:
    """Whether a rehearsal may take less than predicted, by so much that limits are kept."""
    used = zip(planned.outcome.memory.peaks, planned.task.caps, strict=True)
    return planned.plan.level == "module" and all(
        peak <= _MAY_BE_EXPECTED * cap for peak, cap in used
    )


def _closer_caps(planned: Planned) -> tuple[int, ...]:
    """Limits lowered by what a rehearsal took beyond the prediction.

    Where a device took more than its limit, it is to hold less, and so less is expected to be
    beyond: the limit is lowered in proportion.
    """
    plan = planned.plan
    closer = []
    rows = zip(
        planned.task.caps, plan.confirmed, planned.outcome.memory.peaks, plan.devices, strict=True
    )
    for cap, seen, predicted, device in rows:
        if seen > min(predicted * (1 + TOLERANCE), device.cap_bytes):
            beyond = seen - predicted
            lowered = device.cap_bytes - -(-beyond * min(seen, device.cap_bytes) // seen)
            cap = min(cap, max(0, lowered))
        closer.append(cap)
    return tuple(closer)


def _measured_rank(planned: Planned, caps: tuple[int, ...]) -> tuple[float, ...]:
    """How good a plan is by what its rehearsal took, under limits that were not lowered."""
    devices = zip(planned.plan.confirmed, planned.outcome.memory.peaks, strict=True)
    peaks = [max(seen, predicted) for seen, predicted in devices]
    return planned.outcome.rank(dataclasses.replace(planned.task, caps=caps), peaks)


def replanned(planned: Planned, caps: Sequence[int], cluster: Cluster | None = None) -> Planned:
    """The same model planned with other limits, and on devices of other sizes.

    Args:
        planned: the plan before.
        caps: what the search may use on each device.
        cluster: the same devices with other memory.
    """
    cluster = planned.task.cluster if cluster is None else cluster
    task = dataclasses.replace(planned.task, caps=tuple(caps), cluster=cluster)
    context = dataclasses.replace(planned.context, cluster=cluster)
    outcome, found = search(task)
    return dataclasses.replace(
        planned,
        plan=draft(task, outcome, found, context),
        task=task,
        outcome=outcome,
        found=found,
        context=context,
    )


def _rehearsed(
    planned: Planned, model: torch.nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Planned:
    program = planned.program if planned.plan.level == "op" else None
    measured = measure(planned.plan, model, args, kwargs, program=program)
    done = measured.planned
    plan = dataclasses.replace(
        planned.plan,
        devices=tuple(
            device.stating(seen)
            for device, seen in zip(planned.plan.devices, done.peak_bytes, strict=True)
        ),
        confirmed=done.peak_bytes,
        module_level_peaks=measured.module_level_peaks,
        copies=done.copies,
        copied_bytes=done.copied_bytes,
    )
    planned = dataclasses.replace(planned, plan=plan)
    if measured.failure:
        planned = _noted(planned, f"calls cannot run module by module: {measured.failure}")
    if done.dry:
        return planned
    return _noted(planned, "rehearsed with numbers, on a copy on this host: its code reads them")


def _surprises(planned: Planned) -> list[str]:
    """Where a rehearsal took over 2 % more than predicted."""
    plan = planned.plan
    return [
        f"{device.name}: {format_bytes(predicted)} were predicted, the dry rehearsal took "
        f"{format_bytes(seen)}"
        for device, seen, predicted in zip(
            plan.devices, plan.confirmed, planned.outcome.memory.peaks, strict=False
        )
        if seen > predicted * (1 + TOLERANCE)
    ]


def _noted(planned: Planned, *notes: str) -> Planned:
    plan = dataclasses.replace(planned.plan, notes=(*planned.plan.notes, *notes))
    return dataclasses.replace(planned, plan=plan)
