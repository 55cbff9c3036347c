"""Report: what was decided and predicted, as one HTML page or as a trace for a trace viewer."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from baechi.errors import InputError
from baechi.files import write_atomically
from baechi.graph import Graph
from baechi.plans import Plan
from baechi.report.page import report_html
from baechi.report.traces import trace_text
from baechi.schedules import Schedule
from baechi.simulation import simulate

if TYPE_CHECKING:
    from baechi.comparison import Comparison
    from baechi.summaries import DeviceLine

__all__ = ["replay", "report_html", "trace_text", "write_report", "write_trace"]


def write_report(
    path: str | os.PathLike[str],
    schedule: Schedule | None,
    *,
    plan: Plan | None = None,
    compared: Comparison | None = None,
    allocated: Sequence[DeviceLine] = (),
) -> None:
    """Writes one HTML file that needs nothing else: no network, no other file.

    Args:
        path: where; the old file stays until the new one is complete.
        schedule: what to show; None shows the comparison alone, where nothing was placed.
        plan: the plan that it is the schedule of; adds how it was made.
        compared: the algorithms beside each other.
        allocated: of a PyTorch model, memory by device as its ledger found it; whether it fits is
            judged by that.

    Raises:
        InputError: there is neither a schedule nor a comparison, or it is something else.
        OSError: the file cannot be written.
    """
    from baechi.comparison import Comparison

    if compared is not None and not isinstance(compared, Comparison):
        raise InputError(f"{compared!r} is not a Comparison", hint="baechi.compare makes one")
    page = report_html(schedule, plan=plan, compared=compared, allocated=allocated)
    write_atomically(path, page.encode("utf-8", "backslashreplace"))


def write_trace(path: str | os.PathLike[str], schedule: Schedule) -> None:
    """Writes a trace (JSON trace event format) that Perfetto and chrome://tracing open.

    Raises:
        OSError: the file cannot be written.
    """
    write_atomically(path, trace_text(schedule).encode())


def replay(plan: Plan, graph: Graph | None = None) -> Schedule:
    """The schedule of a plan on its own cluster.

    Args:
        plan: what to replay.
        graph: its graph; a plan that was just made knows it, one from a file does not.

    Raises:
        InputError: the plan does not know its graph and none was given.
        PlanMismatchError: the graph is another one than the plan was made for.
    """
    known = plan.provenance.made_for
    if graph is None and not isinstance(known, Graph):
        raise InputError(
            "the plan was read from a file, which does not hold its graph",
            hint='pass it: plan.report("plan.html", graph=baechi.load_graph(...))',
        )
    found = graph if graph is not None else known
    assert isinstance(found, Graph)
    return simulate(found, plan.provenance.cluster, plan)
