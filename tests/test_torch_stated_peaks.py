"""Stated peaks: what plans say of models whose memory no trace of one call explains."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

import baechi
from baechi.torch import ModelPlan
from baechi.torch.predictions import PlannedDevice
from torch_small_models import rows

WIDTH = 64
PINS = {"first": "cuda:0", "second": "cuda:1", "third": "cuda:2"}


class Layers(nn.Module):
    """Three layers, one on each device; `between` is what a model does after each."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.third = nn.Linear(WIDTH, WIDTH)

    def between(self, x: Tensor) -> Tensor:
        return torch.tanh(x)

    def forward(self, x: Tensor) -> Tensor:
        for layer in (self.first, self.second, self.third):
            x = self.between(layer(x))
        return x


class Hides(torch.autograd.Function):
    """Keeps what it needs for backward where autograd does not look."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.kept, ctx.more = x.exp(), x.clone()
        return ctx.kept + 1

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient * ctx.kept


class WithHidden(Layers):
    def between(self, x: Tensor) -> Tensor:
        return Hides.apply(x)


class KeepsStates(Layers):
    def forward(self, x: Tensor) -> Tensor:
        self.states: list[Tensor] = []
        return super().forward(x)

    def between(self, x: Tensor) -> Tensor:
        self.states.append(torch.tanh(x))
        return self.states[-1]


class Differentiates(Layers):
    def forward(self, x: Tensor) -> Tensor:
        x = x.detach().requires_grad_()
        with torch.enable_grad():
            energy = super().forward(x).square().sum()
            (force,) = torch.autograd.grad(energy, x, create_graph=self.training)
        return force


class Maps(Layers):
    def between(self, x: Tensor) -> Tensor:
        return torch.vmap(lambda row: torch.softmax(row, 0) * row.exp())(x)


class Adapts(Layers):
    """A step of descent inside forward."""

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        weights = dict(self.second.named_parameters())
        slopes = torch.func.grad(lambda w: self.adapted(w, x).square().mean())(weights)
        adapted = {name: weight - 0.1 * slopes[name] for name, weight in weights.items()}
        return self.third(self.adapted(adapted, x))

    def adapted(self, weights: dict[str, Tensor], x: Tensor) -> Tensor:
        return functional_call(self.second, weights, (x,))


def planned(
    model: nn.Module, x: Tensor, mode: str, pin: dict[str, str] = PINS, **options: Any
) -> ModelPlan:
    if mode == "training":
        options |= {"optimizer": "adam", "loss": lambda out: out.square().mean()}
    return baechi.plan(model, (x,), devices="3x4MiB", mode=mode, pin=pin, **options)


def measured(model: nn.Module, plan: ModelPlan, x: Tensor) -> tuple[int, ...]:
    loss = (lambda out: out.square().mean()) if plan.mode == "training" else None
    return baechi.rehearse(model, plan, (x,), steps=2, loss=loss).peak_bytes


@pytest.mark.parametrize(
    ("kind", "mode"),
    [
        (WithHidden, "training"),
        (KeepsStates, "training"),
        (Differentiates, "training"),
        (Differentiates, "inference"),
        (Maps, "training"),
        (Adapts, "training"),
    ],
)
def test_a_plan_states_what_a_rehearsal_with_numbers_takes(kind: type[Layers], mode: str) -> None:
    model, x = kind(), rows(WIDTH, 512)
    plan = planned(model, x, mode)
    assert plan.confirmed == measured(model, plan, x)
    for device, peak in zip(plan.devices, plan.confirmed, strict=True):
        assert device.peak_bytes == pytest.approx(peak, rel=0.02)
        assert sum(device.by_class.values()) == device.peak_bytes


def test_what_was_predicted_is_noted_where_a_plan_states_more() -> None:
    model, x = WithHidden(), rows(WIDTH, 512)
    predicted = planned(model, x, "training", confirm=False)
    stated = planned(model, x, "training")
    assert stated.devices[1].by_class["other"] > 0
    assert stated.peak_bytes["cuda:1"] > 1.2 * predicted.peak_bytes["cuda:1"]
    assert any("were predicted, the dry rehearsal took" in note for note in stated.notes)


def test_a_prediction_that_is_too_high_alone_does_not_keep_a_model_from_its_devices() -> None:
    given = {"peak_at": "", "busy_ns": 0, "num_ops": 1}
    held = {"weight": 40, "activation": 50, "copy": 11}
    device = PlannedDevice(name="a", cap_bytes=100, peak_bytes=101, by_class=held, **given)
    stated = device.stating(100)
    assert (stated.peak_bytes, dict(stated.by_class)) == (100, {**held, "activation": 49})
    assert device.stating(102) is device
    assert device.stating(45).by_class == {"weight": 40, "activation": 0, "copy": 5}


class WritesSlices(Layers):
    def forward(self, x: Tensor) -> Tensor:
        out = torch.zeros(len(x), 3, WIDTH, device=x.device)
        for at, layer in enumerate((self.first, self.second, self.third)):
            x = torch.tanh(layer(x))
            out[:, at] = x
        return out


@pytest.mark.parametrize("mode", ["training", "inference"])
def test_a_tensor_that_is_written_in_slices_is_predicted_on_one_device(mode: str) -> None:
    model, x = WritesSlices(), rows(WIDTH, 512)
    plan = planned(model, x, mode, confirm=False)
    assert plan.level == "op"
    predicted = tuple(plan.peak_bytes.values())
    if mode == "inference":
        assert predicted == measured(model, plan, x)
    else:
        assert predicted == pytest.approx(measured(model, plan, x), rel=0.02)


def test_how_attention_is_chosen_is_not_counted_as_memory_of_a_model_by_modules() -> None:
    layer = nn.TransformerEncoderLayer(WIDTH, 4, WIDTH, batch_first=True, dropout=0.0)
    x = torch.randn(8, 32, WIDTH)
    pins = {"self_attn": "cuda:0", "linear1": "cuda:1", "linear2": "cuda:1"}
    plan = planned(layer.eval(), x, "inference", pins, level="module", confirm=False)
    peak = measured(layer, plan, x)[0]
    assert plan.peak_bytes["cuda:0"] == pytest.approx(peak, rel=0.02)
