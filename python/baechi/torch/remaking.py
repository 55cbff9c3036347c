"""Remaking: the optimizer of a copy of a model, like the one that was planned."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch.optim import Optimizer

from baechi.torch.optimizers import make_optimizer, read_optimizer, set_implementation

__all__ = ["OptimizerArgument", "remake"]

OptimizerArgument = Optimizer | Callable[[list[torch.Tensor]], Optimizer] | None


def remake(
    planned: str,
    optimizer: OptimizerArgument,
    model: torch.nn.Module,
    stand_in: torch.nn.Module,
    *,
    dry: bool,
) -> Optimizer:
    """An optimizer of a stand-in's parameters.

    Args:
        planned: the plan's text, such as "adamw (foreach)".
        optimizer: the model's own, a function that makes one, or None for the plan's.
        model: the planned model.
        stand_in: its copy.
        dry: whether tensors have no numbers.
    """
    name, _, implementation = planned.partition(" (")
    foreach = implementation == "foreach)"
    parameters: list[torch.Tensor] = [p for p in stand_in.parameters() if p.requires_grad]
    if isinstance(optimizer, Optimizer):
        made = _like(optimizer, model, stand_in)
    elif optimizer is not None:
        made = optimizer(parameters)
    else:
        made = make_optimizer(name, parameters, foreach)
    set_implementation(made, foreach)
    if dry and isinstance(made, torch.optim.Adafactor):
        return _AdafactorBytes([p for group in made.param_groups for p in group["params"]], foreach)
    return made


def _like(optimizer: Optimizer, model: torch.nn.Module, stand_in: torch.nn.Module) -> Optimizer:
    """The same parameters by name, in the same groups with the same options."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    copies = dict(stand_in.named_parameters())
    groups = [
        {**group, "params": [copies[names[id(p)]] for p in group["params"] if id(p) in names]}
        for group in optimizer.param_groups
    ]
    accepted = inspect.signature(type(optimizer)).parameters
    defaults = {key: value for key, value in optimizer.defaults.items() if key in accepted}
    make: Any = type(optimizer)
    made: Optimizer = make([group for group in groups if group["params"]], **defaults)
    return made


class _AdafactorBytes(Optimizer):
    """Allocates what Adafactor does: its own step reads numbers, which a dry rehearsal has not."""

    def __init__(self, parameters: list[torch.Tensor], foreach: bool) -> None:
        super().__init__(parameters, {})
        self.formula = read_optimizer("adafactor", torch.nn.Module(), foreach)

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """Makes the state in the first step, and the scratch of one step in each."""
        devices: dict[torch.device, int] = {}
        rows = []
        for parameter in self.param_groups[0]["params"]:
            if parameter.grad is None:
                continue
            at = devices.setdefault(parameter.device, len(devices))
            rows.append((at, parameter.nbytes, parameter.shape))
            if not self.state[parameter]:
                nbytes = self.formula.state_bytes(parameter.nbytes, parameter.shape)
                self.state[parameter]["bytes"] = _block(nbytes, parameter.device)
        scratch = self.formula.scratch_bytes(rows, len(devices))
        for device, nbytes in zip(devices, scratch, strict=True):
            _block(nbytes, device)


def _block(nbytes: int, device: torch.device) -> torch.Tensor:
    return torch.empty(nbytes, dtype=torch.uint8, device=device)
