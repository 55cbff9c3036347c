"""Planned and applied, odd models give the numbers that they give alone, call after call."""

import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import baechi
from baechi.torch import status
from baechi.torch.model_plan import ModelPlan
from baechi.torch.simdev import simulated, to_host

WIDTH = 4
FACTORS = [2.0]
Forward = Callable[..., Tensor]
FOUND: Forward | None = None
MASKS: dict[int, Tensor] = {}
DEVICES = {"cuda:0": "simdev:0", "cuda:1": "simdev:1"}
Change = Callable[[Any], object]


class Odd(nn.Module):
    """Two linear layers, and a forward that does something odd in between."""

    def __init__(self, function: Forward) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.a, self.b = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.register_buffer("count", torch.ones(WIDTH))
        self.layers = nn.ModuleList()
        self.generator = torch.Generator()
        self.function = function

    def forward(self, *args: Any) -> Tensor:
        return self.function(self, *args)


def rows(seed: int = 0) -> Tensor:
    return torch.randn(3, WIDTH, generator=torch.Generator().manual_seed(seed))


def run(model: nn.Module, args: Sequence[Any]) -> list[Any]:
    """Output, gradients, buffers, the inputs afterwards and the next random number."""
    args = [arg.clone() if isinstance(arg, Tensor) else arg for arg in args]
    model.zero_grad()
    torch.manual_seed(5)
    output = model(*args)
    output.sum().backward()
    grads = [torch.tensor(0) if p.grad is None else to_host(p.grad) for p in model.parameters()]
    kept = [to_host(buffer).clone() for buffer in model.buffers()]
    return [to_host(output).detach(), *grads, *kept, *args, torch.rand(1)]


def planned(model: nn.Module, args: Sequence[Any]) -> ModelPlan:
    return baechi.plan(
        model,
        args,
        devices=dict.fromkeys(DEVICES, "64MiB"),
        loss=torch.sum,
        optimizer="sgd",
        pin={"a": "cuda:0", "b": "cuda:1"},
        confirm=False,
    )


@pytest.fixture(autouse=True)
def unchanged() -> Iterator[None]:
    yield
    FACTORS[:] = [2.0]
    MASKS.clear()
    globals()["FOUND"] = None


def compare(function: Forward, calls: Sequence[Sequence[Any]], changes: Sequence[Change]) -> str:
    """Compares a model with its plain twin in each call; gives the levels, one letter a call."""
    model, twin = Odd(function), Odd(function)
    plan = planned(model, calls[0])
    levels = ""
    with simulated([2**30] * 2):
        plan.apply(model, devices=DEVICES)
        for args, change in zip(calls, changes, strict=True):
            change(twin)
            expected = run(twin, args)
            change(model)
            for one, other in zip(run(model, args), expected, strict=True):
                torch.testing.assert_close(one, other, equal_nan=True)
            levels += status(model).level[0]
    return levels


def no_change(model: Any) -> None:
    pass


def through(model: Any, x: Tensor) -> Tensor:
    y: Tensor = model.b(model.a(x) * FACTORS[0])
    for layer in model.layers:
        y = layer(y)
    return y


def replace_forward(model: Any) -> None:
    model.b.forward = double


def double(x: Tensor) -> Tensor:
    return x * 2


AFTERWARDS: dict[str, Change] = {
    "a child's forward": replace_forward,
    "an item of a global list": lambda m: FACTORS.__setitem__(0, 5.0),
    "a first module of a list": lambda m: m.layers.append(nn.Tanh()),
    "an attribute of the class": lambda m: setattr(type(m), "other", 1.0),
    "parameters that need no gradient": lambda m: m.a.requires_grad_(False),
}


@pytest.mark.parametrize("what", AFTERWARDS)
def test_what_changes_between_calls_counts(what: str) -> None:
    def forward(model: Any, x: Tensor) -> Tensor:
        return through(model, x) * getattr(model, "other", 2.0)

    changes = (no_change, AFTERWARDS[what], no_change)
    try:
        levels = compare(forward, [(rows(seed),) for seed in range(3)], changes)
    finally:
        for name in {"other"} & vars(Odd).keys():
            delattr(Odd, name)
    assert levels[0] == levels[2] == "o"


def seeding(model: Any, x: Tensor) -> Tensor:
    torch.manual_seed(3)
    return through(model, x) + torch.rand(WIDTH)


def counting(model: Any, x: Tensor) -> Tensor:
    model.count += 1  # autograd saves it afterwards
    return through(model, x) * model.count


def catching(model: Any, x: Tensor) -> Tensor:
    try:
        x = x.view(7, 7)
    except RuntimeError:
        x = x * 2
    return through(model, x)


def catching_in_a_layer(model: Any, x: Tensor) -> Tensor:
    try:
        return model.b(torch.ones(2, WIDTH + 1))
    except RuntimeError:
        return through(model, x)


def drawing_apart(model: Any, x: Tensor) -> Tensor:
    model.generator.manual_seed(4)
    return through(model, x) + torch.rand(WIDTH, generator=model.generator)


