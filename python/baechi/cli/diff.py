"""`baechi diff`: what differs between two plans."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from baechi.cli import arguments as shared
from baechi.cli import diff_models
from baechi.cli.documents import paired_devices
from baechi.cli.output import Outcome
from baechi.errors import InputError
from baechi.units import format_bytes, format_ns

if TYPE_CHECKING:
    from rich.console import RenderableType

    from baechi.plans import Plan
    from baechi.tables import Column

__all__ = ["add_arguments", "device_columns", "run"]


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
        return diff_models.outcome(before, after, arguments.top)  # type: ignore[arg-type]
    if not all(of_graphs):
        raise InputError("one is the plan of a graph, the other that of a model")
    document = _document(before, after)
    return Outcome(
        document=lambda: document, shown=lambda width, _: _shown(document, width, arguments.top)
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


def _shown(document: dict[str, Any], width: int, top: int) -> list[RenderableType]:
    from baechi.tables import as_table, fitted, hanging

    if document["equal"]:
        return [hanging("the plans are equal", width)]
    before, after = document["before"], document["after"]
    first, then = before["makespan_ns"], after["makespan_ns"]
    ratio = f" ({then / first - 1:+.1%})" if first else ""
    head = f"step {format_ns(first)} -> {format_ns(then)}{ratio}, {document['num_moved']} ops moved"
    lines = [hanging(head, width, "bold"), hanging(f"  {_sides(before, after)}", width)]
    columns = device_columns(document["devices"])
    shown = [f"{row['op']}: {row['before']} -> {row['after']}" for row in document["moved"][:top]]
    if document["num_moved"] > top:
        shown.append(f"... {document['num_moved'] - top} more ops moved")
    shown += _graph_changes(document)
    return [
        *lines,
        as_table(fitted(columns, width - 2), indent=2),
        *(hanging(f"  {x}", width) for x in shown),
    ]


def device_columns(rows: list[dict[str, Any]]) -> list[Column]:
    """Ops, peak, cap and busy time of each device, before and after."""
    from baechi.tables import Column

    def pair(field: str) -> list[str]:
        return [_pair(row[f"{field}_before"], row[f"{field}_after"], field) for row in rows]

    return [
        Column(heading="device", cells=[row["name"] for row in rows], importance=99, is_text=True),
        Column(heading="ops", cells=pair("num_ops"), importance=70),
        Column(heading="peak", cells=pair("peak_bytes"), importance=90),
        Column(heading="cap", cells=pair("cap_bytes"), importance=60),
        Column(heading="busy", cells=pair("busy_ns"), importance=50),
    ]


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


def _pair(before: int | None, after: int | None, field: str) -> str:
    shown: dict[str, Callable[[int], str]] = {"num_ops": str, "busy_ns": format_ns}
    how = shown.get(field, format_bytes)
    one, other = ("none" if side is None else how(side) for side in (before, after))
    return one if one == other else f"{one} -> {other}"


def _graph_changes(document: dict[str, Any]) -> list[str]:
    texts = []
    for field, what in (("ops_gone", "gone"), ("ops_new", "new"), ("ops_changed", "changed")):
        if ops := document[field]:
            more = f" and {len(ops) - 5} more" if len(ops) > 5 else ""
            texts.append(f"the graph differs: {what} {', '.join(ops[:5])}{more}")
    if document["launch_order_differs"]:
        texts.append("the launch order differs")
    return texts
