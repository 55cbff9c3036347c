"""Planning a PyTorch model: what a user may ask for, and what the plan or the error then says."""

import dataclasses
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import baechi
from baechi.torch import ModelPlan
from baechi.torch.planning import Planned, study
from torch_small_models import Answers, NoWeights, rows, stack, total


def planned(model: nn.Module | None = None, **options: Any) -> ModelPlan:
    model = stack(16, 32, 8) if model is None else model
    return baechi.plan(model, (rows(),), **{"devices": "2x24GiB", "loss": total, **options})


def studied(model: nn.Module | None = None, **options: Any) -> Planned:
    model = stack(16, 32, 8) if model is None else model
    return study(model, (rows(),), **{"devices": "2x24GiB", "loss": total, **options})


# Pins


@pytest.mark.parametrize("pin", ["2", "2.bias", "*.bias", "[2-9]", ""])
def test_a_pin_may_be_a_module_a_parameter_or_a_pattern(pin: str) -> None:
    plan = studied(pin={pin: "cuda:1"}).plan
    assert plan.device_of("2") == "cuda:1"


def test_a_pin_of_a_container_covers_what_is_in_it() -> None:
    model = nn.Sequential(stack(16, 16, 16), stack(16, 16, 8))
    plan = studied(model, pin={"0": "cuda:0", "1": "cuda:1"}).plan
    assert {plan.device_of(f"1.{child}") for child in (0, 2)} == {"cuda:1"}
    assert {plan.device_of(f"0.{child}") for child in (0, 2)} == {"cuda:0"}


def test_pins_that_contradict_each_other_are_refused_by_name() -> None:
    with pytest.raises(baechi.InputError, match=r'"2\.bias" and "2" send "2" to cuda:1 and cuda:0'):
        planned(pin={"2.bias": "cuda:1", "2": "cuda:0"})
    with pytest.raises(baechi.InputError, match="a pin does not give way to another: leave out"):
        planned(pin={"*": "cuda:1", "2": "cuda:0"})


def test_contradicting_pins_of_modules_that_must_be_together_are_told_which_and_why() -> None:
    model = nn.Sequential(nn.Linear(16, 16), nn.ReLU(inplace=True), nn.Linear(16, 16))
    with pytest.raises(baechi.InputError, match=r'"0" and "1" have one device, .* in place: pin'):
        planned(model, pin={"0": "cuda:0", "1": "cuda:1"})


def test_a_pin_that_matches_nothing_is_refused() -> None:
    with pytest.raises(baechi.InputError, match='pin "7" matches no module and no parameter'):
        planned(pin={"7": "cuda:1"})


def test_a_pin_to_an_unknown_device_is_refused_with_the_known_ones() -> None:
    with pytest.raises(baechi.InputError, match="cuda:0, cuda:1"):
        planned(pin={"2": "cuda:9"})


# Objectives, modes and granularity


def test_each_objective_finds_what_it_asks_for() -> None:
    model = nn.Sequential(*(nn.Linear(16, 16) for _ in range(6)))
    outcomes = {
        name: studied(model, objective=name).outcome
        for name in ("fastest", "fewest-devices", "most-headroom")
    }
    most = {name: max(outcome.memory.peaks) for name, outcome in outcomes.items()}
    assert len(set(outcomes["fewest-devices"].device_of_unit)) == 1
    assert most["most-headroom"] < 0.7 * most["fewest-devices"]
    assert outcomes["fastest"].step_ns == min(o.step_ns for o in outcomes.values())


@pytest.mark.parametrize("option", ["mode", "objective", "granularity"])
def test_an_unknown_choice_is_refused_with_the_known_ones(option: str) -> None:
    with pytest.raises(baechi.InputError, match=f"{option} is 'other'\nhint: choose from"):
        planned(**{option: "other"})


def test_inference_has_no_gradients_no_optimizer_and_needs_no_loss() -> None:
    plan = baechi.plan(stack(16, 32, 8), (rows(),), devices="24GiB", mode="inference")
    by_class = plan.devices[0].by_class
    assert plan.optimizer == ""
    assert by_class["gradient"] == by_class["optimizer"] == 0
    assert by_class["weight"] == 4 * (16 * 32 + 32 + 32 * 8 + 8)


