"""Plans for op level know what a call takes that runs module by module, and say so."""

import dataclasses
import random

import pytest
import torch
from torch import Tensor, nn

import baechi
from baechi.torch import ModelPlan
from baechi.torch.both_levels import measure
from baechi.torch.simdev import simulated
from torch_models import BY_NAME, Sample
from torch_small_models import rows

NAMES = [f"cuda:{at}" for at in range(3)]
RENAMED = {name: f"simdev:{at}" for at, name in enumerate(NAMES)}
CASES = [
    ("resnet", "training"),
    ("unet", "inference"),
    ("t5", "inference"),
    ("llama", "inference"),
]


def scattered(sample: Sample, mode: str, level: str = "auto") -> ModelPlan:
    """A plan whose modules were moved by hand, to any of three devices with room for all."""
    plan = baechi.plan(
        sample.model,
        sample.args,
        sample.kwargs,
        devices="3x1GiB",
        mode=mode,
        optimizer="adam" if mode == "training" else None,
        level=level,
        pin={"": NAMES[0]},
        confirm=False,
    )
    rng = random.Random(mode)
    modules = {path: rng.choice(NAMES) for path, _ in sample.model.named_modules()}
    joined = {path: device for paths, device in plan.together for path in paths}
    return dataclasses.replace(plan, modules={**modules, **joined})


@pytest.mark.parametrize(("name", "mode"), CASES)
def test_what_is_measured_is_what_a_rehearsal_by_modules_takes(name: str, mode: str) -> None:
    sample = BY_NAME[name].build()
    given = sample.model, sample.args, sample.kwargs
    plan = scattered(sample, mode)
    measured = measure(plan, *given)
    by_modules = baechi.rehearse(
        sample.model, plan, *given[1:], steps=2, dry=True, level="module"
    ).peak_bytes
    pairs = list(zip(measured.module_level_peaks, by_modules, strict=True))
    assert all(abs(said - seen) <= 0.02 * seen for said, seen in pairs)


class KeepsAll(nn.Module):
    """Its locals keep what a graph drops in inference."""

    def __init__(self, depth: int = 6) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(depth))
        self.refuses = False

    def forward(self, x: Tensor) -> Tensor:
        kept = [x]
        for layer in self.layers:
            if self.refuses and kept[-1].device.type != "cpu":
                raise RuntimeError("not written for devices")
            kept.append(torch.tanh(layer(kept[-1])))
        return kept[-1].sum()


def planned(model: nn.Module, x: Tensor, devices: dict[str, int]) -> ModelPlan:
    pin = {"layers.0": "cuda:0", "layers.5": "cuda:1"}
    return baechi.plan(model, (x,), devices=devices, mode="inference", pin=pin)


def tight() -> tuple[KeepsAll, Tensor, ModelPlan]:
    """A plan whose graph fits, and whose modules do not."""
    model, x = KeepsAll(), rows(count=1000)
    wide = planned(model, x, {"cuda:0": 2**20, "cuda:1": 2**20})
    caps = [(a + b) // 2 for a, b in zip(wide.confirmed, wide.module_level_peaks, strict=True)]
    assert all(seen < cap for seen, cap in zip(wide.confirmed, caps, strict=True))
    plan = planned(model, x, dict(zip(NAMES, caps, strict=False)))
    assert plan.is_within_limits
    return model, x, plan


def test_a_plan_says_where_a_call_by_modules_exceeds_a_limit() -> None:
    _, _, plan = tight()
    device = max(plan.devices, key=lambda one: plan.module_level_peaks[int(one.name[-1])])
    assert "where it runs module by module: cuda:0" in str(plan)
    assert "note: a call that runs module by module takes" in str(plan)
    assert f"on {device.name}, which has" in str(plan)


def test_a_plan_with_room_for_both_levels_does_not_complain() -> None:
    model, x = KeepsAll(), rows()
    plan = planned(model, x, {"cuda:0": 2**20, "cuda:1": 2**20})
    assert "a call that runs module by module takes" not in str(plan)


def test_the_log_says_what_a_call_by_modules_takes(caplog: pytest.LogCaptureFixture) -> None:
    model, x, plan = tight()
    with simulated(2), torch.no_grad():
        plan.apply(model.eval(), devices=dict(list(RENAMED.items())[:2]))
        model.layers[3].register_forward_hook(lambda *_: None)
        model(x)
    assert "has hooks" in caplog.text
    assert "planned for op level, a call that runs module by module takes" in caplog.text


def test_applying_for_module_level_warns_of_limits(caplog: pytest.LogCaptureFixture) -> None:
    model, _, plan = tight()
    with simulated(2):
        plan.apply(model, devices=dict(list(RENAMED.items())[:2]), level="module")
    assert "applied for module level: a call that runs module by module takes" in caplog.text


def test_a_call_of_another_form_has_to_fit_module_by_module_as_well() -> None:
    model, x, plan = tight()
    assert plan.fits((x,), model=model)
    nearly = plan.fits((x[:-1],), model=model)
    assert not nearly
    assert nearly.peak_bytes > plan.confirmed


def test_a_model_whose_own_code_fails_on_devices_is_planned_all_the_same() -> None:
    model, x = KeepsAll(), rows()
    model.refuses = True
    plan = planned(model, x, {"cuda:0": 2**20, "cuda:1": 2**20})
    assert (plan.level, plan.module_level_peaks) == ("op", ())
    assert plan.confirmed
    assert any("calls cannot run module by module: not written for" in note for note in plan.notes)


def test_plans_for_module_level_have_these_peaks_already() -> None:
    model, x = KeepsAll(), rows()
    plan = baechi.plan(model, (x,), devices="2x1MiB", mode="inference", level="module")
    assert plan.confirmed
    assert plan.module_level_peaks == ()
