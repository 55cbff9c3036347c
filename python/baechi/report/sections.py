"""Sections: the facts of a page as HTML that needs no script; every text in it is escaped."""

from __future__ import annotations

import html
from typing import TYPE_CHECKING

from baechi.holdings import at_peaks
from baechi.plans import Candidate, Plan
from baechi.report.bounds import Bounds
from baechi.report.markup import (
    Cell,
    alert,
    bar,
    exact,
    item,
    moved,
    ratio,
    reasons,
    small_bar,
    swatch,
    table,
)
from baechi.schedules import Schedule
from baechi.units import format_bytes, format_ns

if TYPE_CHECKING:
    from baechi.comparison import Comparison

__all__ = ["assumptions", "comparison_table", "deficits", "device_table", "facts"]

_MOST_NAMED = 12


def facts(schedule: Schedule, plan: Plan | None, bounds: Bounds) -> str:
    """The step in a few numbers."""
    transfers, num_bytes = len(schedule.transfers.tensor), schedule.transferred_bytes
    pairs = [
        ("predicted step", Cell(format_ns(schedule.makespan_ns), schedule.makespan_ns), "makespan"),
        (
            "against the lower bound",
            ratio(schedule.makespan_ns, bounds.lower_bound_ns),
            "vs-bound",
        ),
        ("against one device", ratio(schedule.makespan_ns, bounds.one_device_ns), "vs-one"),
        (
            "transfers",
            Cell(
                f"{transfers:,}" + (f" of {format_bytes(num_bytes)}" if num_bytes else ""),
                transfers,
            ),
            "transfers",
        ),
        ("ops", Cell(f"{schedule.graph.num_ops:,}", schedule.graph.num_ops), "ops"),
        ("rules", Cell(schedule.rules), "rules"),
    ]
    if plan is not None:
        made = plan.provenance.algorithm
        asked = "" if made == plan.algorithm else f" ({made} of {len(plan.candidates)})"
        pairs.insert(0, ("algorithm", Cell(plan.algorithm + asked), "algorithm"))
    items = (
        f"<div><dt>{html.escape(label)}</dt><dd data-fact={name!r}{exact(cell)}>"
        f"{html.escape(cell.text)}</dd></div>"
        for label, cell, name in pairs
    )
    return f'<dl class="facts">{"".join(items)}</dl>'


def deficits(schedule: Schedule | None, compared: Comparison | None) -> str:
    """What does not fit, by how much; nothing where all fits."""
    if schedule is None:
        failed = (
            item(f"{row.algorithm}: {row.error}")
            for row in (compared.rows if compared is not None else ())
            if row.error
        )
        return alert("Nothing was placed", failed)
    if schedule.fits:
        return ""
    found = []
    for at, name in enumerate(schedule.cluster.names):
        peak, cap = int(schedule.peak_bytes[at]), int(schedule.cap_bytes[at])
        if peak > cap:
            reached = int(schedule.peak_op[at])
            where = f', reached by op "{schedule.graph.op_names[reached]}"' if reached >= 0 else ""
            found.append(
                item(
                    f"{name} needs {format_bytes(peak)} and has {format_bytes(cap)}: "
                    f"{format_bytes(peak - cap)} too much{where}"
                )
            )
    return alert("Does not fit", found)


def device_table(schedule: Schedule) -> str:
    """One row per device: ops, busy share, peak against its cap and what it is made of."""
    made_of = at_peaks(schedule)
    num_ops = [0] * schedule.cluster.num_devices
    for device in schedule.device.tolist():
        num_ops[device] += 1
    rows = []
    for at, name in enumerate(schedule.cluster.names):
        peak, cap = int(schedule.peak_bytes[at]), int(schedule.cap_bytes[at])
        busy, reached = int(schedule.busy_ns[at]), int(schedule.peak_op[at])
        share = busy / schedule.makespan_ns if schedule.makespan_ns else 0.0
        room = format_bytes(cap - peak) if peak <= cap else f"{format_bytes(peak - cap)} over"
        rows.append(
            [
                Cell(swatch(at) + html.escape(name), None, True),
                Cell(f"{num_ops[at]:,}", num_ops[at]),
                Cell(f"{share:.0%}", busy),
                Cell(format_bytes(peak), peak),
                Cell(format_bytes(cap), cap),
                Cell(room, cap - peak),
                Cell(bar(made_of[at], peak, cap), None, True),
                Cell(schedule.graph.op_names[reached] if reached >= 0 else ""),
            ]
        )
    head = ["device", "ops", "busy", "peak", "limit", "room", "what the peak is", "reached by"]
    return table("devices", head, rows, schedule.cluster.names)


