"""Loss functions that need numbers: planned for module level where that is left open."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import baechi
from torch_small_models import rows, stack

MASK = torch.tensor([True, False, True, True, False])
PLANNED: dict[str, Any] = {"devices": "2x1MiB", "pin": {"0": "cuda:0", "4": "cuda:1"}}

Loss = Callable[[torch.Tensor], torch.Tensor]
LOSSES: dict[str, Loss] = {
    "a mask of the caller's": lambda output: output[MASK].mean(),
    "a mask of the output": lambda output: output.masked_select(output > 0).mean(),
    "a branch": lambda output: output.sum() if output.sum().item() > 0 else -output.sum(),
}


@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
def test_a_loss_that_needs_numbers_is_planned_for_module_level(loss: Loss) -> None:
    model, x = stack(16, 16, 16, 16), rows(count=5)
    plan = baechi.plan(model, (x,), loss=loss, **PLANNED)
    assert plan.level == "module"
    assert plan.reasons == ("the loss function needs numbers, which a trace of the graph has not",)
    assert any(note.startswith("captured in one real step") for note in plan.notes)
    rehearsed = baechi.rehearse(model, plan, (x,), loss=loss)
    assert rehearsed.losses == (loss(model(x)).item(),)
    assert rehearsed.copies == plan.copies > 0
    assert rehearsed.peak_bytes <= rehearsed.cap_bytes


def test_op_level_that_is_asked_for_is_refused_with_a_way_out() -> None:
    with pytest.raises(baechi.InputError, match="needs numbers while planning: RuntimeError") as it:
        baechi.plan(
            stack(16, 16, 16, 16), (rows(),), loss=LOSSES["a branch"], level="op", **PLANNED
        )
    assert "hint: plan for module level, with real weights" in str(it.value)


def test_without_weights_there_are_no_numbers_for_a_loss() -> None:
    model = stack(16, 16, 16, 16).to("meta")
    with pytest.raises(baechi.InputError, match="loss function needs numbers while planning"):
        baechi.plan(model, (rows(),), loss=LOSSES["a mask of the output"], **PLANNED)


def test_a_mask_that_no_module_owns_may_be_read_in_forward() -> None:
    class Picks(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(16, 16), nn.Linear(16, 16)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.second(self.first(x)[MASK]).sum()

    model, x = Picks(), rows(count=5)
    pin = {"first": "cuda:0", "second": "cuda:1"}
    plan = baechi.plan(model, (x,), devices="2x1MiB", pin=pin, level="module")
    assert baechi.rehearse(model, plan, (x,)).losses == (model(x).item(),)
