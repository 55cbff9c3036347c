"""Each model after a public thread is planned, cut, and trains a step as on one device."""

from collections.abc import Callable, Sequence

import pytest
import torch
from torch import nn

from baechi.errors import OutOfMemoryError
from baechi.torch.applying import apply_placement, status
from baechi.torch.model_plan import ModelPlan
from baechi.torch.placement_rule import ModulePlacement
from baechi.torch.planning import plan
from baechi.torch.simdev import simulated
from torch_models import Sample
from torch_placing import Trained, at_random, largest_difference, train
from torch_troubles import TROUBLES, Trouble

# Shares of what one device would need; the first that has a placement is taken.
SHARES = ((0.55, 0.4, 0.5), (0.75, 0.55, 0.65), (0.9, 0.7, 0.8), (1.0, 0.8, 0.9))
NAMES = ("cuda:0", "cuda:1", "cuda:2")
RENAMED = {name: f"simdev:{index}" for index, name in enumerate(NAMES)}
# Layers that change their input in place share a device; so do weights that one module owns.
UNCUT = {"in-place", "quantized-buffers"}
THREADS = {"argvalues": TROUBLES, "ids": [trouble.thread for trouble in TROUBLES]}


def planned(sample: Sample, *sizes: int) -> ModelPlan:
    optimizer = torch.optim.Adam(sample.model.parameters(), foreach=False)
    devices = dict(zip(NAMES, sizes, strict=False))
    return plan(
        sample.model,
        sample.args,
        sample.kwargs,
        devices=devices,
        optimizer=optimizer,
        confirm=False,  # the step below is held to the limits
    )


def smallest(sample: Sample, choices: Sequence[tuple[float, ...]]) -> ModelPlan:
    """A plan for three unequal devices that are as small as may be."""
    (alone,) = planned(sample, 2**30).devices
    for shares in choices:
        try:
            return planned(sample, *(round(alone.peak_bytes * share) for share in shares))
        except OutOfMemoryError as error:
            refused = error
    raise refused


def agrees(trouble: Trouble, caps: list[int], apply: Callable[[nn.Module], object]) -> str:
    """The level at which a step was run, whose numbers are those of the plain model."""
    expected = train(trouble.build(dtype=torch.float64), steps=1)
    with simulated(caps):
        sample = trouble.build(dtype=torch.float64)
        apply(sample.model)
        found: Trained = train(sample, steps=1)
        assert found.losses == pytest.approx(expected.losses, rel=0, abs=1e-9)
        assert largest_difference(found.gradients, expected.gradients) < 1e-9
        assert largest_difference(found.buffers, expected.buffers) < 1e-9
        return status(sample.model).level


@pytest.mark.parametrize("trouble", **THREADS)
def test_a_step_under_a_plan_gives_the_numbers_of_the_plain_model(trouble: Trouble) -> None:
    is_cut = trouble.name not in UNCUT
    made = smallest(trouble.build(dtype=torch.float64), SHARES if is_cut else SHARES[-1:])
    homes = {made.device_of(name) for name in trouble.build().model.state_dict()}
    assert (len(homes) > 1) == is_cut
    caps = [device.cap_bytes for device in made.devices]
    level = agrees(trouble, caps, lambda model: made.apply(model, devices=RENAMED))
    assert level == (made.level if is_cut else "none")


@pytest.mark.parametrize("trouble", **THREADS)
def test_a_step_module_by_module_gives_the_numbers_of_the_plain_model(trouble: Trouble) -> None:
    def apply(model: nn.Module) -> None:
        apply_placement(model, ModulePlacement(at_random(model, 3, seed=7)), level="module")

    is_one_module = trouble.name == "quantized-buffers"
    assert agrees(trouble, [2**30] * 3, apply) == ("none" if is_one_module else "module")
