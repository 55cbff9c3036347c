"""The static memory ledger against the test-only device, which breaks ops up in its own way."""

import virtual_device

MEASURING = """
import gc
import json
import virtual_device
counters = virtual_device.init(3)
import torch_ledgers

gc.collect()
gc.freeze()  # what was imported is not looked at again
rows = []
for name, mode, seed in {cases}:
    memory, measured = torch_ledgers.on_virtual_devices(name, mode, seed, counters)
    copies = [len(memory.moved), measured.copies]
    rows.append([name, mode, seed, list(memory.peaks), measured.peaks, copies])
print(json.dumps(rows))
"""
CASES = [
    (name, mode, seed)
    for name in ("resnet", "densenet", "encoder", "unet")
    for mode in ("training", "inference")
    for seed in (0, 1)
]


def test_predicted_peaks_and_copies_are_those_of_the_test_only_device() -> None:
    rows = virtual_device.run(MEASURING.format(cases=CASES))
    assert len(rows) == len(CASES)
    close = []
    for name, mode, seed, predicted, measured, copies in rows:
        assert copies[0] == copies[1], (name, mode, seed)
        for nbytes, peak in zip(predicted, measured, strict=True):
            # It keeps temporaries of composite ops that simulated devices run as one.
            assert abs(nbytes - peak) <= max(65_536, 0.02 * peak), (name, mode, seed)
            close.append(abs(nbytes - peak) <= max(512, 0.01 * peak))
    assert sum(close) >= 0.75 * len(close)
