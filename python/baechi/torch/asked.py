"""Asked: what a plan was asked for and only the process that planned knows."""

from __future__ import annotations

import dataclasses
import weakref
from typing import Any

import torch

from baechi.torch.losses import LossArgument

__all__ = ["Asked"]


@dataclasses.dataclass(frozen=True)
class Asked:
    """The model, the loss and the optimizer of a plan; objects of torch are not kept alive."""

    model_ref: weakref.ref[torch.nn.Module]
    loss: LossArgument
    given_optimizer: Any

    @classmethod
    def of(cls, model: torch.nn.Module, loss: LossArgument, optimizer: Any) -> Asked:
        """Notes the arguments of a plan; an optimizer by its name needs no note."""
        if isinstance(optimizer, torch.optim.Optimizer):
            optimizer = weakref.ref(optimizer)
        elif isinstance(optimizer, str):
            optimizer = None
        return cls(weakref.ref(model), loss, optimizer)

    @property
    def model(self) -> torch.nn.Module | None:
        """The model, None if it is gone."""
        return self.model_ref()

    @property
    def optimizer(self) -> Any:
        """The optimizer or the function that makes it; None if the plan's text says it all."""
        given = self.given_optimizer
        return given() if isinstance(given, weakref.ref) else given
