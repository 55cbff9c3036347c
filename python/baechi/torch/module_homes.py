"""The device of each module of a model, from a map of paths to devices."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import torch
from torch import nn

from baechi.errors import InputError

__all__ = ["ModulePlaces", "device_at", "module_devices", "places_of_modules"]


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


@dataclasses.dataclass(frozen=True)
class ModulePlaces:
    """A module's path, its own device, and the devices of all that has weights or no children."""

    path: str
    own: torch.device
    inside: frozenset[torch.device]

    @property
    def only(self) -> torch.device | None:
        """Where the whole module runs, None where its parts are on several devices."""
        return next(iter(self.inside)) if len(self.inside) == 1 else None


def places_of_modules(
    model: nn.Module, device_of_module: Mapping[str, torch.device]
) -> dict[nn.Module, ModulePlaces]:
    """The places of every module, parts before the whole."""
    paths = {module: path for path, module in model.named_modules()}
    places: dict[nn.Module, ModulePlaces] = {}

    def visit(module: nn.Module) -> frozenset[torch.device]:
        if module not in places:
            inside = frozenset[torch.device]().union(*map(visit, module.children()))
            own = device_at(paths[module], device_of_module)
            if not inside or _has_weights(module):
                inside |= {own}
            places[module] = ModulePlaces(paths[module], own, inside)
        return places[module].inside

    visit(model)
    return places


def _has_weights(module: nn.Module) -> bool:
    weights = (*module._parameters.values(), *module._buffers.values())
    return any(weight is not None for weight in weights)
