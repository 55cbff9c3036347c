"""Compiled parts on two devices of a type that the compiler knows as any accelerator."""

import pytest

import virtual_device

ON_TWO_DEVICES = """
import json
import torch
import virtual_device

counters = virtual_device.init(2)
from baechi.torch.applying import apply_placement, remove_placement, status
from baechi.torch.placement_rule import ModulePlacement
from torch_models import BY_NAME
from torch_placing import largest_difference

torch.set_num_threads(1)
ZERO, ONE = torch.device("vdev:0"), torch.device("vdev:1")
PLACES = {"": ZERO, "model.layers.1": ONE, "lm_head": ONE}


def train(level, compile):
    sample = BY_NAME["llama"].build(dtype=torch.float64)
    model = sample.model
    if level:
        apply_placement(model, ModulePlacement(PLACES), level=level, compile=compile)
    optimizer = torch.optim.Adam(model.parameters(), foreach=False)
    losses, copies = [], []
    for _ in range(2):
        optimizer.zero_grad()
        counters.reset_counts()
        loss = sample.loss()
        loss.backward()
        copies.append(counters.copies())
        optimizer.step()
        losses.append(loss.item())
    ways = status(model) if level else None
    gradients = {k: p.grad.cpu() for k, p in model.named_parameters() if p.grad is not None}
    return losses, gradients, copies, ways


expected = train("", False)
answers = {}
for level in ("op", "module"):
    plain, compiled = train(level, False), train(level, {"backend": "aot_eager"})
    answers[level] = {
        "losses": [*zip(compiled[0], expected[0])],
        "gradients": largest_difference(compiled[1], expected[1]),
        "copies": [plain[2], compiled[2]],
        "level": compiled[3].level,
        "parts": compiled[3].compiled_parts,
        "uncompiled": dict(compiled[3].uncompiled),
    }


class Counts(torch.nn.Module):
    def forward(self, x, numbers):
        numbers.add_(1)
        return x * numbers


class Counting(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.counts, self.last = Counts(), torch.nn.Linear(2, 2)

    def forward(self, x, numbers):
        return self.last(self.counts(x, numbers))


model, numbers = Counting(), torch.arange(2)
places = ModulePlacement({"": ZERO, "last": ONE})
apply_placement(model, places, level="module", compile={"backend": "eager"})
model(torch.ones(3, 2), numbers)
answers["numbers"] = [numbers.tolist(), status(model).compiled_parts]
print(json.dumps(answers))
"""


def test_parts_on_two_devices_are_compiled_at_both_levels() -> None:
    answers = virtual_device.run(ON_TWO_DEVICES)
    assert answers.pop("numbers") == [[1, 2], 1]  # a change of what came from the host is kept
    for level, found in answers.items():
        assert found["level"] == level
        assert found["parts"] > 1
        assert found["uncompiled"] == {}
        for loss, expected in found["losses"]:
            assert loss == pytest.approx(expected, rel=1e-12)
        assert found["gradients"] < 1e-9
        plain, compiled = found["copies"]
        assert plain[0] == compiled[0]
        # Later passes leave out copies that nobody read; what compiled code reads is not seen.
        assert all(few <= many <= plain[0] for few, many in zip(plain, compiled, strict=True))
