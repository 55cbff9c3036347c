"""The static memory ledger against what devices measure when placed models run."""

import pytest
import torch

import baechi
from torch_ledgers import on_simulated_devices
from torch_models import CASES

EXPORTING = [case.name for case in CASES if case.exports]
SLOW = {"inception"}  # one placement tells as much as several
WITH_BLOCKS = {"gpt2", "t5", "transformer", "unet", "resnet"}


@pytest.mark.parametrize("mode", ["training", "inference", "checkpointing"])
@pytest.mark.parametrize("name", EXPORTING)
def test_predicted_peaks_and_copies_are_those_of_simulated_devices(name: str, mode: str) -> None:
    if mode == "checkpointing" and name not in WITH_BLOCKS:
        pytest.skip("checkpointed blocks are tested with a few models")
    seeds = range(1) if name in SLOW else range(2)
    for seed in seeds:
        memory, measured = on_simulated_devices(name, mode, seed)
        for predicted, peak in zip(memory.peaks, measured.peaks, strict=True):
            assert abs(predicted - peak) <= max(512, 0.01 * peak), (seed, memory.peaks, measured)
        assert sum(m.source >= 0 for m in memory.moved) == measured.copies


def test_dropout_is_predicted_with_masks_of_bools_also_within_attention() -> None:
    layer = torch.nn.TransformerEncoderLayer(32, 4, 64, dropout=0.1, batch_first=True)
    x = torch.empty(4, 16, 32)
    plan = baechi.plan(layer, (x,), devices="1x1GiB", loss=torch.sum, optimizer="sgd")
    assert tuple(plan.peak_bytes.values()) == plan.confirmed


def test_modules_that_a_call_does_not_use_have_a_home_and_are_named() -> None:
    class Branching(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.unused = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.used(x).sum()

    plan = baechi.plan(Branching(), (torch.empty(2, 4),), devices="2x1GiB", confirm=False)
    assert plan.device_of("unused") in plan.cluster.names
    assert any('"unused"' in note for note in plan.notes)
