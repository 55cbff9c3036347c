"""The device of each module of a model, from a map of paths to devices, and which need none."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn

from baechi.errors import InputError

__all__ = ["device_at", "may_act", "module_devices", "passes_on"]


def module_devices(
    model: nn.Module, device_of_module: Mapping[str, torch.device]
) -> dict[nn.Module, torch.device]:
    """The device of every module, by its first path."""
    return {module: device_at(path, device_of_module) for path, module in model.named_modules()}


def device_at(path: str, device_of_module: Mapping[str, torch.device]) -> torch.device:
    """The device of a module: that of the longest dotted prefix of its path; "" is the default."""
    prefix = path
    while prefix not in device_of_module:
        if not prefix:
            raise InputError(
                f'module "{path}" has no device', hint='give "" a device, as the default'
            )
        prefix = prefix.rpartition(".")[0]
    return device_of_module[prefix]


# Where these do nothing they are nowhere: a graph has no op for them either.
_PASSING = (nn.Identity, nn.modules.dropout._DropoutNd)


def passes_on(module: nn.Module) -> bool:
    """Whether a module returns its input as it is."""
    return isinstance(module, _PASSING) and not (module.training and may_act(module))


def may_act(module: nn.Module) -> bool:
    """Whether a module does anything in training mode."""
    return not isinstance(module, _PASSING) or getattr(module, "p", 0) != 0
