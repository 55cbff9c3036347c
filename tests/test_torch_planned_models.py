"""What a plan makes of models whose weights and inputs are not where one expects them."""

from typing import Any

import pytest
import torch
from torch import nn

import baechi
from baechi.torch import ModelPlan
from baechi.torch.planning import study
from torch_small_models import (
    Adapted,
    Answers,
    ByKeyword,
    Cached,
    Containers,
    Reused,
    Scaled,
    Tied,
    rows,
)
from torch_troubles import TROUBLES

TOKENS = torch.arange(24).view(4, 6)


def planned(model: nn.Module, *args: Any, **options: Any) -> ModelPlan:
    options = {"devices": "2x1GiB", "optimizer": "sgd", **options}
    return baechi.plan(model, args, **options)


def held(plan: ModelPlan, memory_class: str) -> int:
    return sum(device.by_class.get(memory_class, 0) for device in plan.devices)


def test_frozen_and_integer_parameters_get_no_gradient_and_no_state() -> None:
    model = Adapted()
    found = study(model, (rows(),), optimizer="adam", devices="1GiB")
    plan, storages = found.plan, found.task.trace.storages
    assert {storages[at].name for at, *_ in found.task.parameters} == {"down.weight", "up.weight"}
    adapters = 2 * 4 * 16 * 2
    assert held(plan, "optimizer") == 2 * adapters
    assert held(plan, "weight") == 16 * 16 + 4 * (16 * 16 + 16) + adapters
    assert plan.model["quantized"] == "parameter int8[16,16] frozen"


def test_tied_weights_count_once() -> None:
    model = Tied()
    plan = planned(model, TOKENS, optimizer="adam", devices="1GiB")
    nbytes = sum(p.nbytes for p in model.parameters())
    assert held(plan, "weight") == nbytes
    assert held(plan, "optimizer") == 2 * nbytes


def test_weights_tied_over_two_devices_have_one_home_and_rehearse_there() -> None:
    model = Tied()
    plan = planned(model, TOKENS, pin={"embedding": "cuda:0", "head": "cuda:1"})
    assert plan.device_of("embedding") == "cuda:0"
    rehearsed = baechi.rehearse(model, plan, (TOKENS,), steps=2)
    assert rehearsed.copies == plan.copies
    assert rehearsed.losses[0] == model(TOKENS).item()


def test_a_module_that_is_called_again_and_has_two_names_is_on_one_device() -> None:
    model = Reused()
    plan = planned(model, rows(), pin={"again": "cuda:1"})
    assert plan.device_of("first") == plan.device_of("again") == "cuda:1"
    assert held(plan, "weight") == sum(p.nbytes for p in model.parameters())


def test_parameters_beside_children_unsaved_buffers_and_plain_tensors_follow_the_plan() -> None:
    model, x = Scaled(), rows()
    plan = planned(model, x, pin={"inner": "cuda:1", "scale": "cuda:0"})
    assert plan.device_of("scale") == "cuda:0"
    rehearsed = baechi.rehearse(model, plan, (x,), steps=1)
    assert rehearsed.losses == (model(x).item(),)
    assert rehearsed.copies == plan.copies


def test_lists_and_dictionaries_of_modules_and_parameters_are_placed() -> None:
    model, x = Containers(), rows()
    plan = planned(model, x, pin={"listed.0": "cuda:1", "named.a": "cuda:0", "gains.1": "cuda:1"})
    assert plan.device_of("listed.0") == "cuda:1"
    rehearsed = baechi.rehearse(model, plan, (x,), steps=1)
    assert rehearsed.losses == (model(x).item(),)


def test_inputs_may_be_keyword_only_and_nested() -> None:
    model, inputs = ByKeyword(), {"batch": {"x": rows()}, "factor": 2.0}
    plan = baechi.plan(model, (), inputs, devices="2x1GiB")
    assert plan.inputs == ("batch.x: float32[8,16]",)
    assert baechi.rehearse(model, plan, (), inputs).losses == (model(**inputs).item(),)


@pytest.mark.parametrize("form", ["dataclass", "dictionary"])
def test_outputs_may_be_dataclasses_and_dictionaries(form: str) -> None:
    model, x = Answers(form), rows()
    plan = planned(model, x)
    output = model(x)
    loss = output["loss"] if form == "dictionary" else output.loss
    assert baechi.rehearse(model, plan, (x,)).losses == (loss.item(),)


def test_a_cache_that_is_passed_in_is_written_in_a_copy() -> None:
    model, x, cache = Cached(), rows(), {"past": torch.zeros(8, 16)}
    plan = baechi.plan(model, (x, cache), devices="2x1GiB", optimizer="sgd")
    first = baechi.rehearse(model, plan, (x, cache), steps=1).losses
    expected = model(x, {"past": torch.zeros(8, 16)})
    assert first == (expected.item(),)


@pytest.mark.parametrize("name", ["residual-blocks", "two-streams", "plain-attribute"])
def test_attention_without_a_batch_and_plain_tensors_rehearse_with_the_same_loss(name: str) -> None:
    trouble = next(one for one in TROUBLES if one.name == name)
    sample = trouble.build()
    options: dict[str, Any] = {"devices": "2x1GiB", "objective": "most-headroom"}
    plan = baechi.plan(sample.model, sample.args, sample.kwargs, optimizer="sgd", **options)
    rehearsed = baechi.rehearse(sample.model, plan, sample.args, sample.kwargs)
    assert rehearsed.losses == (sample.loss().item(),)
    assert rehearsed.copies == plan.copies > 0
