"""Baechi: place the operators of a neural network on devices, and predict time and memory.

Importing this package loads nothing but this file; names resolve on first use.
"""

from __future__ import annotations

import importlib

TYPE_CHECKING = False  # type checkers know the name; importing typing would take most of the time

if TYPE_CHECKING:
    from baechi._core import __version__
    from baechi.builder import GraphBuilder
    from baechi.cluster import Cluster, Device, Link
    from baechi.comparison import Comparison, compare
    from baechi.errors import (
        BaechiError,
        CycleError,
        InputError,
        MissingFrameworkError,
        OutOfMemoryError,
        PlacementError,
        PlanMismatchError,
        SolverError,
    )
    from baechi.formats import load_graph
    from baechi.graph import Graph
    from baechi.grouping import Grouping, group
    from baechi.placement import ALGORITHMS, place
    from baechi.plans import Plan
    from baechi.relaxation import Favorites, favorites
    from baechi.schedules import Schedule
    from baechi.simulation import simulate, simulate_many
    from baechi.torch.planning import plan
    from baechi.torch.rehearsal import rehearse

# Public name -> the module that holds it.
_HOMES = {
    "ALGORITHMS": "placement",
    "BaechiError": "errors",
    "Cluster": "cluster",
    "Comparison": "comparison",
    "CycleError": "errors",
    "Device": "cluster",
    "Favorites": "relaxation",
    "Graph": "graph",
    "GraphBuilder": "builder",
    "Grouping": "grouping",
    "InputError": "errors",
    "Link": "cluster",
    "MissingFrameworkError": "errors",
    "OutOfMemoryError": "errors",
    "PlacementError": "errors",
    "Plan": "plans",
    "PlanMismatchError": "errors",
    "Schedule": "schedules",
    "SolverError": "errors",
    "__version__": "_core",
    "compare": "comparison",
    "favorites": "relaxation",
    "group": "grouping",
    "load_graph": "formats",
    "place": "placement",
    "plan": "torch.planning",
    "rehearse": "torch.rehearsal",
    "simulate": "simulation",
    "simulate_many": "simulation",
}

__all__ = [  # noqa: RUF022 - the version last
    "ALGORITHMS",
    "BaechiError",
    "Cluster",
    "Comparison",
    "CycleError",
    "Device",
    "Favorites",
    "Graph",
    "GraphBuilder",
    "Grouping",
    "InputError",
    "Link",
    "MissingFrameworkError",
    "OutOfMemoryError",
    "PlacementError",
    "Plan",
    "PlanMismatchError",
    "Schedule",
    "SolverError",
    "compare",
    "favorites",
    "group",
    "load_graph",
    "place",
    "plan",
    "rehearse",
    "simulate",
    "simulate_many",
    "__version__",
]


def __getattr__(name: str) -> object:
    if name in ("original", "torch"):
        return importlib.import_module(f"baechi.{name}")
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'baechi' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"baechi.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
