"""Every model runs with its modules anywhere and computes what it computed on one device."""

import pytest
import torch
from torch import nn

import torch_models
from baechi.errors import InputError
from baechi.torch.module_homes import device_at
from baechi.torch.module_hooks import add_hooks
from baechi.torch.simdev import simulated
from torch_placing import apply_modules, at_random, largest_difference, place, train

MODELS = pytest.mark.parametrize("case", torch_models.CASES, ids=lambda case: case.name)


@MODELS
def test_the_first_loss_in_float32_is_that_of_the_host_to_the_bit(
    case: torch_models.ModelCase,
) -> None:
    with simulated(3):
        sample = case.build()
        expected = sample.loss().item()
        sample = case.build()
        apply_modules(sample.model, at_random(sample.model, 3, seed=1))
        assert sample.loss().item() == expected


@MODELS
def test_three_steps_of_adam_in_float64_agree_within_1e_9(case: torch_models.ModelCase) -> None:
    with simulated(3):
        expected = train(case.build(dtype=torch.float64), steps=3)
        sample = case.build(dtype=torch.float64)
        applied = apply_modules(sample.model, at_random(sample.model, 3, seed=2))
        assert applied.runtime is not None
        found = train(sample, steps=3)
    assert found.losses == pytest.approx(expected.losses, rel=0, abs=1e-9)
    assert largest_difference(found.gradients, expected.gradients) < 1e-9
    assert largest_difference(found.buffers, expected.buffers) < 1e-9


def test_one_device_needs_no_hooks() -> None:
    with simulated(1):
        model = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
        assert place(model, {"": 0}).runtime is None
        assert not any(module._forward_pre_hooks for module in model.modules())


def test_the_longest_dotted_prefix_decides() -> None:
    cpu, meta = torch.device("cpu"), torch.device("meta")
    assert device_at("block10.a", {"": cpu, "block1": meta}) == cpu
    assert device_at("block1.a", {"": cpu, "block1": meta}) == meta


def test_a_module_without_device_is_named() -> None:
    with pytest.raises(InputError, match='module "0" has no device'):
        add_hooks(nn.Sequential(nn.ReLU()), {"1": torch.device("cpu")})
