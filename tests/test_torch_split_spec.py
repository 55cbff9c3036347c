"""Plans as split specs for torch.distributed.pipelining."""

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.pipelining import SplitPoint, pipeline

import baechi
from baechi.errors import PlacementError
from baechi.torch import ModelPlan


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.second(torch.relu(self.first(x)))


class Stack(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Residual() for _ in range(4))
        self.head = nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return self.head(x)


X = torch.randn(4, 8)


def planned(model: nn.Module, pin: dict[str, str], devices: str) -> ModelPlan:
    return baechi.plan(model, (X,), devices=devices, mode="inference", pin=pin, confirm=False)


def test_a_chain_becomes_the_stages_of_a_pipeline() -> None:
    model = Stack()
    pin = {"blocks.0": "cuda:1", "blocks.1": "cuda:0", "blocks.2": "cuda:0", "blocks.3": "cuda:2"}
    plan = planned(model, {**pin, "head": "cuda:2"}, "3x1MiB")
    spec = plan.to_split_spec()
    assert spec == {"blocks.1": SplitPoint.BEGINNING, "blocks.3": SplitPoint.BEGINNING}
    pipe = pipeline(model, (X,), split_spec=spec)
    assert pipe.num_stages == 3
    assert torch.equal(pipe(X)[0], model(X))


def test_one_device_needs_no_cut() -> None:
    assert planned(Stack(), {}, "1MiB").to_split_spec() == {}


def test_coming_back_to_a_device_is_no_chain() -> None:
    pin = {f"blocks.{at}": f"cuda:{at % 2}" for at in range(4)}
    plan = planned(Stack(), {**pin, "head": "cuda:1"}, "2x1MiB")
    with pytest.raises(PlacementError, match=r'not a chain: op "blocks.2.first:linear:0"'):
        plan.to_split_spec()


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 8)
        self.scale = nn.Parameter(torch.ones(8))

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x) * self.scale


def test_a_cut_within_a_module_is_no_cut_between_two() -> None:
    plan = planned(Scaled(), {"inner": "cuda:0", "scale": "cuda:1"}, "2x1MiB")
    with pytest.raises(PlacementError, match=r'before op ":mul:0" is not at the beginning'):
        plan.to_split_spec()


def test_a_plan_from_a_file_does_not_know_its_order(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    planned(Stack(), {}, "1MiB").save(path)
    with pytest.raises(baechi.InputError, match="plan the model again"):
        ModelPlan.load(path).to_split_spec()
