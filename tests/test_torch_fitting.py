"""plan.fits: whether a planned model would hold another call."""

import copy
import gc
import pickle
from pathlib import Path

import pytest
import torch

import baechi
from baechi.torch import ModelPlan
from torch_small_models import rows, stack, total


def test_a_longer_batch_needs_more_and_the_answer_says_how_much() -> None:
    model = stack(16, 64, 8)
    plan = baechi.plan(model, (rows(),), devices={"cuda:0": 48_000}, loss=total, optimizer="adam")
    assert plan.fits((rows(),))
    longer = plan.fits((rows(count=200),))
    assert not longer
    assert longer.peak_bytes[0] > longer.cap_bytes[0] == 48_000
    assert "it does not fit" in str(longer)
    with pytest.raises(torch.OutOfMemoryError, match=r"^cuda:0 out of memory in aten"):
        baechi.rehearse(model, plan, (rows(count=200),), dry=True)


def test_what_fits_says_is_what_a_rehearsal_takes() -> None:
    model, x = stack(16, 64, 8), rows(count=50)
    plan = baechi.plan(model, (rows(),), devices="2x1MiB", loss=total, pin={"0": "cuda:1"})
    assert plan.fits((x,)).peak_bytes == baechi.rehearse(model, plan, (x,), steps=2).peak_bytes


def test_a_plan_of_a_file_asks_for_the_model(tmp_path: Path) -> None:
    model = stack(16, 8)
    made = baechi.plan(model, (rows(),), devices="1MiB", loss=total)
    made.save(tmp_path / "plan.json")
    plan = ModelPlan.load(tmp_path / "plan.json")
    with pytest.raises(baechi.InputError, match="pass model="):
        plan.fits((rows(),))
    assert plan.fits((rows(),), model=model, loss=total)


def test_a_plan_does_not_keep_its_model_alive_and_can_be_copied_and_pickled() -> None:
    model = stack(16, 8)
    plan = baechi.plan(model, (rows(),), devices="1MiB", mode="inference")
    assert pickle.loads(pickle.dumps(plan)) == copy.deepcopy(plan) == plan
    del model
    gc.collect()
    with pytest.raises(baechi.InputError, match="the model is gone"):
        plan.fits((rows(),))
