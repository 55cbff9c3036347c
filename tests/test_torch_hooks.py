"""Users' hooks while a model is planned and rehearsed: they count, and change nothing."""

import functools
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import baechi
from baechi.torch import ModelPlan
from torch_small_models import rows, stack

WIDTH = 64
PINS = {"0": "cuda:0", "2": "cuda:1", "4": "cuda:0"}


def layers() -> nn.Sequential:
    torch.manual_seed(0)
    return stack(WIDTH, WIDTH, WIDTH, WIDTH)


def planned(model: nn.Module, x: Tensor, mode: str = "training", **options: Any) -> ModelPlan:
    if mode == "training":
        options |= {"optimizer": "adam", "loss": torch.sum}
    return baechi.plan(model, (x,), devices="2x4MiB", mode=mode, pin=PINS, **options)


def measured(model: nn.Module, plan: ModelPlan, x: Tensor) -> tuple[int, ...]:
    loss = torch.sum if plan.mode == "training" else None
    return baechi.rehearse(model, plan, (x,), steps=2, loss=loss).peak_bytes


def widened(x: Tensor) -> Tensor:
    """As large as x, and eight times that on the way."""
    return x + torch.cat([x] * 8, 1).exp().mean(1, keepdim=True)


def after(module: nn.Module) -> None:
    module.register_forward_hook(lambda _, inputs, output: widened(output))


def before(module: nn.Module) -> None:
    module.register_forward_pre_hook(lambda _, inputs: (widened(inputs[0]),))


def backwards(module: nn.Module) -> None:
    module.register_full_backward_hook(lambda _, given, taken: (widened(given[0]),))


@pytest.mark.parametrize(
    ("add", "mode"),
    [
        (after, "training"),
        (before, "training"),
        (backwards, "training"),
        (after, "inference"),
        (before, "inference"),
    ],
)
def test_what_a_hook_makes_is_predicted(add: Callable[[nn.Module], None], mode: str) -> None:
    model, x = layers(), rows(WIDTH, 256)
    without = planned(model, x, mode).peak_bytes
    add(model[2])
    plan = planned(model, x, mode)
    assert plan.confirmed == measured(model, plan, x)
    assert plan.confirmed[1] > 1.5 * without["cuda:1"]
    assert plan.peak_bytes["cuda:1"] == pytest.approx(plan.confirmed[1], rel=0.02)


def test_a_hook_of_the_model_itself_is_measured_around_its_graph() -> None:
    model, x = layers(), rows(WIDTH, 256)
    after(model)
    plan = planned(model, x, "inference")
    assert plan.level == "op"
    assert plan.confirmed == measured(model, plan, x)


def test_a_frozen_model_whose_hook_makes_its_inputs_need_gradients_is_predicted() -> None:
    model, x = layers(), rows(WIDTH, 256)
    model[0].requires_grad_(False)
    model[0].register_forward_hook(lambda _, inputs, output: output.requires_grad_(True))
    plan = planned(model, x)
    assert plan.confirmed == measured(model, plan, x)
    assert plan.peak_bytes["cuda:0"] == pytest.approx(plan.confirmed[0], rel=0.02)


SEEN: list[Tensor] = []
CALLS = 0


def in_globals(module: nn.Module, inputs: Any, output: Tensor) -> None:
    global CALLS
    CALLS += 1
    note(output)


def note(output: Tensor) -> None:
    SEEN.append(output)


class Recorder:
    def __init__(self) -> None:
        self.seen: list[Tensor] = []

    def __call__(self, module: nn.Module, inputs: Any, output: Tensor) -> None:
        self.seen.append(output)

    def method(self, module: nn.Module, inputs: Any, output: Tensor) -> None:
        self.seen.append(output)


def test_what_hooks_hold_is_left_alone_by_plans_and_rehearsals() -> None:
    model, x = layers(), rows(WIDTH)
    held: list[Any] = []
    called, bound, calls = Recorder(), Recorder(), 0

    def counts(module: nn.Module, inputs: Any, output: Tensor) -> None:
        nonlocal calls
        calls += 1

    def takes(kept: list[Any], module: nn.Module, inputs: Any, output: Tensor) -> None:
        kept.append(output)

    model.held = held
    hooks = (
        in_globals,
        lambda _, inputs, output: held.append(output),
        functools.partial(takes, held),
        called,
        bound.method,
        counts,
    )
    for hook in hooks:
        model[2].register_forward_hook(hook)
    model(x)
    kept = len(held)
    for mode in ("training", "inference"):
        plan = planned(model, x, mode)
        assert plan.confirmed == measured(model, plan, x)
    assert (CALLS, len(SEEN), calls) == (1, 1, 1)
    assert (len(called.seen), len(bound.seen), len(held)) == (1, 1, kept)


