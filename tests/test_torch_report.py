"""The report and the trace of a model's plan."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from playwright.sync_api import Browser

import baechi
from baechi.errors import InputError
from baechi.torch import ModelPlan
from baechi.units import format_ns
from browser import Opened, browsers
from torch_models import BY_NAME


@pytest.fixture(scope="module")
def plan() -> ModelPlan:
    """A plan of the small GPT-2 on two devices."""
    sample = BY_NAME["gpt2"].build()
    return baechi.plan(
        sample.model, sample.args, sample.kwargs, devices="400KiB,360KiB", confirm=False
    )


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    yield from browsers()


def test_the_plan_of_the_operators_takes_as_long_as_the_plan_says(plan: ModelPlan) -> None:
    operators = plan.operator_plan
    assert operators is not None
    assert operators.makespan_ns == plan.step_ns
    assert list(operators.busy_ns.values()) == [device.busy_ns for device in plan.devices]
    homes = operators.placement
    for path in ("transformer.wte", "transformer.h.0.mlp.c_fc", "transformer.h.1.ln_2"):
        assert homes[f"{path}:weights:0"] == homes[f"{path}:update:0"] == plan.device_of(path)


def test_the_trace_has_a_process_for_every_device(plan: ModelPlan, tmp_path: Path) -> None:
    plan.trace(tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    named = {event["args"]["name"] for event in events if event["name"] == "process_name"}
    assert any("cuda:0" in name for name in named)
    assert any("cuda:1" in name for name in named)
    assert any("transformer.h.1.mlp.c_fc" in event["name"] for event in events)


def test_the_page_shows_memory_as_the_plan_has_it(
    browser: Browser, plan: ModelPlan, tmp_path: Path
) -> None:
    plan.report(tmp_path / "plan.html")
    with Opened(browser, tmp_path / "plan.html") as opened:
        page = opened.ready()
        assert page.inner_text("[data-fact=makespan]") == format_ns(plan.step_ns)
        for device in plan.devices:
            cells = page.locator(f'#devices tr[data-key="{device.name}"] td')
            shown = [cells.nth(at).get_attribute("data-value") for at in (3, 4)]
            assert shown == [str(device.peak_bytes), str(device.cap_bytes)]
            assert f"{device.peak_at}" in cells.nth(7).inner_text()
            assert "optimizer" in cells.nth(6).inner_text()
        assert "one device: cuda:0 lacks" in page.inner_text("#comparison-section")
        page.click('#graph .box[data-name="transformer"]')
        assert page.inner_text("#path") == "whole graph / transformer"


def test_the_report_says_where_it_counts_other_copies_than_the_plan(plan: ModelPlan) -> None:
    operators = plan.operator_plan
    assert operators is not None
    more = operators.num_transfers - plan.copies
    assert more > 0, "a residual that a later device reads twice has two gradients in the graph"
    (said,) = [note for note in operators.provenance.notes if "copies of the plan" in note]
    assert said.startswith(f"{operators.num_transfers} transfers here, {plan.copies} copies")


def test_what_does_not_fit_is_judged_by_the_ledger(plan: ModelPlan, tmp_path: Path) -> None:
    plan.report(tmp_path / "fits.html")
    assert "Does not fit" not in (tmp_path / "fits.html").read_text()
    first, second = plan.devices
    smaller = replace(plan, devices=(replace(first, cap_bytes=first.peak_bytes - 1024), second))
    smaller.report(tmp_path / "over.html")
    assert "1 KiB too much" in (tmp_path / "over.html").read_text()


def test_a_notebook_shows_the_plan_as_a_table(plan: ModelPlan) -> None:
    text = plan._repr_html_()
    assert text.count("<tr>") == 1 + len(plan.devices)
    assert "one device: " in text


def test_a_plan_from_a_file_has_no_report(plan: ModelPlan, tmp_path: Path) -> None:
    plan.save(tmp_path / "plan.json")
    assert ModelPlan.load(tmp_path / "plan.json") == plan
    with pytest.raises(InputError, match="plan the model again"):
        ModelPlan.load(tmp_path / "plan.json").report(tmp_path / "plan.html")


def test_inference_has_a_report_too(tmp_path: Path) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 2))
    made = baechi.plan(model, (torch.randn(3, 8),), devices="2x1GiB", mode="inference")
    assert made.operator_plan is not None
    assert made.operator_plan.makespan_ns == made.step_ns
    assert made.operator_plan.num_transfers == made.copies
    assert not any("transfers here" in note for note in made.operator_plan.provenance.notes)
    made.report(tmp_path / "plan.html")
    table = (tmp_path / "plan.html").read_text().split('<table id="devices">')[1].split("</table>")
    assert "weight" in table[0]
    assert "gradient" not in table[0]
