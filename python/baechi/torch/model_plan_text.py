"""The text of a model plan: a line per device, what was compared, what to know."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import torch

from baechi.summaries import DeviceLine, Summary
from baechi.units import counted, format_bytes, format_ns

if TYPE_CHECKING:
    from baechi.torch.model_plan import Compared, ModelPlan

__all__ = ["edit_note", "excess_by_modules", "summary_of", "version_note"]

_ALIKE = 0.02  # peaks that differ by less are shown once


def summary_of(plan: ModelPlan) -> Summary:
    """What is lacking, the step, the devices, the comparison and the notes."""
    size = f" of {format_bytes(plan.copied_bytes)} between devices" if plan.copies else ""
    copies = f"{counted(plan.copies, 'copy', 'copies')}{size}"
    before = "before the edit: " if plan.is_edited else ""
    optimizer = f", {plan.optimizer}" if plan.optimizer else ""
    return Summary(
        warnings=(edit_note(plan),) if plan.is_edited else (),
        headline=(
            f"{before}{plan.mode} step {format_ns(plan.step_ns)}, {copies}"
            f" ({plan.objective}{optimizer}; {plan.level} level)"
        ),
        devices=tuple(
            DeviceLine(
                name=device.name,
                num_ops=device.num_ops,
                busy=device.busy_ns / plan.step_ns if plan.step_ns else 0.0,
                peak_bytes=device.peak_bytes,
                cap_bytes=device.cap_bytes,
                peak_op=device.peak_at,
                held=device.by_class,
            )
            for device in plan.devices
        ),
        remarks=(*(_beside(plan, other) for other in plan.compared), *_rehearsed(plan)),
        notes=(
            *plan.reasons,
            *filter(None, [excess_by_modules(plan)]),
            *plan.notes,
            *filter(None, [version_note(plan)]),
        ),
    )


def edit_note(plan: ModelPlan) -> str:
    """That predictions are of another placement, and how to get those of this one."""
    pins = ", and baechi.plan(..., pin=plan.device_map) predicts it" if not plan.ops else ""
    return (
        "modules were moved after planning: what follows was predicted for the placement before; "
        f"baechi.rehearse(model, plan, ...) measures this one{pins}"
    )


def excess_by_modules(plan: ModelPlan) -> str:
    """Where a call that runs module by module exceeds a limit; empty where none is known to."""
    if plan.is_edited:
        return ""
    rows = zip(plan.devices, plan.module_level_peaks, strict=False)
    over = [
        f"{format_bytes(peak)} on {device.name}, which has {format_bytes(device.cap_bytes)}"
        for device, peak in rows
        if peak > device.cap_bytes
    ]
    return f"a call that runs module by module takes {', '.join(over)}" if over else ""


def version_note(plan: ModelPlan) -> str:
    """What another torch than the plan's means; empty for the same one."""
    planned, here = plan.versions.get("torch", ""), torch.__version__.partition("+")[0]
    if planned == here:
        return ""
    return (
        f"planned with torch {planned}, this is {here}: modules are placed by their paths, "
        "predictions may differ"
    )


def _beside(plan: ModelPlan, other: Compared) -> str:
    ratio = f", {other.step_ns / plan.step_ns:.2f}x this step" if plan.step_ns else ""
    lacks = f"lacks {format_bytes(other.missing_bytes)}" if other.missing_bytes else "fits"
    return f"{other.name}: {format_ns(other.step_ns)}{ratio}, {lacks}"


def _rehearsed(plan: ModelPlan) -> list[str]:
    if not plan.confirmed or plan.is_edited:
        return []
    predicted, measured = _listed(plan, plan.peak_bytes.values()), _listed(plan, plan.confirmed)
    is_same = predicted == measured
    found = ["a dry rehearsal took the same" if is_same else f"a dry rehearsal took {measured}"]
    both = zip(plan.confirmed, plan.module_level_peaks, strict=False)
    if any(abs(alone - peak) > peak * _ALIKE for peak, alone in both):
        found.append(f"where it runs module by module: {_listed(plan, plan.module_level_peaks)}")
    return found


def _listed(plan: ModelPlan, peaks: Iterable[int]) -> str:
    rows = zip(plan.devices, peaks, strict=True)
    return ", ".join(f"{device.name} {format_bytes(peak)}" for device, peak in rows)
