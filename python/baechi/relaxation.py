"""m-SCT's linear program: which child of an op is worth staying on its device for.

The program (Hanen and Munier 1995; Baechi, SoCC 2020, section 3) has infinitely many devices. It
gives a start to every op and a value between 0 and 1 to every pair of ops that exchange something:
the share of the transfer time that they have to wait. An op may spare at most one child and one
parent the wait. Rounding the values gives every op at most one favorite child.
"""

from __future__ import annotations

import dataclasses
import math
import numbers
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np
import numpy.typing as npt

from baechi.errors import InputError, SolverError

if TYPE_CHECKING:
    from baechi.cluster import Cluster
    from baechi.graph import Graph

__all__ = ["THRESHOLDS", "Method", "Relaxation", "check_threshold", "favorites", "solve"]

Method = Literal["lp", "greedy", "none"]
Floats = npt.NDArray[np.float64]
Indices = npt.NDArray[np.int32]

THRESHOLDS: Final = {"physical": 0.5, "baechi-tf": 0.1, "baechi-torch": 0.5}
"""Greatest value of a favorite pair by rule set; under physical rules it stays below that."""

_NS_PER_US: Final = 1_000.0


@dataclasses.dataclass(frozen=True)
class Relaxation:
    """An optimal vertex of the program.

    Attributes:
        values: float64[pairs], from 0 (spared the transfer) to 1.
        optimum: the makespan on infinitely many devices, in the unit of the times given. It bounds
            no schedule from below unless every transfer is shorter than every op.
    """

    values: Floats
    optimum: float


def favorites(
    graph: Graph,
    cluster: Cluster,
    method: Method = "lp",
    *,
    rules: str = "physical",
    threshold: float | None = None,
    time_limit: float | None = None,
) -> Indices:
    """The favorite child of every op, -1 for none.

    Args:
        graph: the ops.
        cluster: the devices; an op counts with its time on the fastest device that may run it, a
            transfer with its time over the cheapest link.
        method: "lp" rounds the linear program; "greedy" gives each op to the parent whose data
            arrive last; "none" leaves every op without.
        rules: "physical", "baechi-tf" or "baechi-torch"; the originals count a value at the
            threshold too, and settle conflicts as their code does.
        threshold: of "lp"; None takes that of the rules in `THRESHOLDS`.
        time_limit: seconds for "lp"; None: no limit.

    Returns:
        int32[ops].

    Raises:
        InputError: no such method or rules.
        SolverError: the program was not solved to optimality.
    """
    from baechi import _core

    if rules not in THRESHOLDS:
        raise InputError(f'no rules "{rules}"', hint=f"the rules are {', '.join(THRESHOLDS)}")
    if threshold is not None:
        check_threshold(threshold)
    if method == "none":
        return np.full(graph.num_ops, -1, np.int32)
    flat_graph, flat_cluster = graph.flatten(), cluster.flatten(graph)
    if method == "greedy":
        greedy: Indices = _core.greedy_favorites(flat_graph, flat_cluster, rules)
        return greedy
    if method != "lp":
        raise InputError(f'no method "{method}"', hint="the methods are lp, greedy and none")
    parent, child, transfer_ns, compute_ns = _core.pairs(flat_graph, flat_cluster, rules)
    # In microseconds: the solver's tolerances are absolute, and nanoseconds are large numbers.
    relaxation = solve(
        parent, child, transfer_ns / _NS_PER_US, compute_ns / _NS_PER_US, time_limit=time_limit
    )
    most = THRESHOLDS[rules] if threshold is None else float(threshold)
    rounded: Indices = _core.round_favorites(
        flat_graph, flat_cluster, rules, relaxation.values, most
    )
    return rounded


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


