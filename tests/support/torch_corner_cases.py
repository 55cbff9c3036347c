"""Tables of small models: awkward ones that have a faithful graph, and ones that have none."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.compiler import is_compiling
from torch.nn import functional as F
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import checkpoint

import torch_corners as corners


class Running(nn.Module):
    """A forward given as a function, on submodules given by name."""

    def __init__(self, function: Callable[..., Any], **modules: nn.Module) -> None:
        super().__init__()
        self.function = function
        for name, module in modules.items():
            setattr(self, name, module)

    def forward(self, *args: Any) -> Any:
        return self.function(self, *args)


def linear() -> nn.Linear:
    return nn.Linear(8, 8)


def rows() -> tuple[Tensor, ...]:
    return (torch.randn(6, 8),)


def tokens() -> tuple[Tensor, ...]:
    return (torch.randint(0, 20, (4, 3)),)


def changing_views(self: Any, x: Tensor) -> Tensor:
    y = self.l(x)
    y[0] = 0
    y[:, 1] += 1
    y.view(-1)[3:5].mul_(2)
    first, second = y.chunk(2, 1)
    kept = torch.where(y > 0, y, torch.tensor(0.1)).sum()
    return kept + first.sum() - second.sum() + torch.arange(8).float().dot(y[0])


def drawing(self: Any, x: Tensor) -> Tensor:
    chosen = x.sigmoid().bernoulli() * torch.randint(0, 3, (8,))
    return self.l(x) + torch.rand(8) + torch.randn_like(x) + chosen


def dropping(self: Any, x: Tensor) -> Tensor:
    y = F.dropout(self.l(x), 0.5, True, inplace=True)
    return y + F.dropout2d(x[None, None], 0.5, True)[0, 0] + F.alpha_dropout(x, 0.3, True)


def recomputed_twice(self: Any, x: Tensor) -> Tensor:
    inner = checkpoint(self.block, x, use_reentrant=False)
    return checkpoint(self.block, inner, use_reentrant=False)


def in_half_precision(self: Any, x: Tensor) -> Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        y = self.first(self.second(self.first(x)).relu())
    return y.float() + self.first(x)


def second_order(self: Any, x: Tensor) -> Tensor:
    loss = self.l(x).square().sum()
    (gradient,) = torch.autograd.grad(loss, self.l.weight, create_graph=True)
    return loss + gradient.square().sum()


class Adapted(nn.Module):
    """Weights of integers, a frozen base, and an adapter of low rank."""

    def __init__(self) -> None:
        super().__init__()
        whole = torch.randint(-5, 5, (8, 8), dtype=torch.int8)
        self.whole = nn.Parameter(whole, requires_grad=False)
        self.scale = nn.Parameter(torch.ones(8))
        self.base = linear().requires_grad_(False)
        self.down, self.up = nn.Linear(8, 2, bias=False), nn.Linear(2, 8, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        quantized = F.linear(x, self.whole.to(x.dtype) * self.scale[:, None])
        return quantized + self.base(x) + self.up(self.down(x))


class HoldingTensors(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.l = linear()
        self.masks = [torch.ones(8), torch.zeros(8)]
        self.named = {"a": torch.full((8,), 2.0)}

    def forward(self, x: Tensor) -> Tensor:
        return self.l(x) * self.masks[0] + self.masks[1] + self.named["a"]


class HoldingParameters(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.listed = nn.ParameterList([torch.randn(8, 8)])
        self.named = nn.ParameterDict({"a": torch.randn(8)})

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.listed[0] + self.named["a"]


Case = tuple[str, Callable[[], nn.Module], Callable[[], tuple[Tensor, ...]]]


def asking(model: Any, x: Tensor) -> Tensor:
    """Computes otherwise where it is compiled or exported, as models of transformers do."""
    y: Tensor = model.l(x)
    y = y.tanh() if torch.compiler.is_compiling() else y.sigmoid()
    return y.exp() if torch.compiler.is_exporting() else y.square()


FAITHFUL: tuple[Case, ...] = (
    ("asking for a compiler", lambda: Running(asking, l=linear()), lambda: (torch.randn(2, 8),)),
    (
        "attention",
        lambda: Running(
            lambda self, x: self.a(x, x, x)[0], a=nn.MultiheadAttention(8, 2, batch_first=True)
        ),
        lambda: (torch.randn(2, 3, 8),),
    ),
    (
        "attention with dropout",
        lambda: Running(
            lambda self, x: F.scaled_dot_product_attention(self.l(x), x, x, dropout_p=0.3),
            l=linear(),
        ),
        lambda: (torch.randn(1, 1, 6, 8),),
    ),
    (
        "lstm",
        lambda: Running(lambda self, x: self.lstm(x)[0], lstm=nn.LSTM(8, 8, 2, bidirectional=True)),
        lambda: (torch.randn(4, 3, 8),),
    ),
    ("gru", lambda: Running(lambda self, x: self.gru(x)[0], gru=nn.GRU(8, 8)), rows),
    ("checkpoint", lambda: corners.Checkpointed(width=8), rows),
    (
        "checkpointed dropout",
        lambda: Running(recomputed_twice, block=nn.Sequential(linear(), nn.Dropout(0.5))),
        rows,
    ),
    ("parameters in containers", HoldingParameters, rows),
    ("tensors in containers", HoldingTensors, rows),
    ("weight norm", lambda: parametrizations.weight_norm(linear()), rows),
    ("spectral norm", lambda: nn.Sequential(parametrizations.spectral_norm(linear())), rows),
    ("adapters", Adapted, rows),
    ("views in place", lambda: Running(changing_views, l=linear()), rows),
    ("random numbers", lambda: Running(drawing, l=linear()), rows),
    ("dropouts", lambda: Running(dropping, l=linear()), rows),
    ("bag", lambda: nn.EmbeddingBag(20, 8), tokens),
    ("renormalized embedding", lambda: nn.Embedding(20, 8, max_norm=1.0), tokens),
    ("complex", lambda: Running(lambda m, x: torch.fft.rfft(m.l(x)).abs(), l=linear()), rows),
    (
        "straight through",
        lambda: Running(lambda m, x: m.l(x) + (m.l(x).round() - m.l(x)).detach(), l=linear()),
        rows,
    ),
    ("gradient of a gradient", lambda: Running(second_order, l=linear()), rows),
    ("own autocast", lambda: Running(in_half_precision, first=linear(), second=linear()), rows),
    ("identity", nn.Identity, rows),
)


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.l, self.calls = linear(), 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return self.l(x) * self.calls


class Averaging(nn.Module):
    mean: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.l = linear()
        self.register_buffer("mean", torch.zeros(8))

    def forward(self, x: Tensor) -> Tensor:
        y = self.l(x)
        self.mean = 0.9 * self.mean + 0.1 * y.mean(0)
        return y - self.mean


class HidingModules(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.l = [linear()], linear()

    def forward(self, x: Tensor) -> Tensor:
        return self.hidden[0](x) + self.l(x)


class ChangingAttribute(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.l, self.total = linear(), torch.zeros(8)

    def forward(self, x: Tensor) -> Tensor:
        self.total.add_(1)
        return self.l(x) + self.total


def inferring(self: Any, x: Tensor) -> Tensor:
    with torch.inference_mode():
        y = self.l(x)
    return self.m(y.clone())


OUTSIDE = torch.randn(8, 8, requires_grad=True)
FIXED = torch.ones(8)

UNFAITHFUL: tuple[tuple[Callable[[], nn.Module], str], ...] = (
    (corners.WithCustomFunction, r'"Straight" has a backward of its own.*detach'),
    (corners.WithTensorHook, r"register_hook.*on a parameter"),
    (lambda: corners.Checkpointed(use_reentrant=True, width=8), r"use_reentrant=False\) for"),
    (
        lambda: Running(
            lambda m, x: m.l(x).tanh() if is_compiling() else m.l(x).sigmoid(), l=linear()
        ),
        r"gradients of the model flow through SigmoidBackward0, those of the graph do not",
    ),
    (corners.Branching, r"decides by the values.*torch.where"),
    (Counting, r'changes the attribute "calls".*in a buffer'),
    (Averaging, r'changes the buffer "mean" in place by values that carry gradients.*detach'),
    (HidingModules, r'"hidden.0" is in a plain list.*nn.ModuleList'),
    (ChangingAttribute, r"changes a tensor that is a plain attribute.*buffer"),
    (lambda: Running(lambda m, x: m.l(x) @ OUTSIDE, l=linear()), r"no module owns.*register it"),
    (lambda: Running(lambda m, x: m.l(x) * FIXED, l=linear()), r"no module owns.*register it"),
    (
        lambda: Running(inferring, l=linear(), m=linear()),
        r'graph reach "l.weight".*no_grad instead',
    ),
    (lambda: Running(lambda m, x: m.l(x) * m.l(x).sum().item(), l=linear()), r"by the values"),
    (lambda: Running(lambda m, x: m.l(x)[x[:, 0] > 0], l=linear()), r"shape of .* depends on val"),
    (
        lambda: Running(
            lambda m, x: checkpoint(
                m.l,
                x,
                use_reentrant=False,
                context_fn=lambda: (torch.enable_grad(), torch.enable_grad()),
            ),
            l=linear(),
        ),
        r"context_fn cannot be in a graph",
    ),
)
