"""Small models whose forwards do something beside, which a graph of them would not do."""

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from torch_corner_cases import Running, linear


class Noting:
    def __init__(self) -> None:
        self.calls, self.last = 0, None


class Held(Running):
    """A forward given as a function, with things to change."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__(function, l=linear())
        self.last: Any = None
        self.cache: dict[str, Any] = {}
        self.items: list[Any] = []
        self.note = Noting()
        self.rng, self.generator = random.Random(1), torch.Generator()


def changing(change: Callable[[Any, Tensor], object]) -> Callable[[], nn.Module]:
    """A model whose forward does something beside."""

    def forward(self: Any, x: Tensor) -> Tensor:
        y = self.l(x)
        change(self, y)
        return y + torch.rand(8)

    return lambda: Held(forward)


def forking(self: Any, y: Tensor) -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)


COUNTS = {"calls": 0}

_CHANGES: tuple[tuple[Callable[[Any, Tensor], object], str], ...] = (
    (lambda m, y: torch.manual_seed(1), r"random state of .*seed before the call"),
    (forking, r"random state of torch \(get_state\)"),
    (lambda m, y: torch.set_rng_state(torch.get_rng_state()), r"random state of torch"),
    (lambda m, y: random.random(), r"random numbers of Python"),
    (lambda m, y: np.random.rand(), r"random numbers of NumPy"),
    (lambda m, y: m.rng.random(), r'changes the attribute "rng"'),
    (lambda m, y: setattr(m, "last", y.detach()), r'changes the attribute "last"'),
    (lambda m, y: m.cache.update(k=1), r'changes the attribute "cache" and 1 more'),
    (lambda m, y: m.items.append(y), r'changes the attribute "items"'),
    (lambda m, y: setattr(m.note, "calls", m.note.calls + 1), r'the attribute "note.calls"'),
    (lambda m, y: setattr(m.l, "last", y), r'changes the attribute "l.last"'),
    (lambda m, y: COUNTS.update(calls=COUNTS["calls"] + 1), r'attribute ".*COUNTS.calls"'),
    (lambda m, y: m.register_buffer("new", y.detach()), r'which modules and weights .*"new"'),
    (lambda m, y: m.l.weight.requires_grad_(False), r'weights .*"l.weight.requires_grad"'),
)

CHANGING = tuple((changing(change), reason) for change, reason in _CHANGES)
