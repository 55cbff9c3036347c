"""The dual simplex method of HiGHS for m-SCT's linear program, whole or in the pieces of the core.

HiGHS has other methods, which are not used: its interior-point ones call solvable programs of this
kind infeasible, its first-order one does not arrive.
"""

from __future__ import annotations

import dataclasses
import math
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from baechi.errors import SolverError

if TYPE_CHECKING:
    from baechi import _core

__all__ = ["Optimum", "seconds_left", "solve", "solve_pieces"]

Floats = npt.NDArray[np.float64]
Indices = npt.NDArray[np.int32]

_OPTIONS: Final = {
    "solver": "simplex",
    "simplex_strategy": 1,  # dual, serial
    "parallel": "off",
    "threads": 1,
    "random_seed": 0,
}
_DEVEX: Final = 1


@dataclasses.dataclass(frozen=True)
class Optimum:
    """An optimal vertex of the program.

    Attributes:
        values: float64[pairs], from 0 (spared the transfer) to 1.
        optimum: the makespan on infinitely many devices, in the unit of the times given. It bounds
            no schedule from below unless every transfer is shorter than every op.
    """

    values: Floats
    optimum: float


def solve_pieces(relaxation: _core.Relaxation, deadline: float | None = None) -> None:
    """Solve what the core hands out, until nothing is left or the time is over.

    Args:
        relaxation: the program in the core.
        deadline: when to stop, of `time.perf_counter`; None: never.

    Raises:
        SolverError: HiGHS does not solve a program that has a solution.
    """
    model = None
    with ThreadPoolExecutor(1) as pool:
        while (piece := relaxation.next(seconds=seconds_left(deadline))) is not None:
            if model is None:
                model = _quiet_highs()
                _set(model, **_OPTIONS, simplex_dual_edge_weight_strategy=_DEVEX)
            status = _solve_piece(model, pool, piece, deadline)
            if status == "Time limit reached":
                return
            if status != "Optimal":
                # With nothing spared there is a solution, so HiGHS errs: once more, plainly.
                _set(model, presolve="off")
                again = _solve_piece(model, pool, piece, deadline)
                _set(model, presolve="choose")
                if again == "Time limit reached":
                    return
                if again != "Optimal":
                    raise SolverError(
                        f"HiGHS calls a program that has a solution {status.lower()}, and without "
                        f"presolve {again.lower()}",
                        hint='please report it; favorites "greedy" need no solver',
                    )
            solution = model.getSolution()
            relaxation.give(np.array(solution.col_value), np.array(solution.row_dual))


def seconds_left(deadline: float | None) -> float | None:
    """Seconds until the deadline, at least 0; None if there is none."""
    return None if deadline is None else max(0.0, deadline - time.perf_counter())


def solve(
    parent: Indices,
    child: Indices,
    transfer: npt.NDArray[Any],
    compute: npt.NDArray[Any],
    *,
    time_limit: float | None = None,
) -> Optimum:
    """Solve the whole program, laid out as the originals lay it out.

    The optimum is unique, its vertex is not: which one is found depends on the order of columns
    and rows, so the order of the pairs matters.

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
        return Optimum(np.empty(0), 0.0)
    transfer = np.asarray(transfer, np.float64)
    compute = np.asarray(compute, np.float64)
    model = _quiet_highs()
    _set(model, **_OPTIONS, time_limit=math.inf if time_limit is None else float(time_limit))
    model.passModel(_program(parent, child, transfer, compute))
    with ThreadPoolExecutor(1) as pool:
        status = _run(model, pool)
    if status != "Optimal":
        raise SolverError(
            f"the linear program of {len(compute)} ops and {len(parent)} pairs was not solved: "
            f"{status.lower()}",
            hint='give it more time, or take the favorites "greedy"',
        )
    values = np.array(model.getSolution().col_value[: len(parent)], np.float64)
    return Optimum(values, float(model.getInfo().objective_function_value))


def _solve_piece(
    model: Any, pool: ThreadPoolExecutor, piece: tuple[Any, ...], deadline: float | None
) -> str:
    left = seconds_left(deadline)
    # The limit counts from the first run of the model.
    _set(model, time_limit=math.inf if left is None else model.getRunTime() + left)
    model.passModel(_model(*piece))
    return _run(model, pool)


def _model(
    cost: Floats,
    lower: Floats,
    upper: Floats,
    row_lower: Floats,
    row_upper: Floats,
    start: Indices,
    index: Indices,
    coefficient: Floats,
) -> Any:
    """A program for HiGHS from its columns; the matrix by rows."""
    import highspy

    lp = highspy.HighsLp()
    lp.num_col_, lp.num_row_ = len(cost), len(row_lower)
    lp.col_cost_, lp.col_lower_, lp.col_upper_ = cost, lower, upper
    lp.row_lower_, lp.row_upper_ = row_lower, row_upper
    lp.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
    lp.a_matrix_.num_col_, lp.a_matrix_.num_row_ = lp.num_col_, lp.num_row_
    lp.a_matrix_.start_, lp.a_matrix_.index_, lp.a_matrix_.value_ = start, index, coefficient
    return lp


def _program(parent: Indices, child: Indices, c: Floats, w: Floats) -> Any:
    """The whole program: minimize the makespan.

    Columns: a value x per pair, a start s per op, the makespan. Rows, all "at least":
    s[child] - s[parent] - c x >= w[parent] per pair; the values of an op's children add up to at
    least their number less one, per op with children; the same for its parents; makespan - s >= w
    per op.
    """
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
    return _model(
        np.append(np.zeros(makespan), 1.0),
        np.zeros(makespan + 1),
        np.append(ones, np.full(num_ops + 1, np.inf)),
        bounds,
        np.full(len(lengths), np.inf),
        np.append(0, np.cumsum(lengths)).astype(np.int32),
        indices.astype(np.int32),
        coefficients,
    )


def _stars(num_pairs: npt.NDArray[np.int64], owner: Indices) -> tuple[Any, ...]:
    """One row per op with pairs: lengths, columns, coefficients and bounds."""
    lengths = num_pairs[num_pairs > 0]
    return lengths, np.argsort(owner, kind="stable"), np.ones(len(owner)), lengths - 1.0


def _set(model: Any, **options: Any) -> None:
    for name, value in options.items():
        model.setOptionValue(name, value)


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


def _run(model: Any, pool: ThreadPoolExecutor) -> str:
    """Run the solver on the thread of the pool, and stop it when this thread is interrupted.

    HiGHS keeps one pool of workers per calling thread and refuses to run with another number of
    threads than the pool has; here it neither meets the pool of the caller nor leaves one.

    Returns:
        The status of the model, such as "Optimal".
    """
    model.HandleUserInterrupt = True
    done = pool.submit(model.run)
    try:
        done.result()
    except BaseException:
        model.cancelSolve()
        raise
    return str(model.modelStatusToString(model.getModelStatus()))
