"""Models applied on the test-only device type beside the same models wholly on one such device.

Call it in a process where `virtual_device.init(3)` was.
"""

import random
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from baechi.torch.applying import apply_placement, status
from baechi.torch.placement_rule import ModulePlacement
from baechi.torch.program import Program
from torch_counted import levels_of
from torch_models import ModelCase, Sample


@dataclass(frozen=True)
class Compared:
    """Whether the first float32 loss is the same, and what float64 training differs by at most."""

    level: str
    is_first_loss_equal: bool
    losses: float
    gradients: float
    buffers: float


def compared(case: ModelCase) -> list[dict[str, Any]]:
    """One row per level at which the model can run."""
    levels, programs = levels_of(case)
    rng = random.Random(case.name)
    paths = next(iter(levels.values())).units.of_path
    alone = ModulePlacement({"": _on(0)})
    anywhere = ModulePlacement({"": _on(0)} | {path: _on(rng.randrange(3)) for path in paths})
    first, expected = _first(case, alone, "module"), _trained(case, alone, "module")
    rows = []
    for level in levels:
        found = _trained(case, anywhere, level)
        is_equal = _first(case, anywhere, level, programs) == first
        pairs = zip(found, expected, strict=True)
        rows.append(asdict(Compared(level, is_equal, *(_most(*pair) for pair in pairs))))
    return rows


def _on(index: int) -> torch.device:
    return torch.device("vdev", index)


def _applied(
    case: ModelCase,
    placement: ModulePlacement,
    level: str,
    programs: tuple[Program, ...] = (),
    dtype: torch.dtype = torch.float32,
) -> Sample:
    sample = case.build(dtype=dtype)
    apply_placement(sample.model, placement, level=level, programs=programs)
    return sample


def _first(
    case: ModelCase, placement: ModulePlacement, level: str, programs: tuple[Program, ...] = ()
) -> float:
    return _applied(case, placement, level, programs).loss().item()


def _trained(
    case: ModelCase, placement: ModulePlacement, level: str
) -> tuple[dict[str, Tensor], dict[str, Tensor], dict[str, Tensor]]:
    """Losses of three steps of Adam, gradients of the last one, and buffers."""
    sample = _applied(case, placement, level, dtype=torch.float64)
    optimizer = torch.optim.Adam(sample.model.parameters())
    losses = {}
    for step in range(3):
        optimizer.zero_grad()
        loss = sample.loss()
        loss.backward()
        optimizer.step()
        losses[str(step)] = loss.detach().cpu()
    if len(set(placement.modules.values())) > 1:
        assert status(sample.model).level == level
    gradients = {n: p.grad.cpu() for n, p in sample.model.named_parameters() if p.grad is not None}
    return losses, gradients, {n: b.cpu() for n, b in sample.model.named_buffers()}


def _most(found: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> float:
    assert found.keys() == expected.keys()
    pairs = [(found[name].double(), expected[name].double()) for name in found]
    return max((float((a - b).abs().max()) for a, b in pairs if a.numel()), default=0.0)
