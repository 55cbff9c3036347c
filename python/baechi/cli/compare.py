"""`baechi compare`: all algorithms side by side."""

from __future__ import annotations

import argparse
import csv
import io
from typing import TYPE_CHECKING, Any

from baechi.cli import arguments as shared
from baechi.cli.failures import INFEASIBLE, NOT_FOUND
from baechi.cli.output import Outcome, progress

if TYPE_CHECKING:
    from rich.console import RenderableType

    from baechi.comparison import Comparison
    from baechi.plans import Plan

__all__ = ["add_arguments", "run"]

_LEVELS = " ▁▂▃▄▅▆▇█"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Graph, devices, which algorithms."""
    shared.add_graph(parser)
    shared.add_cluster(parser)
    parser.add_argument(
        "-a", "--algorithms", metavar="A,B", help="which ones, separated by commas; else all"
    )
    shared.add_placing(parser)
    parser.add_argument(
        "--csv", action="store_true", help="write a line per algorithm, separated by commas"
    )
    shared.add_json(parser)


def run(arguments: argparse.Namespace) -> Outcome:
    """Compares and shows."""
    from baechi.comparison import compare

    graph = shared.read_graph(arguments.graph)
    cluster = shared.read_cluster(arguments, graph.default_cluster)
    names = arguments.algorithms.split(",") if arguments.algorithms else None
    with progress(f"placing {graph.num_ops} ops with every algorithm"):
        found = compare(graph, cluster, names, **shared.placing_options(arguments))
    code = 0
    if found.best is None:
        code = INFEASIBLE if any(row.proved_infeasible for row in found.rows) else NOT_FOUND
    if arguments.csv:
        return Outcome(raw=_csv(found), code=code)
    return Outcome(
        document=lambda: _document(found),
        shown=lambda width, blocks: _shown(found, width, blocks),
        code=code,
    )


def _shown(found: Comparison, width: int, blocks: bool) -> list[RenderableType]:
    from baechi.tables import Column, as_table, fitted, hanging

    columns = found.columns()
    # One character per device: how much of its memory is in use at its peak.
    cells = [_fill(row.plan, blocks) if row.plan else "" for row in found.rows]
    columns.insert(-1, Column(heading="peaks", cells=cells, importance=65, is_text=True))
    remarks = [
        hanging(remark, width, "dim" if remark.startswith("note") else "")
        for remark in found.remarks
    ]
    return [as_table(fitted(columns, width)), *remarks]


def _fill(plan: Plan, blocks: bool) -> str:
    shares = [device.peak_bytes / max(device.cap_bytes, 1) for device in plan.devices]
    if blocks:
        return "".join("!" if share > 1 else _LEVELS[round(share * 8)] for share in shares)
    return "".join("!" if share > 1 else str(min(int(share * 10), 9)) for share in shares)


def _ratios(found: Comparison, plan: Plan) -> tuple[float | None, float | None]:
    """The step as a multiple of one device's, and of the lower bound."""
    single = next((row.plan for row in found.rows if row.algorithm == "single"), None)
    alone = single.makespan_ns if single is not None and single.fits else 0
    bound = found.lower_bound_ns
    step = plan.makespan_ns
    return step / alone if alone else None, step / bound if bound else None


def _document(found: Comparison) -> dict[str, Any]:
    rows = []
    for row in found.rows:
        plan = row.plan
        vs_single, vs_bound = _ratios(found, plan) if plan else (None, None)
        rows.append(
            {
                "algorithm": row.algorithm,
                "fits": plan is not None and plan.fits,
                "makespan_ns": plan.makespan_ns if plan else None,
                "ratio_to_single": vs_single,
                "ratio_to_lower_bound": vs_bound,
                "num_transfers": plan.num_transfers if plan else None,
                "transferred_bytes": plan.transferred_bytes if plan else None,
                "peak_bytes": dict(plan.peak_bytes) if plan else None,
                "placing_s": row.placing_s,
                "error": row.error,
                "proved_infeasible": row.proved_infeasible,
            }
        )
    caps = found.cluster.memory_bytes - found.cluster.reserve_bytes
    return {
        "best": next((row.algorithm for row in found.rows if row.plan is found.best), None)
        if found.best
        else None,
        "rules": found.rules,
        "critical_path_ns": found.critical_path_ns,
        "work_bound_ns": found.work_bound_ns,
        "lower_bound_ns": found.lower_bound_ns,
        "cap_bytes": dict(zip(found.cluster.names, caps.tolist(), strict=True)),
        "rows": rows,
        "notes": list(found.notes),
    }


def _csv(found: Comparison) -> str:
    document = _document(found)
    caps = document["cap_bytes"]
    fixed = [name for name in document["rows"][0] if name != "peak_bytes"] if found.rows else []
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    peaks = [f"peak_bytes {name}" for name in caps]
    writer.writerow([*fixed, *peaks, *(f"cap_bytes {name}" for name in caps)])
    for row in document["rows"]:
        held = row["peak_bytes"] or {}
        cells = [row[name] for name in fixed] + [held.get(name) for name in caps]
        writer.writerow([_cell(value) for value in (*cells, *caps.values())])
    return stream.getvalue()


def _cell(value: object) -> object:
    return str(value).lower() if isinstance(value, bool) else value
