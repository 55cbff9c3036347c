"""Comparing algorithms on one graph and cluster."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from typing import Any

from baechi import _core
from baechi.cluster import Cluster, as_cluster
from baechi.errors import InputError, OutOfMemoryError, PlacementError
from baechi.graph import Graph
from baechi.placement import ALGORITHMS, place
from baechi.plans import Plan
from baechi.rules import Setting, with_names
from baechi.units import format_bytes, format_ns

__all__ = ["Comparison", "Row", "compare"]


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

    def __str__(self) -> str:
        """A table with one line per algorithm."""
        single = next((r.plan for r in self.rows if r.algorithm == "single" and r.plan), None)
        head = ["algorithm", "step", "vs one device", "vs bound", "largest peak", "moved", "placed in"]
        table = [head, *(self._cells(row, single) for row in self.rows)]
        widths = [max(len(cells[at]) for cells in table) for at in range(len(head))]
        lines = [
            "  ".join(
                cell.ljust(width) if at == 0 else cell.rjust(width)
                for at, (cell, width) in enumerate(zip(cells, widths, strict=True))
            ).rstrip()
            for cells in table
        ]
        errors = [f"{row.algorithm}: {row.error}" for row in self.rows if row.error]
        bound = f"lower bound {format_ns(self.lower_bound_ns)} (critical path "
        bound += f"{format_ns(self.critical_path_ns)}, work {format_ns(self.work_bound_ns)})"
        return "\n".join([*lines, bound, *errors, *(f"note: {note}" for note in self.notes)])

    def _cells(self, row: Row, single: Plan | None) -> list[str]:
        plan = row.plan
        if plan is None:
            return [row.algorithm, "does not fit", "", "", "", "", _seconds(row.placing_s)]
        makespan = plan.makespan_ns
        one = f"{makespan / single.makespan_ns:.2f}x" if single and single.makespan_ns else ""
        bound = f"{makespan / self.lower_bound_ns:.2f}x" if self.lower_bound_ns else ""
        peak = format_bytes(max(plan.peak_bytes.values()))
        return [
            row.algorithm,
            format_ns(makespan),
            one,
            bound,
            peak if plan.fits else f"{peak} (!)",
            format_bytes(plan.transferred_bytes),
            _seconds(row.placing_s),
        ]


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
    plan, error = None, None
    try:
        plan = place(graph, cluster, name, rules, **options)
        if not plan.fits:
            over = [d.name for d in plan.devices if d.peak_bytes > d.cap_bytes]
            error = f"over the limit of {', '.join(over)}"
    except (OutOfMemoryError, PlacementError) as failure:
        error = str(failure).splitlines()[0]
    elapsed = time.perf_counter() - started
    return Row(algorithm=name, plan=plan, placing_s=elapsed, error=error)


def _seconds(seconds: float) -> str:
    return format_ns(round(seconds * 1e9))
