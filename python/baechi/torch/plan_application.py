"""Applying a model plan: device names become devices, module paths become homes."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from baechi.errors import InputError, PlacementError
from baechi.torch.applying import apply_placement
from baechi.torch.compiling import CompileArgument
from baechi.torch.loading import load_weights
from baechi.torch.model_plan import ModelPlan
from baechi.torch.model_plan_text import excess_by_modules
from baechi.torch.module_homes import module_devices
from baechi.torch.parameters import weight_devices
from baechi.torch.placement_rule import ModulePlacement
from baechi.torch.program import Program
from baechi.torch.simdev import is_simulated, name_of, resolve
from baechi.torch.simdev_tensor import sim_index

__all__ = ["apply_plan", "as_optimizers", "load_planned_weights", "placement_of"]

_LOGGER = logging.getLogger("baechi")

Devices = Mapping[str, str | torch.device]


def apply_plan(
    plan: ModelPlan,
    model: nn.Module,
    optimizer: Optimizer | Sequence[Optimizer] | None = None,
    devices: Devices | None = None,
    level: str = "auto",
    outputs: str = "where-computed",
    compile: CompileArgument = False,
    *,
    programs: Sequence[Program] = (),
) -> nn.Module:
    """See `ModelPlan.apply`; `programs` were captured before."""
    plan.check(model)
    if plan.level == "module":
        if level == "op":
            raise PlacementError(
                "no graph may run this model: " + "; ".join(plan.reasons),
                hint='apply with level="auto" to run it module by module',
            )
        level = "module"
    placement = placement_of(plan, devices)
    _check_usable(placement)
    excess = excess_by_modules(plan)
    if excess and level == "module":
        _LOGGER.warning("applied for module level: %s", excess)
    return apply_placement(
        model,
        placement,
        optimizers=as_optimizers(optimizer),
        level=level,
        outputs=outputs,
        programs=programs,
        compile=compile,
        fallback_cost=excess,
        planned_graph=plan.mode == "inference" and plan.level == "op",
    )


def placement_of(plan: ModelPlan, devices: Devices | None = None) -> ModulePlacement:
    """Devices of modules and ops as the plan has them, under other names if given."""
    names = plan.cluster.names
    unknown = sorted(set(devices or {}).difference(names))
    if unknown:
        raise InputError(
            f'the plan has no device "{unknown[0]}"', hint=f"its devices: {', '.join(names)}"
        )
    targets = {name: resolve((devices or {}).get(name, name)) for name in names}
    if len(set(targets.values())) < len(targets):
        raise InputError("two devices of the plan would be one", hint="give each its own")
    modules = {path: targets[name] for path, name in plan.placement.items()}
    modules.setdefault("", targets[names[0]])
    return ModulePlacement(modules, {key: targets[name] for key, name in plan.ops.items()})


def _check_usable(placement: ModulePlacement) -> None:
    """Raises before weights are moved: outside a simulation they would lose their values."""
    for device in sorted({*placement.modules.values(), *placement.ops.values()}, key=str):
        _check_device(device)


def _check_device(device: torch.device) -> None:
    try:
        found = torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).strip().split("\n")[0]
        raise InputError(
            f'device "{name_of(device)}" cannot be used here: {reason}',
            hint='rename it: devices={"cuda:0": "simdev:0"} inside baechi.torch.simdev.simulated',
        ) from error
    if sim_index(device) is not None and not is_simulated(found):
        raise InputError(
            f'device "{name_of(device)}" is there only inside a simulation',
            hint="apply and train inside `with baechi.torch.simdev.simulated(...)`",
        )


def load_planned_weights(
    plan: ModelPlan,
    model: nn.Module,
    path: str | Path,
    *,
    devices: Devices | None = None,
    buffers: Mapping[str, Tensor] | None = None,
    strict: bool = True,
) -> None:
    """See `ModelPlan.load_weights`."""
    plan.check(model)
    placement = placement_of(plan, devices)
    _check_usable(placement)
    homes = module_devices(model, placement.modules)
    load_weights(model, weight_devices(model, homes), path, buffers=buffers, strict=strict)


def as_optimizers(optimizer: Optimizer | Sequence[Optimizer] | None) -> Sequence[Optimizer]:
    """None, one or several as a sequence."""
    if optimizer is None:
        return ()
    return (optimizer,) if isinstance(optimizer, Optimizer) else tuple(optimizer)
