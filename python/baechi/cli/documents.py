"""What `--json` says of plans, schedules and devices (docs/command-line.schema.json)."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from baechi.cluster import Cluster
    from baechi.plans import Plan
    from baechi.schedules import Schedule
    from baechi.summaries import Summary
    from baechi.torch.model_plan import ModelPlan

__all__ = [
    "bounds_document",
    "model_plan_document",
    "plan_document",
    "schedule_document",
]


def plan_document(plan: Plan) -> dict[str, Any]:
    """All that a plan predicts, without the placement, which is in the plan's file."""
    made = plan.provenance
    return {
        "algorithm": plan.algorithm,
        "asked_for": made.algorithm,
        "rules": made.rules,
        "retention": plan.retention,
        "fits": plan.fits,
        "num_ops": len(plan.op_names),
        "makespan_ns": plan.makespan_ns,
        "num_transfers": plan.num_transfers,
        "transferred_bytes": plan.transferred_bytes,
        "num_waits": len(plan.waits),
        "devices": _devices(plan.summary, made.cluster),
        "candidates": [dataclasses.asdict(candidate) for candidate in plan.candidates],
        "favorites": bounds_document(plan),
        "links_assumed": made.cluster.links_assumed,
        "notes": list(made.notes),
    }


def bounds_document(plan: Plan) -> dict[str, Any] | None:
    """The bounds of m-SCT's linear program, where the plan records them."""
    options = plan.provenance.options
    lower = options.get("unlimited_lower_bound_ns")
    upper = options.get("unlimited_upper_bound_ns")
    if not (type(lower) is int and type(upper) is int):
        return None
    return {
        "method": options.get("favorites"),
        "lower_bound_ns": lower,
        "upper_bound_ns": upper,
        "gap": (upper - lower) / upper if upper else 0.0,
    }


def model_plan_document(plan: ModelPlan) -> dict[str, Any]:
    """All that the plan of a model predicts, without the placement."""
    confirmed = dict(zip(plan.cluster.names, plan.confirmed, strict=False))
    by_modules = dict(zip(plan.cluster.names, plan.module_level_peaks, strict=False))
    return {
        "mode": plan.mode,
        "objective": plan.objective,
        "optimizer": plan.optimizer,
        "granularity": plan.granularity,
        "level": plan.level,
        "autocast": plan.autocast,
        "edited": plan.is_edited,
        "fits": None if plan.is_edited else plan.is_within_limits,
        "step_ns": plan.step_ns,
        "copies": plan.copies,
        "copied_bytes": plan.copied_bytes,
        "devices": _devices(plan.summary, plan.cluster),
        "rehearsed_bytes": confirmed or None,
        "module_level_bytes": by_modules or None,
        "compared": [dataclasses.asdict(other) for other in plan.compared],
        "inputs": list(plan.inputs),
        "prices": dict(plan.prices),
        "reasons": list(plan.reasons),
        "links_assumed": plan.cluster.links_assumed,
        "notes": list(plan.notes),
        "versions": dict(plan.versions),
    }


def schedule_document(schedule: Schedule, *, with_ops: bool = False) -> dict[str, Any]:
    """All about a schedule; on demand with every op and transfer."""
    document = {
        "rules": schedule.rules,
        "retention": schedule.retention,
        "executor": schedule.executor,
        "fits": schedule.fits,
        "num_ops": len(schedule.device),
        "makespan_ns": schedule.makespan_ns,
        "num_transfers": len(schedule.transfers.tensor),
        "transferred_bytes": schedule.transferred_bytes,
        "devices": _devices(schedule.summary, schedule.cluster),
        "links_assumed": schedule.cluster.links_assumed,
    }
    if with_ops:
        document |= {"ops": _ops(schedule), "transfers": _transfers(schedule)}
    return document


def _devices(summary: Summary, cluster: Cluster) -> list[dict[str, Any]]:
    return [
        {
            "name": line.name,
            "kind": device.kind,
            "num_ops": line.num_ops,
            "busy": line.busy,
            "peak_bytes": line.peak_bytes,
            "cap_bytes": line.cap_bytes,
            "peak_op": line.peak_op,
            "held_bytes": dict(line.held),
        }
        for line, device in zip(summary.devices, cluster.devices, strict=True)
    ]


def _ops(schedule: Schedule) -> list[dict[str, Any]]:
    names, devices = schedule.graph.op_names, schedule.cluster.names
    columns = (schedule.device, schedule.order, schedule.start_ns, schedule.end_ns)
    rows = zip(names, *(column.tolist() for column in columns), strict=True)
    return [
        {"op": op, "device": devices[at], "launch": rank, "start_ns": start, "end_ns": end}
        for op, at, rank, start, end in rows
    ]


def _transfers(schedule: Schedule) -> list[dict[str, Any]]:
    names, moved = schedule.cluster.names, schedule.transfers
    columns = (moved.tensor, moved.source, moved.destination, moved.start_ns, moved.end_ns)
    return [
        {
            "tensor": schedule.graph.tensor_name(tensor),
            "source": names[source],
            "destination": names[destination],
            "start_ns": start,
            "end_ns": end,
        }
        for tensor, source, destination, start, end in zip(
            *(column.tolist() for column in columns), strict=True
        )
    ]
