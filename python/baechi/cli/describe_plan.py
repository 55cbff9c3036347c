"""A plan in words; with its graph also what holds the memory and what takes the time."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from baechi.cli.documents import plan_document
from baechi.cli.output import Outcome, progress
from baechi.units import format_bytes, format_ns

if TYPE_CHECKING:
    from rich.console import RenderableType

    from baechi.graph import Graph
    from baechi.plans import Plan
    from baechi.schedules import Schedule

__all__ = ["outcome"]

_WAITED = {
    "nothing": "nothing",
    "input": "its input",
    "memory": "memory",
    "busy": "its device or channel",
    "decision": "the decision",
}


def outcome(plan: Plan, graph: Graph | None, top: int, *, whole_path: bool) -> Outcome:
    """For `baechi show`."""
    document = {"kind": "plan", **plan_document(plan), **_made_from(plan)}
    if graph is not None:
        from baechi.simulation import simulate

        with progress("replaying the plan"):
            schedule = simulate(graph, plan.provenance.cluster, plan)
            document |= {"peaks": _peaks(schedule, top), "path": _path(schedule)}
    return Outcome(
        document=lambda: document,
        shown=lambda width, blocks: [
            *plan.summary.renderables(width, blocks=blocks),
            *_shown(document, width, top, whole_path=whole_path),
        ],
    )


def _made_from(plan: Plan) -> dict[str, Any]:
    made = plan.provenance
    return {
        "graph_fingerprint": made.graph_fingerprint,
        "options": dict(made.options),
        "versions": dict(made.versions),
    }


def _peaks(schedule: Schedule, top: int) -> list[dict[str, Any]]:
    """What holds the memory of every device at its peak."""
    if schedule.rules != "physical":
        return []
    from baechi.holdings import holders, holdings

    held = holdings(schedule)
    return [
        {
            "device": name,
            "peak_bytes": int(schedule.peak_bytes[at]),
            "holders": [
                {"name": what, "category": category, "bytes": size}
                for what, category, size in holders(schedule, at, held)[:top]
            ],
        }
        for at, name in enumerate(schedule.cluster.names)
    ]


def _path(schedule: Schedule) -> list[dict[str, Any]]:
    from baechi.critical import critical_path

    graph, names, moved = schedule.graph, schedule.cluster.names, schedule.transfers
    rows = []
    for step in critical_path(schedule):
        if step.op >= 0:
            what = {"op": graph.op_names[step.op], "device": names[schedule.device[step.op]]}
        else:
            source, destination = moved.source[step.transfer], moved.destination[step.transfer]
            tensor = graph.tensor_name(int(moved.tensor[step.transfer]))
            what = {"tensor": tensor, "device": f"{names[source]} -> {names[destination]}"}
        times = {"start_ns": step.start_ns, "end_ns": step.end_ns, "gap_ns": step.gap_ns}
        rows.append({**what, **times, "waited_for": step.reason})
    return rows


def _shown(
    document: dict[str, Any], width: int, top: int, *, whole_path: bool
) -> list[RenderableType]:
    from baechi.tables import hanging

    options = ", ".join(f"{name} {value}" for name, value in document["options"].items())
    versions = ", ".join(f"{name} {value}" for name, value in document["versions"].items())
    lines: list[RenderableType] = [
        hanging(f"  made by {versions} with {options}", width, "dim"),
        hanging(f"  for the graph {document['graph_fingerprint'][:16]}", width, "dim"),
    ]
    others = [row for row in document["candidates"] if row["makespan_ns"] is not None]
    if len(others) > 1:
        texts = (f"{row['algorithm']} {format_ns(row['makespan_ns'])}" for row in others)
        lines.append(hanging(f"  chosen from {', '.join(texts)}", width, "dim"))
    for peak in document.get("peaks", ()):
        held = [
            f'{x["category"]} "{x["name"]}" {format_bytes(x["bytes"])}' for x in peak["holders"]
        ]
        text = f"at the peak of {peak['device']}: {', '.join(held) or 'nothing'}"
        lines.append(hanging(text, width))
    if document.get("path"):
        lines += _path_shown(document["path"], width, top, whole=whole_path)
    return lines


def _path_shown(
    path: list[dict[str, Any]], width: int, top: int, *, whole: bool
) -> list[RenderableType]:
    from baechi.tables import Column, as_table, fitted, hanging

    computing = sum(row["end_ns"] - row["start_ns"] for row in path if "op" in row)
    moving = sum(row["end_ns"] - row["start_ns"] for row in path if "tensor" in row)
    waits = Counter(row["waited_for"] for row in path)
    waited = ", ".join(f"{count} for {_WAITED[name]}" for name, count in waits.items())
    longest = sorted(range(len(path)), key=lambda at: path[at]["start_ns"] - path[at]["end_ns"])
    chosen = range(len(path)) if whole else sorted(longest[:top])
    rows = [path[at] for at in chosen]
    times = [[format_ns(row[field]) for row in rows] for field in ("start_ns", "end_ns")]
    lengths = [format_ns(row["end_ns"] - row["start_ns"]) for row in rows]
    names = [row["op"] if "op" in row else f"send {row['tensor']}" for row in rows]
    waiting = [_WAITED[row["waited_for"]] for row in rows]
    columns = [
        Column(heading="from", cells=times[0], importance=80),
        Column(heading="to", cells=times[1], importance=40),
        Column(heading="takes", cells=lengths, importance=90),
        Column(heading="on", cells=[x["device"] for x in rows], importance=60, is_text=True),
        Column(heading="waited for", cells=waiting, importance=70, is_text=True),
        Column(heading="what", cells=names, importance=99, is_text=True),
    ]
    which = "" if whole or len(path) <= top else f"; the {top} longest"
    head = f"longest path: {len(path)} steps, {format_ns(computing)} computing, "
    head += f"{format_ns(moving)} sending; waited {waited}{which}"
    return [hanging(head, width), as_table(fitted(columns, width - 2), indent=2)]
