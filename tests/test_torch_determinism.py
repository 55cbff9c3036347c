"""Plans are functions of what is planned: not of numbers, processes, threads or memory."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import baechi
from torch_models import BY_NAME, Sample
from torch_small_models import Containers, rows


def plan_text(sample: Sample, **options: Any) -> str:
    options = {"devices": "300KiB,200KiB,1MiB", "optimizer": "adam", **options}
    return baechi.plan(sample.model, sample.args, sample.kwargs, **options).to_json()


def on_meta(name: str) -> Sample:
    """A model whose weights and inputs never had numbers, tied as it ties itself."""
    with torch.device("meta"):
        model, args, kwargs = BY_NAME[name].make()
    return Sample(model.train(), args, kwargs)


@pytest.mark.parametrize("name", ["bert", "mixtral"])
def test_a_plan_from_meta_is_that_of_real_weights_and_inputs(name: str) -> None:
    options: dict[str, Any] = {"devices": "3x4MiB", "confirm": False}
    assert plan_text(on_meta(name), **options) == plan_text(BY_NAME[name].build(), **options)


def test_weights_on_meta_under_real_inputs_give_the_same_confirmed_plan() -> None:
    real = BY_NAME["unet"].build()
    mixed = Sample(on_meta("unet").model, real.args, real.kwargs)
    assert plan_text(mixed, devices="3x4MiB") == plan_text(real, devices="3x4MiB")


PROGRAM = """
import sys, torch
junk = [bytearray(100 + 7 * k) for k in range(5000)]
extra = [torch.empty(1 + k % 50) for k in range(5000)]
from test_torch_determinism import plan_of_containers
torch.set_num_threads(2)
sys.stdout.write(plan_of_containers())
"""


def plan_of_containers() -> str:
    sample = Sample(Containers(), (rows(),), {})
    return plan_text(sample, devices="14KiB,10KiB,9KiB")


def test_a_process_with_other_hashes_threads_and_memory_writes_the_same_bytes() -> None:
    here = Path(__file__).parent
    paths = os.pathsep.join([str(here), str(here / "support")])
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "PYTHONHASHSEED": "4242", "PYTHONPATH": paths, "OMP_NUM_THREADS": "2"},
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == plan_of_containers()
    assert len(set(json.loads(done.stdout)["modules"].values())) > 1
