"""A small model with a plan applied to it, and comparisons with its twin on the host."""

from typing import Any

import torch
from torch import Tensor, nn

from baechi.torch.applying import apply_placement
from baechi.torch.placement_rule import ModulePlacement
from baechi.torch.simdev import to_host
from torch_placing import on

WIDTH = 4


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.norm = nn.BatchNorm1d(WIDTH)
        self.factor = 2.0

    def forward(self, x: Tensor, *, shift: Tensor | None = None) -> Tensor:
        y = self.norm(self.first(x) * self.factor + x)
        return self.second(y) + y if shift is None else self.second(y) + shift


def applied(model: nn.Module, modules: dict[str, int] | None = None, **options: Any) -> nn.Module:
    places = modules or {"": 0, "second": 1, "norm": 2}
    placement = ModulePlacement({path: on(index) for path, index in places.items()})
    return apply_placement(model, placement, **options)


def batch(size: int = 3) -> Tensor:
    return torch.randn(size, WIDTH, generator=torch.Generator().manual_seed(size))


def same(model: nn.Module, twin: nn.Module, *args: Any, **kwargs: Any) -> bool:
    return torch.equal(to_host(model(*args, **kwargs)), twin(*args, **kwargs))
