"""The report and the trace of a model's plan, drawn from the plan of its operator graph."""

from __future__ import annotations

import os

from baechi.errors import InputError
from baechi.graph import Graph
from baechi.plans import Plan
from baechi.torch.model_plan import ModelPlan

__all__ = ["graph_of", "operators_of", "report_of", "trace_of"]


def report_of(plan: ModelPlan, path: str | os.PathLike[str]) -> None:
    """Writes the page; the table of devices has the ledger's memory."""
    from baechi.report import replay, write_report

    operators = operators_of(plan)
    write_report(path, replay(operators), plan=operators, allocated=plan.summary.devices)


def trace_of(plan: ModelPlan, path: str | os.PathLike[str]) -> None:
    """Writes the trace."""
    from baechi.report import replay, write_trace

    write_trace(path, replay(operators_of(plan)))


def graph_of(plan: ModelPlan) -> Graph:
    """The graph that the placers were given; errors as in `operators_of`."""
    made_for = operators_of(plan).provenance.made_for
    assert isinstance(made_for, Graph), "plans that were just made hold it"
    return made_for


def operators_of(plan: ModelPlan) -> Plan:
    """The plan of the operator graph.

    Raises:
        InputError: the plan comes from a file.
    """
    if plan.operator_plan is None:
        raise InputError(
            "the plan was read from a file, which does not hold its operator graph",
            hint="plan the model again; that plan has reports and traces",
        )
    return plan.operator_plan
