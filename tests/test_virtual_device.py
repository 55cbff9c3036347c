"""The test-only device type "vdev": what other tests rely on."""

import virtual_device

ON_TWO_DEVICES = """
import json
import torch
import virtual_device
from torch import nn

counters = virtual_device.init(2, caps={1: 1 << 20})
torch.manual_seed(0)
plain = nn.Sequential(nn.Linear(8, 16), nn.Linear(16, 4))
placed = nn.Sequential(nn.Linear(8, 16), nn.Linear(16, 4))
placed.load_state_dict(plain.state_dict())
placed[0].to("vdev:0")
placed[1].to("vdev:1")
x = torch.randn(5, 8)
counters.reset_counts()
plain(x).square().sum().backward()
placed[1](placed[0](x.to("vdev:0")).to("vdev:1")).square().sum().backward()
pairs = zip(plain.parameters(), placed.parameters(), strict=True)
answers = {"grads": [torch.equal(p.grad, q.grad.cpu()) for p, q in pairs]}
answers |= {"copies": counters.copies(), "used": [counters.used(0), counters.used(1)]}
try:
    torch.ones(3, device="vdev:0") + torch.ones(3, device="vdev:1")
except RuntimeError as error:
    answers["mismatch"] = str(error)
try:
    torch.ones(1 << 20, device="vdev:1")
except torch.OutOfMemoryError as error:
    answers["over the cap"] = str(error)
print(json.dumps(answers))
"""


def test_virtual_devices_train_count_and_refuse() -> None:
    answers = virtual_device.run(ON_TWO_DEVICES)
    assert all(answers["grads"])
    assert answers["copies"] == 3  # the input, the hidden value, its gradient
    first, second = 8 * 16 + 16, 16 * 4 + 4
    assert answers["used"][1] == 2 * 4 * second  # weights and gradients
    assert answers["used"][0] == 2 * 4 * first
    assert "found at least two devices, vdev:0 and vdev:1" in answers["mismatch"]
    assert "vdev:1 (cap 1048576" in answers["over the cap"]
