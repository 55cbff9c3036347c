"""Bounds: what no schedule can beat, and how long one device alone would take."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from baechi import _core
from baechi.cluster import Cluster
from baechi.devices import kind_indices
from baechi.graph import Graph
from baechi.rules import Setting, with_names

__all__ = ["Bounds", "bounds_of"]


class Bounds(NamedTuple):
    """Times in ns that a step is compared with."""

    critical_path_ns: int
    work_bound_ns: int
    one_device_ns: int
    """All ops on the device that is the fastest for all of them; 0 where none can run all."""
    one_device: str

    @property
    def lower_bound_ns(self) -> int:
        """The greater of the two bounds."""
        return max(self.critical_path_ns, self.work_bound_ns)


def bounds_of(graph: Graph, cluster: Cluster, rules: str) -> Bounds:
    """The bounds of a graph on a cluster; memory plays no part in them."""
    setting = Setting.of(graph, cluster, rules, "liveness")
    with with_names(graph, cluster):
        path, work = _core.lower_bounds(setting.flat_graph, setting.flat_cluster)
    best, name = 0, ""
    times = graph.compute_ns
    if rules != "physical":
        times = np.where(times == 0, 1, times)  # as those rules have it
    for device, kind in enumerate(kind_indices(cluster.devices, graph.device_kinds).tolist()):
        if (times[kind] < 0).any():
            continue
        spent = int(np.ceil(times[kind] / cluster.speed[device]).sum())
        if spent and (not best or spent < best):
            best, name = spent, cluster.names[device]
    return Bounds(path, work, best, name)
