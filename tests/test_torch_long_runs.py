"""Fifty steps, with a save and a resume in the middle, follow the curve of one device."""

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional as F

from baechi.torch.applying import apply_placement, status
from baechi.torch.placement_rule import ModulePlacement
from baechi.torch.simdev import simulated, to_host
from torch_placing import on

STEPS, ROWS, WIDTH = 50, 12, 8


class Residual(nn.Module):
    """Attention over a few rows and a wide layer; the norm may be one that has statistics."""

    def __init__(self, norm: Callable[[int], nn.Module]) -> None:
        super().__init__()
        self.norm, self.mix = norm(WIDTH), nn.Linear(WIDTH, 3 * WIDTH)
        self.wide, self.narrow = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = self.mix(self.norm(x)).chunk(3, -1)
        x = x + (query @ key.T / WIDTH).softmax(-1) @ value
        return x + self.narrow(F.gelu(self.wide(x)))


class Adapter(nn.Module):
    """A frozen linear layer with a low-rank part beside it."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down = nn.Linear(base.in_features, 2, bias=False)
        self.up = nn.Linear(2, base.out_features, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + 2 * self.up(self.down(x))


def network(kind: str) -> nn.Module:
    torch.manual_seed(11)
    norm = nn.BatchNorm1d if kind == "batch norm" else nn.LayerNorm
    model = nn.Sequential(*(Residual(norm) for _ in range(3)), nn.Linear(WIDTH, 3))
    if kind == "adapters":
        model.requires_grad_(False)
        for block in model[:3]:
            block.mix, block.narrow = Adapter(block.mix), Adapter(block.narrow)
    return model


@dataclass(frozen=True)
class Recipe:
    """What is trained, and how."""

    kind: str
    dtype: torch.dtype
    accumulate: int = 1
    autocast: bool = False
    clip: float | None = None


RECIPES = {
    "clipping in float32": Recipe("plain", torch.float32, clip=0.5),
    "accumulation in float32": Recipe("plain", torch.float32, accumulate=3, clip=0.5),
    "bf16 autocast": Recipe("plain", torch.float32, autocast=True),
    "batch norm in float64": Recipe("batch norm", torch.float64, clip=0.5),
    "adapters in float64": Recipe("adapters", torch.float64, accumulate=2, clip=0.5),
}


def batch(number: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(number % 8)
    x = torch.randn(ROWS, WIDTH, generator=generator, dtype=torch.float64).to(dtype)
    return x, torch.randint(0, 3, (ROWS,), generator=generator)


def optimizer_of(model: nn.Module) -> torch.optim.Optimizer:
    trained = [weight for weight in model.parameters() if weight.requires_grad]
    return torch.optim.AdamW(trained, lr=0.002, foreach=False)


def losses(
    model: nn.Module, optimizer: torch.optim.Optimizer, recipe: Recipe, steps: range
) -> list[float]:
    found = []
    for step in steps:
        optimizer.zero_grad()
        for part in range(recipe.accumulate):
            x, labels = batch(step * recipe.accumulate + part, recipe.dtype)
            with torch.autocast("cpu", torch.bfloat16) if recipe.autocast else nullcontext():
                scores = to_host(model(x))
            loss = F.cross_entropy(scores.to(recipe.dtype), labels) / recipe.accumulate
            loss.backward()
            found.append(loss.item())
        if recipe.clip is not None:
            trained = [weight for weight in model.parameters() if weight.requires_grad]
            nn.utils.clip_grad_norm_(trained, recipe.clip, foreach=False)
        optimizer.step()
    return found


def place(model: nn.Module, level: str) -> nn.Module:
    homes = {"": 0, "0.narrow": 1, "1": 1, "1.mix": 2, "2": 2, "3": 0}
    return apply_placement(
        model, ModulePlacement({path: on(at) for path, at in homes.items()}), level=level
    )


def saved(model: nn.Module, optimizer: torch.optim.Optimizer, folder: Path) -> None:
    weights = {name: to_host(value).contiguous() for name, value in model.state_dict().items()}
    save_file(weights, folder / "model.safetensors")
    torch.save(optimizer.state_dict(), folder / "optimizer.pt")


def resumed(recipe: Recipe, level: str, folder: Path) -> tuple[nn.Module, torch.optim.Optimizer]:
    model = network(recipe.kind).to(recipe.dtype)
    with torch.no_grad():
        for weight in model.parameters():
            weight.zero_()
    place(model, level)
    weights = load_file(folder / "model.safetensors")
    model.load_state_dict(weights)
    optimizer = optimizer_of(model)
    optimizer.load_state_dict(torch.load(folder / "optimizer.pt"))
    return model, optimizer


@pytest.mark.parametrize("level", ["op", "module"])
@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)
def test_fifty_steps_with_a_resume_follow_one_device(
    recipe: Recipe, level: str, tmp_path: Path
) -> None:
    plain = network(recipe.kind).to(recipe.dtype)
    expected = losses(plain, optimizer_of(plain), recipe, range(STEPS))
    with simulated(3):
        model = network(recipe.kind).to(recipe.dtype)
        place(model, level)
        optimizer = optimizer_of(model)
        found = losses(model, optimizer, recipe, range(STEPS // 2))
        saved(model, optimizer, tmp_path)
        model, optimizer = resumed(recipe, level, tmp_path)
        found += losses(model, optimizer, recipe, range(STEPS // 2, STEPS))
    assert expected[-1] < 0.9 * expected[0]
    # 1e-5 of the loss in float32, 1e-9 in float64: copies change the order of some sums.
    is_single = recipe.dtype == torch.float32
    tolerance = {"rel": 1e-5, "abs": 0} if is_single else {"rel": 0, "abs": 1e-9}
    assert found == pytest.approx(expected, **tolerance)
    assert status(model).level == level
