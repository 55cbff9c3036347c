"""Usage: the memory of every device over time by category, thinned to what a screen can show."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from baechi.holdings import CATEGORIES, curve, holdings
from baechi.report.packing import Packer
from baechi.schedules import Schedule

__all__ = ["pack_usage", "thinned"]

_MOST_MOMENTS = 8_000
_MOST_OF_ALL = 100_000
Int64s = npt.NDArray[np.int64]


def pack_usage(packer: Packer, schedule: Schedule) -> list[dict[str, Any]]:
    """Packs the curves; per device what was packed, in the order in which it is stacked."""
    held = holdings(schedule)
    most = max(min(_MOST_MOMENTS, _MOST_OF_ALL // schedule.cluster.num_devices), 500)
    found = []
    for device in range(schedule.cluster.num_devices):
        times, by_category = curve(held, device)
        kept = thinned(times, by_category.sum(axis=0), most, schedule.makespan_ns)
        packer.numbers(f"memory{device}_time", times[kept], "f8")
        used = np.flatnonzero(by_category.any(axis=1))
        for category in used.tolist():
            name = f"memory{device}_{CATEGORIES[category]}"
            packer.numbers(name, by_category[category, kept], "f8")
        found.append(
            {
                "categories": [CATEGORIES[category] for category in used.tolist()],
                "peak_bytes": int(by_category.sum(axis=0).max()),
                "thinned": bool(len(np.unique(times)) > most // 2),
            }
        )
    return found


def thinned(times: Int64s, total: Int64s, most: int, makespan_ns: int) -> npt.NDArray[np.intp]:
    """Positions of at most about `most` moments: of each short time the greatest and the last.

    So a peak is never lost, and what is held after each of these times is exact.
    """
    moments = np.unique(times)
    key = times
    if len(moments) > most // 2:
        key = times * (most // 2) // max(makespan_ns, 1)
        if makespan_ns > 2**62 // most:  # the product would wrap
            key = np.floor(times / makespan_ns * (most // 2)).astype(np.int64)
    last = np.flatnonzero(np.append(key[1:] != key[:-1], True))
    order = np.lexsort((-np.arange(len(key)), total, key))
    greatest = order[np.flatnonzero(np.append(key[order][1:] != key[order][:-1], True))]
    return np.union1d(last, greatest)
