"""Predictions: what a model plan says of each device, and of obvious placements beside it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

__all__ = ["Compared", "PlannedDevice"]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class PlannedDevice:
    """What was predicted for one device.

    Attributes:
        name: such as "cuda:0".
        cap_bytes: memory minus reserve.
        peak_bytes: the most that is allocated at once.
        peak_at: the op or autograd function that reaches it.
        by_class: bytes at the peak, by class of `baechi.torch.memory.CLASSES`.
        busy_ns: how long it computes.
        num_ops: forward ops on it.
    """

    name: str
    cap_bytes: int
    peak_bytes: int
    peak_at: str
    by_class: Mapping[str, int]
    busy_ns: int
    num_ops: int


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Compared:
    """An obvious placement beside the plan's: its step time, and how much memory it lacks."""

    name: str
    step_ns: int
    missing_bytes: int
