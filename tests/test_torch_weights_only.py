"""Splits by weights alone run out of memory where a plan does not, under the same limits."""

import math
from typing import Any

import pytest
import torch
from accelerate import infer_auto_device_map
from torch.utils._pytree import tree_map_only

import baechi
from baechi.torch import ModelPlan
from baechi.torch.planning import study
from baechi.torch.simdev import resolve, simulated
from torch_models import BY_NAME, loss_of
from torch_placing import apply_modules

CASES = [("bert", 2), ("gpt2", 4), ("llama", 4), ("encoder", 3), ("unet", 4)]


def adam(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, foreach=False)


def tight_caps(name: str, num_devices: int) -> dict[str, int]:
    """Devices with a twentieth more than the smallest peaks that were found for any plan."""
    sample = BY_NAME[name].build()
    options: dict[str, Any] = {"optimizer": adam, "objective": "most-headroom"}
    roomy = study(
        sample.model, sample.args, sample.kwargs, devices=f"{num_devices}x1GiB", **options
    )
    peak = math.ceil(1.05 * max(roomy.plan.peak_bytes.values()))
    return {f"cuda:{at}": peak for at in range(num_devices)}


def train(name: str, caps: dict[str, int], device_map: dict[str, int]) -> None:
    sample = BY_NAME[name].build()
    with simulated(list(caps.values())):
        homes = {path: resolve(f"simdev:{at}") for path, at in device_map.items()}
        apply_modules(sample.model, {"": resolve("simdev:0"), **homes})
        args, kwargs = tree_map_only(
            torch.Tensor, lambda t: t.to(resolve("simdev:0")), (sample.args, sample.kwargs)
        )
        optimizer = adam(sample.model.parameters())
        for _ in range(2):
            optimizer.zero_grad()
            loss_of(sample.model(*args, **kwargs)).backward()
            optimizer.step()


@pytest.mark.parametrize(("name", "num_devices"), CASES)
def test_a_split_by_weights_runs_out_of_memory_where_a_plan_trains(
    name: str, num_devices: int
) -> None:
    caps = tight_caps(name, num_devices)
    sample = BY_NAME[name].build()
    limits = dict(enumerate(caps.values()))
    by_weights = infer_auto_device_map(sample.model, max_memory=limits)
    assert set(by_weights.values()) <= set(limits)
    with pytest.raises(torch.OutOfMemoryError):
        train(name, caps, by_weights)
    plan = baechi.plan(sample.model, sample.args, sample.kwargs, devices=caps, optimizer=adam)
    check(plan, name)


def check(plan: ModelPlan, name: str) -> None:
    sample = BY_NAME[name].build()
    rehearsed = baechi.rehearse(sample.model, plan, sample.args, sample.kwargs, steps=2)
    assert all(p <= c for p, c in zip(rehearsed.peak_bytes, rehearsed.cap_bytes, strict=True))
    assert rehearsed.losses[0] == sample.loss().item()
