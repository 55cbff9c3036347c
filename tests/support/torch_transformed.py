"""A model without statistics, for torch.func, and what is asked of it there."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, jvp

WIDTH = 4


class Branches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.first(x) + x)
        return torch.tanh(self.second(y)) + y


def weights_of(model: nn.Module) -> dict[str, Tensor]:
    return {name: weight.detach() for name, weight in model.named_parameters()}


def loss_of(model: nn.Module, weights: dict[str, Tensor], x: Tensor) -> Tensor:
    return functional_call(model, weights, (x,)).square().mean()


def tangents(model: nn.Module, x: Tensor) -> tuple[Any, ...]:
    """The loss and its derivative in the direction of ones."""
    weights = weights_of(model)
    ones = {name: torch.ones_like(weight) for name, weight in weights.items()}
    return jvp(lambda one: loss_of(model, one, x), (weights,), (ones,))
