"""Confirming: a dry rehearsal of a plan, and a new plan with closer limits where it shows more."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from baechi.torch.drafting import draft
from baechi.torch.losses import LossArgument
from baechi.torch.rehearsal import rehearse
from baechi.torch.search import search
from baechi.torch.simdev import NoValuesError

if TYPE_CHECKING:
    from baechi.torch.planning import Planned

__all__ = ["confirmed"]

_TOLERANCE = 0.02
_ROUNDS = 3


def confirmed(
    planned: Planned,
    model: torch.nn.Module,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    loss: LossArgument = None,
) -> Planned:
    """Rehearses a plan without numbers and notes the measured peaks in it.

    Where a device takes over 2 % more than predicted, or more than its limit, the limit of the
    search is lowered by what was too much, and the model is planned again.
    """
    for _ in range(_ROUNDS):
        if not planned.plan.is_within_limits:
            return planned
        try:
            peaks = _peaks(planned, model, args, kwargs, loss)
        except NoValuesError as error:
            note = f"not rehearsed without numbers: {error}"
            notes = (*planned.plan.notes, note)
            made = dataclasses.replace(planned.plan, notes=notes)
            return dataclasses.replace(planned, plan=made)
        planned = dataclasses.replace(
            planned, plan=dataclasses.replace(planned.plan, confirmed=peaks)
        )
        task = planned.task
        caps = tuple(
            cap - max(0, seen - device.peak_bytes)
            if seen > device.cap_bytes or seen > device.peak_bytes * (1 + _TOLERANCE)
            else cap
            for cap, seen, device in zip(task.caps, peaks, planned.plan.devices, strict=True)
        )
        if caps == task.caps:
            return planned
        closer = dataclasses.replace(task, caps=tuple(max(0, cap) for cap in caps))
        outcome, found = search(closer)
        made = draft(task, outcome, found, planned.context)
        planned = dataclasses.replace(planned, plan=made, outcome=outcome, task=closer)
    return planned


def _peaks(
    planned: Planned,
    model: torch.nn.Module,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    loss: LossArgument,
) -> tuple[int, ...]:
    unlimited = [dataclasses.replace(d, cap_bytes=2**60) for d in planned.plan.devices]
    free = dataclasses.replace(planned.plan, devices=tuple(unlimited))
    steps = 2 if planned.plan.mode == "training" else 1
    return rehearse(model, free, args, kwargs, steps=steps, dry=True, loss=loss).peak_bytes
