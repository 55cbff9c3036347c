"""Running a model module by module: weights at home, hooks on the modules, nothing else changed."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import torch
from torch import nn
from torch.optim import Optimizer

from baechi.torch.module_homes import module_devices
from baechi.torch.module_hooks import add_hooks, remove_hooks
from baechi.torch.parameters import MovedWeights, move_back, move_weights, weight_devices
from baechi.torch.runtime import ModuleRuntime

__all__ = ["AppliedModules", "apply_modules", "remove_modules"]


@dataclasses.dataclass(frozen=True)
class AppliedModules:
    """What `remove_modules` needs; ``runtime`` is None for one device, which needs no hooks."""

    runtime: ModuleRuntime | None
    moved: MovedWeights


def apply_modules(
    model: nn.Module,
    device_of_module: Mapping[str, torch.device],
    *,
    optimizers: Sequence[Optimizer] = (),
    outputs: str = "where-computed",
) -> AppliedModules:
    """Moves the weights to the devices of their modules and lets the model run there.

    Args:
        model: it stays the same object, and so do its parameters and buffers.
        device_of_module: devices by module path, "" for all that have no longer prefix. A module
            that is at several paths has the device of the first; so have tied weights.
        optimizers: those whose state moves along.
        outputs: "where-computed", or "inputs" for the device of the first input tensor.
    """
    homes = module_devices(model, device_of_module)
    moved = move_weights(model, weight_devices(model, homes), optimizers=optimizers)
    runtime = add_hooks(model, device_of_module, outputs=outputs)
    return AppliedModules(runtime if len(runtime.devices) > 1 else None, moved)


def remove_modules(
    model: nn.Module, applied: AppliedModules, *, optimizers: Sequence[Optimizer] = ()
) -> None:
    """Takes the hooks off and moves the weights, as they are now, back to where they were."""
    remove_hooks(model)
    move_back(model, applied.moved, optimizers=optimizers)
