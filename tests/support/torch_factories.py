"""Factories as users write them for `--torch`."""

from typing import Any

import torch
from torch import nn

torch.set_num_threads(1)


class Classifier(nn.Module):
    """Returns no loss, and may be built on meta."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU())
        self.head = nn.Linear(64, 4)

    def forward(self, x: torch.Tensor, *, scale: float = 1.0) -> torch.Tensor:
        return self.head(self.body(x)) * scale


class WithInputs(nn.Module):
    """Brings an input, as models of transformers do."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 4)

    @property
    def dummy_inputs(self) -> dict[str, torch.Tensor]:
        return {"x": torch.ones(2, 8)}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x).sum()


def squares(output: torch.Tensor) -> torch.Tensor:
    return output.square().mean()


def as_dict() -> dict[str, Any]:
    print("building")  # must not get between the lines of --json
    torch.manual_seed(0)
    return {"model": Classifier(), "args": (torch.randn(32, 16),), "loss": squares}


def on_meta() -> dict[str, Any]:
    with torch.device("meta"):
        return {**as_dict(), "model": Classifier(), "kwargs": {"scale": 2.0}}


def with_optimizer() -> dict[str, Any]:
    made = as_dict()
    return {**made, "optimizer": torch.optim.SGD(made["model"].parameters(), lr=0.1)}


def as_tuple() -> tuple[nn.Module, tuple[torch.Tensor]]:
    return Classifier(), (torch.randn(32, 16),)


def by_keyword() -> tuple[nn.Module, dict[str, torch.Tensor]]:
    return Classifier(), {"x": torch.randn(32, 16)}


def alone() -> nn.Module:
    return WithInputs()


def number() -> int:
    return 3


def one_tensor() -> tuple[nn.Module, torch.Tensor]:
    return Classifier(), torch.randn(32, 16)


def strange() -> dict[str, Any]:
    return {"model": Classifier(), "inputs": ()}


def failing() -> nn.Module:
    return nn.Linear(3, int("three"))


def leaving() -> nn.Module:
    raise SystemExit("no weights here")


class Ready:
    model = WithInputs()
