"""`baechi diff` of two plans of models: modules that moved, and what that changes."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from baechi.cli.differences import Differences, paired_devices
from baechi.units import format_bytes

if TYPE_CHECKING:
    from baechi.torch.model_plan import ModelPlan

__all__ = ["differences"]

_SIDE = ("mode", "objective", "optimizer", "granularity", "level", "autocast")


def differences(before: ModelPlan, after: ModelPlan, top: int) -> Differences:
    """What differs between two plans; so many of the ops, and of what else changed."""
    document = _document(before, after)
    others = [
        f"op {row['op']}: {row['before'] or 'by the rules'} -> {row['after'] or 'by the rules'}"
        for row in document["ops_moved"][:top]
    ]
    if document["inputs_differ"]:
        others.append("the planned inputs differ")
    edited = [f"the {n} plan" for n, p in (("first", before), ("second", after)) if p.is_edited]
    if edited:
        told = (
            f"{' and '.join(edited)} had modules moved by hand since: all times, copies and peaks"
        )
        others.insert(0, f"{told} are of the placement before")
    return Differences(
        document=document,
        step_ns=(before.step_ns, after.step_ns),
        what="modules",
        moved=[
            f"{row['module'] or '(root)'}: {row['before']} -> {row['after']}"
            for row in document["moved"]
        ],
        sides=_sides(document["before"], document["after"]),
        others=[*others, *(f"the models differ: {x}" for x in document["model_changes"][:top])],
    )


def _document(before: ModelPlan, after: ModelPlan) -> dict[str, Any]:
    changes = importlib.import_module("baechi.torch.fingerprints").changes
    moved = [
        {"module": path, "before": before.device_of(path), "after": after.device_of(path)}
        for path in _paths(before, after)
        if before.device_of(path) != after.device_of(path)
    ]
    ops = [
        {"op": key, "before": before.ops.get(key), "after": after.ops.get(key)}
        for key in sorted({*before.ops, *after.ops})
        if before.ops.get(key) != after.ops.get(key)
    ]
    return {
        "equal": before == after,
        "before": _side(before),
        "after": _side(after),
        "num_moved": len(moved),
        "moved": moved,
        "ops_moved": ops,
        "inputs_differ": before.inputs != after.inputs,
        "model_changes": list(changes(before.model, after.model)),
        "devices": paired_devices(before.devices, after.devices),
    }


def _paths(before: ModelPlan, after: ModelPlan) -> list[str]:
    """Modules that hold weights in both models, and those that a plan names."""
    owners = {name.rpartition(".")[0] for name in before.model if name in after.model}
    return sorted({*owners, *before.placement, *after.placement})


def _side(plan: ModelPlan) -> dict[str, Any]:
    return {
        **{name: getattr(plan, name) for name in _SIDE},
        "edited": plan.is_edited,
        "fits": None if plan.is_edited else plan.is_within_limits,
        "step_ns": plan.step_ns,
        "copies": plan.copies,
        "copied_bytes": plan.copied_bytes,
    }


def _sides(before: dict[str, Any], after: dict[str, Any]) -> str:
    parts = [
        f"{name} {before[name] or 'none'} -> {after[name] or 'none'}"
        for name in _SIDE
        if before[name] != after[name]
    ]
    if before["copies"] != after["copies"] or before["copied_bytes"] != after["copied_bytes"]:
        parts.append(
            f"{before['copies']} copies of {format_bytes(before['copied_bytes'])} -> "
            f"{after['copies']} of {format_bytes(after['copied_bytes'])}"
        )
    return ", ".join(parts) or f"both {before['mode']} with {before['copies']} copies"
