"""Calls that no graph may stand for run module by module, with the reason said."""

import logging
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import torch_public_models as public
from baechi.errors import PlacementError
from baechi.torch.applying import status
from baechi.torch.simdev import SimulatedDevices, simulated, to_host
from torch_applied import WIDTH, Net, applied, batch, same


@pytest.fixture
def devices() -> Iterator[SimulatedDevices]:
    with simulated(3) as simulation:
        yield simulation


def test_the_reason_for_a_fallback_is_logged_once(
    devices: SimulatedDevices, caplog: pytest.LogCaptureFixture
) -> None:
    class Branches(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

        def forward(self, x: Tensor) -> Tensor:
            y = self.a(x)
            return self.b(y) if y.sum().item() > 0 else -self.b(y)

    model = applied(Branches(), {"": 0, "b": 1})
    with caplog.at_level(logging.WARNING, logger="baechi"):
        for _ in range(3):
            model(batch()).sum().backward()
    assert len(caplog.records) == 1
    assert "values of tensors" in caplog.text
    (count,) = status(model).reasons.values()
    assert count == status(model).module_calls == 3


def test_level_op_raises_where_no_graph_may_run(devices: SimulatedDevices) -> None:
    model = applied(Net(), level="op")
    model.second.register_forward_hook(lambda *_: None)
    with pytest.raises(PlacementError, match=r'no graph runs this call.*\n.*level="auto"'):
        model(batch())


def test_level_module_makes_no_graph(devices: SimulatedDevices) -> None:
    model, twin = Net(), Net()
    applied(model, level="module")
    assert same(model, twin, batch())
    assert status(model).num_graphs == 0


class StraightThrough(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.sign()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient * 3


class Awkward(nn.Module):
    """``how`` does something to the middle that a graph would lose or that it may keep."""

    def __init__(self, how: str) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.a, self.b = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.how = how

    def forward(self, x: Tensor) -> Tensor:
        y = self.a(x)
        if self.how == "custom function":
            y = StraightThrough.apply(y)
        elif self.how == "tensor hook":
            y.register_hook(lambda gradient: gradient * 5)
        elif self.how != "plain":
            reentrant = self.how == "reentrant checkpoint"
            y = checkpoint(lambda z: torch.tanh(self.b(z)) + z, y, use_reentrant=reentrant)
        return self.b(y)


@pytest.mark.parametrize(
    ("how", "level"),
    [
        ("plain", "op"),
        ("custom function", "module"),
        ("tensor hook", "module"),
        ("reentrant checkpoint", "module"),
        ("checkpoint", "op"),
    ],
)
def test_gradients_are_right_whatever_forward_does(
    devices: SimulatedDevices, how: str, level: str
) -> None:
    model, twin = Awkward(how), Awkward(how)
    applied(model, {"": 0, "b": 1})
    for each in (model, twin):
        to_host(each(batch())).square().sum().backward()
    assert status(model).level == level
    for found, expected in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(to_host(found.grad), expected.grad)


def test_a_growing_cache_stays_with_the_modules(devices: SimulatedDevices) -> None:
    model = public.llama()[0].eval()
    tokens = torch.tensor([[5, 6, 7]])
    expected = model.generate(tokens, max_new_tokens=4, do_sample=False, use_cache=True)
    applied(model, {"": 0, "model.layers.1": 1, "lm_head": 2})
    found = model.generate(tokens, max_new_tokens=4, do_sample=False, use_cache=True)
    assert torch.equal(to_host(found), expected)
    assert status(model).graph_calls == 0
    assert any("DynamicCache" in reason for reason in status(model).reasons)
