"""Sections: the facts of a page as HTML that needs no script; every text in it is escaped."""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from baechi.holdings import at_peaks
from baechi.plans import Candidate, Plan
from baechi.report.bounds import Bounds
from baechi.report.colors import CATEGORY_COLORS, CATEGORY_LABELS, device_color
from baechi.schedules import Schedule
from baechi.units import format_bytes, format_ns

if TYPE_CHECKING:
    from baechi.comparison import Comparison

__all__ = ["assumptions", "comparison_table", "deficits", "device_table", "facts"]

_MOST_NAMED = 12


class Cell(NamedTuple):
    """One cell of a table."""

    text: str
    number: int | float | None = None
    """The exact value, kept beside the text that is shown."""
    is_html: bool = False


def facts(schedule: Schedule, plan: Plan | None, bounds: Bounds) -> str:
    """The step in a few numbers."""
    transfers = len(schedule.transfers.tensor)
    moved = schedule.transferred_bytes
    pairs = [
        ("predicted step", Cell(format_ns(schedule.makespan_ns), schedule.makespan_ns), "makespan"),
        (
            "against the lower bound",
            _ratio(schedule.makespan_ns, bounds.lower_bound_ns),
            "vs-bound",
        ),
        ("against one device", _ratio(schedule.makespan_ns, bounds.one_device_ns), "vs-one"),
        (
            "transfers",
            Cell(f"{transfers}" + (f" of {format_bytes(moved)}" if moved else ""), transfers),
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
        f"<div><dt>{html.escape(label)}</dt><dd data-fact={name!r}{_exact(cell)}>"
        f"{html.escape(cell.text)}</dd></div>"
        for label, cell, name in pairs
    )
    return f'<dl class="facts">{"".join(items)}</dl>'


def deficits(schedule: Schedule | None, compared: Comparison | None) -> str:
    """What does not fit, by how much; nothing where all fits."""
    if schedule is None:
        reasons = (
            _item(f"{row.algorithm}: {row.error}")
            for row in (compared.rows if compared is not None else ())
            if row.error
        )
        return _alert("Nothing was placed", reasons)
    if schedule.fits:
        return ""
    found = []
    for at, name in enumerate(schedule.cluster.names):
        peak, cap = int(schedule.peak_bytes[at]), int(schedule.cap_bytes[at])
        if peak > cap:
            reached = int(schedule.peak_op[at])
            where = f', reached by op "{schedule.graph.op_names[reached]}"' if reached >= 0 else ""
            found.append(
                _item(
                    f"{name} needs {format_bytes(peak)} and has {format_bytes(cap)}: "
                    f"{format_bytes(peak - cap)} too much{where}"
                )
            )
    return _alert("Does not fit", found)


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
                Cell(_swatch(at) + html.escape(name), None, True),
                Cell(f"{num_ops[at]:,}", num_ops[at]),
                Cell(f"{share:.0%}", busy),
                Cell(format_bytes(peak), peak),
                Cell(format_bytes(cap), cap),
                Cell(room, cap - peak),
                Cell(_bar(made_of[at], peak, cap), None, True),
                Cell(schedule.graph.op_names[reached] if reached >= 0 else ""),
            ]
        )
    head = ["device", "ops", "busy", "peak", "limit", "room", "what the peak is", "reached by"]
    return _table("devices", head, rows, schedule.cluster.names)


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
        reasons = [(row.algorithm, row.error) for row in compared.rows]
        return _table("comparison", head, rows, keys) + _reasons(reasons)
    if plan is None or len(plan.candidates) < 2:
        return ""
    head = ["algorithm", "step", "vs bound", "vs one device", "moved", "largest peak"]
    rows = [_candidate_row(one, plan.algorithm, bounds) for one in plan.candidates]
    names = [one.algorithm for one in plan.candidates]
    reasons = [(one.algorithm, one.error) for one in plan.candidates]
    return _table("comparison", head, rows, names) + _reasons(reasons)


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
    return f'<ul class="notes">{"".join(map(_item, found))}</ul>'


def _plan_row(name: str, plan: Plan | None, seconds: float | None, bounds: Bounds) -> list[Cell]:
    placed = Cell("")
    if seconds is not None:
        placed = Cell(format_ns(round(seconds * 1e9)), round(seconds * 1e9))
    if plan is None:
        return [Cell(name), Cell("no plan"), *[Cell("")] * 6, placed]
    full = max(plan.devices, key=lambda device: device.peak_bytes / max(device.cap_bytes, 1))
    peaks = "".join(_small_bar(d.name, d.peak_bytes, d.cap_bytes) for d in plan.devices)
    return [
        Cell(name),
        Cell(format_ns(plan.makespan_ns), plan.makespan_ns),
        _ratio(plan.makespan_ns, bounds.lower_bound_ns),
        _ratio(plan.makespan_ns, bounds.one_device_ns),
        Cell(str(plan.num_transfers), plan.num_transfers),
        _moved(plan.transferred_bytes),
        Cell(f"{format_bytes(full.peak_bytes)} of {format_bytes(full.cap_bytes)}", full.peak_bytes),
        Cell(f'<span class="peaks">{peaks}</span>', None, True),
        placed,
    ]


