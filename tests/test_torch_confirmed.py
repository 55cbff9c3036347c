"""Confirmed plans: where a plan says that a model fits, no run as planned exceeds a limit."""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import nn

import baechi
from baechi.torch.both_levels import measure
from baechi.torch.confirming import confirmed
from baechi.torch.flat_task import flatten_task
from baechi.torch.planning import Planned, prepare, searched, study
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
    for seen, expected, cap in zip(
        rehearsed.peak_bytes, plan.confirmed, rehearsed.cap_bytes, strict=True
    ):
        assert seen <= cap
        assert seen == pytest.approx(expected, rel=0.001, abs=512)


def fullest(peaks: Sequence[int], caps: Sequence[int]) -> float:
    return max(peak / cap for peak, cap in zip(peaks, caps, strict=True))


def test_a_plan_by_modules_takes_what_it_predicts_where_lists_are_kept() -> None:
    # Python keeps lists of this model's activations longer than a graph would.
    sample = BY_NAME["densenet"].build()
    options = {"devices": "2x300KB,200KB", "mode": "inference", "level": "module"}
    options["objective"] = "most-headroom"
    plan = baechi.plan(sample.model, sample.args, sample.kwargs, **options)
    caps = [device.cap_bytes for device in plan.devices]
    predicted = fullest(tuple(plan.peak_bytes.values()), caps)
    assert fullest(plan.confirmed, caps) == pytest.approx(predicted, rel=0.02)
    assert (
        plan.confirmed == measure(plan, sample.model, sample.args, sample.kwargs).planned.peak_bytes
    )
    again = baechi.plan(sample.model, sample.args, sample.kwargs, **options)
    assert again.to_json() == plan.to_json()


def blocks() -> tuple[nn.Module, tuple[torch.Tensor]]:
    torch.manual_seed(0)
    layers = [m for _ in range(8) for m in (nn.Linear(32, 32), nn.GELU())]
    return nn.Sequential(*layers), (torch.randn(256, 32),)


def understated(devices: str, objective: str) -> Planned:
    """A plan by a ledger that believes that nothing is saved for backward."""
    model, args = blocks()
    prepared = prepare(
        model, args, devices=devices, optimizer="sgd", loss=torch.sum, objective=objective
    )
    task = prepared.task
    steps = [dataclasses.replace(step, saved=[]) for step in task.trace.steps]
    trace = dataclasses.replace(task.trace, steps=steps)
    flat = flatten_task(
        trace, task.units, task.operators, task.cluster, task.optimizer, task.parameters
    )
    wrong = dataclasses.replace(prepared, task=dataclasses.replace(task, trace=trace, flat=flat))
    return searched(wrong)


@pytest.mark.parametrize("objective", ["fastest", "most-headroom", "fewest-devices"])
def test_a_ledger_that_is_wrong_ends_in_a_plan_that_fits_by_its_rehearsal(objective: str) -> None:
    model, args = blocks()
    planned = understated("3x350KB", objective)
    seen = measure(planned.plan, model, args, {}).planned.peak_bytes
    assert max(seen) > 1.2 * max(planned.outcome.memory.peaks)
    found = confirmed(planned, model, args, {})
    assert found.plan.is_within_limits
    assert max(found.plan.confirmed) <= max(seen)
    assert found.plan.confirmed == measure(found.plan, model, args, {}).planned.peak_bytes
    assert any("were predicted, the dry rehearsal took" in note for note in found.plan.notes)
    assert confirmed(planned, model, args, {}).plan == found.plan


def test_a_prediction_that_holds_is_rehearsed_once() -> None:
    model, args = blocks()
    planned = study(model, args, devices="3x1MB", optimizer="sgd", loss=torch.sum)
    found = confirmed(planned, model, args, {})
    assert found.task.caps == planned.task.caps
    assert found.outcome is planned.outcome
