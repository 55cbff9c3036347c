"""Comparing algorithms on one graph and cluster."""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from baechi import _core
from baechi.cluster import Cluster, as_cluster
from baechi.errors import InputError, OutOfMemoryError, PlacementError
from baechi.graph import Graph
from baechi.placement import ALGORITHMS, place
from baechi.plans import Plan
from baechi.rules import Setting, as_graph, with_names
from baechi.units import format_bytes, format_ns

if TYPE_CHECKING:
    from baechi.tables import Column

__all__ = ["Comparison", "Row", "compare"]

_NO_LIMIT = 10_000


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """What one algorithm found."""

    algorithm: str
    plan: Plan | None
    """None where it found no placement."""
    placing_s: float
    """Seconds that placing took, by the clock."""
    error: str | None
    """Why it found no placement, or which devices are over their limit."""
    proved_infeasible: bool = False
    """Whether nothing can fit, whatever the algorithm."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """One row per algorithm, and what no schedule can beat.

    Attributes:
        rows: in the order of the algorithms.
        critical_path_ns: the longest path of compute times, each op on its fastest device; ns.
        work_bound_ns: all compute times on their fastest devices, spread evenly; ns.
        notes: what a reader must know, such as links that were assumed.
    """

    graph: Graph
    cluster: Cluster
    rules: str
    rows: tuple[Row, ...]
    critical_path_ns: int
    work_bound_ns: int
    notes: tuple[str, ...]

    @property
    def lower_bound_ns(self) -> int:
        """The greater of the two bounds, ns."""
        return max(self.critical_path_ns, self.work_bound_ns)

    @property
    def best(self) -> Plan | None:
        """The plan with the shortest step among those that fit, the first on a tie."""
        plans = [row.plan for row in self.rows if row.plan is not None and row.plan.fits]
        return min(plans, key=lambda plan: plan.makespan_ns, default=None)

    def __getitem__(self, algorithm: str) -> Row:
        """The row of one algorithm.

        Raises:
            KeyError: it was not compared.
        """
        for row in self.rows:
            if row.algorithm == algorithm:
                return row
        raise KeyError(algorithm)

    def report(self, path: str | os.PathLike[str]) -> None:
        """Writes one HTML file with this table and the best plan (docs/report.md).

        Where none fits, it shows the plan that exceeds the limits least, or the reasons alone.

        Raises:
            OSError: the file cannot be written.
        """
        from baechi.report import replay, write_report

        plans = [row.plan for row in self.rows if row.plan is not None]
        shown = self.best or min(plans, key=_excess_bytes, default=None)
        schedule = None if shown is None else replay(shown, self.graph)
        write_report(path, schedule, plan=shown, compared=self)

    def _repr_html_(self) -> str:
        from baechi.report.notebooks import comparison_html

        return comparison_html(self)

    def __str__(self) -> str:
        """A table with one line per algorithm, then the reasons of those without a plan."""
        from baechi.tables import WIDTH, as_table, hanging, plain_text

        table = plain_text([as_table(self.columns())], width=_NO_LIMIT)
        remarks = plain_text([hanging(remark, WIDTH) for remark in self.remarks])
        return f"{table}\n{remarks}"

    def columns(self) -> list[Column]:
        """The table with one line per algorithm, for `baechi.tables`."""
        from baechi.tables import Column

        best = self.best
        marks = [" *" if row.plan is not None and row.plan is best else "" for row in self.rows]
        names = [row.algorithm + mark for row, mark in zip(self.rows, marks, strict=True)]
        columns = [Column(heading="algorithm", cells=names, importance=99, is_text=True)]
        for (heading, importance), cell in self._cells().items():
            cells = [cell(row.plan) if row.plan else "" for row in self.rows]
            if heading == "step":
                cells = [text or "no plan" for text in cells]
            columns.append(Column(heading=heading, cells=cells, importance=importance))
        placed_in = [format_ns(round(row.placing_s * 1e9)) for row in self.rows]
        columns.append(Column(heading="placed in", cells=placed_in, importance=50))
        styles = ["bold green" if mark else "" for mark in marks] if best is not None else []
        return [dataclasses.replace(column, styles=styles) for column in columns]

    @property
    def remarks(self) -> tuple[str, ...]:
        """The bounds, the reasons of those without a plan, and the notes."""
        bound = "" if self.best is None else "* shortest step within the limits; "
        bound += f"lower bound {format_ns(self.lower_bound_ns)} (critical path "
        bound += f"{format_ns(self.critical_path_ns)}, work {format_ns(self.work_bound_ns)})"
        errors = (f"{row.algorithm}: {row.error}" for row in self.rows if row.error)
        return (bound, *errors, *(f"note: {note}" for note in self.notes))

    def _cells(self) -> dict[tuple[str, int], Callable[[Plan], str]]:
        """Heading and importance of each column, and what stands in it for a plan."""
        plans = [row.plan for row in self.rows if row.plan is not None]
        single = next((r.plan for r in self.rows if r.algorithm == "single" and r.plan), None)
        cells: dict[tuple[str, int], Callable[[Plan], str]] = {}
        cells["step", 90] = lambda plan: format_ns(plan.makespan_ns)
        if single is not None and single.makespan_ns:
            cells["vs single", 60] = lambda plan: _times(plan.makespan_ns, single.makespan_ns)
        if self.lower_bound_ns:
            cells["vs bound", 70] = lambda plan: _times(plan.makespan_ns, self.lower_bound_ns)
        cells["devices", 30] = lambda plan: f"{_num_used(plan)} of {len(plan.devices)}"
        cells["transfers", 40] = lambda plan: str(plan.num_transfers)
        # Where transfer times are given outright, tensors may have no bytes.
        if any(plan.transferred_bytes for plan in plans):
            cells["moved", 20] = lambda plan: format_bytes(plan.transferred_bytes)
        cells["fullest device", 80] = _fullest
        return cells


def _excess_bytes(plan: Plan) -> int:
    return sum(max(device.peak_bytes - device.cap_bytes, 0) for device in plan.devices)


def _times(time_ns: int, unit_ns: int) -> str:
    return f"{time_ns / unit_ns:.2f}x"


def _num_used(plan: Plan) -> int:
    return sum(device.num_ops > 0 for device in plan.devices)


def _fullest(plan: Plan) -> str:
    """The device with the greatest share of its cap in use; an exclamation mark above the cap."""
    device = max(plan.devices, key=lambda device: device.peak_bytes / max(device.cap_bytes, 1))
    over = "" if device.peak_bytes <= device.cap_bytes else " (!)"
    return f"{format_bytes(device.peak_bytes)} of {format_bytes(device.cap_bytes)}{over}"


def compare(
    graph: Graph,
    cluster: Cluster | Any = None,
    algorithms: Sequence[str] | None = None,
    *,
    rules: str = "physical",
    **options: Any,
) -> Comparison:
    """Places a graph with several algorithms.

    Args:
        graph: what to place.
        cluster: where, as in `place`.
        algorithms: names; by default all but "best".
        rules: as in `place`.
        options: further keyword arguments of `place`.

    Raises:
        InputError: an unknown algorithm or option, or what `place` refuses for every algorithm.
    """
    graph = as_graph(graph)
    if cluster is None and graph.default_cluster is not None:
        cluster = graph.default_cluster
    if cluster is None:
        raise InputError("no cluster was given", hint='pass one, such as "4x8GiB"')
    cluster = as_cluster(cluster)
    names = [name for name in ALGORITHMS if name != "best"] if algorithms is None else algorithms
    if algorithms is None and rules == "baechi-torch":
        names = [name for name in names if not name.endswith("-reserve")]
    setting = Setting.of(graph, cluster, rules, str(options.get("retention", "liveness")))
    with with_names(graph, cluster):
        path, work = _core.lower_bounds(setting.flat_graph, setting.flat_cluster)
    rows = tuple(_row(graph, cluster, name, rules, options) for name in names)
    return Comparison(
        graph=graph,
        cluster=setting.cluster,
        rules=rules,
        rows=rows,
        critical_path_ns=path,
        work_bound_ns=work,
        notes=setting.notes,
    )


def _row(graph: Graph, cluster: Cluster, name: str, rules: str, options: dict[str, Any]) -> Row:
    started = time.perf_counter()
    plan, error, proved = None, None, False
    try:
        plan = place(graph, cluster, name, rules, **options)
        if not plan.fits:
            over = [d.name for d in plan.devices if d.peak_bytes > d.cap_bytes]
            error = f"over the limit of {', '.join(over)}"
    except (OutOfMemoryError, PlacementError) as failure:
        error = str(failure).splitlines()[0]
        proved = isinstance(failure, OutOfMemoryError) and failure.proved_infeasible
    elapsed = time.perf_counter() - started
    return Row(algorithm=name, plan=plan, placing_s=elapsed, error=error, proved_infeasible=proved)
