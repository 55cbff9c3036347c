"""What applying costs: per placed module, per torch function, per call of a placed graph."""

import pytest
import torch
from torch import Tensor, nn

from baechi.torch.applied_class import STATE
from baechi.torch.applying import apply_placement, status
from baechi.torch.module_hooks import add_hooks
from baechi.torch.placement_rule import ModulePlacement

NUM = 200
HOST, META = torch.device("cpu"), torch.device("meta")


class Passes(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x


class Chain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleList(Passes() for _ in range(NUM))
        self.other = Passes()

    def forward(self, x: Tensor) -> Tensor:
        for part in self.parts:
            x = part(x)
        return x


class Calls(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = Passes(), Passes()

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(NUM):
            x.neg()
        return x


def placed(model: nn.Module, is_placed: bool) -> nn.Module:
    if is_placed:  # nothing runs on the second device, which need not exist
        add_hooks(model, {"": HOST, "other": META})
    return model


@pytest.mark.parametrize("is_placed", [False, True], ids=["plain", "placed"])
def bench_modules(timed, is_placed):
    """Modules on one device inside a model on two."""
    model, x = placed(Chain(), is_placed), torch.ones(4)
    what = "empty modules, " + ("placed" if is_placed else "plain")
    timed(what, NUM, lambda: model(x), rounds=200)


@pytest.mark.parametrize("is_placed", [False, True], ids=["plain", "placed"])
def bench_functions(timed, is_placed):
    """Calls of a torch function inside a model on two devices."""
    model, x = placed(Calls(), is_placed), torch.ones(4)
    what = "torch functions, " + ("between placed modules" if is_placed else "plain")
    timed(what, NUM, lambda: model(x), rounds=200)


class Deep(nn.Module):
    """100 modules with 200 weights, so small that only their number matters."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(nn.Linear(2, 2) for _ in range(100)))
        self.other = Passes()

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        return self.layers(x)


@pytest.mark.parametrize("way", ["plain", "graph", "applied"])
def bench_dispatch(timed, way):
    """A forward of the model as itself, of its placed graph, and with the look-up and guards."""
    model, x = Deep(), torch.ones(4, 2)
    call = model
    if way != "plain":
        apply_placement(model, ModulePlacement({"": HOST, "other": META}))
        model(x)
        assert status(model).graph_calls == 1
        (((graph,),)) = vars(model)[STATE]._graphs.values()
        call = model if way == "applied" else lambda x: graph.placed(model, (x,), {})
    timed(f"forward of 100 modules, {way}", 100, lambda: call(x), rounds=200)


class Wide(nn.Module):
    """Six layers of attention and two wide products: a step of about 130 ms on one core."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(256, 4, 1024, dropout=0.0, batch_first=True)
            for _ in range(6)
        )
        self.other = Passes()

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = x + layer(x)
        return x


@pytest.mark.parametrize("way", ["plain", "op", "module"])
def bench_step(timed, way):
    """Forward and backward of a model whose ops are large enough to count."""
    model, x = Wide(), torch.randn(4, 96, 256)
    if way != "plain":
        apply_placement(model, ModulePlacement({"": HOST, "other": META}), level=way)

    def step():
        model.zero_grad()
        model(x).sum().backward()

    step()
    timed(f"training step of 6 wide layers, {way}", 1, step, rounds=15)