def reading_numbers(model: Any, x: Tensor) -> Tensor:
    return through(model, x) * x.sum().item()


def masking(model: Any, x: Tensor) -> Tensor:
    if len(x) not in MASKS:
        MASKS[len(x)] = torch.ones(len(x), 1) * 2
    return through(model, x) * MASKS[len(x)]


def looking_once(model: Any, x: Tensor) -> Tensor:
    global FOUND
    if FOUND is None:
        FOUND = torch.tanh
    return FOUND(through(model, x))


def replacing(model: Any, x: Tensor) -> Tensor:
    model.a, model.b = model.b, model.a
    return through(model, x)


@pytest.mark.parametrize(
    ("forward", "level"),
    [
        (seeding, "m"),
        (counting, "o"),
        (catching, "o"),
        (catching_in_a_layer, "m"),
        (drawing_apart, "m"),
        (reading_numbers, "m"),
        (masking, "m"),
        (replacing, "m"),
        (looking_once, "o"),
    ],
)
def test_odd_forwards_are_planned_and_applied(forward: Forward, level: str) -> None:
    calls = [(rows(seed),) for seed in range(2)]
    assert compare(forward, calls, (no_change, no_change)) == 2 * level


def scaled(model: Any, x: Tensor, by: Any) -> Tensor:
    sign = -1 if str(by).startswith("-") else 1
    return through(model, x) * (3 if by is True else by) * sign + sign


def test_equal_values_of_other_types_are_other_calls() -> None:
    values = (1, True, 1.0, 0.0, -0.0, float("nan"), float("nan"), float("nan"))
    calls = [(rows(), value) for value in values for _ in range(2)]
    levels = compare(lambda *a: scaled(*a).nan_to_num(), calls, [no_change] * len(calls))
    # Two calls of each form, the first of which makes no graph but where it was planned.
    assert levels == "oo" + "mo" * 4 + "mo" + "oooo"


def changing_its_input(model: Any, x: Tensor, y: Tensor) -> Tensor:
    x.mul_(2)
    return through(model, x) + y


def test_inputs_that_share_memory_see_each_others_changes() -> None:
    model, twin = Odd(changing_its_input), Odd(changing_its_input)
    plan = planned(model, (rows(), rows()))
    with simulated([2**30] * 2):
        plan.apply(model, devices=DEVICES)
        model(rows(), rows())
        x, y = rows(1), rows(1)
        assert torch.equal(to_host(model(x, x)), twin(y, y))
        assert torch.equal(x, y)
        assert status(model).level == "module"


def test_hooks_for_all_modules_are_called() -> None:
    calls = []

    def note(module: nn.Module, *_: Any) -> None:
        if isinstance(module, nn.Linear):
            calls.append(module)

    model = Odd(through)
    plan = planned(model, (rows(),))
    with simulated([2**30] * 2):
        plan.apply(model, devices=DEVICES)
        model(rows())
        handle = nn.modules.module.register_module_forward_hook(note)
        try:
            model(rows())
        finally:
            handle.remove()
        model(rows())
    assert calls == [model.a, model.b]
    assert (status(model).graph_calls, status(model).module_calls) == (2, 1)


@pytest.mark.parametrize("forward", [masking, counting, drawing_apart])
def test_planning_leaves_caches_and_random_states_as_they_were(forward: Forward) -> None:
    random.seed(1), torch.manual_seed(1)
    state = random.getstate(), torch.get_rng_state()
    model = Odd(forward)
    torch.set_rng_state(state[1])
    planned(model, (rows(),))
    assert MASKS == {}
    assert random.getstate() == state[0]
    assert torch.equal(torch.get_rng_state(), state[1])
    assert torch.equal(model.count, torch.ones(WIDTH))


def test_weights_that_were_assigned_come_home_when_the_plan_is_applied_again() -> None:
    model, twin = Odd(through), Odd(through)
    plan = planned(model, (rows(),))
    weights = {name: value * 3 for name, value in twin.state_dict().items()}
    twin.load_state_dict(weights)
    with simulated([2**30] * 2):
        plan.apply(model, devices=DEVICES)
        homes = [p.device for p in model.parameters()]
        model.load_state_dict(weights, assign=True)
        for _ in range(2):
            assert torch.equal(to_host(model(rows())), twin(rows()))
        assert status(model).level == "module"
        assert any(
            '"a.weight" is on cpu, the plan has simdev:0: apply the plan again' in reason
            for reason in status(model).reasons
        )
        assert plan.apply(model, devices=DEVICES) is model
        assert [p.device for p in model.parameters()] == homes
        assert torch.equal(to_host(model(rows())), twin(rows()))
        assert status(model).level == "op"
        swapped = dict(zip(DEVICES, reversed(DEVICES.values()), strict=True))
        with pytest.raises(baechi.InputError, match="another plan is applied"):
            plan.apply(model, devices=swapped)