def test_a_hook_gets_the_modules_and_tensors_of_the_copy() -> None:
    model, x = layers(), rows(WIDTH)
    adapter, scale = nn.Linear(WIDTH, WIDTH), torch.ones(WIDTH)
    places = set()

    def adapts(module: nn.Module, inputs: Any, output: Tensor) -> Tensor:
        assert module is model[2]
        places.add(inputs[0].device)
        return output + adapter.weight.sum() * scale + model[0].bias

    model[2].register_forward_hook(adapts)
    options = {"optimizer": "adam", "loss": torch.sum, "pin": {"2": "cuda:0", "4": "cuda:1"}}
    plan = baechi.plan(model, (x,), devices="2x4MiB", confirm=False, **options)
    assert plan.device_of("0") == "cuda:0", "its weight is used with that of module 2"
    assert not any("is not counted" in note for note in plan.notes)
    assert places == set()
    assert model[0].bias.grad is None
    assert adapter.weight.grad is None


def test_a_hook_that_cannot_be_copied_or_writes_files_is_left_out(tmp_path: Path) -> None:
    model, x = layers(), rows(WIDTH)
    lock, path = threading.Lock(), tmp_path / "output.pt"

    def locked(module: nn.Module, inputs: Any, output: Tensor) -> None:
        with lock:
            pytest.fail("called")

    model[0].register_forward_hook(locked)
    model[4].register_forward_hook(locked)
    model[2].register_forward_hook(lambda _, inputs, output: torch.save(output, path))
    plan = planned(model, x)
    notes = "\n".join(plan.notes)
    assert 'a hook of module "0" is not counted: what it holds cannot be copied' in notes
    assert 'a hook of module "4" is not counted: what it holds cannot be copied' in notes
    assert 'a hook of module "2" is not counted: it calls "save"' in notes
    assert not path.exists()


def reads_numbers(module: nn.Module, inputs: Any, output: Tensor) -> Tensor:
    return widened(output) * output.mean().item()


def test_a_hook_that_reads_numbers_is_measured_with_numbers() -> None:
    model, x = layers(), rows(WIDTH, 256)
    model[2].register_forward_hook(reads_numbers)
    plan = planned(model, x, "inference")
    assert plan.confirmed == measured(model, plan, x)
    assert any("rehearsed with numbers" in note for note in plan.notes)


def test_without_numbers_such_a_hook_is_left_out_and_named() -> None:
    with torch.device("meta"):
        model = layers()
    model[2].register_forward_hook(reads_numbers)
    plan = planned(model, rows(WIDTH), "inference")
    notes = "\n".join(plan.notes)
    assert plan.confirmed
    assert 'a hook of module "2" is not counted: RuntimeError: Tensor.item()' in notes


class KeepsStates(nn.Module):
    """Its own code keeps its states in an attribute; a graph would not."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = layers()

    def forward(self, x: Tensor) -> Tensor:
        self.states = [x]
        for layer in self.layers:
            self.states.append(layer(self.states[-1]))
        return self.states[-1]


def test_what_a_module_keeps_is_planned_and_rehearsed_with_it() -> None:
    model, x = KeepsStates(), rows(WIDTH, 256)
    pins = {f"layers.{path}": device for path, device in PINS.items()}
    plan = baechi.plan(model, (x,), devices="2x4MiB", mode="inference", pin=pins)
    assert plan.level == "module"
    assert 'the attribute "states"' in plan.reasons[0]
    assert plan.confirmed == measured(model, plan, x)


class Locked:
    """One object for several modules; it cannot be copied, and no half of it may be used."""

    def __init__(self) -> None:
        self.outputs: list[Tensor] = []
        self.lock = threading.Lock()

    def __call__(self, module: nn.Module, inputs: Any, output: Tensor) -> None:
        with self.lock:
            self.outputs.append(output * 1.0)


def test_a_hook_of_several_modules_that_cannot_be_copied_is_left_out_of_all() -> None:
    model, hook = layers().eval(), Locked()
    for at in (0, 2, 4):
        model[at].register_forward_hook(hook)
    x = torch.randn(8, WIDTH)
    plan = planned(model, x, mode="inference")
    told = [note for note in plan.notes if "lock" in note]
    assert len(told) == 3
    assert all("cannot be copied" in note for note in told)
    measured = baechi.rehearse(model, plan, (x,), steps=2)
    assert hook.outputs == []
    for device, seen in zip(plan.devices, measured.peak_bytes, strict=True):
        assert device.is_close_to(seen)
