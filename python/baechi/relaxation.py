"""m-SCT's linear program: which child of an op is worth staying on its device for.

The program (Hanen and Munier 1995; Baechi, SoCC 2020, section 3) has infinitely many devices. It
gives a start to every op and a value between 0 and 1 to every pair of ops that exchange something:
the share of the transfer time that they have to wait. An op may spare at most one child and one
parent the wait. Rounding the values gives every op at most one favorite child. docs/m-sct.md says
how the program is solved and why the bounds can be believed.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import numbers
import time
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np
import numpy.typing as npt

from baechi.errors import InputError
from baechi.simplex import Optimum, seconds_left, solve, solve_pieces

if TYPE_CHECKING:
    from baechi.cluster import Cluster
    from baechi.graph import Graph

__all__ = [
    "THRESHOLDS",
    "Favorites",
    "Method",
    "Optimum",
    "Relaxed",
    "check_threshold",
    "favorites",
    "relax",
    "solve",
]

Method = Literal["lp", "greedy"]
Floats = npt.NDArray[np.float64]
Indices = npt.NDArray[np.int32]

THRESHOLDS: Final = {"physical": 0.5, "baechi-tf": 0.1, "baechi-torch": 0.5}
"""Greatest value of a favorite pair by rule set; under physical rules it stays below that."""

WHOLE_OPS: Final = 2_000
"""Programs of at most this many ops are solved whole."""

_BLOCK_NODES: Final = 1_500
_SWEEPS: Final = 200
_DEEP_NODES: Final = 100_000
# Seconds per pair and op that it takes to put an answer together, for time limits.
_LAST_STEP_S: Final = 4e-7


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Favorites:
    """Favorite children, and between which bounds the value of m-SCT's program lies.

    The value is the makespan on infinitely many devices ("unlimited-device value"), each op as fast
    as on its fastest device, each transfer as fast as over the cheapest link. It bounds no schedule
    from below where transfers take longer than ops.

    Attributes:
        child: int32[ops]: the favorite child, -1 for none.
        parent_of_pair: int32[pairs].
        child_of_pair: int32[pairs].
        values: float64[pairs]: the share of the transfer that is waited for, from 0 to 1.
        lower_bound_ns: proved by a flow and prices, whatever found them.
        upper_bound_ns: the longest path under `values`.
        method: "lp" or "greedy".
        threshold: of the rounding.
        counters: what happened, stage by stage; empty for "greedy".
    """

    child: Indices
    parent_of_pair: Indices
    child_of_pair: Indices
    values: Floats
    lower_bound_ns: float
    upper_bound_ns: float
    method: str
    threshold: float
    counters: Mapping[str, int]
    op_names: tuple[str, ...] = dataclasses.field(repr=False)

    @property
    def gap(self) -> float:
        """The distance of the bounds as a share of the upper one."""
        return relative_gap(self.lower_bound_ns, self.upper_bound_ns)

    @functools.cached_property
    def children(self) -> Mapping[str, str]:
        """The favorite child by name of every op that has one."""
        names = self.op_names
        chosen = np.flatnonzero(self.child >= 0).tolist()
        return MappingProxyType({names[op]: names[self.child[op]] for op in chosen})

    def __repr__(self) -> str:
        """The number of favorites, and the bounds rounded outward."""
        return (
            f"Favorites({int((self.child >= 0).sum())} of {len(self.child)} ops by "
            f'"{self.method}", value {math.floor(self.lower_bound_ns)} to '
            f"{math.ceil(self.upper_bound_ns)} ns)"
        )


@dataclasses.dataclass(frozen=True)
class Relaxed:
    """Values of the pairs and bounds of the program, in the unit of the times given."""

    values: Floats
    lower_bound: float
    upper_bound: float
    counters: Mapping[str, int]


def favorites(
    graph: Graph,
    cluster: Cluster | Any,
    method: Method = "lp",
    time_limit: float | None = None,
    *,
    rules: str = "physical",
    threshold: float | None = None,
) -> Favorites:
    """The favorite child of every op.

    Without a time limit the same arguments give the same favorites, with the same HiGHS.

    Args:
        graph: the ops.
        cluster: the devices, or what `as_cluster` takes; an op counts with its time on the fastest
            device that may run it, a transfer with its time over the cheapest link.
        method: "lp" rounds the linear program; "greedy" gives each op to the parent whose data
            arrive last, in linear time.
        time_limit: seconds for "lp", after which the best values so far and their bounds are
            returned; None: no limit.
        rules: "physical", "baechi-tf" or "baechi-torch"; the originals count a value at the
            threshold too, and settle conflicts as their code does.
        threshold: of "lp"; None takes that of the rules in `THRESHOLDS`.

    Raises:
        InputError: no such method or rules, or the cluster does not suit the graph.
        SolverError: HiGHS does not solve a program that has a solution.
    """
    from baechi import _core
    from baechi.cluster import as_cluster

    deadline = _deadline(time_limit)
    if rules not in THRESHOLDS:
        raise InputError(f'no rules "{rules}"', hint=f"the rules are {', '.join(THRESHOLDS)}")
    if method not in ("lp", "greedy"):
        raise InputError(f'no method "{method}"', hint="the methods are lp and greedy")
    if threshold is not None:
        check_threshold(threshold)
    flat_graph, flat_cluster = graph.flatten(), as_cluster(cluster).flatten(graph)
    parent, child, transfer_ns, compute_ns = _core.pairs(flat_graph, flat_cluster, rules)
    transfer, compute = transfer_ns.astype(np.float64), compute_ns.astype(np.float64)
    most = THRESHOLDS[rules] if threshold is None else threshold
    if method == "greedy":
        chosen = _core.greedy_favorites(flat_graph, flat_cluster, rules)
        values = np.where(chosen[parent] == child, 0.0, 1.0)
        lower, upper = _core.bounds(parent, child, transfer, compute, values)
        relaxed = Relaxed(values, lower, upper, {})
    else:
        relaxed = relax(
            parent,
            child,
            transfer,
            compute,
            time_limit=seconds_left(deadline),
            as_originals=rules != "physical",
        )
        chosen = _core.round_favorites(graph.num_ops, parent, child, relaxed.values, most, rules)
    return Favorites(
        child=chosen,
        parent_of_pair=parent,
        child_of_pair=child,
        values=relaxed.values,
        lower_bound_ns=relaxed.lower_bound,
        upper_bound_ns=relaxed.upper_bound,
        method=method,
        threshold=most,
        counters=MappingProxyType(dict(relaxed.counters)),
        op_names=graph.op_names,
    )


def check_threshold(threshold: float) -> None:
    """Checks a threshold.

    Raises:
        InputError: it is not a finite number of at least 0.
    """
    is_number = isinstance(threshold, numbers.Real) and not isinstance(threshold, bool)
    if not is_number or not 0 <= threshold < math.inf:
        raise InputError(
            f"threshold {threshold!r} is not a number from 0 on",
            hint="values of the linear program lie between 0 and 1",
        )


def relax(
    parent: Indices,
    child: Indices,
    transfer: Floats,
    compute: Floats,
    *,
    time_limit: float | None = None,
    as_originals: bool = False,
    whole_ops: int = WHOLE_OPS,
    block_nodes: int = _BLOCK_NODES,
    deep_nodes: int = _DEEP_NODES,
) -> Relaxed:
    """Solve the program and prove the answer.

    Args:
        parent: int32[pairs]: the op that is waited for.
        child: int32[pairs]: the op that waits.
        transfer: float64[pairs]: time of the transfer, in any unit.
        compute: float64[ops]: time of the op, in the same unit.
        time_limit: seconds, after which the best so far is returned; None: no limit.
        as_originals: take the values of small programs from the originals' layout of the whole
            program, so that ties between optima fall as theirs.
        whole_ops: programs of at most this many ops are solved whole.
        block_nodes: blocks of more nodes are solved by their nearly critical edges.
        deep_nodes: such blocks of at least so many nodes, if long and narrow, window by window.

    Raises:
        InputError: a time is negative or not finite.
        CycleError: the pairs have a cycle.
        SolverError: HiGHS does not solve a program that has a solution.
    """
    from baechi import _core

    if not len(compute):
        return Relaxed(np.empty(0), 0.0, 0.0, {})
    deadline = _deadline(time_limit)
    if deadline is not None and time_limit is not None:
        last_step = _LAST_STEP_S * (len(parent) + len(compute))
        deadline -= min(last_step, 0.5 * time_limit)
    is_whole = len(compute) <= whole_ops
    relaxation = _core.Relaxation(
        parent,
        child,
        transfer,
        compute,
        whole_ops=whole_ops,
        block_nodes=len(compute) + 2 if is_whole else block_nodes,
        sweeps=_SWEEPS,
        deep_nodes=deep_nodes,
        seconds=seconds_left(deadline),
    )
    solve_pieces(relaxation, deadline)
    values, lower, upper, counters = relaxation.outcome()
    if as_originals and time_limit is None and is_whole:
        values = solve(parent, child, transfer, compute).values
        _, upper = _core.bounds(parent, child, transfer, compute, values)
    return Relaxed(values, lower, upper, counters)


def relative_gap(lower: float, upper: float) -> float:
    """The distance of two bounds as a share of the upper one."""
    return (upper - lower) / upper if upper > 0 else 0.0


def _deadline(time_limit: float | None) -> float | None:
    if time_limit is None:
        return None
    if isinstance(time_limit, bool) or not isinstance(time_limit, numbers.Real):
        raise InputError(f"time_limit is {time_limit!r}, not a number of seconds")
    if not time_limit >= 0:
        raise InputError(f"time_limit is {time_limit}, not at least 0 seconds")
    return time.perf_counter() + time_limit
