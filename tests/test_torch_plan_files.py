"""The file of a model's plan: the same bytes again, one line per module, and who may use it."""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import baechi
from baechi.torch import ModelPlan
from baechi.torch.model_plan_text import excess_by_modules
from torch_small_models import Scaled, Tied, rows, stack, total


def plan_of(model: nn.Module, x: torch.Tensor, **options: Any) -> ModelPlan:
    options = {"devices": "2x1GiB", "optimizer": "sgd", "confirm": False, **options}
    return baechi.plan(model, (x,), **options)


@pytest.fixture(name="file")
def file_of_a_stack(tmp_path: Path) -> Path:
    path = tmp_path / "plan.json"
    model = stack(16, 16, 16, 16)
    plan_of(model, rows(), loss=total, pin={"[02]": "cuda:0", "4": "cuda:1"}).save(path)
    return path


def edited(file: Path, change: Callable[[dict[str, Any]], None]) -> Path:
    document = json.loads(file.read_text())
    change(document)
    file.write_text(json.dumps(document))
    return file


def test_a_plan_that_is_read_is_written_with_the_same_bytes(file: Path) -> None:
    again = file.with_name("again.json")
    ModelPlan.load(file).save(again)
    assert again.read_bytes() == file.read_bytes()


def test_baechis_own_loader_knows_plans_of_models(file: Path) -> None:
    assert isinstance(baechi.Plan.load(file), ModelPlan)


def test_one_line_moves_one_module(file: Path) -> None:
    before = ModelPlan.load(file)
    text = file.read_text()
    assert text.count('"2": "cuda:0"') == 1
    file.write_text(text.replace('"2": "cuda:0"', '"2": "cuda:1"'))
    plan, model, x = ModelPlan.load(file), stack(16, 16, 16, 16), rows()
    assert [plan.device_of(name) for name in "024"] == ["cuda:0", "cuda:1", "cuda:1"]
    one, other = (baechi.rehearse(model, p, (x,), loss=total, steps=2) for p in (before, plan))
    assert one.losses == other.losses
    assert other.peak_bytes[0] < one.peak_bytes[0]
    assert other.peak_bytes[1] > one.peak_bytes[1]


def move_to_the_other(document: dict[str, Any]) -> None:
    document["modules"]["2"] = "cuda:1"


def test_an_edited_plan_says_first_that_its_predictions_are_of_the_placement_before(
    file: Path,
) -> None:
    assert not ModelPlan.load(file).is_edited
    plan = ModelPlan.load(edited(file, move_to_the_other))
    assert (plan.is_edited, plan.is_within_limits) == (True, False)
    first, *others = " ".join(str(plan).split()).split(" before the edit: training step ")
    assert first.startswith("modules were moved after planning")
    assert "baechi.rehearse(model, plan, ...)" in first
    assert len(others) == 1
    assert "per step before an edit" in repr(plan)
    pinned = plan_of(stack(16, 16, 16, 16), rows(), loss=total, pin=plan.device_map)
    assert (pinned.placement, pinned.is_edited) == (plan.placement, False)


def test_what_was_measured_before_an_edit_is_not_shown_as_true() -> None:
    options = {"devices": "2x1GiB", "mode": "inference", "pin": {"0": "cuda:0", "2": "cuda:1"}}
    plan = baechi.plan(stack(16, 16, 16), (rows(),), **options)
    assert "dry rehearsal" in str(plan)
    moved = dataclasses.replace(plan, modules={"0": "cuda:1", "2": "cuda:0"})
    assert "dry rehearsal" not in str(moved)
    small = tuple(dataclasses.replace(d, cap_bytes=1) for d in plan.devices)
    assert excess_by_modules(dataclasses.replace(plan, devices=small))
    assert not excess_by_modules(dataclasses.replace(moved, devices=small))


def test_entries_that_change_nothing_are_no_edit(file: Path) -> None:
    def say_it_again(document: dict[str, Any]) -> None:
        document["modules"] |= {"2.weight": "cuda:0", "4.weight": "cuda:1"}

    assert not ModelPlan.load(edited(file, say_it_again)).is_edited


def test_other_names_of_the_devices_are_no_edit(file: Path) -> None:
    file.write_text(file.read_text().replace("cuda:", "xpu:"))
    plan = ModelPlan.load(file)
    assert (plan.device_of("4"), plan.is_edited) == ("xpu:1", False)


def test_files_of_older_versions_still_load(file: Path) -> None:
    plan = ModelPlan.load(edited(file, drop("predicted_for")))
    assert not plan.is_edited
    plan.save(file)
    assert not ModelPlan.load(edited(file, move_to_the_other)).is_edited


