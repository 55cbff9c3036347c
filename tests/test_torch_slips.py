"""What somebody is told who writes an argument of a plan, or of its use, a little wrong."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import baechi
from baechi.torch import ModelPlan, simdev, status
from torch_small_models import rows, stack, total

X = rows()
PLANNED: dict[str, Any] = {"devices": "2x1MiB", "loss": total, "confirm": False}
SIMULATED = {"cuda:0": "simdev:0", "cuda:1": "simdev:1"}


def fails(_: Any) -> Any:
    raise ZeroDivisionError("no rate")


def planned(**options: Any) -> ModelPlan:
    return baechi.plan(stack(16, 16, 16), (X,), **{**PLANNED, **options})


@pytest.fixture(scope="module")
def plan() -> ModelPlan:
    return planned(pin={"0": "cuda:0", "2": "cuda:1"})


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"pin": ["0"]}, r'pin is a list, .*\nhint: write pin=\{"head": "cuda:1"\}'),
        ({"pin": {"0": 7}}, 'no device "cuda:7"\nhint: the devices are cuda:0, cuda:1'),
        ({"pin": {"0": None}}, "None is not a device"),
        ({"loss": "mse"}, "loss is a str, not a function\nhint: it gets the model's output alone"),
        ({"optimizer": fails}, "optimizer= fails for a list of one parameter: ZeroDivisionError"),
    ],
)
def test_a_wrong_argument_of_a_plan_is_named(options: dict[str, Any], said: str) -> None:
    with pytest.raises(baechi.InputError, match=said):
        planned(**options)


def test_a_class_is_not_a_model() -> None:
    with pytest.raises(baechi.InputError, match=r"the class Linear, .*\nhint: .*Linear\(\.\.\.\)"):
        baechi.plan(nn.Linear, (X,), **PLANNED)


def test_pins_name_devices_as_mappings_of_sizes_do() -> None:
    pinned = planned(pin={"0": 1, "2": torch.device("cuda:0")})
    assert [pinned.device_of(path) for path in "02"] == ["cuda:1", "cuda:0"]


def test_the_name_of_an_optimizer_may_be_written_as_its_class_is() -> None:
    assert planned(optimizer="AdamW") == planned(optimizer="adamw")


def lbfgs(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.LBFGS(model.parameters())


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (lambda _: {"devices": ["simdev:0", "simdev:1"]}, "devices is a list, not a mapping"),
        (lambda _: {"devices": {**SIMULATED, "cuda:1": "gpu 7"}}, '"gpu 7" is no device here'),
        (lambda _: {"optimizer": "adam", "devices": SIMULATED}, "optimizer is a str\nhint: pass a"),
        (
            lambda model: {"optimizer": lbfgs(model), "devices": SIMULATED},
            "LBFGS joins all parameters in one tensor, and the plan has them on 2 devices",
        ),
    ],
)
def test_a_wrong_argument_of_apply_is_named_and_nothing_moves(
    plan: ModelPlan, arguments: Callable[[nn.Module], dict[str, Any]], said: str
) -> None:
    model = stack(16, 16, 16)
    with simdev.simulated(2), pytest.raises(baechi.InputError, match=said):
        plan.apply(model, **arguments(model))
    assert {weight.device.type for weight in model.parameters()} == {"cpu"}
    assert type(model) is nn.Sequential


def test_weights_that_were_not_loaded_are_named_on_any_device(plan: ModelPlan) -> None:
    said = r'"0\.weight" is on meta, .*\nhint: load them first: plan\.load_weights'
    with pytest.raises(baechi.InputError, match=said):
        planned(devices={"cpu": "1MiB"}).apply(stack(16, 16, 16).to("meta"))
    with simdev.simulated(2), pytest.raises(baechi.InputError, match=said):
        plan.apply(stack(16, 16, 16).to("meta"), devices=SIMULATED)
    with simdev.simulated(2, dry=True):  # nobody's values are missed
        plan.apply(stack(16, 16, 16).to("meta"), devices=SIMULATED)


def test_a_misspelled_path_in_a_plan_is_found_where_the_model_is(
    plan: ModelPlan, tmp_path: Path
) -> None:
    plan.save(tmp_path / "plan.json")
    text = (tmp_path / "plan.json").read_text()
    (tmp_path / "plan.json").write_text(text.replace('"2": "cuda:1"', '"two": "cuda:1"'))
    said = r'does not have\n  "two" on cuda:1\nhint: correct the paths'
    with pytest.raises(baechi.PlanMismatchError, match=said):
        baechi.Plan.load(tmp_path / "plan.json", stack(16, 16, 16))


def test_a_rehearsal_takes_the_model_first(plan: ModelPlan) -> None:
    with pytest.raises(baechi.InputError, match="plan is a Sequential"):
        baechi.rehearse(plan, stack(16, 16, 16), (X,))


def test_a_file_that_cannot_be_written_is_named_as_it_was_given(
    plan: ModelPlan, tmp_path: Path
) -> None:
    target = str(tmp_path / "missing" / "plan.json")
    with pytest.raises(FileNotFoundError) as caught:
        plan.save(target)
    assert caught.value.filename == target


def test_the_status_of_a_model_reads_as_a_few_lines(plan: ModelPlan) -> None:
    model = stack(16, 16, 16)
    with simdev.simulated(2):
        plan.apply(model, devices=SIMULATED)
        assert str(status(model)).startswith("no call was counted")
        model(X)
        model(X[:2])
        first, reason = str(status(model)).splitlines()
    assert first == (
        "last call at module level; 1 call of a graph (1 graph at hand), 1 module by module"
    )
    assert reason.startswith("  1 x the inputs have a form that was not planned")
