"""Applied models on the test-only device type, at both levels, against one such device."""

import virtual_device
from torch_models import CASES

COMPARING = """
import json
import virtual_device
virtual_device.init(3)
import torch_models
import torch_virtual

print(json.dumps({case.name: torch_virtual.compared(case) for case in torch_models.CASES}))
"""


def test_every_model_trains_on_several_devices_as_on_one() -> None:
    rows = virtual_device.run(COMPARING, timeout_s=600)
    for case in CASES:
        found = rows[case.name]
        assert [row["level"] for row in found] == ["op", "module"][not case.exports :]
        for row in found:
            assert row["is_first_loss_equal"], (case.name, row)
            assert max(row["losses"], row["gradients"], row["buffers"]) < 1e-9, (case.name, row)
