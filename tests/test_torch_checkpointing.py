"""Checkpointed parts of a placed model are recomputed where they ran, also by functions."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import virtual_device
from baechi.torch.simdev import simulated, to_host
from torch_applied import applied
from torch_placing import place

WIDTH = 4


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(torch.tanh(self.up(x)))


class Checkpointed(nn.Module):
    """``how`` runs a block under a checkpoint."""

    def __init__(self, how: Callable[["Checkpointed", Block, Tensor], Tensor]) -> None:
        super().__init__()
        self.embed = nn.Linear(WIDTH, WIDTH)
        self.scale = nn.Parameter(torch.full((WIDTH,), 1.5))
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.how = how

    def forward(self, x: Tensor) -> Tensor:
        y = self.embed(x)
        for block in self.blocks:
            y = self.how(self, block, y)
        return y

    def scaled(self, block: Block, y: Tensor) -> Tensor:
        return torch.cat([y, self.scale.expand(1, WIDTH)])[:-1] * self.scale + block(y)


WAYS = {
    "plain": lambda _, block, y: block(y),
    "module": lambda _, block, y: checkpoint(block, y, use_reentrant=False),
    "module, reentrant": lambda _, block, y: checkpoint(block, y, use_reentrant=True),
    "lambda": lambda model, block, y: checkpoint(
        lambda z: z * model.scale + block(z), y, use_reentrant=False
    ),
    "lambda, reentrant": lambda model, block, y: checkpoint(
        lambda z: z * model.scale + block(z), y, use_reentrant=True
    ),
    "method": lambda model, block, y: checkpoint(model.scaled, block, y, use_reentrant=False),
    "nested": lambda model, block, y: checkpoint(
        lambda z: 2 * checkpoint(model.scaled, block, z, use_reentrant=False),
        y,
        use_reentrant=False,
    ),
}


@pytest.mark.parametrize("way", WAYS)
def test_gradients_are_those_of_the_host(way: str) -> None:
    torch.manual_seed(0)
    model = Checkpointed(WAYS[way])
    x = torch.randn(2, WIDTH, requires_grad=True)
    loss = model(x).square().sum()
    loss.backward()
    expected = [p.grad for p in model.parameters() if p.grad is not None]
    expected_input = x.grad
    model.zero_grad()
    x.grad = None
    with simulated(3):
        place(model, {"": 0, **{f"blocks.{k}.down": 1 + k % 2 for k in range(3)}})
        placed_loss = model(x).square().sum()
        assert placed_loss.item() == pytest.approx(loss.item(), rel=1e-6)
        placed_loss.backward()
        found = [to_host(p.grad) for p in model.parameters() if p.grad is not None]
        torch.testing.assert_close(found, expected)
        torch.testing.assert_close(x.grad, expected_input)


def test_what_is_recomputed_is_not_kept() -> None:
    """After forward, a device holds less with a checkpoint than without."""
    held = {}
    for way in ("plain", "module"):
        with simulated(2) as devices:
            model = Checkpointed(WAYS[way])
            place(model, {"": 0, **{f"blocks.{k}": k % 2 for k in range(3)}})
            loss = model(torch.randn(512, WIDTH)).sum()
            held[way] = devices.current_bytes(1)
            del loss
    assert held["module"] < 0.7 * held["plain"]


def test_a_checkpoint_elsewhere_is_as_before() -> None:
    layer = nn.Linear(WIDTH, WIDTH)
    x = torch.randn(2, WIDTH)
    checkpoint(lambda y: layer(y).tanh(), x, use_reentrant=False).sum().backward()
    expected, layer.weight.grad = layer.weight.grad, None
    layer(x).tanh().sum().backward()
    assert torch.equal(layer.weight.grad, expected)


ON_TWO_THREADS = """
import json
import virtual_device
virtual_device.init(2)
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
import baechi

class Branches(nn.Module):
    def __init__(self):
        super().__init__()
        self.left = nn.Sequential(*(nn.Linear(16, 16) for _ in range(20)))
        self.right = nn.Sequential(*(nn.Linear(16, 16) for _ in range(20)))
        self.out = nn.Linear(16, 1)

    def both(self, x):
        return torch.cat([self.left(x.sigmoid()), self.right(x.tanh())])

    def forward(self, x):
        return self.out(checkpoint(self.both, x, use_reentrant=False)).square().sum()

x = torch.randn(4, 16)
failures = []
for level in ("module", "op"):
    model = Branches()
    plan = baechi.plan(model, (x,), devices={"vdev:0": "1GiB", "vdev:1": "1GiB"},
        pin={"left": "vdev:0", "right": "vdev:1"}, confirm=False, optimizer="sgd")
    plan.apply(model, level=level)
    for _ in range(30):
        try:
            model(x.to("vdev:0")).backward()
        except (RuntimeError, AssertionError) as error:
            failures.append([level, str(error)])
print(json.dumps(failures))
"""


def test_a_region_on_two_devices_is_recomputed_once_by_their_two_threads() -> None:
    assert virtual_device.run(ON_TWO_THREADS) == []


class Dropping(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        y = checkpoint(nn.functional.dropout, self.first(x), 0.5, use_reentrant=False)
        return self.last(y)


@pytest.mark.parametrize("level", ["auto", "module"])
def test_recomputing_leaves_the_random_state_as_it_was(level: str) -> None:
    drawn = []
    with simulated(2):
        for is_placed in (False, True):
            torch.manual_seed(0)
            model = Dropping()
            if is_placed:
                applied(model, {"": 0, "last": 1}, level=level)
                model(torch.ones(3, WIDTH))
            torch.manual_seed(1)
            loss = model(torch.ones(3, WIDTH)).sum()
            torch.rand(3)
            loss.backward()
            drawn.append(torch.rand(1).item())
    assert drawn[0] == drawn[1]