def comparison_table(compared: Comparison | None, plan: Plan | None, bounds: Bounds) -> str:
    """The algorithms beside each other; nothing where only one was run."""
    if compared is not None:
        best = compared.best
        rows = []
        for row in compared.rows:
            mark = " (shortest that fits)" if row.plan is not None and row.plan is best else ""
            rows.append(_plan_row(row.algorithm + mark, row.plan, row.placing_s, bounds))
        keys = [row.algorithm for row in compared.rows]
        # Such as a plan that was made for groups and brought back to all ops.
        if plan is not None and all(row.plan is not plan for row in compared.rows):
            rows.append(_plan_row(f"this page: {plan.algorithm}", plan, None, bounds))
            keys.append("this page")
        head = ["algorithm", "step", "vs bound", "vs one device", "transfers", "moved"]
        head += ["fullest device", "peaks against limits", "placed in"]
        # Without any plan the reasons stand above already.
        failed = [(row.algorithm, row.error) for row in compared.rows if plan is not None]
        return table("comparison", head, rows, keys) + reasons(failed)
    if plan is None or len(plan.candidates) < 2:
        return ""
    head = ["algorithm", "step", "vs bound", "vs one device", "moved", "largest peak"]
    rows = [_candidate_row(one, plan.algorithm, bounds) for one in plan.candidates]
    names = [one.algorithm for one in plan.candidates]
    failed = [(one.algorithm, one.error) for one in plan.candidates]
    return table("comparison", head, rows, names) + reasons(failed)


def assumptions(schedule: Schedule, plan: Plan | None, bounds: Bounds) -> str:
    """What the figures rest on, the links that were assumed by name among it."""
    cluster = schedule.cluster
    found = list(plan.provenance.notes) if plan is not None else []
    if cluster.links_assumed and cluster.num_devices > 1:
        pairs = [f"{a} to {b}" for a in cluster.names for b in cluster.names if a != b]
        named = ", ".join(pairs[:_MOST_NAMED])
        rest = len(pairs) - _MOST_NAMED
        more = f" and {rest} more" if rest > 0 else ""
        found.append(f"assumed links: {named}{more}")
    found.append(f"channels: {cluster.channels}; memory is kept by {schedule.retention}")
    for at, name in enumerate(cluster.names):
        if reserve := int(cluster.reserve_bytes[at]):
            found.append(f"{name}: {format_bytes(reserve)} of its memory are reserved")
    found.append(
        f"no schedule is shorter than {format_ns(bounds.lower_bound_ns)}: critical path "
        f"{format_ns(bounds.critical_path_ns)}, work spread evenly "
        f"{format_ns(bounds.work_bound_ns)}"
    )
    if bounds.one_device_ns:
        found.append(
            f"one device: {format_ns(bounds.one_device_ns)}, all ops on {bounds.one_device} "
            "one after the other, whether or not they fit there"
        )
    if schedule.rules != "physical":
        found.append(
            f"peaks are those of the {schedule.rules} rules; memory over time is drawn under "
            "physical rules, so its highest point may differ"
        )
    if plan is not None and plan.makespan_ns != schedule.makespan_ns:
        found.append(
            f"the plan says {format_ns(plan.makespan_ns)}, this page shows its replay: "
            f"{format_ns(schedule.makespan_ns)}"
        )
    if plan is not None:
        versions = ", ".join(f"{name} {value}" for name, value in plan.provenance.versions.items())
        found.append(f"graph {plan.provenance.graph_fingerprint[:16]}; {versions}")
    return f'<ul class="notes">{"".join(map(item, found))}</ul>'


def _plan_row(name: str, plan: Plan | None, seconds: float | None, bounds: Bounds) -> list[Cell]:
    placed = Cell("")
    if seconds is not None:
        placed = Cell(format_ns(round(seconds * 1e9)), round(seconds * 1e9))
    if plan is None:
        return [Cell(name), Cell("no plan"), *[Cell("")] * 6, placed]
    full = max(plan.devices, key=lambda device: device.peak_bytes / max(device.cap_bytes, 1))
    peaks = "".join(small_bar(d.name, d.peak_bytes, d.cap_bytes) for d in plan.devices)
    return [
        Cell(name),
        Cell(format_ns(plan.makespan_ns), plan.makespan_ns),
        ratio(plan.makespan_ns, bounds.lower_bound_ns),
        ratio(plan.makespan_ns, bounds.one_device_ns),
        Cell(str(plan.num_transfers), plan.num_transfers),
        moved(plan.transferred_bytes),
        Cell(f"{format_bytes(full.peak_bytes)} of {format_bytes(full.cap_bytes)}", full.peak_bytes),
        Cell(f'<span class="peaks">{peaks}</span>', None, True),
        placed,
    ]


def _candidate_row(one: Candidate, chosen: str, bounds: Bounds) -> list[Cell]:
    name = Cell(one.algorithm + (" (this plan)" if one.algorithm == chosen else ""))
    if one.makespan_ns is None:
        return [name, Cell("no plan"), *[Cell("")] * 4]
    peak = one.largest_peak_bytes or 0
    return [
        name,
        Cell(format_ns(one.makespan_ns), one.makespan_ns),
        ratio(one.makespan_ns, bounds.lower_bound_ns),
        ratio(one.makespan_ns, bounds.one_device_ns),
        moved(one.transferred_bytes or 0),
        Cell(format_bytes(peak), peak),
    ]
