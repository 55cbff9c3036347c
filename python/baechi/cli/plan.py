"""`baechi plan`: place a graph on devices."""

from __future__ import annotations

import argparse
import dataclasses
from typing import TYPE_CHECKING

from baechi.cli import arguments as shared
from baechi.cli import plan_model, traces
from baechi.cli.documents import plan_document
from baechi.cli.failures import NOT_FOUND
from baechi.cli.output import Outcome, progress

if TYPE_CHECKING:
    from baechi.graph import Graph
    from baechi.plans import Plan

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Graph, devices, algorithm and where the plan goes."""
    from baechi import _core

    parser.add_argument("graph", metavar="GRAPH", nargs="?", help="a graph file, or - for stdin")
    shared.add_cluster(parser)
    parser.add_argument(
        "-a",
        "--algorithm",
        choices=(*_core.ALGORITHMS, "best"),
        default="best",
        metavar="NAME",
        help="one of %(choices)s",
    )
    shared.add_placing(parser)
    parser.add_argument(
        "--group",
        action="store_true",
        help="join ops that belong together first (baechi.group), then place all ops by that",
    )
    parser.add_argument(
        "--smallest-limit",
        action="store_true",
        help="where nothing is found, look for memory that is enough",
    )
    parser.add_argument("-o", "--output", metavar="FILE", help="save the plan, - for stdout")
    parser.add_argument("--report", metavar="FILE", help="write the report of the plan, as HTML")
    traces.add_trace(parser)
    shared.add_json(parser)
    plan_model.add_arguments(parser)


def run(arguments: argparse.Namespace) -> Outcome:
    """Places, saves and shows."""
    plan_model.refuse_mixed(arguments)
    if arguments.torch is not None:
        return plan_model.run(arguments)
    graph = shared.read_graph(arguments.graph)
    plan = _placed(graph, arguments)
    words = _traced(graph, plan, arguments.trace)
    if arguments.report:
        with progress("drawing the page"):
            plan.report(arguments.report)
        words = (*words, f"the report is in {arguments.report}")
    code = 0 if plan.fits else NOT_FOUND
    if arguments.output == "-":
        return Outcome(raw=plan.to_json(), words=words, code=code)
    if arguments.output:
        plan.save(arguments.output)
        words = (f"the plan is in {arguments.output}", *words)
    return Outcome(
        document=lambda: {**plan_document(plan), "file": arguments.output},
        shown=lambda width, blocks: plan.summary.renderables(width, blocks=blocks),
        words=words,
        code=code,
    )


def _traced(graph: Graph, plan: Plan, path: str | None) -> tuple[str, ...]:
    if path is None:
        return ()
    from baechi.simulation import simulate

    return traces.write(path, simulate(graph, plan.provenance.cluster, plan))


def _placed(graph: Graph, arguments: argparse.Namespace) -> Plan:
    from baechi.placement import place

    cluster = shared.read_cluster(arguments, graph.default_cluster)
    options = shared.placing_options(arguments)
    with progress(f"placing {graph.num_ops} ops with {arguments.algorithm}"):
        if not arguments.group:
            return place(graph, cluster, arguments.algorithm, **options)
        from baechi.grouping import group

        grouping = group(graph)
        plan = grouping.expand(place(grouping.graph, cluster, arguments.algorithm, **options))
        note = f"placed as {grouping.graph.num_ops} groups of ops"
        made = dataclasses.replace(plan.provenance, notes=(*plan.provenance.notes, note))
        return dataclasses.replace(plan, provenance=made)
