"""Notebooks: what graphs, clusters, plans, schedules and comparisons look like in a cell."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from baechi.cluster import Cluster
from baechi.columns import MEMORY_CLASSES
from baechi.graph import Graph
from baechi.report.colors import device_color
from baechi.summaries import HEADINGS, DeviceLine, Summary
from baechi.units import format_bytes, format_ns

if TYPE_CHECKING:
    from baechi.comparison import Comparison

__all__ = [
    "cluster_html",
    "comparison_html",
    "graph_html",
    "summary_html",
]

_MOST_ROWS = 64
# Colors are mixed from the text's own, so that they suit a light and a dark notebook.
_STYLE = (
    "<style>.baechi,.baechi table{font-size:13px}.baechi table{border-collapse:collapse}"
    ".baechi caption{text-align:left;font-weight:600;padding:2px 0 4px}"
    ".baechi :is(th,td){text-align:left;padding:2px 14px 2px 0;border:0;white-space:nowrap;"
    "border-bottom:1px solid color-mix(in srgb,currentColor 20%,transparent)}"
    ".baechi td.n,.baechi th.n{text-align:right;font-variant-numeric:tabular-nums}"
    ".baechi .bar{display:inline-block;width:120px;height:9px;"
    "background:color-mix(in srgb,currentColor 15%,transparent)}"
    ".baechi .bar i{display:block;height:100%}"
    ".baechi .over{color:#d33;font-weight:600}.baechi p{margin:4px 0}</style>"
)
Row = tuple[str, ...]


def graph_html(graph: Graph) -> str:
    """Counts, and bytes of outputs by class."""
    rows: list[Row] = [
        ("ops", f"{graph.num_ops:,}"),
        ("tensors", f"{graph.num_tensors:,}"),
        ("edges", f"{graph.num_edges:,}"),
        ("persistent bytes of ops", format_bytes(int(graph.persistent_bytes.sum()))),
    ]
    for at, name in enumerate(MEMORY_CLASSES):
        if total := int(graph.tensor_bytes[graph.tensor_class == at].sum()):
            rows.append((f"tensors of class {name}", format_bytes(total)))
    for kind, times in zip(graph.device_kinds, graph.compute_ns, strict=True):
        rows.append((f"compute time on {kind}", format_ns(int(times[times >= 0].sum()))))
    if graph.group_names:
        rows.append(("colocation groups", f"{len(graph.group_names):,}"))
    return _cell("Graph", ("", ""), map(_escaped, rows))


def cluster_html(cluster: Cluster) -> str:
    """One row per device, and what the links are."""
    rows = (
        _escaped(
            (
                device.name,
                device.kind,
                format_bytes(device.memory_bytes),
                format_bytes(device.reserve_bytes) if device.reserve_bytes else "",
                f"{device.speed:g}",
            )
        )
        for device in cluster.devices
    )
    notes = [f"channels: {cluster.channels}"]
    if cluster.links_assumed:
        notes.append("links were not given: 10 us and 12 GB/s assumed for each")
    head = ("device", "kind", "memory", "reserve", "speed")
    return _cell(f"Cluster of {cluster.num_devices} devices", head, rows, notes)


def summary_html(summary: Summary) -> str:
    """The headline, one row per device, remarks and notes; what does not fit comes first."""
    used = {name for line in summary.devices for name, size in line.held.items() if size}
    made_of = {name: heading for name, heading in HEADINGS.items() if name in used}
    rows = (_device_row(at, line, tuple(made_of)) for at, line in enumerate(summary.devices))
    head = ("device", "ops", "busy", *made_of.values(), "peak", "limit", "")
    ends = (*summary.remarks, *summary.notes)
    return _cell(summary.headline, head, rows, ends, (*summary.warnings, *summary.deficits))


def comparison_html(compared: Comparison) -> str:
    """One row per algorithm, the best in bold, then the reasons of those without a plan."""
    best, bound = compared.best, compared.lower_bound_ns
    rows = []
    for row in compared.rows:
        plan = row.plan
        if plan is None:
            rows.append(_escaped((row.algorithm, "no plan", "", "", "", "")))
            continue
        full = max(plan.devices, key=lambda device: device.peak_bytes / max(device.cap_bytes, 1))
        cells = _escaped(
            (
                row.algorithm,
                format_ns(plan.makespan_ns),
                f"{plan.makespan_ns / bound:.2f}x" if bound else "",
                f"{plan.num_transfers:,}",
                f"{format_bytes(full.peak_bytes)} of {format_bytes(full.cap_bytes)}",
                format_ns(round(row.placing_s * 1e9)),
            )
        )
        rows.append(tuple(f"<b>{cell}</b>" for cell in cells) if plan is best else cells)
    head = ("algorithm", "step", "vs bound", "transfers", "fullest device", "placed in")
    errors = [f"{row.algorithm}: {row.error}" for row in compared.rows if row.error]
    title = f"Comparison, lower bound {format_ns(bound)}"
    return _cell(title, head, rows, (*errors, *compared.notes))


def _device_row(at: int, line: DeviceLine, made_of: Row) -> Row:
    peak, cap = line.peak_bytes, line.cap_bytes
    share = 100 * min(peak / max(cap, 1), 1)
    color = "#d33" if peak > cap else device_color(at)
    bar = f'<span class="bar"><i style="width:{share:.1f}%;background:{color}"></i></span>'
    held = (format_bytes(line.held.get(name, 0)) if line.held else "" for name in made_of)
    cells = (line.name, f"{line.num_ops:,}", f"{line.busy:.0%}", *held)
    return (*_escaped((*cells, format_bytes(peak), format_bytes(cap))), bar)


def _cell(
    title: str,
    head: Row,
    rows: Iterable[Row],
    notes: Sequence[str] = (),
    over: Sequence[str] = (),
) -> str:
    found = list(rows)
    alerts = "".join(f'<p class="over">{html.escape(text)}</p>' for text in over)
    lines = "".join(_line("td", row) for row in found[:_MOST_ROWS])
    if len(found) > _MOST_ROWS:
        lines += _line("td", (f"and {len(found) - _MOST_ROWS} more", *("" for _ in head[1:])))
    top = _line("th", head) if any(head) else ""
    ends = "".join(f"<p>{html.escape(text)}</p>" for text in notes)
    return (
        f'<div class="baechi">{_STYLE}{alerts}<table><caption>{html.escape(title)}</caption>'
        f"<thead>{top}</thead><tbody>{lines}</tbody></table>{ends}</div>"
    )


def _line(tag: str, cells: Row) -> str:
    """A row; all cells but the first hold numbers or stand beside them."""
    parts = (f"<{tag}{' class=n' if at else ''}>{cell}</{tag}>" for at, cell in enumerate(cells))
    return f"<tr>{''.join(parts)}</tr>"


def _escaped(cells: Row) -> Row:
    return tuple(map(html.escape, cells))
