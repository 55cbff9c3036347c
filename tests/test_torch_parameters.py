"""Weights move to their devices and back: identity, ties, gradients, hooks, optimizer state."""

import weakref

import pytest
import torch
from torch import nn

from baechi.errors import InputError, PlacementError
from baechi.torch.parameters import move_back, move_weights, named_weights, ties
from baechi.torch.simdev import simulated, to_host
from torch_placing import on


class Tied(nn.Module):
    """A parameter under two names, a buffer that is a view of one, a recurrent layer."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)
        self.b.weight = self.a.weight
        self.register_buffer("part", self.b.bias.detach()[1:3])
        self.recurrent = nn.LSTM(4, 4)


def everything_on(model: nn.Module, index: int) -> dict[str, torch.device]:
    return {name: on(index) for name, _ in named_weights(model)}


def train_once(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    sum(p.square().sum().cpu() for p in model.parameters()).backward()
    optimizer.step()


def test_weights_keep_their_identity_names_and_values() -> None:
    with simulated(2):
        model = Tied()
        before = {name: (id(w), w.detach().clone()) for name, w in named_weights(model)}
        move_weights(model, everything_on(model, 1))
        for name, weight in named_weights(model):
            assert id(weight) == before[name][0]
            assert weight.device == on(1)
            assert torch.equal(to_host(weight), before[name][1])


def test_ties_of_every_kind_stay() -> None:
    with simulated(2):
        model = Tied()
        names = [[name for name, _ in group] for group in ties(model)]
        assert ["a.weight", "b.weight"] in names
        assert ["b.bias", "part"] in names
        move_weights(model, everything_on(model, 1))
        assert [[name for name, _ in group] for group in ties(model)] == names
        with torch.no_grad():
            model.b.bias.fill_(7.0)
        assert to_host(model.part).tolist() == [7.0, 7.0]


def test_a_recurrent_layer_runs_where_its_weights_are() -> None:
    with simulated(2), torch.no_grad():
        model = Tied()
        x = torch.randn(3, 2, 4)
        expected, _ = model.recurrent(x)
        move_weights(model, everything_on(model, 0))
        found, _ = model.recurrent(x.to(on(0)))
        torch.testing.assert_close(to_host(found), expected)


def test_gradients_hooks_and_attributes_come_along() -> None:
    with simulated(2):
        model = nn.Linear(2, 2)
        model.weight.note = "kept"
        seen = []
        handle = model.weight.register_hook(lambda gradient: seen.append(gradient.device))
        model.weight.register_post_accumulate_grad_hook(lambda p: seen.append("accumulated"))
        model.weight.sum().backward()
        seen.clear()
        move_weights(model, everything_on(model, 1))
        assert model.weight.grad.device == on(1)
        assert model.weight.note == "kept"
        model.weight.sum().backward()
        assert seen == [on(1), "accumulated"]
        assert to_host(model.weight.grad).tolist() == [[2.0, 2.0], [2.0, 2.0]]
        handle.remove()
        model.weight.sum().backward()
        assert seen[2:] == ["accumulated"]


@pytest.mark.parametrize("make", [torch.optim.Adam, torch.optim.RMSprop, torch.optim.Adagrad])
def test_an_optimizer_that_is_given_goes_on(make: type[torch.optim.Optimizer]) -> None:
    with simulated(2):
        torch.manual_seed(0)
        model, twin = Tied(), Tied()
        twin.load_state_dict(model.state_dict())
        optimizer, expected = make(model.parameters()), make(twin.parameters())
        train_once(model, optimizer)
        train_once(twin, expected)
        moved = move_weights(model, everything_on(model, 1), optimizers=[optimizer])
        train_once(model, optimizer)
        train_once(twin, expected)
        move_back(model, moved, optimizers=[optimizer])
        train_once(model, optimizer)
        train_once(twin, expected)
        for found, wanted in zip(model.parameters(), twin.parameters(), strict=True):
            assert found.device == torch.device("cpu")
            torch.testing.assert_close(found, wanted)


def test_an_optimizer_with_state_that_is_not_given_is_an_error() -> None:
    with simulated(2):
        model = nn.Linear(2, 2)
        optimizer = torch.optim.Adam(model.parameters())
        move_weights(model, everything_on(model, 0))  # without state it needs nothing
        train_once(model, optimizer)
        with pytest.raises(InputError, match=r"Adam has state for 2 parameters .*\nhint: .*optim"):
            move_weights(model, everything_on(model, 1))
        assert model.weight.device == on(0)


def test_back_and_forth_gives_the_same_bits() -> None:
    with simulated(2):
        model = Tied()
        before = {name: weight.detach().clone() for name, weight in named_weights(model)}
        move_back(model, move_weights(model, everything_on(model, 1)))
        for name, weight in named_weights(model):
            assert type(weight) in (nn.Parameter, torch.Tensor)
            assert torch.equal(weight, before[name])


def test_a_weight_that_something_holds_is_named_and_nothing_moves() -> None:
    with simulated(2):
        model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
        reference = weakref.ref(model[1].weight)
        with pytest.raises(PlacementError, match=r'weight "1\.weight" cannot be moved'):
            move_weights(model, everything_on(model, 1))
        assert {p.device for p in model.parameters()} == {torch.device("cpu")}
        assert reference() is model[1].weight


def test_nothing_moves_if_a_device_is_too_small() -> None:
    with simulated([None, 100]):
        model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
        with pytest.raises(torch.OutOfMemoryError):
            move_weights(model, everything_on(model, 1))
        assert {p.device for p in model.parameters()} == {torch.device("cpu")}


def test_a_weight_without_a_device_is_named() -> None:
    model = nn.Linear(2, 2)
    with pytest.raises(InputError, match='weight "bias" has no device'):
        move_weights(model, {"weight": torch.device("cpu")})
