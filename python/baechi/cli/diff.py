"""`baechi diff`: what differs between two plans."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from baechi.cli import arguments as shared
from baechi.cli import diff_models
from baechi.cli.differences import Differences, paired_devices
from baechi.cli.output import Outcome
from baechi.errors import InputError
from baechi.units import format_bytes

if TYPE_CHECKING:
    from baechi.plans import Plan

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Two plans."""
    parser.add_argument("before", metavar="PLAN", help="a plan")
    parser.add_argument("after", metavar="OTHER", help="another plan")
    parser.add_argument(
        "--top", type=int, default=20, metavar="N", help="show N moved ops or modules"
    )
    shared.add_json(parser)


def run(arguments: argparse.Namespace) -> Outcome:
    """Compares two plan files."""
    from baechi.plans import Plan

    before, after = Plan.load(arguments.before), Plan.load(arguments.after)
    of_graphs = [isinstance(plan, Plan) for plan in (before, after)]
    if not any(of_graphs):
        found = diff_models.differences(before, after, arguments.top)  # type: ignore[arg-type]
    elif all(of_graphs):
        found = _differences(before, after)
    else:
        raise InputError("one is the plan of a graph, the other that of a model")
    return found.outcome(arguments.top)


def _differences(before: Plan, after: Plan) -> Differences:
    document = _document(before, after)
    return Differences(
        document=document,
        step_ns=(before.makespan_ns, after.makespan_ns),
        what="ops",
        moved=[f"{row['op']}: {row['before']} -> {row['after']}" for row in document["moved"]],
        sides=_sides(document["before"], document["after"]),
        others=_graph_changes(document),
    )


def _document(before: Plan, after: Plan) -> dict[str, Any]:
    homes, then = before.placement, after.placement
    moved = [
        {"op": op, "before": home, "after": then[op]}
        for op, home in homes.items()
        if op in then and then[op] != home
    ]
    digests, later = before.provenance.graph_digests, after.provenance.graph_digests
    both = [op for op in homes if op in then]
    kept, now = set(both), set(homes)
    order = [op for op in before.launch_order if op in kept]
    return {
        "equal": before == after,
        "before": _side(before),
        "after": _side(after),
        "num_moved": len(moved),
        "moved": moved,
        "launch_order_differs": order != [op for op in after.launch_order if op in now],
        "ops_gone": [op for op in homes if op not in then],
        "ops_new": [op for op in then if op not in homes],
        "ops_changed": [op for op in both if digests[op] != later[op]],
        "devices": paired_devices(before.devices, after.devices),
    }


def _side(plan: Plan) -> dict[str, Any]:
    return {
        "algorithm": plan.algorithm,
        "rules": plan.provenance.rules,
        "fits": plan.fits,
        "num_ops": len(plan.op_names),
        "makespan_ns": plan.makespan_ns,
        "num_transfers": plan.num_transfers,
        "transferred_bytes": plan.transferred_bytes,
        "num_waits": len(plan.waits),
    }


def _sides(before: dict[str, Any], after: dict[str, Any]) -> str:
    parts = []
    for field, text in (
        ("algorithm", ""),
        ("rules", " rules"),
        ("num_transfers", " transfers"),
        ("num_waits", " waits for memory"),
    ):
        if before[field] != after[field]:
            parts.append(f"{before[field]} -> {after[field]}{text}")
    moved = [before["transferred_bytes"], after["transferred_bytes"]]
    if moved[0] != moved[1]:
        parts.append(f"{format_bytes(moved[0])} -> {format_bytes(moved[1])} moved")
    return ", ".join(parts) or f"both by {before['algorithm']} under {before['rules']} rules"


def _graph_changes(document: dict[str, Any]) -> list[str]:
    texts = []
    for field, what in (("ops_gone", "gone"), ("ops_new", "new"), ("ops_changed", "changed")):
        if ops := document[field]:
            more = f" and {len(ops) - 5} more" if len(ops) > 5 else ""
            texts.append(f"the graph differs: {what} {', '.join(ops[:5])}{more}")
    if document["launch_order_differs"]:
        texts.append("the launch order differs")
    return texts
