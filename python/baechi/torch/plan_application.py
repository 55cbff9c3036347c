"""Applying a model plan: device names become devices, module paths become homes."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from baechi.errors import InputError, PlacementError
from baechi.torch.applying import apply_placement
from baechi.torch.compiling import CompileArgument
from baechi.torch.device_argument import DeviceName, device_name
from baechi.torch.loading import load_weights
from baechi.torch.model_plan import ModelPlan
from baechi.torch.model_plan_text import excess_by_modules
from baechi.torch.module_homes import module_devices
from baechi.torch.parameters import named_weights, weight_devices
from baechi.torch.placement_rule import ModulePlacement
from baechi.torch.program import Program
from baechi.torch.simdev import is_dry, is_simulated, name_of, resolve
from baechi.torch.simdev_tensor import sim_index

__all__ = ["apply_plan", "as_optimizers", "load_planned_weights", "placement_of"]

_LOGGER = logging.getLogger("baechi")

Devices = Mapping[str, DeviceName]


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
    given = as_optimizers(optimizer)
    _refuse_joining(given, placement)
    _refuse_unloaded(model, placement)
    excess = excess_by_modules(plan)
    if excess and level == "module":
        _LOGGER.warning("applied for module level: %s", excess)
    return apply_placement(
        model,
        placement,
        optimizers=given,
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
    if not isinstance(devices or {}, Mapping):
        raise InputError(
            f"devices is a {type(devices).__name__}, not a mapping of the plan's names to others",
            hint=f'write devices={{"{names[0]}": "cuda:1"}}',
        )
    unknown = sorted(set(devices or {}).difference(names))
    if unknown:
        raise InputError(
            f'the plan has no device "{unknown[0]}"', hint=f"its devices: {', '.join(names)}"
        )
    targets = {name: _target(name, (devices or {}).get(name, name)) for name in names}
    if len(set(targets.values())) < len(targets):
        raise InputError("two devices of the plan would be one", hint="give each its own")
    modules = {path: targets[name] for path, name in plan.placement.items()}
    modules.setdefault("", targets[names[0]])
    return ModulePlacement(modules, {key: targets[name] for key, name in plan.ops.items()})


def _target(planned: str, device: DeviceName) -> torch.device:
    name = device_name(device)
    try:
        return resolve(name)
    except RuntimeError as error:  # torch here knows no such type
        reason = str(error).split("\n")[0]
        raise InputError(
            f'"{name}" is no device here: {reason}',
            hint=f'give another name for it: devices={{"{planned}": "cuda:0"}}',
        ) from error


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
    """None, one or several as a sequence.

    Raises:
        InputError: something else.
    """
    given: tuple[Any, ...] = () if optimizer is None else (optimizer,)
    if isinstance(optimizer, Iterable) and not isinstance(optimizer, str):
        given = tuple(optimizer)
    for one in given:
        if not isinstance(one, Optimizer):
            raise InputError(
                f"optimizer is a {type(one).__name__}",
                hint="pass a torch.optim.Optimizer that has been used already, or several",
            )
    return given


def _refuse_unloaded(model: nn.Module, placement: ModulePlacement) -> None:
    """Raises InputError for weights without values, but where they are simulated without values."""
    names = [name for name, w in named_weights(model) if w.is_meta and not is_simulated(w)]
    devices = {*placement.modules.values(), *placement.ops.values()}
    if names and not all(is_dry(torch.empty(0, device=device)) for device in devices):
        raise InputError(
            f'"{names[0]}" is on meta, without values ({len(names)} weights are)',
            hint='load them first: plan.load_weights(model, "model.safetensors")',
        )


def _refuse_joining(optimizers: Sequence[Optimizer], placement: ModulePlacement) -> None:
    """Raises InputError for optimizers that join parameters of several devices in one tensor."""
    count = len({*placement.modules.values()})
    if count > 1 and any(isinstance(optimizer, torch.optim.LBFGS) for optimizer in optimizers):
        raise InputError(
            f"LBFGS joins all parameters in one tensor, and the plan has them on {count} devices",
            hint="train with another optimizer, or place the model on one device",
        )
