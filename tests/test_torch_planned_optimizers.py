"""Optimizers in plans of PyTorch models: how they are named, and what they take."""

from typing import Any

import pytest
import torch
from torch import nn

import baechi
from baechi.torch import ModelPlan
from baechi.torch.planning import Planned, study
from torch_small_models import rows, stack, total


def planned(model: nn.Module | None = None, **options: Any) -> ModelPlan:
    model = stack(16, 32, 8) if model is None else model
    return baechi.plan(model, (rows(),), **{"devices": "2x24GiB", "loss": total, **options})


def studied(model: nn.Module | None = None, **options: Any) -> Planned:
    model = stack(16, 32, 8) if model is None else model
    return study(model, (rows(),), **{"devices": "2x24GiB", "loss": total, **options})


def test_adamw_is_taken_where_no_optimizer_is_named_and_the_plan_says_so() -> None:
    plan = planned()
    assert plan.optimizer == "adamw (foreach)"
    assert "no optimizer was named, so adamw was taken" in plan.notes


@pytest.mark.parametrize(
    ("device", "implementation"), [("cuda:0", "foreach"), ("cpu", "single-tensor")]
)
def test_the_plan_names_the_implementation_that_torch_would_choose(
    device: str, implementation: str
) -> None:
    plan = studied(devices={device: "1GiB"}, optimizer="adam").plan
    assert plan.optimizer == f"adam ({implementation})"


@pytest.mark.parametrize("foreach", [True, False])
def test_an_optimizer_decides_its_implementation_itself(foreach: bool) -> None:
    model = stack(16, 8)
    adam = torch.optim.Adam(model.parameters(), foreach=foreach)
    found = studied(model, optimizer=adam)
    assert found.plan.optimizer == f"adam ({'foreach' if foreach else 'single-tensor'})"


OPTIMIZERS = {
    "sgd": 0.0,
    "momentum": 1.0,
    "adam": 2.0,
    "adamw": 2.0,
    "adagrad": 1.0,
    "rmsprop": 1.0,
    "adamax": 2.0,
    "nadam": 2.0,
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_named_optimizer_keeps_its_multiple_of_the_weights(name: str) -> None:
    device = studied(optimizer=name, devices="1GiB").plan.devices[0]
    assert device.by_class["optimizer"] == OPTIMIZERS[name] * device.by_class["weight"]


@pytest.mark.parametrize(
    "make",
    [
        lambda model: torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, foreach=False),
        lambda model: torch.optim.Rprop(model.parameters(), foreach=False),
        lambda model: torch.optim.Adam(model.parameters(), amsgrad=True, foreach=False),
        lambda model: torch.optim.Adam(model.parameters(), foreach=True),
        lambda model: torch.optim.Adafactor(model.parameters(), foreach=False),
        lambda model: torch.optim.AdamW(
            [{"params": model[0].parameters(), "lr": 0.1}, {"params": model[2].parameters()}],
            foreach=False,
        ),
        lambda model: lambda parameters: torch.optim.NAdam(parameters, foreach=False),
        lambda model: "adafactor",
    ],
    ids=["momentum", "rprop", "amsgrad", "foreach", "adafactor", "groups", "function", "name"],
)
def test_a_rehearsal_steps_as_the_planned_optimizer_does(make: Any) -> None:
    model = stack(16, 64, 8)
    optimizer = make(model)
    plan = planned(model, optimizer=optimizer, devices="1GiB")
    measured = baechi.rehearse(model, plan, (rows(),), steps=2)
    predicted = plan.devices[0].peak_bytes
    assert abs(predicted - measured.peak_bytes[0]) <= max(512, 0.01 * predicted)
    assert abs(plan.confirmed[0] - measured.peak_bytes[0]) <= max(512, 0.01 * predicted)


def test_an_optimizer_of_some_parameters_keeps_state_for_those_alone() -> None:
    model = stack(16, 32, 8)
    adam = torch.optim.Adam(model[2].parameters(), foreach=False)
    plan = planned(model, optimizer=adam, devices="1GiB")
    assert plan.devices[0].by_class["optimizer"] == 2 * 4 * (32 * 8 + 8)
    assert any("0.weight, 0.bias: gradients, but no updates" in note for note in plan.notes)
    assert plan.confirmed == (plan.devices[0].peak_bytes,)


@pytest.mark.parametrize("optimizer", ["lion", 3, lambda parameters: 3])
def test_an_unknown_optimizer_is_refused(optimizer: Any) -> None:
    with pytest.raises(baechi.InputError, match="optimizer"):
        planned(optimizer=optimizer)


def test_an_optimizer_whose_step_cannot_be_traced_is_refused_with_the_nearest() -> None:
    model = stack(16, 8)
    with pytest.raises(
        baechi.InputError, match=r"step of LBFGS cannot be traced[^\n]*\nhint: .*sgd"
    ):
        planned(model, optimizer=torch.optim.LBFGS(model.parameters()))


def test_an_optimizer_of_another_model_is_refused() -> None:
    with pytest.raises(baechi.InputError, match="holds no parameter of the model"):
        planned(optimizer=torch.optim.SGD(stack(16, 8).parameters(), lr=0.1))
