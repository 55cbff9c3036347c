"""Prices of ops: measured times where there are any, a roofline over the device table elsewhere.

A call takes ``launch + max(operations / rate, bytes / rate)``, with the peaks, what is reached of
them and the launch cost from the device table (docs/pricing.md).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Final, Literal

from baechi.device_table import DeviceKind
from baechi.torch.work import Work

__all__ = ["CANNOT_RUN", "Price", "price", "roofline_ns"]

CANNOT_RUN: Final = -1
"""The price of an op whose type a device cannot compute in, as in the columns of a graph."""


@dataclasses.dataclass(frozen=True, slots=True)
class Price:
    """What one call takes.

    Attributes:
        time_ns: nanoseconds, or CANNOT_RUN.
        source: "measured" on such a device, or "analytic", from the device table.
    """

    time_ns: int
    source: Literal["analytic", "measured"]


def price(
    works: Mapping[str, Work], kind: DeviceKind, measured_ns: Mapping[str, int] | None = None
) -> dict[str, Price]:
    """Prices every signature once.

    Args:
        works: what a call of each signature does (``baechi.torch.signatures``).
        kind: the kind of device.
        measured_ns: times of signatures that were measured on such a device; the others, all by
            default, are analytic.
    """
    measured = {} if measured_ns is None else measured_ns
    return {
        signature: Price(measured[signature], "measured")
        if signature in measured
        else Price(roofline_ns(work, kind), "analytic")
        for signature, work in works.items()
    }


def roofline_ns(work: Work, kind: DeviceKind) -> int:
    """Nanoseconds of one call on a kind of device, rounded up; CANNOT_RUN without such a type."""
    if work.is_view:
        return 0
    if work.parts:
        prices = [roofline_ns(part, kind) for part in work.parts]
        return CANNOT_RUN if CANNOT_RUN in prices else sum(prices)
    peak = kind.peak_flops_per_s(work.dtype)
    if peak is None:
        return CANNOT_RUN
    # Whole rates, so that a price is the same everywhere.
    flops_per_s = max(1, int(peak * kind.efficiency[work.op_class]))
    bytes_per_s = max(1, int(kind.memory_bytes_per_s * kind.efficiency["memory"]))
    computing_ns = -(-work.flops * 10**9 // flops_per_s)
    moving_ns = -(-work.bytes_moved * 10**9 // bytes_per_s)
    return work.num_kernels * kind.launch_ns + max(computing_ns, moving_ns)
