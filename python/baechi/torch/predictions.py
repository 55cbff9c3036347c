"""Predictions: what a model plan says of each device, and of obvious placements beside it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

__all__ = ["TOLERANCE", "Compared", "PlannedDevice"]

TOLERANCE = 0.02
"""By how much of a stated peak a measured one may differ from it."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class PlannedDevice:
    """What was predicted for one device, and is stated of it.

    Attributes:
        name: such as "cuda:0".
        cap_bytes: memory minus reserve.
        peak_bytes: the most that is allocated at once: what the memory ledger predicts or, where a
            rehearsal took something else, what that took.
        peak_at: the op or autograd function that reaches it, by the ledger.
        by_class: bytes at the peak, by class of `baechi.torch.memory.CLASSES`; "other" where a
            rehearsal took more than the ledger accounts for.
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

    def is_close_to(self, measured_bytes: int) -> bool:
        """Whether a measured peak is at most 2 % above or below the stated one."""
        return abs(measured_bytes - self.peak_bytes) <= TOLERANCE * self.peak_bytes

    def stating(self, measured_bytes: int) -> PlannedDevice:
        """The same with a measured peak where it is not close to the stated one, or alone fits.

        What it is below comes off activations, then copies, then scratch: a ledger that expects
        too much lets values live too long.
        """
        fits_alone = measured_bytes <= self.cap_bytes < self.peak_bytes
        if self.is_close_to(measured_bytes) and not fits_alone:
            return self
        held = {"other": max(0, measured_bytes - self.peak_bytes)} | dict(self.by_class)
        too_much = self.peak_bytes - measured_bytes
        for name in ("activation", "copy", "scratch"):
            taken = max(0, min(too_much, held.get(name, 0)))
            held[name] = held.get(name, 0) - taken
            too_much -= taken
        held = {name: nbytes for name, nbytes in held.items() if nbytes or name in self.by_class}
        return dataclasses.replace(self, peak_bytes=measured_bytes, by_class=held)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Compared:
    """An obvious placement beside the plan's: its step time, and how much memory it lacks."""

    name: str
    step_ns: int
    missing_bytes: int
