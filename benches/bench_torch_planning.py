"""Planning PyTorch models: model to plan, its memory, and placements judged per second."""

import random
import resource
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
sys.path.append(str(Path(__file__).parent.parent / "tests" / "support"))

import torch_models  # noqa: E402  (needs the path above)
from baechi.torch.outcomes import judge  # noqa: E402
from baechi.torch.planning import plan, prepare  # noqa: E402

MOST_MIB = 400


def sample_of(name, scaled):
    if scaled(1_000) < 1_000:
        return torch_models.BY_NAME["gpt2"].build()
    return {"BERT-base": torch_models.bert_base, "Llama-70B": torch_models.llama_70b}[name]()


def resident_mib():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


@pytest.mark.parametrize("name", ["BERT-base", "Llama-70B"])
def bench_model_to_plan(timed, scaled, name):
    sample = sample_of(name, scaled)
    devices = {"BERT-base": "3x1GiB", "Llama-70B": "8x160GiB"}[name]
    before = resident_mib()
    made = timed(
        f"`baechi.plan`: training step of {name}, model to plan",
        1,
        lambda: plan(sample.model, sample.args, sample.kwargs, devices=devices),
        rounds=1,
    )
    assert made.is_within_limits
    assert resident_mib() - before <= MOST_MIB


@pytest.mark.parametrize("name", ["BERT-base", "Llama-70B"])
def bench_judging(timed, scaled, name):
    sample = sample_of(name, scaled)
    task = prepare(sample.model, sample.args, sample.kwargs, devices="4x1TiB").task
    rng = random.Random(0)
    batch = scaled(1_000, small=4)
    placements = [sorted(rng.randrange(4) for _ in task.units.names) for _ in range(batch)]
    size = len(task.trace.steps) + len(task.trace.functions)
    timed(
        f"{batch:,} placements of {name}: layout, memory, time of {size:,} steps and functions",
        batch,
        lambda: judge(task, placements, "random"),
        rounds=3,
    )
