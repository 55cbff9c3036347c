"""The linear program of an original's op graph: values and bounds by edge, favorite children."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from baechi.original.elements import Edges, Ops
from baechi.relaxation import Relaxed, relative_gap, relax

__all__ = ["Favorites", "named_favorites", "rounded"]


@dataclasses.dataclass(frozen=True, eq=False)
class Favorites:
    """Favorite children of an op graph, and the bounds of the linear program's optimum.

    Attributes:
        children: the favorite child of every op that has one.
        values: (parent, child) to the share of the transfer that is waited for, from 0 to 1.
        lower_bound: in the graph's unit of time; proved by a flow and prices.
        upper_bound: in the graph's unit of time; the longest path under the values.
        counters: what happened, stage by stage.
    """

    children: Mapping[Any, Any]
    values: Mapping[tuple[Any, Any], float]
    lower_bound: float
    upper_bound: float
    counters: Mapping[str, int]

    @property
    def gap(self) -> float:
        """The distance of the bounds as a share of the upper one."""
        return relative_gap(self.lower_bound, self.upper_bound)


def rounded(
    ops: Ops,
    edges: Edges,
    rules: str,
    transfer: Sequence[float],
    threshold: float,
    time_limit: float | None = None,
) -> tuple[npt.NDArray[np.int32], Relaxed]:
    """The favorite child of every op, -1 for none, and what they were rounded from, in edge order.

    Args:
        ops: the ops; `weight` is their time.
        edges: the edges.
        rules: the original's rules.
        transfer: time of every edge, in the unit of the ops' times.
        threshold: greatest value of a favorite edge.
        time_limit: seconds; None: no limit.

    Raises:
        InputError: a time is missing, negative or not finite.
        SolverError: the program was not solved.
    """
    from baechi import _core

    by_id = edges.by_id
    relaxed = relax(
        edges.parent[by_id],
        edges.child[by_id],
        np.asarray(transfer, np.float64)[by_id],
        np.asarray(ops.attribute("weight"), np.float64),
        time_limit=time_limit,
        as_originals=True,
    )
    values = np.empty(len(edges.parent))
    values[by_id] = relaxed.values
    # Conflicts are settled parent by parent, children in edge order.
    by_parent = np.argsort(edges.parent, kind="stable")
    parent, child = edges.parent[by_parent], edges.child[by_parent]
    found: npt.NDArray[np.int32] = _core.round_favorites(
        len(ops.keys), parent, child, values[by_parent], threshold, rules
    )
    return found, dataclasses.replace(relaxed, values=values)


def named_favorites(
    ops: Ops, edges: Edges, found: npt.NDArray[np.int32], relaxed: Relaxed
) -> Favorites:
    """The result of `rounded` by key."""
    keys = ops.keys
    ends = zip(edges.parent.tolist(), edges.child.tolist(), relaxed.values.tolist(), strict=True)
    return Favorites(
        children={keys[op]: keys[child] for op, child in enumerate(found.tolist()) if child >= 0},
        values={(keys[parent], keys[child]): value for parent, child, value in ends},
        lower_bound=relaxed.lower_bound,
        upper_bound=relaxed.upper_bound,
        counters=relaxed.counters,
    )
