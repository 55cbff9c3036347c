"""The static memory ledger against what devices measure when placed models run."""

import pytest

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
