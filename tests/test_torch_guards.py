"""What of a model is noticed when it is not what its graph was made from."""

import functools
import types
from collections import deque
from collections.abc import Callable
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import torch_applied
from baechi.torch.model_state import ModelState

SCALE = 2.0
NOTES = MagicMock()  # has every attribute that it is asked for
ONE, TWO = torch.ones(2, 1), torch.ones(2, 2)
TABLE = {"factor": [1.0]}


def double(x: Tensor) -> Tensor:
    return x * SCALE


class Helper:
    def __init__(self) -> None:
        self.scale, self.unread = 2.0, 0
        self.inner = types.SimpleNamespace(shift=1.0)

    def scaled(self, x: Tensor) -> Tensor:
        return x * self.scale


class Slotted:
    __slots__ = ("scale",)

    def __init__(self) -> None:
        self.scale = 2.0


class Block(nn.Linear):
    factor = 3.0

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * self.factor


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.b = Block(2, 2)
        self.tied = nn.ParameterList([self.b.weight])
        self.drop, self.layers = nn.Dropout(0.5), nn.ModuleList()
        self.act, self.dims, self.rates = torch.relu, [1, [2.0, torch.tanh]], {"a": 0.5}
        self.helper, self.slotted, self.recent = Helper(), Slotted(), deque([1.0])
        self.array, self.partial = np.ones(2), functools.partial(torch.mul, other=2.0)
        captured = 4.0

        def shifted(x: Tensor, by: list[float] = [0.0]) -> Tensor:  # noqa: B006 (that is the test)
            return x + captured + by[0]

        def capture(value: float) -> None:
            nonlocal captured
            captured = value

        self.shifted, self.capture, self.method = shifted, capture, Helper().scaled

    @property
    def scale(self) -> float:
        return self.helper.scale * self.helper.inner.shift * self.slotted.scale

    def forward(self, x: Tensor) -> Tensor:
        y = self.drop(self.act(self.b(x))) * self.scale + TABLE["factor"][0]
        from torch_applied import WIDTH

        NOTES(WIDTH)
        return (
            double(self.method(self.shifted(y)))
            * self.dims[0]
            * self.recent[0]
            * float(self.array[0])
        )


@pytest.fixture
def state(monkeypatch: pytest.MonkeyPatch) -> tuple[Model, ModelState]:
    """A model and its state; what the tests do to shared places is undone."""
    for place, name, value in (
        (globals(), "SCALE", SCALE),
        (globals(), "double", double),
        (TABLE, "factor", [1.0]),
    ):
        monkeypatch.setitem(place, name, value)
    monkeypatch.setattr(torch_applied, "WIDTH", torch_applied.WIDTH)
    monkeypatch.setattr(Block, "factor", 3.0)
    monkeypatch.setattr(Block, "forward", Block.forward)
    model = Model()
    return model, ModelState(model)


CHANGES: dict[str, Callable[[Any], object]] = {
    "drop.p": lambda m: setattr(m.drop, "p", 0.25),
    "b.forward": lambda m: setattr(m.b, "forward", lambda x: x),
    "act": lambda m: setattr(m, "act", torch.tanh),
    "dims.0": lambda m: m.dims.__setitem__(0, 5),
    "dims.1.1": lambda m: m.dims[1].__setitem__(1, torch.relu),
    "rates": lambda m: m.rates.update(b=1.0),
    "helper.scale": lambda m: setattr(m.helper, "scale", 2),
    "helper.inner.shift": lambda m: setattr(m.helper.inner, "shift", -0.0),
    "slotted.scale": lambda m: setattr(m.slotted, "scale", 3.0),
    "recent": lambda m: m.recent.appendleft(2.0),
    "array": lambda m: m.array.__setitem__(0, 2.0),
    "keywords of partial.other": lambda m: setattr(
        m, "partial", functools.partial(torch.mul, other=3.0)
    ),
    "captured": lambda m: m.capture(5.0),
    "shifted.0.0": lambda m: m.shifted.__defaults__[0].__setitem__(0, 1.0),
    "method.__self__.scale": lambda m: setattr(m.method.__self__, "scale", 7.0),
    "torch_applied.WIDTH": lambda m: setattr(torch_applied, "WIDTH", 5),
    "SCALE": lambda m: globals().update(SCALE=3.0),
    "double": lambda m: globals().update(double=torch.relu),
    "TABLE.factor.0": lambda m: TABLE["factor"].__setitem__(0, 2.0),
    "Block.factor": lambda m: setattr(Block, "factor", 2.0),
    "Block.forward": lambda m: setattr(Block, "forward", nn.Linear.forward),
}


@pytest.mark.parametrize("name", CHANGES)
def test_what_forward_reads_is_noticed_by_name(name: str, state: tuple[Model, ModelState]) -> None:
    model, seen = state
    assert seen.difference() is None
    CHANGES[name](model)
    said = seen.difference()
    assert said is not None
    assert said.endswith(f'{name}" is not what it was')


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda m: m.b.register_forward_hook(lambda *_: None), 'module "b" has other hooks'),
        (lambda m: setattr(m, "b", Block(2, 2)), "a module was replaced"),
        (lambda m: m.layers.append(nn.ReLU()), "a module or a weight was added"),
        (lambda m: m.drop.eval(), "modules are in another mode"),
        (
            lambda m: m.b.double(),
            "a weight has another type or device, or was frozen or unfrozen",
        ),
        (
            lambda m: setattr(m.b, "weight", nn.Parameter(torch.ones(2, 1))),
            "a weight has another shape",
        ),
        (lambda m: setattr(m.b, "weight", nn.Parameter(TWO)), "weights are tied in another way"),
        (lambda m: setattr(m.drop, "__class__", nn.Identity), 'module "drop" has another type'),
    ],
)
def test_modules_hooks_and_weights_are_noticed(
    change: Callable[[Any], object], said: str, state: tuple[Model, ModelState]
) -> None:
    model, seen = state
    change(model)
    assert seen.difference() == said


@pytest.mark.parametrize(
    "change",
    [
        lambda m: setattr(m, "dims", [1, [2.0, torch.tanh]]),
        lambda m: setattr(m.drop, "p", float("0.5")),
        lambda m: setattr(m, "helper", Helper()),
        lambda m: setattr(m.helper, "unread", 7),
        lambda m: m.b.weight.data.zero_(),
    ],
    ids=["a list", "a number", "an object", "what forward does not mention", "a weight"],
)
def test_equal_values_and_what_forward_does_not_mention_need_no_other_graph(
    change: Callable[[Any], object], state: tuple[Model, ModelState]
) -> None:
    model, seen = state
    change(model)
    assert seen.difference() is None
    model.dims[0] = 9
    assert seen.difference() == '"dims.0" is not what it was'
