"""Confirming: a dry rehearsal of a plan, and a new plan with closer limits where it takes more."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from baechi.cluster import Cluster
from baechi.torch.drafting import draft
from baechi.torch.fitting import peaks_of
from baechi.torch.search import search
from baechi.torch.simdev import NoValuesError
from baechi.units import format_bytes

if TYPE_CHECKING:
    from baechi.torch.planning import Planned

__all__ = ["confirmed", "replanned"]

_TOLERANCE = 0.02
_ROUNDS = 4


def confirmed(
    planned: Planned, model: torch.nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Planned:
    """Rehearses a plan without numbers and notes the measured peaks in it.

    Where a device takes more than its limit, the limit of the search is lowered by what was too
    much, and the model is planned again. What is returned was rehearsed last, whether it fits or
    not, unless not even the prediction fits.
    """
    tried = {planned.outcome.device_of_unit}
    for round_ in range(_ROUNDS):
        if not planned.plan.is_within_limits:
            return planned
        try:
            planned = _rehearsed(planned, model, args, kwargs)
        except NoValuesError as error:
            return _noted(planned, f"not rehearsed: {str(error).splitlines()[0]}")
        if planned.plan.is_within_limits or round_ == _ROUNDS - 1:
            break
        caps = tuple(
            max(0, min(cap, device.cap_bytes - max(0, seen - device.peak_bytes)))
            for cap, seen, device in zip(
                planned.task.caps, planned.plan.confirmed, planned.plan.devices, strict=True
            )
        )
        closer = replanned(planned, caps)
        if closer.outcome.device_of_unit in tried:
            break
        tried.add(closer.outcome.device_of_unit)
        planned = closer
    return _noted(planned, *_surprises(planned))


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
    peaks = peaks_of(planned.plan, model, args, kwargs, program=program)
    plan = dataclasses.replace(planned.plan, confirmed=peaks)
    return dataclasses.replace(planned, plan=plan)


def _surprises(planned: Planned) -> list[str]:
    """Where a rehearsal took over 2 % more than predicted."""
    plan = planned.plan
    return [
        f"{device.name}: {format_bytes(device.peak_bytes)} were predicted, the dry rehearsal took "
        f"{format_bytes(seen)}"
        for device, seen in zip(plan.devices, plan.confirmed, strict=False)
        if seen > device.peak_bytes * (1 + _TOLERANCE)
    ]


def _noted(planned: Planned, *notes: str) -> Planned:
    plan = dataclasses.replace(planned.plan, notes=(*planned.plan.notes, *notes))
    return dataclasses.replace(planned, plan=plan)