class Branches(nn.Module):
    """Two chains of products that use no weights, behind one layer."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layer = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        left = right = self.layer(x)
        for _ in range(4):
            left, right = left @ left, right @ right.T
        return left + right


def test_single_ops_leave_the_rules_where_that_is_faster_and_are_rehearsed_there() -> None:
    with torch.device("meta"):
        model, x = Branches(2048).eval(), torch.empty(2048, 2048)
    options: Any = {"devices": "2x24GiB", "mode": "inference"}
    by_module = baechi.plan(model, (x,), **options)
    by_op = baechi.plan(model, (x,), granularity="op", **options)
    assert not by_module.ops
    assert {":matmul:1", ":matmul:0"} & set(by_op.ops)
    assert by_op.step_ns < 0.8 * by_module.step_ns
    rehearsed = baechi.rehearse(model, by_op, (x,), dry=True)
    assert rehearsed.copies == by_op.copies > 0
    assert rehearsed.peak_bytes == tuple(by_op.peak_bytes.values())


def test_an_op_moved_by_hand_is_rehearsed_where_it_was_put() -> None:
    model, x = Branches(16).eval(), rows(16, 16)
    plan = baechi.plan(model, (x,), devices="2x24GiB", mode="inference", pin={"": "cuda:0"})
    last = next(reversed([key for key in _keys(model, x) if ":add:" in key]))
    moved = dataclasses.replace(plan, ops={last: "cuda:1"})
    assert baechi.rehearse(model, plan, (x,)).copies == 0
    assert baechi.rehearse(model, moved, (x,)).copies == 2


def _keys(model: nn.Module, x: torch.Tensor) -> list[str]:
    found = study(model, (x,), devices="1GiB", mode="inference")
    return [step.key for step in found.task.trace.steps]


# Losses


@pytest.mark.parametrize("form", ["dataclass", "dictionary", "tuple"])
def test_the_loss_is_found_in_the_output(form: str) -> None:
    assert studied(Answers(form), loss=None).plan.mode == "training"


def test_without_a_loss_the_outputs_are_named() -> None:
    with pytest.raises(
        baechi.InputError, match=r"logits.* float32\[8,16\], .*hidden.* float32"
    ) as e:
        planned(Answers("logits"), loss=None)
    assert e.value.hint is not None
    assert "pass loss=" in e.value.hint


@pytest.mark.parametrize("made", [torch.ones(3), 1.0, None])
def test_a_loss_that_is_no_scalar_is_refused(made: Any) -> None:
    with pytest.raises(baechi.InputError, match="the loss function returned"):
        planned(loss=lambda output: made)


def test_a_loss_may_bring_labels_of_the_host() -> None:
    labels = torch.randint(0, 8, (8,))
    model = stack(16, 32, 8)
    plan = planned(model, loss=lambda output: F.cross_entropy(output, labels))
    x = rows()
    losses = baechi.rehearse(model, plan, (x,), steps=1).losses
    assert losses == (F.cross_entropy(model(x), labels).item(),)


def test_a_model_of_which_nothing_is_trained_cannot_be_planned_for_training() -> None:
    with pytest.raises(baechi.InputError, match="the loss has no gradient"):
        planned(stack(16, 8).requires_grad_(False))


# Devices


@pytest.mark.parametrize(
    ("devices", "names"),
    [
        ("2x24GiB", ["cuda:0", "cuda:1"]),
        (baechi.Cluster("2x24GiB", baechi.Link("10us", "12GB/s")), ["cuda:0", "cuda:1"]),
        ({0: "24GiB", "cpu": "64GiB"}, ["cuda:0", "cpu"]),
        ({torch.device("xpu", 3): 2**30}, ["xpu:3"]),
        ({"npu:0": "24GiB", "npu:1": "24GiB"}, ["npu:0", "npu:1"]),
        ("h100:80GB,cpu:256GB", ["cuda:0", "cpu"]),
    ],
    ids=["text", "cluster", "accelerate's mapping", "torch.device", "unheard-of type", "kinds"],
)
def test_devices_may_be_written_in_many_ways(devices: Any, names: list[str]) -> None:
    plan = planned(devices=devices)
    assert [device.name for device in plan.devices] == names


def test_one_device_takes_everything_without_copies() -> None:
    plan = planned(devices="1GiB")
    assert plan.modules == {"": "cuda:0"}
    assert plan.copies == 0


def test_one_name_twice_is_refused() -> None:
    with pytest.raises(baechi.InputError, match='"cuda" and "cuda:0" are the same device'):
        planned(devices={"cuda": "1GiB", "cuda:0": "1GiB"})


def test_a_device_without_memory_is_refused() -> None:
    with pytest.raises(baechi.InputError, match='device "cuda:1" has no memory to use'):
        planned(devices={"cuda:0": "1GiB", "cuda:1": 0})


# Models without anything to place


def test_an_empty_module_has_a_plan_of_no_bytes() -> None:
    plan = baechi.plan(nn.Sequential(), (rows(),), devices="2x1GiB", mode="inference")
    assert plan.step_ns == plan.copies == 0
    assert set(plan.peak_bytes.values()) == {0}


def test_a_model_without_parameters_has_a_plan_in_inference() -> None:
    plan = baechi.plan(NoWeights(), (rows(),), devices="2x1GiB", mode="inference")
    assert sum(plan.peak_bytes.values()) == 2 * 8 * 16 * 4


def test_a_call_that_does_not_match_forward_is_refused() -> None:
    with pytest.raises(baechi.InputError, match="forward cannot be called like that"):
        baechi.plan(stack(16, 8), (), devices="1GiB")


@pytest.mark.parametrize("model", [nn.Module(), nn.ModuleList([nn.Linear(2, 2)])])
def test_a_module_without_forward_is_refused_by_its_kind(model: nn.Module) -> None:
    with pytest.raises(baechi.InputError, match=f"a {type(model).__name__}, has no forward"):
        planned(model)


@pytest.mark.parametrize("autocast", ["bfloat16", torch.int8, torch.float32])
def test_types_that_autocast_does_not_have_are_refused(autocast: Any) -> None:
    with pytest.raises(baechi.InputError, match=r"give torch\.bfloat16"):
        planned(autocast=autocast)


def test_what_is_no_module_is_refused() -> None:
    with pytest.raises(baechi.InputError, match="the model is int"):
        baechi.plan(3, (rows(),), devices="1GiB")  # type: ignore[arg-type]
