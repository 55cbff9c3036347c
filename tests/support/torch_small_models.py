"""Models of a few layers, one for each thing that a plan must know about; all make a scalar."""

import itertools
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

# Tiny ops: a second thread only costs time, most of all on a busy machine.
torch.set_num_threads(1)


def rows(width: int = 16, count: int = 8) -> Tensor:
    return torch.randn(count, width)


def stack(*widths: int) -> nn.Sequential:
    """Linear layers "0", "2", ... with tanh between them; its loss is `total`."""
    layers: list[nn.Module] = []
    for i, o in itertools.pairwise(widths):
        layers += [nn.Linear(i, o), nn.Tanh()]
    return nn.Sequential(*layers[:-1])


def total(output: Any) -> Tensor:
    found: Tensor = output.sum()
    return found


class Scaled(nn.Module):
    """Owns a parameter, a buffer that is not saved and a plain tensor, beside a child."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(16))
        self.inner = nn.Linear(16, 16)
        self.register_buffer("shift", torch.zeros(16), persistent=False)
        self.plain = torch.ones(16)

    def forward(self, x: Tensor) -> Tensor:
        return ((self.inner(x) * self.scale + self.shift) * self.plain).sum()


class Adapted(nn.Module):
    """A frozen layer with a low-rank adapter, behind a layer of integer weights."""

    def __init__(self) -> None:
        super().__init__()
        self.quantized = nn.Parameter(torch.ones(16, 16, dtype=torch.int8), requires_grad=False)
        self.base = nn.Linear(16, 16).requires_grad_(False)
        self.down = nn.Linear(16, 2, bias=False)
        self.up = nn.Linear(2, 16, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = x @ self.quantized.to(x.dtype)
        return (self.base(x) + self.up(self.down(x))).sum()


class Tied(nn.Module):
    """An embedding whose weight is also the head's."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(32, 16)
        self.middle = nn.Linear(16, 16)
        self.head = nn.Linear(16, 32, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.middle(self.embedding(tokens))).logsumexp(-1).mean()


class Reused(nn.Module):
    """One layer that is called three times, and is in two places."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(16, 16)
        self.again = self.first

    def forward(self, x: Tensor) -> Tensor:
        return self.again(self.first(self.first(x)).tanh()).sum()


class Containers(nn.Module):
    """Layers in a list and a dictionary, parameters in both."""

    def __init__(self) -> None:
        super().__init__()
        self.listed = nn.ModuleList(nn.Linear(16, 16) for _ in range(2))
        self.named = nn.ModuleDict({"a": nn.Linear(16, 16), "b": nn.Tanh()})
        self.gains = nn.ParameterList(nn.Parameter(torch.ones(16)) for _ in range(2))
        self.shifts = nn.ParameterDict({"s": nn.Parameter(torch.zeros(16))})

    def forward(self, x: Tensor) -> Tensor:
        for layer, gain in zip(self.listed, self.gains, strict=True):
            x = layer(x) * gain
        return (self.named["b"](self.named["a"](x)) + self.shifts["s"]).sum()


class ByKeyword(nn.Module):
    """Takes its inputs by keyword only, one of them in a dictionary."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(16, 16)

    def forward(self, *, batch: dict[str, Tensor], factor: float = 1.0) -> Tensor:
        return (self.layer(batch["x"]) * factor).sum()


@dataclass
class Output:
    logits: Tensor
    loss: Tensor


class Answers(nn.Module):
    """Returns a dataclass, a dictionary, a tuple or logits alone."""

    def __init__(self, form: str) -> None:
        super().__init__()
        self.form = form
        self.layer = nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Any:
        logits = self.layer(x)
        loss = logits.square().mean()
        forms = {
            "dataclass": Output(logits, loss),
            "dictionary": {"logits": logits, "loss": loss},
            "tuple": (loss, logits),
            "logits": {"logits": logits, "hidden": x},
        }
        return forms[self.form]


class Cached(nn.Module):
    """Writes into a cache that is passed in, and reads it."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(16, 16)

    def forward(self, x: Tensor, cache: dict[str, Tensor]) -> Tensor:
        cache["past"].copy_(self.layer(x).detach())
        return (self.layer(x) + cache["past"]).sum()


class NoWeights(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.exp().sum()
