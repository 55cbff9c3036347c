"""Symmetry: devices that may exchange their names without anything changing.

Placements that differ only in such names cost the same, so one of them is judged for all: the one
that uses such devices in their own order, as the model first runs on them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from baechi.cluster import Cluster
from baechi.torch.tasks import Task

__all__ = ["Symmetry"]


class Symmetry:
    """Classes of devices of one kind, limit, speed and links, on which no pin puts anything."""

    def __init__(self, task: Task, order: Sequence[int]) -> None:
        """Finds the classes; `order` are the units as the model first runs them."""
        self._order = order
        self._first_alike = _first_alike(task)

    def canonical(self, device_of_unit: Sequence[int]) -> list[int]:
        """The placement with devices that are alike in their own order."""
        if self._first_alike is None:
            return list(device_of_unit)
        members: dict[int, list[int]] = {}
        for device, first in enumerate(self._first_alike):
            members.setdefault(first, []).append(device)
        names: dict[int, int] = {}
        for unit in self._order:
            device = device_of_unit[unit]
            if device not in names:
                names[device] = members[self._first_alike[device]].pop(0)
        return [names[device] for device in device_of_unit]


def _first_alike(task: Task) -> list[int] | None:
    """The first device that each one is like; None where no two are alike."""
    cluster = task.cluster
    if cluster.channels == "custom":
        return None
    pinned = set(task.pinned)
    first = list(range(task.num_devices))
    for device in sorted(set(first) - pinned):
        earlier = (one for one in range(device) if first[one] == one and one not in pinned)
        alike = (one for one in earlier if _are_alike(task, cluster, one, device))
        first[device] = next(alike, device)
    return None if first == list(range(task.num_devices)) else first


def _are_alike(task: Task, cluster: Cluster, one: int, other: int) -> bool:
    for column in (task.caps, cluster.kinds, cluster.speed):
        if column[one] != column[other]:
            return False
    exchanged = np.arange(task.num_devices)
    exchanged[[one, other]] = other, one
    return all(
        np.array_equal(links, links[np.ix_(exchanged, exchanged)])
        for links in (cluster.latency_ns, cluster.bytes_per_s)
    )
