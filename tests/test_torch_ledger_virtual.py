"""The static memory ledger against the test-only device, with what was measured on that device."""

import pytest

import virtual_device
from torch_models import CASES

MEASURING = """
import gc
import json
import torch
import virtual_device
counters = virtual_device.init(3)
import torch_ledgers

gc.collect()
gc.freeze()  # what was imported is not looked at again
torch.autograd.set_multithreading_enabled(False)  # one order of backward, as the ledger has it
rows = []
for name, mode, seed in {cases}:
    memory, measured = torch_ledgers.on_virtual_devices(name, mode, seed, counters)
    copies = [len(memory.moved), measured.copies]
    rows.append([name, mode, list(memory.peaks), measured.peaks, copies])
print(json.dumps(rows))
"""
MODES = ("training", "inference", "checkpointing")
EXPORTING = [case.name for case in CASES if case.exports]
# Parts of the model one after the other, or units anywhere: both for each model and each mode.
STEPS = [
    (name, mode, (i + j) % 2) for i, name in enumerate(EXPORTING) for j, mode in enumerate(MODES)
]


@pytest.fixture(scope="module")
def rows() -> list[tuple[str, str, list[int], list[int], list[int]]]:
    """Model, mode, predicted and measured peaks, predicted and measured number of copies."""
    found = virtual_device.run(MEASURING.format(cases=STEPS), timeout_s=600)
    assert len(found) == len(STEPS)
    return [tuple(row) for row in found]


def test_predicted_peaks_are_those_of_the_test_only_device(rows) -> None:
    close, all_of_them = 0, 0
    for name, mode, predicted, measured, _ in rows:
        for nbytes, peak in zip(predicted, measured, strict=True):
            assert nbytes >= 0.95 * peak, (name, mode)
            assert nbytes - peak <= max(65_536, 0.02 * peak), (name, mode)
            close += abs(nbytes - peak) <= max(512, 0.01 * peak)
            all_of_them += 1
    assert close >= 0.95 * all_of_them


def test_predicted_copies_are_those_of_the_test_only_device(rows) -> None:
    for name, mode, _, _, (predicted, measured) in rows:
        assert predicted == measured, (name, mode)
