"""Small modules with one awkward property each."""

import dataclasses

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint


class Straight(torch.autograd.Function):
    """Rounds, and passes gradients as if it had not."""

    @staticmethod
    def forward(ctx: object, x: Tensor) -> Tensor:
        return x.round()

    @staticmethod
    def backward(ctx: object, gradient: Tensor) -> Tensor:
        return gradient


class WithCustomFunction(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return Straight.apply(self.linear(x)).sum()


class WithTensorHook(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.linear(x)
        hidden.register_hook(lambda gradient: 2 * gradient)
        return hidden.sum()


class Checkpointed(nn.Module):
    """Blocks of a chain, each recomputed in backward."""

    def __init__(self, *, use_reentrant: bool = False, width: int = 4) -> None:
        super().__init__()
        self.use_reentrant = use_reentrant
        self.first = nn.Linear(width, width)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
            for _ in range(3)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for block in self.blocks:
            x = x + checkpoint(block, x, use_reentrant=self.use_reentrant)
        return x.square().mean()


class Branching(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.small, self.large = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return (self.small if x.sum().item() < 0 else self.large)(x).sum()


@dataclasses.dataclass
class Scores:
    loss: Tensor
    parts: list[Tensor]
    note: str = "kept"


class Awkward(nn.Module):
    """Ties, a shared module, parameters beside children, attributes, buffers, keyword inputs."""

    mean: Tensor
    steps: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.tied = nn.Linear(4, 4, bias=False)
        self.tied.weight = self.first.weight
        self.again = self.first
        self.scale = nn.Parameter(torch.full((4,), 0.5))
        self.frozen = nn.Linear(4, 4)
        self.frozen.requires_grad_(False)
        self.plain = torch.tensor([1.0, 2.0, 3.0, 4.0])
        self.register_buffer("mean", torch.zeros(4), persistent=False)
        self.register_buffer("steps", torch.zeros((), dtype=torch.long))
        self.dropout = nn.Dropout(0.5)

    def forward(self, x: Tensor, *, more: dict[str, list[Tensor]], times: int = 2) -> Scores:
        with torch.no_grad():
            self.mean.mul_(0.9).add_(0.1 * x.mean(0))
            self.steps += 1
        y = self.first(x) + self.tied(x) + self.again(x) * self.scale
        y = self.dropout(self.frozen(y)) * self.plain.to(x) + torch.tensor(0.5)
        rows = torch.zeros(len(x), 4)  # no device is named
        y = y + rows + more["extra"][0] * times - self.mean
        return Scores(y.square().mean(), [y, x], note=f"{times} times")


def awkward_call() -> tuple[tuple[Tensor, ...], dict[str, object]]:
    return (torch.randn(3, 4),), {"more": {"extra": [torch.randn(3, 4)]}, "times": 3}
