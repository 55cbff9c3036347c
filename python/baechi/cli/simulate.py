"""`baechi simulate`: time and memory of a plan, or of somebody else's placement."""

from __future__ import annotations

import argparse
import dataclasses
from typing import TYPE_CHECKING, Any

from baechi.cli import arguments as shared
from baechi.cli import traces
from baechi.cli.documents import schedule_document
from baechi.cli.failures import INFEASIBLE
from baechi.cli.output import Outcome, progress
from baechi.errors import InputError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from baechi.cluster import Cluster
    from baechi.graph import Graph
    from baechi.plans import Plan
    from baechi.schedules import Schedule

__all__ = ["add_arguments", "read_placement", "run", "schedule_of"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Graph, placement, and other devices or rules than the plan's."""
    shared.add_graph(parser)
    parser.add_argument(
        "placement",
        metavar="PLAN",
        help='a plan, or JSON such as {"op": "gpu:0"}, with every op',
    )
    shared.add_cluster(parser)
    shared.add_rules(parser, default=None)
    parser.add_argument(
        "--executor",
        choices=("launch", "list", "fifo"),
        help="launch: in the plan's order; list: the earliest startable op first; fifo: the "
        "TensorFlow original's virtual scheduler",
    )
    parser.add_argument(
        "--ops", action="store_true", help="with --json: every op and transfer with its times"
    )
    traces.add_trace(parser)
    shared.add_json(parser)


def run(arguments: argparse.Namespace) -> Outcome:
    """Simulates and shows."""
    graph = shared.read_graph(arguments.graph)
    placement = read_placement(arguments.placement)
    schedule = schedule_of(graph, placement, arguments, executor=arguments.executor)
    notes = _notes(schedule, placement)

    def shown(width: int, blocks: bool) -> list[RenderableType]:
        return dataclasses.replace(schedule.summary, notes=notes).renderables(width, blocks=blocks)

    return Outcome(
        document=lambda: {
            **schedule_document(schedule, with_ops=arguments.ops),
            "notes": list(notes),
        },
        shown=shown,
        words=traces.write(arguments.trace, schedule),
        code=0 if schedule.fits else INFEASIBLE,
    )


def schedule_of(
    graph: Graph,
    placement: Plan | dict[str, Any],
    arguments: argparse.Namespace,
    executor: str | None = None,
) -> Schedule:
    """The schedule of a placement on the devices and under the rules asked for, or its own."""
    from baechi.plans import Plan
    from baechi.simulation import simulate

    known = placement.provenance.cluster if isinstance(placement, Plan) else None
    cluster = shared.read_cluster(arguments, known, graph.default_cluster)
    with progress(f"simulating {graph.num_ops} ops"):
        return simulate(
            graph,
            cluster,
            placement if isinstance(placement, Plan) else _by_name(placement, cluster),
            rules=arguments.rules,
            executor=executor,
            retention=arguments.retention,
        )


def read_placement(path: str) -> Plan | dict[str, Any]:
    """A plan, or the mapping of a bare JSON file.

    Raises:
        InputError: it is neither.
    """
    from baechi.formats import strict_json
    from baechi.formats.plan_json import FORMAT, MODEL_FORMAT
    from baechi.plans import Plan

    with shared.file_named(path) as file, progress(f"reading {path}"):
        document = strict_json.read(file)
        if isinstance(document, dict) and document.get("format") == FORMAT:
            return Plan.load(file)
    if isinstance(document, dict) and document.get("format") == MODEL_FORMAT:
        raise InputError(
            f"{path} is the plan of a model, not of a graph",
            hint=f"baechi show {path} describes it, baechi rehearse runs it, and "
            "baechi plan --torch ... --report FILE draws it while it plans",
        )
    if not isinstance(document, dict) or not document:
        raise InputError(
            f"{path}: neither a plan nor a placement",
            hint='a placement is JSON with a device for every op, such as {"op": "gpu:0"}',
        )
    return document


def _by_name(placement: dict[str, Any], cluster: Cluster) -> dict[str, Any]:
    """Integers stand for the devices by position, as in device maps."""
    names = dict(enumerate(cluster.names))
    return {
        op: names.get(home, home) if type(home) is int else home for op, home in placement.items()
    }


def _notes(schedule: Schedule, placement: Plan | dict[str, Any]) -> tuple[str, ...]:
    from baechi.rules import Setting

    graph, cluster = schedule.graph, schedule.cluster
    notes = Setting.of(graph, cluster, schedule.rules, schedule.retention).notes
    if isinstance(placement, dict):
        order = "the placement has no order: the earliest startable op is launched first"
        notes = (*notes, order)
    return notes
