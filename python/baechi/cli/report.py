"""`baechi report`: one HTML file with timeline, memory and graph of a plan."""

from __future__ import annotations

import argparse
from pathlib import Path

from baechi.cli import arguments as shared
from baechi.cli import traces
from baechi.cli.output import Outcome, progress
from baechi.cli.simulate import read_placement, schedule_of

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Graph, placement, and where the page goes."""
    shared.add_graph(parser)
    parser.add_argument("placement", metavar="PLAN", help='a plan, or JSON such as {"op": "gpu:0"}')
    shared.add_cluster(parser)
    shared.add_rules(parser, default=None)
    parser.add_argument(
        "-o", "--output", metavar="FILE", default="report.html", help="where the page goes"
    )
    parser.add_argument(
        "--compare", action="store_true", help="with all algorithms on the same devices"
    )
    traces.add_trace(parser)
    shared.add_json(parser)


def run(arguments: argparse.Namespace) -> Outcome:
    """Replays the placement and writes the page."""
    from baechi.comparison import compare
    from baechi.plans import Plan
    from baechi.report import write_report

    placement = read_placement(arguments.placement)
    graph = shared.read_graph(arguments.graph)
    schedule = schedule_of(graph, placement, arguments)
    compared = None
    if arguments.compare:
        with progress(f"placing {graph.num_ops} ops with every algorithm"):
            compared = compare(graph, schedule.cluster, rules=schedule.rules)
    # The page of a plan tells how it was made; on other devices that is not its prediction.
    is_its_own = isinstance(placement, Plan) and placement.makespan_ns == schedule.makespan_ns
    plan = placement if isinstance(placement, Plan) and is_its_own else None
    with progress("drawing the page"):
        write_report(arguments.output, schedule, plan=plan, compared=compared)
    size = Path(arguments.output).stat().st_size
    return Outcome(
        document=lambda: {
            "file": arguments.output,
            "file_bytes": size,
            "trace": arguments.trace,
            "makespan_ns": schedule.makespan_ns,
            "fits": schedule.fits,
        },
        words=(f"the report is in {arguments.output}", *traces.write(arguments.trace, schedule)),
    )
