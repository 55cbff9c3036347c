"""Measuring links: copies of several sizes, and the latency and rate that explain their times."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from baechi.errors import InputError
from baechi.links import Link

__all__ = ["fit_link", "measure_link"]

_SIZES = tuple(2**exponent for exponent in range(12, 27, 2))
# Refits without what lies further off than this many median deviations.
_OUTLIER, _REFITS = 4.0, 3


def fit_link(sizes_bytes: Sequence[int], times_ns: Sequence[float]) -> Link:
    """Fits ``latency + bytes / rate`` to times of copies.

    Least squares of relative errors, so that small copies say what the latency is and large ones
    what the rate is; what lies far off, as interruptions make it, is left out and the rest fitted
    again.

    Args:
        sizes_bytes: bytes of each copy; at least two different ones.
        times_ns: what each took.

    Raises:
        InputError: fewer than two sizes, times that are not above 0, or larger copies that are not
            slower.
    """
    sizes, times = np.asarray(sizes_bytes, np.float64), np.asarray(times_ns, np.float64)
    if sizes.shape != times.shape or len(np.unique(sizes)) < 2 or not (times > 0).all():
        raise InputError(
            f"{len(sizes)} sizes and {len(times)} times do not tell a link",
            hint="give times above 0 of copies of two sizes or more",
        )
    kept = np.ones(len(sizes), bool)
    for _ in range(_REFITS):
        latency, slope = _relative_least_squares(sizes[kept], times[kept])
        errors = np.abs(times / (latency + slope * sizes) - 1)
        fine = errors <= max(_OUTLIER * float(np.median(errors[kept])), 1e-6)
        if (fine == kept).all() or len(np.unique(sizes[fine])) < 2:
            break
        kept = fine
    if slope <= 0:
        raise InputError("larger copies were not slower", hint="measure larger copies")
    return Link(round(latency), max(1, round(10**9 / slope)))


def measure_link(
    source: str | torch.device,
    destination: str | torch.device,
    sizes_bytes: Sequence[int] = _SIZES,
    repeats: int = 5,
) -> Link:
    """Measures the link from one device of this machine to another; host memory is pinned."""
    medians = [
        _copy_ns(torch.device(source), torch.device(destination), size, repeats)
        for size in sizes_bytes
    ]
    return fit_link(sizes_bytes, medians)


def _relative_least_squares(
    sizes: npt.NDArray[np.float64], times: npt.NDArray[np.float64]
) -> tuple[float, float]:
    """The latency, at least 0, and nanoseconds per byte that fit best relative to the times."""
    columns = np.stack([np.ones_like(sizes), sizes], axis=1) / times[:, None]
    (latency, slope), *_ = np.linalg.lstsq(columns, np.ones_like(times), rcond=None)
    if latency < 0:
        scaled = sizes / times
        return 0.0, float(scaled.sum() / (scaled @ scaled))
    return float(latency), float(slope)


def _copy_ns(source: torch.device, destination: torch.device, size: int, repeats: int) -> float:
    moves = {source.type, destination.type} != {"cpu"}
    given = torch.empty(size, dtype=torch.uint8, device=source)
    taken = torch.empty(size, dtype=torch.uint8, device=destination)
    if moves:
        given = given.pin_memory() if source.type == "cpu" else given
        taken = taken.pin_memory() if destination.type == "cpu" else taken
    times = []
    for _ in range(repeats + 1):
        before = time.perf_counter_ns()
        taken.copy_(given, non_blocking=True)
        for device in (source, destination):
            if device.type != "cpu":
                torch.accelerator.synchronize(device)
        times.append(time.perf_counter_ns() - before)
    return max(1.0, float(np.median(times[1:])))
