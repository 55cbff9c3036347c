"""Page: one HTML file with the facts in plain HTML and a script that draws the rest."""

from __future__ import annotations

import html
from collections.abc import Sequence
from importlib import resources
from typing import TYPE_CHECKING, Any

from baechi.errors import InputError
from baechi.plans import Plan
from baechi.report.allocations import allocation_deficits, allocation_table
from baechi.report.bounds import Bounds, bounds_of
from baechi.report.colors import CATEGORY_COLORS, CATEGORY_LABELS, DEVICE_COLORS
from baechi.report.contents import Contents, contents_of
from baechi.report.packing import as_script_json
from baechi.report.sections import (
    assumptions,
    comparison_table,
    deficits,
    device_table,
    facts,
)
from baechi.schedules import Schedule
from baechi.units import format_ns

if TYPE_CHECKING:
    from baechi.comparison import Comparison
    from baechi.summaries import DeviceLine

__all__ = ["report_html"]

_SCRIPTS = (
    "data.js",
    "details.js",
    "timeline.js",
    "links.js",
    "pointer.js",
    "memory.js",
    "modules.js",
    "graph.js",
    "main.js",
)
# No request can leave the page, whatever a name in it says.
_POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:"


def report_html(
    schedule: Schedule | None,
    *,
    plan: Plan | None = None,
    compared: Comparison | None = None,
    allocated: Sequence[DeviceLine] = (),
) -> str:
    """The whole page as text; `write_report` says what the arguments are.

    Raises:
        InputError: there is neither a schedule nor a comparison.
    """
    if schedule is not None:
        bounds = bounds_of(schedule.graph, schedule.cluster, schedule.rules)
        title = f"step {format_ns(schedule.makespan_ns)}"
        title += f" on {_counted(schedule.cluster.num_devices, 'device')}"
        if plan is not None:
            title = f"{plan.algorithm}: {title}"
        contents = contents_of(schedule)
        body = _schedule_body(schedule, plan, compared, bounds, contents, allocated)
        scripts = _scripts(contents)
    elif compared is not None:
        bounds = bounds_of(compared.graph, compared.cluster, compared.rules)
        title = f"no plan for {_counted(compared.graph.num_ops, 'op')}"
        body = deficits(None, compared)
        body += _section("comparison", "Algorithms", comparison_table(compared, None, bounds))
        scripts = _script(_asset("theme.js"))
    else:
        raise InputError("there is nothing to report", hint="pass a schedule or a comparison")
    return _frame(title, body, scripts)


def _frame(title: str, body: str, scripts: str) -> str:
    shown = html.escape(title)
    styles = _asset("uplot.min.css") + _asset("report.css")
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>Baechi: {shown}</title>\n<style>\n{styles}</style>\n</head>\n<body>\n"
        f"<header><h1>{shown}</h1>"
        '<button id="theme" type="button">dark or light</button></header>\n'
        f"<main>\n{body}\n</main>\n{scripts}\n</body>\n</html>\n"
    )


def _schedule_body(
    schedule: Schedule,
    plan: Plan | None,
    compared: Comparison | None,
    bounds: Bounds,
    contents: Contents,
    allocated: Sequence[DeviceLine],
) -> str:
    table = comparison_table(compared, plan, bounds)
    devices = allocation_table(allocated) if allocated else device_table(schedule)
    parts = [
        allocation_deficits(allocated) if allocated else deficits(schedule, compared),
        facts(schedule, plan, bounds),
        _section("assumptions", "What this rests on", assumptions(schedule, plan, bounds)),
        _section("devices-section", "Devices", devices),
        _section("comparison-section", "Algorithms", table) if table else "",
        _asset("views.html").replace("{num_critical}", f"{contents.num_critical:,}"),
    ]
    return "\n".join(part for part in parts if part)


def _section(name: str, title: str, content: str) -> str:
    return f'<section id="{name}"><h2>{html.escape(title)}</h2>{content}</section>'


def _scripts(contents: Contents) -> str:
    told: dict[str, Any] = contents.facts | {
        "device_colors": DEVICE_COLORS,
        "category_colors": CATEGORY_COLORS,
        "category_labels": CATEGORY_LABELS,
    }
    own = "\n".join(_asset(name) for name in _SCRIPTS)
    return (
        f'<script id="facts" type="application/json">{as_script_json(told)}</script>\n'
        f'<script id="block" type="text/plain">{contents.block}</script>\n'
        + _script(_asset("theme.js"))
        + _script(_asset("uplot.iife.min.js"))
        + _script(f'(() => {{\n"use strict";\n{own}\n}})();')
    )


def _script(text: str) -> str:
    return f"<script>\n{text}\n</script>\n"


def _asset(name: str) -> str:
    return (resources.files("baechi.report") / "assets" / name).read_text(encoding="utf-8")


def _counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}" + ("" if count == 1 else "s")
