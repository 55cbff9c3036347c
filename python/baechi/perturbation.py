"""How a plan stands costs and links that are not as predicted."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from baechi.cluster import Cluster, as_cluster
from baechi.columns import COLUMNS
from baechi.errors import InputError, OutOfMemoryError, PlacementError
from baechi.graph import Graph
from baechi.placement import place
from baechi.plans import Plan
from baechi.simulation import simulate

__all__ = ["Perturbation", "perturb", "perturbed"]

_PASSED_ON = ("seed", "retention", "threshold", "repair")


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Perturbation:
    """Step times of a plan that is kept, and of plans made anew, under the same changes.

    Attributes:
        predicted_ns: the step without changes.
        kept_ns: int64[samples], the step of the plan as it is.
        kept_fits: bool[samples], whether it still fits the memory.
        remade_ns: int64[remade], the step of a new plan for each of the first samples, -1 where
            none was found.
    """

    predicted_ns: int
    spread: float
    seed: int
    kept_ns: npt.NDArray[np.int64]
    kept_fits: npt.NDArray[np.bool_]
    remade_ns: npt.NDArray[np.int64]


def perturb(
    graph: Graph,
    cluster: Cluster | Any,
    plan: Plan,
    *,
    samples: int = 100,
    remade: int = 10,
    spread: float = 0.2,
    seed: int = 0,
    progress: Callable[[str], None] = lambda _: None,
) -> Perturbation:
    """Changes costs and links at random, each by a factor of its own, and runs the plan again.

    The plan is kept with its launch order, and made anew with its own algorithm and options.

    Args:
        graph: what the plan was made for.
        cluster: where.
        plan: the plan.
        samples: how often.
        remade: for how many of the samples a new plan is made.
        spread: factors are even between 1 - spread and 1 + spread.
        seed: of the factors.
        progress: is told how far it is.

    Raises:
        InputError: a number out of range.
        PlanMismatchError: the plan was made for another graph.
    """
    if not 0 <= spread < 1:
        raise InputError(f"spread {spread} is not from 0 to below 1")
    if samples < 1 or not 0 <= remade <= samples:
        raise InputError(f"{samples} samples of which {remade} are placed anew make no sense")
    cluster = as_cluster(cluster)
    plan.check(graph)
    rng = np.random.default_rng(seed)
    kept, fits, again = [], [], []
    for sample in range(samples):
        progress(f"{sample} of {samples}")
        other_graph, other_cluster = perturbed(graph, cluster, spread, rng)
        made = dataclasses.replace(plan.provenance, made_for=other_graph)
        schedule = simulate(other_graph, other_cluster, dataclasses.replace(plan, provenance=made))
        kept.append(schedule.makespan_ns)
        fits.append(schedule.fits)
        if sample < remade:
            again.append(_remade(other_graph, other_cluster, plan))
    return Perturbation(
        predicted_ns=simulate(graph, cluster, plan).makespan_ns,
        spread=spread,
        seed=seed,
        kept_ns=np.array(kept, np.int64),
        kept_fits=np.array(fits, np.bool_),
        remade_ns=np.array(again, np.int64),
    )


def perturbed(
    graph: Graph, cluster: Cluster, spread: float, rng: np.random.Generator
) -> tuple[Graph, Cluster]:
    """The same with a factor for every op, every given transfer time and every link."""

    def factors(num: int | tuple[int, ...]) -> npt.NDArray[np.float64]:
        return rng.uniform(1 - spread, 1 + spread, num)

    columns: dict[str, Any] = {column.name: getattr(graph, column.name) for column in COLUMNS}
    for name, num in (("compute_ns", graph.num_ops), ("tensor_transfer_ns", graph.num_tensors)):
        given, changed = columns[name], columns[name] * factors(num)
        columns[name] = np.where(given < 0, given, np.rint(changed).astype(np.int64))
    names = ("op_names", "op_kinds", "module_paths", "device_kinds", "group_names", "allowed_sets")
    other = Graph.from_arrays(**columns, **{name: getattr(graph, name) for name in names})
    size = cluster.latency_ns.shape
    latency = np.rint(cluster.latency_ns * factors(size)).astype(np.int64)
    rate = np.rint(cluster.bytes_per_s * factors(size)).astype(np.int64)
    channels: Any = cluster.channels
    if channels == "custom":
        channels = (cluster.send_channel, cluster.recv_channel)
    return other, Cluster(cluster.devices, (latency, rate), channels)


def _remade(graph: Graph, cluster: Cluster, plan: Plan) -> int:
    options = plan.provenance.options
    passed = {name: options[name] for name in _PASSED_ON if name in options}
    if options.get("favorites") in ("greedy", "none"):
        passed["favorites"] = options["favorites"]
    try:
        new = place(graph, cluster, plan.provenance.algorithm, plan.provenance.rules, **passed)
    except (OutOfMemoryError, PlacementError):
        return -1
    return new.makespan_ns if new.fits else -1
