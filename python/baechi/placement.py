"""Placing: from a graph and a cluster to a plan."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from baechi import _core
from baechi.cluster import Cluster, as_cluster
from baechi.columns import as_array
from baechi.digests import Digests
from baechi.errors import InputError, OutOfMemoryError, PlacementError
from baechi.graph import Graph
from baechi.limits import explained
from baechi.plans import Candidate, Plan, Provenance
from baechi.predictions import plan_of
from baechi.relaxation import check_threshold
from baechi.relaxation import favorites as find_favorites
from baechi.rules import Setting, as_graph, with_names
from baechi.schedules import Schedule

__all__ = ["ALGORITHMS", "place"]

ALGORITHMS: tuple[str, ...] = (*_core.ALGORITHMS, "best")

Favorites = Literal["lp", "greedy", "none"] | Mapping[str, str] | npt.ArrayLike

# `best` solves the linear program of graphs up to this many edges; beyond, the greedy rule decides.
MOST_EDGES_FOR_LP = 20_000
UNSUPPORTED = {"baechi-torch": ("m-etf-reserve", "m-sct-reserve")}


def place(
    graph: Graph,
    cluster: Cluster | Any = None,
    algorithm: str = "best",
    rules: str = "physical",
    *,
    favorites: Favorites | None = None,
    threshold: float | None = None,
    seed: int = 0,
    retention: str = "liveness",
    repair: bool = True,
) -> Plan:
    """Decides which device runs each op, and in which order.

    `best` runs every algorithm and takes the one with the shortest step among those that fit, the
    first on a tie; it is never worse than one device where one fits.

    Args:
        graph: what to place.
        cluster: where, or what `as_cluster` takes; by default the one that came with the graph.
        algorithm: one of `ALGORITHMS`.
        rules: "physical" (docs/rules.md), or an original's: "baechi-tf", "baechi-torch".
        favorites: m-SCT's favorite children: "lp" (the linear program, by HiGHS), "greedy", "none",
            a mapping of op to child, or int[ops] with -1 for none. By default "lp", and in `best`
            "greedy" above 20,000 edges.
        threshold: a value of the linear program below it makes a favorite (for the originals: at
            most it); by default 0.5, for baechi-tf 0.1.
        seed: of the random placement.
        retention: "liveness", or "training" where the graph is only the forward half of a step and
            its outputs stay for the backward half.
        repair: where m-TOPO, m-ETF or m-SCT run out of memory under physical rules, search for
            devices and an order within the limits, starting from what they had placed. The plan
            notes it.

    Raises:
        OutOfMemoryError: no room was found for an op; it names the op, the device that came closest
            and the bytes, says whether that proves that nothing fits, and finds a limit that would
            do (`smallest_limit`).
        PlacementError: an op or group may run nowhere, or the original would give up.
        InputError: no such algorithm or rules, or the cluster does not suit the graph.
        SolverError: HiGHS gave no usable answer.
    """
    if algorithm not in ALGORITHMS:
        raise InputError(f'no algorithm "{algorithm}"', hint=f"choose from {', '.join(ALGORITHMS)}")
    setting = Setting.of(as_graph(graph), _cluster(graph, cluster), rules, retention)
    placer = _Placer(setting, favorites, threshold, seed, repair)
    try:
        if algorithm != "best":
            winner, schedule = algorithm, placer.run(algorithm)
            candidates: tuple[Candidate, ...] = (_candidate(algorithm, schedule),)
        else:
            winner, schedule, candidates = _best(placer)
    except OutOfMemoryError as error:
        again = functools.partial(
            place,
            algorithm=algorithm,
            rules=rules,
            favorites=favorites,
            threshold=threshold,
            seed=seed,
            retention=retention,
            repair=repair,
        )
        raise explained(error, setting, again) from None
    options: dict[str, Any] = {"repair": repair, "retention": retention, "seed": seed}
    if "m-sct" in algorithm or algorithm == "best":
        options["favorites"] = placer.favorites_used
        options["threshold"] = placer.threshold
        options |= placer.bounds
    provenance = Provenance(
        made_for=graph,
        graph_digests=Digests(graph),
        cluster=setting.cluster,
        algorithm=algorithm,
        options=options,
        rules=rules,
        versions=_versions(placer),
        notes=(*setting.notes, *_repairs(winner, schedule)),
    )
    return plan_of(schedule, algorithm=winner, candidates=candidates, provenance=provenance)


def _repairs(algorithm: str, schedule: Schedule) -> tuple[str, ...]:
    if not schedule.repaired:
        return ()
    return (f"{algorithm} ran out of memory; devices and order were found by repair",)


def _cluster(graph: Graph, cluster: Cluster | Any) -> Cluster:
    if cluster is not None:
        return as_cluster(cluster)
    if graph.default_cluster is None:
        raise InputError("no cluster was given", hint='pass one, such as "4x8GiB"')
    return as_cluster(graph.default_cluster)


class _Placer:
    """Runs algorithms on one setting; favorites are found once and only when needed."""

    def __init__(
        self,
        setting: Setting,
        favorites: Favorites | None,
        threshold: float | None,
        seed: int,
        repair: bool,
    ) -> None:
        self.setting = setting
        self.threshold = threshold
        self.favorites_used: str | None = None
        self.bounds: dict[str, int] = {}
        self._given = favorites
        self._column: npt.NDArray[np.int32] | None = None
        self._seed = seed
        self._repair = repair
        if type(seed) is bool or not hasattr(seed, "__index__") or not 0 <= int(seed) < 2**64:
            raise InputError(f"seed {seed!r} is not an integer within 64 bits")
        if not isinstance(repair, bool):
            raise InputError(f"repair is {repair!r}, not True or False")
        if threshold is not None:
            check_threshold(threshold)

    def run(self, algorithm: str, *, quick: bool = False) -> Schedule:
        setting = self.setting
        favorites = self._favorites(quick) if algorithm.startswith("m-sct") else None
        with with_names(setting.graph, setting.cluster):
            core = _core.place(
                setting.flat_graph,
                setting.flat_cluster,
                algorithm,
                setting.rules,
                retention=setting.retention,
                favorites=favorites,
                seed=self._seed,
                colocation=setting.has_groups,
                repair=self._repair,
            )
        return setting.schedule(core)

    def _favorites(self, quick: bool) -> npt.NDArray[np.int32]:
        if self._column is None:
            self._column = self._find(quick)
        return self._column

    def _find(self, quick: bool) -> npt.NDArray[np.int32]:
        setting, given = self.setting, self._given
        if given is None:
            large = setting.graph.num_edges > MOST_EDGES_FOR_LP
            given = "greedy" if quick and large else "lp"
        if isinstance(given, str):
            self.favorites_used = given
            if given == "none" or (given == "greedy" and setting.graph.num_ops == 0):
                return np.full(setting.graph.num_ops, -1, np.int32)
            method: Any = given  # an unknown name is refused there
            found = find_favorites(
                setting.graph,
                setting.cluster,
                method,
                rules=setting.rules,
                threshold=self.threshold,
            )
            self.bounds = {
                "unlimited_lower_bound_ns": math.floor(found.lower_bound_ns),
                "unlimited_upper_bound_ns": math.ceil(found.upper_bound_ns),
            }
            return found.child
        self.favorites_used = "given"
        if isinstance(given, Mapping):
            column = np.full(setting.graph.num_ops, -1, np.int32)
            for op, child in given.items():
                column[setting.graph.index(op)] = setting.graph.index(child)
            return column
        array = as_array("favorites", given)
        if array.shape != (setting.graph.num_ops,) or array.dtype.kind not in "iu":
            raise InputError(
                f"favorites: expected int[{setting.graph.num_ops}], found "
                f"{array.dtype}{list(array.shape)}"
            )
        if len(wrong := np.flatnonzero((array < -1) | (array >= setting.graph.num_ops))):
            value, most = array[wrong[0]], setting.graph.num_ops - 1
            raise InputError(f"favorites[{wrong[0]}] is {value}, not an index from -1 to {most}")
        return np.ascontiguousarray(array, np.int32)


def _best(placer: _Placer) -> tuple[str, Schedule, tuple[Candidate, ...]]:
    candidates = []
    best: tuple[str, Schedule] | None = None
    worst: OutOfMemoryError | PlacementError | None = None
    for name in _core.ALGORITHMS:
        if name in UNSUPPORTED.get(placer.setting.rules, ()):
            continue
        try:
            schedule = placer.run(name, quick=True)
        except (OutOfMemoryError, PlacementError) as error:
            text = str(error).splitlines()[0]
            candidates.append(_candidate(name, None, text))
            if worst is None or _num_placed(error) > _num_placed(worst):
                worst = error
            continue
        if schedule.fits:
            candidates.append(_candidate(name, schedule))
            if best is None or schedule.makespan_ns < best[1].makespan_ns:
                best = name, schedule
        else:
            over = ", ".join(schedule.over_limit)
            candidates.append(_candidate(name, schedule, f"over the limit of {over}"))
    if best is None:
        if worst is None:
            raise PlacementError("no algorithm found a placement within the limits")
        raise worst
    return *best, tuple(candidates)


def _num_placed(error: OutOfMemoryError | PlacementError) -> int:
    return len(getattr(error, "placed_ops", ()))


def _candidate(algorithm: str, schedule: Schedule | None, error: str | None = None) -> Candidate:
    if schedule is None:
        return Candidate(
            algorithm=algorithm,
            makespan_ns=None,
            largest_peak_bytes=None,
            transferred_bytes=None,
            error=error,
        )
    return Candidate(
        algorithm=algorithm,
        makespan_ns=schedule.makespan_ns,
        largest_peak_bytes=int(schedule.peak_bytes.max()),
        transferred_bytes=schedule.transferred_bytes,
        error=error,
    )


def _versions(placer: _Placer) -> dict[str, str]:
    versions = {"baechi": _core.__version__}
    if placer.favorites_used == "lp":
        from importlib.metadata import version

        versions["highspy"] = version("highspy")
    return versions
