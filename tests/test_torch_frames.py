"""Changes in place of what came from another device: right where nobody notices, else an error."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from baechi.errors import PlacementError
from baechi.torch.simdev import simulated
from torch_placing import agrees, place

WIDTH = 4


class ReluInPlace(nn.Module):
    def __init__(self, reads_it_again: bool) -> None:
        super().__init__()
        self.a, self.relu = nn.Linear(WIDTH, WIDTH), nn.ReLU(inplace=True)
        self.b = nn.Linear(WIDTH, WIDTH)
        self.reads_it_again = reads_it_again

    def forward(self, x: Tensor) -> Tensor:
        y = self.a(x)
        z = self.b(self.relu(y))
        return z + y if self.reads_it_again else z


def test_a_change_in_place_of_a_value_that_nobody_reads_again_is_right() -> None:
    with simulated(2):
        agrees(ReluInPlace(False), {"": 0, "relu": 1}, torch.randn(3, WIDTH))


@pytest.mark.parametrize("mode", [torch.enable_grad, torch.no_grad, torch.inference_mode])
def test_a_change_in_place_that_would_be_lost_is_an_error(mode: Any) -> None:
    with simulated(2):
        model = ReluInPlace(True)
        place(model, {"": 0, "relu": 1})
        with mode(), pytest.raises(PlacementError, match='"relu" changes an input in place'):
            model(torch.randn(3, WIDTH))


def test_a_change_in_place_of_an_input_or_a_buffer_would_be_lost_too() -> None:
    class Counts(nn.Module):
        def forward(self, count: Tensor) -> None:
            count.add_(1.0)

    class Counted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("count", torch.zeros(1))
            self.counts, self.a = Counts(), nn.Linear(WIDTH, WIDTH)

        def forward(self, x: Tensor) -> Tensor:
            self.counts(self.count)
            return self.a(x)

    with simulated(2):
        model = Counted()
        place(model, {"": 0, "counts": 1})
        with pytest.raises(PlacementError, match="the caller of"):
            model(torch.ones(1, WIDTH))


def test_a_change_in_place_between_modules_runs_where_its_target_is() -> None:
    class Adds(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

        def forward(self, x: Tensor) -> Tensor:
            y = self.a(x) * 2
            y += self.b(x)
            y[:, 0] = self.b(x)[:, 1]
            return y

    with simulated(2):
        agrees(Adds(), {"": 0, "b": 1}, torch.randn(2, WIDTH))
