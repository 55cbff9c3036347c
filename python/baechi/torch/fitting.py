"""Fitting: whether a planned model would hold another call, a longer batch for instance."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from baechi.errors import InputError
from baechi.torch.losses import LossArgument
from baechi.torch.model_plan import ModelPlan
from baechi.torch.program import Program
from baechi.torch.rehearsal import Rehearsal, rehearse
from baechi.units import format_bytes

__all__ = ["Fits", "fits", "rehearse_freely"]


@dataclasses.dataclass(frozen=True)
class Fits:
    """The peaks of a call; true where no device takes more than its limit.

    Attributes:
        devices: names as in the plan.
        peak_bytes: the most that each device would hold.
        cap_bytes: what it may hold.
    """

    devices: tuple[str, ...]
    peak_bytes: tuple[int, ...]
    cap_bytes: tuple[int, ...]

    def __bool__(self) -> bool:
        """Whether it fits."""
        return all(p <= c for p, c in zip(self.peak_bytes, self.cap_bytes, strict=True))

    def __str__(self) -> str:
        """One line per device."""
        rows = zip(self.devices, self.peak_bytes, self.cap_bytes, strict=True)
        listed = [f"  {n}  peak {format_bytes(p)} of {format_bytes(c)}" for n, p, c in rows]
        return "\n".join(["it fits" if self else "it does not fit", *listed])


def fits(
    plan: ModelPlan,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    model: torch.nn.Module | None,
    loss: LossArgument,
) -> Fits:
    """See `ModelPlan.fits`."""
    if model is None and plan.asked is not None:
        model = plan.asked.model
    if model is None:
        raise InputError(
            "the plan does not know its model: it comes from a file, or the model is gone",
            hint="pass model=",
        )
    caps = tuple(device.cap_bytes for device in plan.devices)
    peaks = rehearse_freely(plan, model, args, kwargs, loss).peak_bytes
    return Fits(plan.cluster.names, peaks, caps)


def rehearse_freely(
    plan: ModelPlan,
    model: torch.nn.Module,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    loss: LossArgument = None,
    program: Program | None = None,
) -> Rehearsal:
    """A dry rehearsal without limits, to the steady state."""
    unlimited = tuple(dataclasses.replace(device, cap_bytes=2**60) for device in plan.devices)
    free = dataclasses.replace(plan, devices=unlimited)
    steps = 2 if plan.mode == "training" else 1
    return rehearse(model, free, args, kwargs, steps=steps, dry=True, loss=loss, program=program)
