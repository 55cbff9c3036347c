"""`baechi perturb`: how a plan stands other costs and links than were predicted."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from baechi.cli import arguments as shared
from baechi.cli.output import Outcome, progress
from baechi.units import format_ns

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    from rich.console import RenderableType

    from baechi.perturbation import Perturbation

__all__ = ["add_arguments", "run"]

_QUANTILES = {"least": 0.0, "p5": 0.05, "median": 0.5, "p95": 0.95, "most": 1.0}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Graph, plan, how much and how often."""
    shared.add_graph(parser)
    parser.add_argument("placement", metavar="PLAN", help="a plan for this graph")
    shared.add_cluster(parser)
    parser.add_argument(
        "--spread", type=float, default=0.2, help="costs and links change by at most this share"
    )
    parser.add_argument("--samples", type=int, default=100, metavar="N", help="how often")
    parser.add_argument(
        "--remade", type=int, default=10, metavar="N", help="make a new plan for N of the samples"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the changes")
    shared.add_json(parser)


def run(arguments: argparse.Namespace) -> Outcome:
    """Samples and shows the distribution."""
    from baechi.perturbation import perturb
    from baechi.plans import Plan

    graph = shared.read_graph(arguments.graph)
    plan = Plan.load(arguments.placement, graph)
    cluster = shared.read_cluster(arguments, plan.provenance.cluster)
    with progress("changing costs and links") as how_far:
        found = perturb(
            graph,
            cluster,
            plan,
            samples=arguments.samples,
            remade=min(arguments.remade, arguments.samples),
            spread=arguments.spread,
            seed=arguments.seed,
            progress=how_far,
        )
    return Outcome(
        document=lambda: _document(found), shown=lambda width, _: _shown(_document(found), width)
    )


def _document(found: Perturbation) -> dict[str, Any]:
    remade = found.remade_ns[found.remade_ns >= 0]
    same = found.kept_ns[: len(found.remade_ns)][found.remade_ns >= 0]
    gain = (same / remade - 1) if len(remade) and remade.min() > 0 else None
    return {
        "spread": found.spread,
        "seed": found.seed,
        "samples": len(found.kept_ns),
        "predicted_ns": found.predicted_ns,
        "kept": {**_quantiles(found.kept_ns), "share_that_fits": float(found.kept_fits.mean())},
        "remade": {
            **_quantiles(remade),
            "samples": len(found.remade_ns),
            "not_found": len(found.remade_ns) - len(remade),
            "mean_gain": None if gain is None else float(gain.mean()),
        },
    }


def _quantiles(times_ns: npt.NDArray[np.int64]) -> dict[str, int | None]:
    import numpy as np

    if not len(times_ns):
        return {f"{name}_ns": None for name in _QUANTILES}
    found = np.quantile(times_ns, list(_QUANTILES.values()), method="nearest").tolist()
    return {f"{name}_ns": int(time) for name, time in zip(_QUANTILES, found, strict=True)}


def _shown(document: dict[str, Any], width: int) -> list[RenderableType]:
    from baechi.tables import Column, as_table, fitted, hanging

    sides = {"as it is": document["kept"], "made anew": document["remade"]}
    sides = {name: side for name, side in sides.items() if side["median_ns"] is not None}
    columns = [Column(heading="the plan", cells=[*sides], importance=99, is_text=True)]
    for at, name in enumerate(_QUANTILES):
        cells = [format_ns(side[f"{name}_ns"]) for side in sides.values()]
        columns.append(Column(heading=name, cells=cells, importance=(60, 70, 90, 80, 65)[at]))
    head = (
        f"step {format_ns(document['predicted_ns'])} as predicted; costs and links changed by up "
    )
    head += f"to {document['spread']:.0%}, {document['samples']} times (seed {document['seed']})"
    kept, remade = document["kept"], document["remade"]
    lines = [f"it fits the memory in {kept['share_that_fits']:.0%} of them"]
    if remade["mean_gain"] is not None:
        lines.append(
            f"in {remade['samples']} of them a new plan was made: its step is shorter by "
            f"{remade['mean_gain']:.1%} on average"
        )
    if remade["not_found"]:
        lines.append(f"no new plan was found in {remade['not_found']}")
    table = as_table(fitted(columns, width - 2), indent=2)
    return [hanging(head, width, "bold"), table, *(hanging(f"  {line}", width) for line in lines)]