def _candidate_row(one: Candidate, chosen: str, bounds: Bounds) -> list[Cell]:
    name = Cell(one.algorithm + (" (this plan)" if one.algorithm == chosen else ""))
    if one.makespan_ns is None:
        return [name, Cell("no plan"), *[Cell("")] * 4]
    moved, peak = one.transferred_bytes or 0, one.largest_peak_bytes or 0
    return [
        name,
        Cell(format_ns(one.makespan_ns), one.makespan_ns),
        _ratio(one.makespan_ns, bounds.lower_bound_ns),
        _ratio(one.makespan_ns, bounds.one_device_ns),
        _moved(moved),
        Cell(format_bytes(peak), peak),
    ]


def _moved(num_bytes: int) -> Cell:
    """Blank without bytes: where transfer times are given outright, tensors may have none."""
    return Cell(format_bytes(num_bytes) if num_bytes else "", num_bytes)


def _ratio(time_ns: int, unit_ns: int) -> Cell:
    return Cell(f"{time_ns / unit_ns:.2f}x", time_ns / unit_ns) if unit_ns else Cell("")


def _exact(cell: Cell) -> str:
    return "" if cell.number is None else f' data-value="{cell.number}"'


def _table(
    name: str, head: Sequence[str], rows: Sequence[Sequence[Cell]], keys: Iterable[str]
) -> str:
    # A column without a word is left out.
    full = [at for at in range(len(head)) if any(row[at].text for row in rows)]
    head, rows = [head[at] for at in full], [[row[at] for at in full] for row in rows]
    # A column of numbers has its title above them, at the right.
    is_number = [any(row[at].number is not None for row in rows) for at in range(len(head))]
    titles = "".join(
        f'<th scope="col"{" class=n" if right else ""}>{html.escape(title)}</th>'
        for title, right in zip(head, is_number, strict=True)
    )
    lines = []
    for key, row in zip(keys, rows, strict=True):
        cells = (
            f"<td{_exact(cell)}{' class=n' if cell.number is not None else ''}>"
            f"{cell.text if cell.is_html else html.escape(cell.text)}</td>"
            for cell in row
        )
        lines.append(f'<tr data-key="{html.escape(key)}">{"".join(cells)}</tr>')
    body = "".join(lines)
    return (
        f'<div class="scroll"><table id="{name}"><thead><tr>{titles}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def _reasons(found: Iterable[tuple[str, str | None]]) -> str:
    items = "".join(_item(f"{name}: {error}") for name, error in found if error)
    return f'<ul class="notes">{items}</ul>' if items else ""


def _swatch(device: int) -> str:
    again = ' class="swatch again"' if device >= 8 else ' class="swatch"'
    return f'<span{again} style="background-color:{device_color(device)}"></span>'


def _bar(made_of: Mapping[str, int], peak: int, cap: int) -> str:
    """The peak by category, as wide as its share of the limit; a mark stands at the limit."""
    full = max(peak, cap, 1)
    found = made_of or {"other": peak}
    parts = "".join(
        f'<i style="width:{100 * size / full:.3f}%;background:{CATEGORY_COLORS[name]}" '
        f'title="{CATEGORY_LABELS[name]}: {format_bytes(size)}"></i>'
        for name, size in found.items()
    )
    words = ", ".join(f"{name} {format_bytes(size)}" for name, size in made_of.items())
    return (
        f'<span class="bar">{parts}<b style="left:{100 * cap / full:.3f}%"></b></span>'
        f'<span class="words">{words}</span>'
    )


def _small_bar(name: str, peak: int, cap: int) -> str:
    title = html.escape(f"{name}: {format_bytes(peak)} of {format_bytes(cap)}")
    height = 100 * min(peak / max(cap, 1), 1)
    over = ' class="over"' if peak > cap else ""
    return f'<span title="{title}"{over}><i style="height:{height:.0f}%"></i></span>'


def _item(text: str) -> str:
    return f"<li>{html.escape(text)}</li>"


def _alert(title: str, items: Iterable[str]) -> str:
    found = "".join(items)
    return f'<div class="alert" role="alert"><strong>{title}</strong><ul>{found}</ul></div>'
