"""Placing: from a graph and a cluster to a plan."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from baechi import _core
from baechi.choice import anything_fits, best_of_all, candidate
from baechi.cluster import Cluster, as_cluster
from baechi.digests import Digests
from baechi.errors import InputError, OutOfMemoryError, PlacementError
from baechi.graph import Graph
from baechi.limits import explained
from baechi.placer import Favorites, Placer
from baechi.plans import Candidate, Plan, Provenance
from baechi.predictions import plan_of
from baechi.rules import Setting, as_graph
from baechi.schedules import Schedule

__all__ = ["ALGORITHMS", "place"]

ALGORITHMS: tuple[str, ...] = (*_core.ALGORITHMS, "best")


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

    `best` runs every algorithm, and some of them on the grouped graph as well, and takes the one
    with the shortest step among those that fit, the first on a tie; it is never worse than one
    device where one fits.

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
        SolverError: HiGHS gave no usable answer; `best` then goes on without m-SCT and notes it.
    """
    if algorithm not in ALGORITHMS:
        raise InputError(f'no algorithm "{algorithm}"', hint=f"choose from {', '.join(ALGORITHMS)}")

    def placer_on(cluster: Cluster) -> Placer:
        setting = Setting.of(as_graph(graph), cluster, rules, retention)
        return Placer(setting, favorites, threshold, seed, repair)

    placer = placer_on(_cluster(graph, cluster))
    setting = placer.setting
    try:
        if algorithm != "best":
            winner, schedule = algorithm, placer.run(algorithm)
            candidates: tuple[Candidate, ...] = (candidate(algorithm, schedule),)
        else:
            winner, schedule, candidates = best_of_all(placer)
    except OutOfMemoryError as error:
        fits = functools.partial(_fits, algorithm, placer_on)
        raise explained(error, setting, fits) from None
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
        notes=(*setting.notes, *placer.notes, *_repairs(winner, schedule)),
    )
    return plan_of(schedule, algorithm=winner, candidates=candidates, provenance=provenance)


def _fits(algorithm: str, placer_on: Callable[[Cluster], Placer], cluster: Cluster) -> bool:
    """Whether the algorithm finds a plan within the limits of a cluster."""
    placer = placer_on(cluster)
    try:
        return anything_fits(placer) if algorithm == "best" else placer.run(algorithm).fits
    except (OutOfMemoryError, PlacementError):
        return False


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


def _versions(placer: Placer) -> dict[str, str]:
    versions = {"baechi": _core.__version__}
    if placer.favorites_used == "lp":
        from importlib.metadata import version

        versions["highspy"] = version("highspy")
    return versions
