"""What applying costs: per placed module, per torch function, per call of a placed graph."""

import pytest
import torch
from torch import Tensor, nn

import torch_models
from baechi.torch.applied_class import STATE
from baechi.torch.applying import apply_placement, status
from baechi.torch.module_hooks import add_hooks
from baechi.torch.placement_rule import ModulePlacement
from baechi.torch.simdev import resolve, simulated

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


@pytest.mark.parametrize("way", ["plain", "graph", "applied", "look-up"])
def bench_dispatch(timed, way):
    """A forward of the model as itself, of its placed graph, as applied, and no forward at all."""
    model, x = Deep(), torch.ones(4, 2)
    call, what = model, f"forward of 100 modules, {way}"
    if way != "plain":
        apply_placement(model, ModulePlacement({"": HOST, "other": META}))
        model(x)
        assert status(model).graph_calls == 1
        application = vars(model)[STATE]
        (((graph,),)) = application._graphs.values()
        if way == "graph":
            call = lambda x: graph.placed(model, (x,), {})  # noqa: E731 (it is timed)
        elif way == "look-up":
            what = "look-up and guards of a model of 100 modules"
            call = lambda x: application._graph(model, (x,), {})  # noqa: E731
    timed(what, 100, lambda: call(x), rounds=200)


class Wide(nn.Module):
    """Six layers of attention and two wide products: a step of about 150 ms on one core."""

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
    model, x = Wide(), torch.randn(4, 116, 256)
    if way != "plain":
        apply_placement(model, ModulePlacement({"": HOST, "other": META}), level=way)

    def step():
        model.zero_grad()
        model(x).sum().backward()

    step()
    timed(f"training step of 6 wide layers, {way}", 1, step, rounds=15)


def bert(scaled):
    """BERT-base, or where nothing is timed a small one, with weights that nobody has filled."""
    if scaled(1_000) < 1_000:
        return torch_models.BY_NAME["bert"].build()
    sample = torch_models.bert_base()
    sample.model.to_empty(device="cpu")
    return sample


def bench_apply(timed, scaled):
    """Weights to their devices, hooks, and another forward."""
    model = bert(scaled).model
    with simulated(2):
        first, second = resolve("simdev:0"), resolve("simdev:1")
        placement = ModulePlacement({"": first, "bert.encoder": second})
        applied = timed(
            "applying a placement on two simulated devices to BERT-base",
            1,
            lambda: apply_placement(model, placement),
            rounds=1,
        )
        assert {weight.device for weight in applied.parameters()} == {first, second}


def bench_new_form(timed, scaled):
    """What a call of a form that has no graph yet takes longer, once."""
    sample = bert(scaled)
    model = apply_placement(sample.model, ModulePlacement({"": HOST, "cls": META}), level="op")
    application = vars(model)[STATE]
    graph = timed(
        "a graph of BERT-base for inputs of a new form",
        1,
        lambda: application._graph(model, sample.args, sample.kwargs),
        rounds=1,
    )
    assert graph is not None
