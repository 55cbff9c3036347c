"""Confirmed plans: where a plan says that a model fits, no run as planned exceeds a limit."""

import functools
from typing import Any

import pytest
import torch

import baechi
from baechi.torch.planning import Planned, study
from torch_models import BY_NAME

NAMES = ["bert", "llama", "unet", "encoder"]


def adam(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, foreach=False)


@functools.cache
def smallest_peak(name: str, mode: str) -> int:
    """The fullest of three devices in the placement that fills them most evenly."""
    sample = BY_NAME[name].build()
    optimizer = adam if mode == "training" else None
    found: Planned = study(
        sample.model,
        sample.args,
        sample.kwargs,
        devices="3x1GiB",
        mode=mode,
        optimizer=optimizer,
        objective="most-headroom",
    )
    return max(found.outcome.memory.peaks)


@pytest.mark.parametrize("mode", ["training", "inference"])
@pytest.mark.parametrize("name", NAMES)
def test_a_run_under_tight_limits_stays_within_them(name: str, mode: str) -> None:
    sample = BY_NAME[name].build()
    peak = smallest_peak(name, mode)
    devices = {"cuda:0": peak, "cuda:1": peak, "cuda:2": peak + peak // 10}
    optimizer = adam if mode == "training" else None
    plan = baechi.plan(
        sample.model, sample.args, sample.kwargs, devices=devices, mode=mode, optimizer=optimizer
    )
    assert len(set(plan.modules.values())) > 1, "one device has room for everything"
    rehearsed = baechi.rehearse(sample.model, plan, sample.args, sample.kwargs, steps=2)
    assert rehearsed.cap_bytes == tuple(devices.values())
    assert rehearsed.copies == plan.copies
    assert rehearsed.copied_bytes == plan.copied_bytes
    for seen, confirmed, cap in zip(
        rehearsed.peak_bytes, plan.confirmed, rehearsed.cap_bytes, strict=True
    ):
        assert seen <= cap
        assert seen == pytest.approx(confirmed, rel=0.001, abs=512)
