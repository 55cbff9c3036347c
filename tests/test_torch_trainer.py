"""The Trainer of transformers trains applied models, and leaves them where they are."""

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from torch import nn
from transformers import Trainer, TrainingArguments

import baechi
import torch_public_models as public
from baechi.torch.applying import remove_placement
from baechi.torch.simdev import SimulatedDevices, simulated
from torch_applied import WIDTH, applied, batch

RENAMED = {"cuda:0": "simdev:0", "cuda:1": "simdev:1"}
NUM_STEPS = 4


@pytest.fixture
def devices() -> Iterator[SimulatedDevices]:
    with simulated(2) as found:
        yield found


def gpt2() -> nn.Module:
    torch.manual_seed(0)
    model: nn.Module = public.gpt2()[0]
    return model


def sentences() -> list[dict[str, torch.Tensor]]:
    generator = torch.Generator().manual_seed(1)
    rows = torch.randint(0, 40, (8, 6), generator=generator)
    return [{"input_ids": row, "labels": row} for row in rows]


def losses(model: nn.Module, where: Path, resume: bool = False, **options: Any) -> list[float]:
    """What a Trainer logs, and its loss of evaluation."""
    arguments = TrainingArguments(
        output_dir=str(where),
        per_device_train_batch_size=2,
        max_steps=NUM_STEPS,
        logging_steps=1,
        save_steps=NUM_STEPS // 2,
        use_cpu=True,
        optim="adamw_torch",  # fused kernels know no simulated devices
        report_to=[],
        disable_tqdm=True,
        **options,
    )
    trainer = Trainer(
        model=model, args=arguments, train_dataset=sentences(), eval_dataset=sentences()[:4]
    )
    saved = str(where / f"checkpoint-{NUM_STEPS // 2}") if resume else None
    trainer.train(resume_from_checkpoint=saved)
    logged = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    return [*logged, trainer.evaluate()["eval_loss"]]


def planned() -> baechi.torch.ModelPlan:
    rows = torch.stack([one["input_ids"] for one in sentences()[:2]])
    given = {"input_ids": rows, "labels": rows}
    plan = baechi.plan(
        gpt2(), (), given, devices="2x1GiB", optimizer="adamw", objective="most-headroom"
    )
    assert len(set(plan.device_map.values())) == 2
    return plan


@pytest.mark.parametrize("options", [{}, {"gradient_accumulation_steps": 2}, {"bf16": True}])
def test_a_trainer_logs_the_losses_of_the_plain_model(
    options: dict[str, Any], devices: SimulatedDevices, tmp_path: Path
) -> None:
    expected = losses(gpt2(), tmp_path / "plain", **options)
    model = planned().apply(gpt2(), devices=RENAMED, outputs="inputs")
    homes = {name: weight.device for name, weight in model.named_parameters()}
    found = losses(model, tmp_path / "placed", **options)
    assert len(found) >= NUM_STEPS
    assert found == pytest.approx(expected, rel=1e-5)
    assert {name: weight.device for name, weight in model.named_parameters()} == homes
    assert len(set(homes.values())) == 2
    assert baechi.torch.status(model).level == "op"


def test_training_is_resumed_from_a_checkpoint(devices: SimulatedDevices, tmp_path: Path) -> None:
    expected = losses(gpt2(), tmp_path / "plain")
    plan = planned()
    losses(plan.apply(gpt2(), devices=RENAMED, outputs="inputs"), tmp_path / "placed")
    model = plan.apply(gpt2(), devices=RENAMED, outputs="inputs")
    resumed = losses(model, tmp_path / "placed", resume=True)
    assert resumed == pytest.approx(expected, rel=1e-5)
    assert len({weight.device for weight in model.parameters()}) == 2


def layers() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH))


def test_accelerate_leaves_a_model_on_several_devices_where_it_is(
    devices: SimulatedDevices,
) -> None:
    model = layers()
    applied(model, {"": 0, "1": 1})
    homes = [weight.device for weight in model.parameters()]
    prepared = Accelerator(cpu=True).prepare(model)
    assert prepared is model
    assert [weight.device for weight in model.parameters()] == homes
    assert torch.equal(model(batch()).cpu(), layers()(batch()))


def test_the_device_map_is_there_while_a_plan_for_several_devices_is_applied(
    devices: SimulatedDevices,
) -> None:
    model = layers()
    assert not hasattr(model, "hf_device_map")
    applied(model, {"": 0, "1": 1})
    assert model.hf_device_map["1"] != model.hf_device_map[""]
    assert copy.deepcopy(model).hf_device_map == model.hf_device_map
    assert "hf_device_map" not in vars(model)
    remove_placement(model)
    assert not hasattr(model, "hf_device_map")
    model.hf_device_map = {"": "cpu"}  # of whoever dispatched the model before
    applied(model, {"": 0, "1": 0})
    assert model.hf_device_map == {"": "cpu"}


def test_on_one_device_there_is_no_device_map(devices: SimulatedDevices) -> None:
    model = layers()
    applied(model, {"": 0, "1": 0})
    assert not hasattr(model, "hf_device_map")
    with pytest.raises(AttributeError, match="Sequential"):
        _ = model.hf_device_map