def solve(
    parent: Indices,
    child: Indices,
    transfer: npt.NDArray[Any],
    compute: npt.NDArray[Any],
    *,
    time_limit: float | None = None,
) -> Relaxation:
    """Solve the whole program by the dual simplex method of HiGHS, on one thread.

    The optimum is unique, its vertex is not: which one is found depends on the order of columns
    and rows. They are laid out as in the originals, so the order of the pairs matters.

    Args:
        parent: int32[pairs]: the op that is waited for.
        child: int32[pairs]: the op that waits.
        transfer: [pairs]: time of the transfer, in any unit.
        compute: [ops]: time of the op, in the same unit.
        time_limit: seconds; None: no limit.

    Raises:
        SolverError: the program was not solved to optimality, or not in time.
    """
    if not len(compute):
        return Relaxation(np.empty(0), 0.0)
    transfer = np.asarray(transfer, np.float64)
    compute = np.asarray(compute, np.float64)
    model = _quiet_highs()
    options = {
        "solver": "simplex",
        "simplex_strategy": 1,  # dual, serial
        "parallel": "off",
        "threads": 1,
        "random_seed": 0,
        "time_limit": math.inf if time_limit is None else float(time_limit),
    }
    for name, value in options.items():
        model.setOptionValue(name, value)
    model.passModel(_program(parent, child, transfer, compute))
    _run(model)
    status = model.getModelStatus()
    if model.modelStatusToString(status) != "Optimal":
        raise SolverError(
            f"the linear program of {len(compute)} ops and {len(parent)} pairs was not solved: "
            f"{model.modelStatusToString(status).lower()}",
            hint='give it more time, or take the favorites "greedy"',
        )
    values = np.array(model.getSolution().col_value[: len(parent)], np.float64)
    return Relaxation(values, float(model.getInfo().objective_function_value))


def _program(parent: Indices, child: Indices, c: Floats, w: Floats) -> Any:
    """The program for HiGHS: minimize the makespan.

    Columns: a value x per pair, a start s per op, the makespan. Rows, all "at least":
    s[child] - s[parent] - c x >= w[parent] per pair; the values of an op's children add up to at
    least their number less one, per op with children; the same for its parents; makespan - s >= w
    per op.
    """
    import highspy

    num_pairs, num_ops = len(c), len(w)
    makespan = num_pairs + num_ops
    pairs, ones = np.arange(num_pairs), np.ones(num_pairs)
    num_children = np.bincount(parent, minlength=num_ops)
    num_parents = np.bincount(child, minlength=num_ops)
    starts = num_pairs + np.arange(num_ops)
    blocks = [
        (
            np.full(num_pairs, 3),
            np.column_stack([num_pairs + child, num_pairs + parent, pairs]),
            np.column_stack([ones, -ones, -c]),
            w[parent],
        ),
        _stars(num_children, parent),
        _stars(num_parents, child),
        (
            np.full(num_ops, 2),
            np.column_stack([np.full(num_ops, makespan), starts]),
            np.tile([1.0, -1.0], num_ops),
            w,
        ),
    ]
    lengths, indices, coefficients, bounds = (
        np.concatenate([np.ravel(block[part]) for block in blocks]) for part in range(4)
    )
    lp = highspy.HighsLp()
    lp.num_col_, lp.num_row_ = makespan + 1, len(lengths)
    lp.col_cost_ = np.append(np.zeros(makespan), 1.0)
    lp.col_lower_ = np.zeros(makespan + 1)
    lp.col_upper_ = np.append(ones, np.full(num_ops + 1, highspy.kHighsInf))
    lp.row_lower_ = bounds
    lp.row_upper_ = np.full(len(lengths), highspy.kHighsInf)
    lp.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
    lp.a_matrix_.num_col_, lp.a_matrix_.num_row_ = lp.num_col_, lp.num_row_
    lp.a_matrix_.start_ = np.append(0, np.cumsum(lengths)).astype(np.int32)
    lp.a_matrix_.index_ = indices.astype(np.int32)
    lp.a_matrix_.value_ = coefficients
    return lp


def _stars(num_pairs: npt.NDArray[np.int64], owner: Indices) -> tuple[Any, ...]:
    """One row per op with pairs: lengths, columns, coefficients and bounds."""
    lengths = num_pairs[num_pairs > 0]
    return lengths, np.argsort(owner, kind="stable"), np.ones(len(owner)), lengths - 1.0


def _quiet_highs() -> Any:
    """A solver that writes nothing to standard output."""
    import highspy

    class Quiet(highspy.Highs):
        def enableCallbacks(self) -> None:
            # The constructor calls it, and the first thing that is called prints the banner.
            self.setOptionValue("output_flag", False)
            super().enableCallbacks()  # type: ignore[no-untyped-call]

    model = Quiet()  # type: ignore[no-untyped-call]
    model.setOptionValue("output_flag", False)
    return model


def _run(model: Any) -> None:
    """Run the solver on a thread of its own, and stop it when this thread is interrupted.

    HiGHS keeps one pool of workers per calling thread and refuses to run with another number of
    threads than the pool has; here it neither meets the pool of the caller nor leaves one.
    """
    model.HandleUserInterrupt = True
    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(model.run)
        try:
            done.result()
        except BaseException:
            model.cancelSolve()
            raise
