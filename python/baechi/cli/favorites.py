"""`baechi favorites`: m-SCT's favorite children, with the bounds of their linear program."""

from __future__ import annotations

import argparse
import math
from typing import TYPE_CHECKING, Any

from baechi.cli import arguments as shared
from baechi.cli.output import Outcome, progress
from baechi.units import format_ns

if TYPE_CHECKING:
    from rich.console import RenderableType

    from baechi.relaxation import Favorites

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Graph, devices, method and time limit."""
    shared.add_graph(parser)
    shared.add_cluster(parser)
    parser.add_argument(
        "--method", choices=("lp", "greedy"), default="lp", help="the linear program, or a rule"
    )
    parser.add_argument(
        "--time-limit", type=float, metavar="SECONDS", help="then take the best values so far"
    )
    parser.add_argument("--rules", choices=shared.RULES, default="physical", help="whose rounding")
    parser.add_argument("--threshold", type=float, help="of the rounding")
    parser.add_argument("--list", action="store_true", help="show every favorite child")
    shared.add_json(parser)


def run(arguments: argparse.Namespace) -> Outcome:
    """Finds and shows them."""
    from baechi.relaxation import favorites

    graph = shared.read_graph(arguments.graph)
    cluster = shared.read_cluster(arguments, graph.default_cluster)
    with progress(f"favorites of {graph.num_ops} ops by {arguments.method}"):
        found = favorites(
            graph,
            cluster,
            arguments.method,
            arguments.time_limit,
            rules=arguments.rules,
            threshold=arguments.threshold,
        )
    return Outcome(
        document=lambda: _document(found),
        shown=lambda width, _: _shown(found, width, arguments.list),
    )


def _document(found: Favorites) -> dict[str, Any]:
    return {
        "method": found.method,
        "threshold": found.threshold,
        "lower_bound_ns": math.floor(found.lower_bound_ns),
        "upper_bound_ns": math.ceil(found.upper_bound_ns),
        "gap": found.gap,
        "num_ops": len(found.child),
        "favorites": dict(found.children),
        "counters": dict(found.counters),
    }


def _shown(found: Favorites, width: int, with_list: bool) -> list[RenderableType]:
    from rich.text import Text

    from baechi.tables import hanging

    counters = ", ".join(
        f"{name.removeprefix('num_').replace('_', ' ')} {count}"
        for name, count in found.counters.items()
    )
    chosen = len(found.children)
    lower, upper = math.floor(found.lower_bound_ns), math.ceil(found.upper_bound_ns)
    lines = [
        Text(
            f"{chosen} of {len(found.child)} ops have a favorite child, by {found.method}", "bold"
        ),
        Text(f"  unlimited-device value at least {format_ns(lower)} ({lower} ns)"),
        Text(f"                          at most {format_ns(upper)} ({upper} ns)"),
        Text(f"  gap {found.gap:.3%}, threshold {found.threshold:g}"),
        *([hanging(f"  {counters}", width, "dim")] if counters else []),
    ]
    if with_list:
        lines += [Text(f"  {op} -> {child}") for op, child in found.children.items()]
    return [*lines]
