"""Choosing: what every algorithm makes of a graph, judged by the length of the step."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from baechi import _core
from baechi.errors import OutOfMemoryError, PlacementError, SolverError
from baechi.grouping import group
from baechi.placer import Placer
from baechi.plans import Candidate
from baechi.rules import Setting, with_names
from baechi.schedules import Schedule

__all__ = ["anything_fits", "best_of_all", "candidate"]

UNSUPPORTED = {"baechi-torch": ("m-etf-reserve", "m-sct-reserve")}
# What is tried on the grouped graph: together they take less time than the algorithms before them.
GROUPED = ("contiguous", "m-topo", "m-etf")

Failure = OutOfMemoryError | PlacementError
Outcome = Schedule | Failure | SolverError


def best_of_all(placer: Placer) -> tuple[str, Schedule, tuple[Candidate, ...]]:
    """The shortest step that fits: its algorithm, its schedule, and all that was tried.

    Raises:
        OutOfMemoryError: nothing was found; of the algorithm that placed most ops.
        PlacementError: an op or group may run nowhere, or the original would give up.
    """
    tried = list(_alone(placer))
    # Errors of grouped graphs name ops of those, so they are not raised.
    failures = [found for _, found in tried if isinstance(found, Failure)]
    tried += _grouped(placer)
    fitting = [(name, found) for name, found in tried if isinstance(found, Schedule) and found.fits]
    if fitting:
        name, schedule = min(fitting, key=lambda one: one[1].makespan_ns)
        return name, schedule, tuple(candidate(name, found) for name, found in tried)
    if not failures:
        raise PlacementError("no algorithm found a placement within the limits")
    raise max(failures, key=lambda error: len(getattr(error, "placed_ops", ())))


def anything_fits(placer: Placer) -> bool:
    """Whether anything that `best` tries fits; what comes after the first that does is not run."""
    tried = itertools.chain(_alone(placer), _grouped(placer))
    return any(isinstance(found, Schedule) and found.fits for _, found in tried)


def candidate(algorithm: str, found: Schedule | Exception) -> Candidate:
    """The row of an algorithm in the table of a plan."""
    if not isinstance(found, Schedule):
        return Candidate(
            algorithm=algorithm,
            makespan_ns=None,
            largest_peak_bytes=None,
            transferred_bytes=None,
            error=str(found).splitlines()[0],
        )
    return Candidate(
        algorithm=algorithm,
        makespan_ns=found.makespan_ns,
        largest_peak_bytes=int(found.peak_bytes.max()),
        transferred_bytes=found.transferred_bytes,
        error=None if found.fits else f"over the limit of {', '.join(found.over_limit)}",
    )


def _alone(placer: Placer) -> Iterator[tuple[str, Outcome]]:
    """What each algorithm finds on the graph as it is."""
    left_out = UNSUPPORTED.get(placer.setting.rules, ())
    for name in _core.ALGORITHMS:
        if name not in left_out:
            yield name, _outcome(placer, name)


def _outcome(placer: Placer, name: str) -> Outcome:
    """What an algorithm finds; m-SCT is given up for good where the solver has no answer."""
    if name.startswith("m-sct") and placer.solver_failed is not None:
        return placer.solver_failed
    try:
        return placer.run(name, quick=True)
    except (OutOfMemoryError, PlacementError) as error:
        return error
    except SolverError as error:
        placer.solver_failed = error
        placer.notes.append(f"m-sct was left out: {str(error).splitlines()[0]}")
        return error


def _grouped(placer: Placer) -> Iterator[tuple[str, Outcome]]:
    """What some algorithms find on the grouped graph; nothing where that is not smaller."""
    setting = placer.setting
    if setting.rules != "physical" or setting.graph.num_ops < 2:
        return
    grouping = group(setting.graph, retention=setting.retention)
    if grouping.graph.num_ops == setting.graph.num_ops:
        return
    coarse = Setting.of(grouping.graph, setting.cluster, setting.rules, setting.retention)
    coarse_placer = placer.on(coarse)
    for name in GROUPED:
        outcome = _outcome(coarse_placer, name)
        if isinstance(outcome, Schedule):
            device = outcome.device[grouping.node_of]
            with with_names(setting.graph, setting.cluster):
                core = grouping.scheduled(setting, device, outcome.order)
            outcome = setting.schedule(core)
        yield f"grouped {name}", outcome