def test_what_must_stay_with_a_module_moves_along(tmp_path: Path) -> None:
    class InPlace(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(16, 16), nn.ReLU(inplace=True)
            self.third = nn.Linear(16, 16)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.third(self.second(self.first(x))).sum()

    model, x = InPlace(), rows()
    pin = {"first": "cuda:0", "third": "cuda:1"}
    plan_of(model, x, pin=pin).save(tmp_path / "plan.json")

    def move(document: dict[str, Any]) -> None:
        document["modules"]["first"] = "cuda:1"

    plan = ModelPlan.load(edited(tmp_path / "plan.json", move))
    assert plan.device_of("second") == "cuda:1"
    assert baechi.rehearse(model, plan, (x,)).copies == 0


def test_modules_that_must_stay_together_cannot_be_sent_to_two_devices(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(16, 16), nn.ReLU(inplace=True), nn.Linear(16, 16))
    path = tmp_path / "plan.json"
    plan_of(model, rows(), loss=total, devices="3x1GiB", pin={"*": "cuda:0"}).save(path)

    def move(document: dict[str, Any]) -> None:
        document["modules"] |= {"0": "cuda:1", "1": "cuda:2"}

    with pytest.raises(baechi.InputError, match="give them one device"):
        ModelPlan.load(edited(path, move))


def test_another_model_is_refused_with_every_difference_by_name() -> None:
    plan = plan_of(Tied(), torch.arange(24).view(4, 6))
    other = Tied()
    other.head.weight = nn.Parameter(torch.zeros(32, 16))
    other.middle = nn.Linear(16, 16, bias=False, dtype=torch.float64)
    other.extra = nn.Linear(2, 2, bias=False)
    with pytest.raises(baechi.PlanMismatchError, match="another model") as caught:
        plan.check(other)
    assert set(caught.value.differences) == {
        '"head.weight" was same as embedding.weight, is parameter float32[32,16]',
        '"middle.weight" was parameter float32[16,16], is parameter float64[16,16]',
        '"middle.bias" (parameter float32[16]) is missing',
        '"extra.weight" (parameter float32[2,2]) is new',
    }


def test_a_rehearsal_of_another_model_is_refused() -> None:
    plan = plan_of(Scaled(), rows())
    with pytest.raises(baechi.PlanMismatchError):
        baechi.rehearse(stack(16, 16), plan, (rows(),))


def test_another_version_of_torch_is_only_a_note(file: Path) -> None:
    def age(document: dict[str, Any]) -> None:
        document["versions"]["torch"] = "2.0.0"

    with pytest.warns(UserWarning, match=r"plan\.json: planned with torch 2\.0\.0, this is"):
        plan = ModelPlan.load(edited(file, age))
    assert "note: planned with torch 2.0.0" in str(plan)
    assert plan.device_of("4") == "cuda:1"
    assert baechi.rehearse(stack(16, 16, 16, 16), plan, (rows(),), loss=total).losses


def drop(name: str) -> Callable[[dict[str, Any]], None]:
    return lambda document: document.pop(name)


def put(name: str, value: Any) -> Callable[[dict[str, Any]], None]:
    return lambda document: document.update({name: value})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (put("format", "other"), "it does not say"),
        (put("schema", 7), "schema 7"),
        (drop("modules"), '"modules" is missing'),
        (put("colour", 1), '"colour" is not a field'),
        (put("modules", {"0": "cuda:5"}), '"0" on "cuda:5", which the plan does not have'),
        (put("modules", {"0": 1}), '"modules.0" has 1'),
        (put("ops", []), '"ops" has'),
        (put("step_ns", -1), '"step_ns" is -1'),
        (put("step_ns", 1.5), '"step_ns" is 1.5'),
        (put("devices", [{}]), '"devices" has an entry'),
        (put("together", [{"device": "cuda:0"}]), '"together" has an entry without "modules"'),
        (put("cluster", []), '"cluster" has'),
        (put("confirmed", [1, 2, 3]), '"confirmed" has 3 peaks for 2 devices'),
        (put("mode", "trainign"), '"mode" is "trainign"'),
        (put("level", "low"), '"level" is "low"'),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_malformed_file_is_refused_by_file_and_field(
    file: Path, change: Callable[[dict[str, Any]], None], message: str
) -> None:
    with pytest.raises(baechi.InputError) as caught:
        ModelPlan.load(edited(file, change))
    assert "plan.json" in str(caught.value)
    assert message in str(caught.value)


@pytest.mark.parametrize("content", [b"", b"[]", b"{", b"\xff", b'{"format": "baechi-model-plan"}'])
def test_what_is_no_plan_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "plan.json").write_bytes(content)
    with pytest.raises(baechi.InputError, match=r"plan\.json"):
        ModelPlan.load(tmp_path / "plan.json")
