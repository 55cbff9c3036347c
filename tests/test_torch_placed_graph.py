"""Placed graphs: the model's numbers on several devices, copies as announced, weights fetched."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import torch_corners as corners
from baechi.errors import InputError, PlanMismatchError
from baechi.torch.capture import capture
from baechi.torch.placed_graph import PlacedProgram, is_placed, place_program
from baechi.torch.program import Program
from baechi.torch.simdev import simulated, to_host
from torch_models import BY_NAME, CASES, loss_of
from torch_placements import (
    copies_made,
    move_to,
    program_of,
    random_placement,
    three,
    trained,
    trained_on_three,
)

EXPORTABLE = [case.name for case in CASES if case.exports]
CPU = torch.device("cpu")


def taken(model: nn.Module, args: Any, kwargs: Any = None, *, training: bool = True) -> Program:
    made = capture(model, args, kwargs, training=training)
    assert made.program is not None
    return made.program


def placed_on(program: Program, device: torch.device = CPU) -> PlacedProgram:
    nodes = program.graph_module.graph.nodes
    homes = {g.name: device for g in program.inputs if g.kind in ("parameter", "buffer")}
    return place_program(program, {n.name: device for n in nodes if is_placed(n)}, homes)


@pytest.mark.parametrize("name", EXPORTABLE)
def test_the_first_loss_is_the_plain_models_to_the_last_bit(name: str) -> None:
    plain = BY_NAME[name].build().loss()
    assert torch.equal(trained_on_three(name, torch.float32, 0, steps=1).losses[0], plain)


@pytest.mark.parametrize("name", EXPORTABLE)
def test_three_steps_of_adam_agree_in_float64(name: str) -> None:
    plain = trained(BY_NAME[name].build(dtype=torch.float64), None)
    placed = trained_on_three(name, torch.float64, 1)
    torch.testing.assert_close(placed.losses, plain.losses, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(placed.buffers, plain.buffers, rtol=1e-9, atol=1e-9)
    # Some gradients are zero but for rounding: the largest of the model is what counts.
    largest = max(value.abs().max().item() for value in plain.gradients.values())
    torch.testing.assert_close(placed.gradients, plain.gradients, rtol=0, atol=1e-9 * largest)


@pytest.mark.parametrize("name", EXPORTABLE)
def test_copies_on_the_devices_are_those_of_the_graph(name: str) -> None:
    sample, program = BY_NAME[name].build(), program_of(name, torch.float32)
    with simulated(3) as devices:
        device_of, home_of = random_placement(program, 2, three())
        move_to(sample.model, home_of)
        placed = place_program(program, device_of, home_of)
        placed(sample.model, sample.args, sample.kwargs)  # literals are moved the first time
        devices.clear_transfers()
        loss = loss_of(placed(sample.model, sample.args, sample.kwargs))
        forward = copies_made(devices)
        devices.clear_transfers()
        loss.backward()
        backward = copies_made(devices)
    announced = [
        (-1 if one.source is None else one.source.index, one.destination.index, one.nbytes)
        for one in placed.copies
    ]
    assert forward == sorted(announced)
    returned = [
        (destination, source, nbytes)
        for (source, destination, nbytes), one in zip(announced, placed.copies, strict=True)
        if one.has_gradient
    ]
    assert backward == sorted(returned)


def test_a_value_crosses_to_a_device_once() -> None:
    class Reading(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            y = x.exp()
            return y.sin() + y.cos() + y.tan()

    program = taken(Reading(), (torch.randn(3),))
    with simulated(2):
        first, second = three()[:2]
        device_of = dict.fromkeys((n.name for n in program.graph_module.graph.nodes), second)
        placed = place_program(program, device_of | {"exp": first}, {})
    assert [(one.source, one.destination) for one in placed.copies] == [
        (None, first),
        (first, second),
    ]


def test_a_copy_of_what_was_changed_meanwhile_is_made_anew() -> None:
    class Changing(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            y = x + 1
            before = y.exp()
            y.mul_(2)
            return before + y.sin()

    x = torch.randn(3)
    program = taken(Changing(), (x,))
    with simulated(2):
        first, second = three()[:2]
        device_of = dict.fromkeys((n.name for n in program.graph_module.graph.nodes), second)
        place = device_of | {"add": first, "mul_": first}
        placed = place_program(program, place, {})
        assert torch.equal(to_host(placed(Changing(), (x,), {})), Changing()(x))
    assert [one.destination for one in placed.copies] == [first, second, second]


def test_ops_that_share_memory_must_share_a_device() -> None:
    class Viewing(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            y = x * 2
            y[0].zero_()
            return y

    program = taken(Viewing(), (torch.randn(3),))
    place = {"mul": CPU, "select": CPU, "zero_": torch.device("meta", 0)}
    with pytest.raises(InputError, match=r'":mul:0" on cpu and ":zero_:0" on meta.*\n.*one device'):
        place_program(program, place, {})


def test_an_op_without_a_device_is_named() -> None:
    program = taken(nn.Linear(2, 2), (torch.randn(1, 2),))
    homes = {"weight": CPU, "bias": CPU}
    with pytest.raises(InputError, match='op ":linear:0" has no device'):
        place_program(program, {}, homes)
    with pytest.raises(InputError, match='parameter "weight" has no device'):
        place_program(program, {"linear": CPU}, {})


def replaced_parameter(model: nn.Module) -> nn.Module:
    model.first.weight = nn.Parameter(torch.randn(4, 4))
    model.tied.weight = model.first.weight
    return model


def replaced_module(model: nn.Module) -> nn.Module:
    model.frozen = nn.Linear(4, 4)
    return model


def assigned_state(model: nn.Module) -> nn.Module:
    model.load_state_dict(corners.Awkward().state_dict(), assign=True)
    model.tied.weight = model.first.weight  # which that unties
    return model


def other_attribute(model: nn.Module) -> nn.Module:
    model.plain = torch.randn(4)
    return model


@pytest.mark.parametrize(
    "change", [copy.deepcopy, replaced_parameter, replaced_module, assigned_state, other_attribute]
)
def test_a_call_works_on_the_weights_that_the_model_has_then(
    change: Callable[[nn.Module], nn.Module],
) -> None:
    args, kwargs = corners.awkward_call()
    model = corners.Awkward()
    placed = placed_on(taken(model, args, kwargs))
    changed = change(model)
    expected = copy.deepcopy(changed)
    outputs = []
    for run in (lambda: expected(*args, **kwargs), lambda: placed(changed, args, kwargs)):
        torch.manual_seed(3)  # it has dropout
        outputs.append(run())
        outputs[-1].loss.backward()
    assert torch.equal(outputs[0].loss, outputs[1].loss)
    assert outputs[1].note == "3 times"
    assert torch.equal(expected.first.weight.grad, changed.first.weight.grad)
    assert changed.frozen.weight.grad is None or changed.frozen.weight.requires_grad
    assert torch.equal(expected.mean, changed.mean)
    assert changed.steps == 1


def test_weights_that_are_no_longer_tied_are_named() -> None:
    args, kwargs = corners.awkward_call()
    model = corners.Awkward()
    placed = placed_on(taken(model, args, kwargs))
    model.tied.weight = nn.Parameter(torch.randn(4, 4))
    with pytest.raises(PlanMismatchError, match=r'"first.weight" and "tied.weight" were one'):
        placed(model, args, kwargs)


def test_statistics_in_a_recomputed_region_are_updated_in_each_run() -> None:
    class Normed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.block = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.ReLU())

        def forward(self, x: Tensor) -> Tensor:
            return checkpoint(self.block, x, use_reentrant=False).sum()

    model, x = Normed(), torch.randn(5, 4)
    plain = copy.deepcopy(model)
    placed_on(taken(model, (x,)))(model, (x,), {}).backward()
    plain(x).backward()
    for given, expected in zip(model.buffers(), plain.buffers(), strict=True):
        assert torch.equal(given, expected)
    for weight, expected in zip(model.parameters(), plain.parameters(), strict=True):
        assert torch.equal(weight.grad, expected.grad)


def test_a_changed_input_is_changed_where_the_caller_has_it() -> None:
    class Counting(nn.Module):
        def forward(self, x: Tensor, seen: Tensor) -> Tensor:
            seen[0].add_(1)
            return x * seen

    program = taken(Counting(), (torch.ones(2), torch.zeros(2)), training=False)
    seen = torch.zeros(2)
    with simulated(2), torch.no_grad():
        out = placed_on(program, three()[1])(Counting(), (torch.ones(2), seen), {})
        assert to_host(out).tolist() == [1, 0]
    assert seen.tolist() == [1, 0]


def test_checkpointed_regions_are_recomputed() -> None:
    model, x = corners.Checkpointed(width=64), torch.randn(32, 64)
    program = taken(model, (x,))
    saved: list[int] = []

    def note(tensor: Tensor) -> Tensor:
        if not isinstance(tensor, nn.Parameter):
            saved.append(tensor.untyped_storage().nbytes())
        return tensor

    counts = []
    for run in (lambda: model(x), lambda: placed_on(program)(model, (x,), {})):
        saved.clear()
        with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
            loss = run()
        counts.append((loss.detach(), sum(saved)))
        model.zero_grad()
        loss.backward()
        counts[-1] += ([p.grad.clone() for p in model.parameters()],)
    torch.testing.assert_close(counts[0], counts[1], rtol=0, atol=0)


def test_gradients_are_switched_on_again_after_an_error() -> None:
    class Failing(nn.Module):
        def forward(self, x: Tensor, rows: Tensor) -> Tensor:
            with torch.no_grad():
                return x[rows] * 2

    placed = placed_on(taken(Failing(), (torch.randn(3), torch.tensor([0]))))
    with pytest.raises(IndexError):
        placed(Failing(), (torch.randn(3), torch.tensor([5])), {})
    assert torch.is_grad_enabled()


def test_dropout_draws_what_the_plain_model_draws() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.3), nn.Linear(8, 8), nn.Dropout(0.7))
    x = torch.randn(5, 4)
    program = taken(model, (x,))
    torch.manual_seed(5)
    plain = model(x)
    torch.manual_seed(5)
    assert torch.equal(placed_on(program)(model, (x,), {}), plain)
