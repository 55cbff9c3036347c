"""Fitting: whether a planned model would hold another call, a longer batch for instance."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from baechi.errors import InputError
from baechi.torch.both_levels import measure
from baechi.torch.fingerprints import describe_inputs, refuse_placed
from baechi.torch.losses import LossArgument
from baechi.torch.model_plan import ModelPlan
from baechi.torch.simdev import outside
from baechi.units import format_bytes

__all__ = ["Fits", "fits"]


@dataclasses.dataclass(frozen=True)
class Fits:
    """The peaks of a call; true where no device takes more than its limit.

    Attributes:
        devices: names as in the plan.
        peak_bytes: the most that each device would hold. An applied model runs the first call of a
            form that was not planned module by module, and later ones as a graph if the plan is for
            op level: then it is the greater of the two.
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


@outside()
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
    refuse_placed(model, (args, kwargs))
    caps = tuple(device.cap_bytes for device in plan.devices)
    measured = measure(plan, model, args, kwargs, loss)
    peaks = measured.planned.peak_bytes
    if measured.module_level_peaks and describe_inputs(model, args, kwargs) != plan.inputs:
        peaks = tuple(map(max, peaks, measured.module_level_peaks))
    return Fits(plan.cluster.names, peaks, caps)
