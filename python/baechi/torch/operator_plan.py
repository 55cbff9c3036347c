"""The plan of the operator graph: what the report and the trace of a model's plan show."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from baechi import _core
from baechi.digests import Digests
from baechi.plans import Candidate, Plan, Provenance
from baechi.predictions import plan_of
from baechi.rules import Setting, with_names
from baechi.schedules import Schedule
from baechi.torch.outcomes import Outcome, devices_of_ops, launch_order
from baechi.torch.tasks import Task
from baechi.units import format_bytes

__all__ = ["operator_plan"]

_ABOUT_MEMORY = (
    "the table of devices goes by PyTorch's allocations; memory over time is that of the operator "
    "graph, whose peaks differ a little"
)


def operator_plan(
    task: Task, outcome: Outcome, others: Mapping[str, Outcome], notes: Sequence[str]
) -> Plan:
    """The operator graph where an outcome puts it, launched in PyTorch's order.

    Its times are those of the model's plan. Its memory is that of the graph under physical rules,
    from which the ledger's differs a little.

    Args:
        task: what was placed.
        outcome: how.
        others: what to compare with, by name.
        notes: what a reader must know.
    """
    setting = Setting.of(task.operators.graph, task.cluster, "physical", "liveness")
    with with_names(setting.graph, setting.cluster):
        core = _core.simulate_launched(
            setting.flat_graph,
            setting.flat_cluster,
            devices_of_ops(task, outcome.device_of_unit, outcome.layout),
            launch_order(task),
            setting.rules,
        )
    schedule = setting.schedule(core)
    listed = {outcome.origin: outcome, **{n: o for n, o in others.items() if o is not outcome}}
    made = Provenance(
        made_for=setting.graph,
        graph_digests=Digests(setting.graph),
        cluster=setting.cluster,
        algorithm=outcome.origin,
        options={},
        rules=setting.rules,
        versions={"baechi": _core.__version__},
        notes=(*notes, _ABOUT_MEMORY, *_about_copies(schedule, outcome)),
    )
    return plan_of(
        schedule,
        algorithm=outcome.origin,
        candidates=tuple(_candidate(task, name, one) for name, one in listed.items()),
        provenance=made,
    )


def _about_copies(schedule: Schedule, outcome: Outcome) -> Iterator[str]:
    """Why transfers are counted otherwise than copies, where they are.

    Which gradients meet on a device depends on the placement, and the graph is the same for all.
    """
    here, copies = len(schedule.transfers.tensor), sum(m.source >= 0 for m in outcome.memory.moved)
    if here != copies:
        yield (
            f"{here} transfers here, {copies} copies of the plan, which are PyTorch's: it adds "
            "gradients that meet before it sends them, and sends each of tensors that share memory"
        )


def _candidate(task: Task, name: str, outcome: Outcome) -> Candidate:
    lacking = [
        f"{device} lacks {format_bytes(peak - cap)}"
        for device, peak, cap in zip(
            task.cluster.names, outcome.memory.peaks, task.caps, strict=True
        )
        if peak > cap
    ]
    return Candidate(
        algorithm=name,
        makespan_ns=outcome.step_ns,
        largest_peak_bytes=max(outcome.memory.peaks, default=0),
        transferred_bytes=sum(m.nbytes for m in outcome.memory.moved if m.source >= 0),
        error=", ".join(lacking) or None,
    )
