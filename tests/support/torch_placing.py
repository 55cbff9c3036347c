"""Random placements of a model's modules on simulated devices, and training to compare by."""

import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from baechi.torch.module_homes import module_devices
from baechi.torch.module_hooks import add_hooks
from baechi.torch.parameters import MovedWeights, move_weights, weight_devices
from baechi.torch.runtime import ModuleRuntime
from baechi.torch.simdev import resolve, to_host
from torch_models import Sample

torch.set_num_threads(1)


def on(index: int) -> torch.device:
    return resolve(f"simdev:{index}")


def at_random(model: nn.Module, num_devices: int, seed: int) -> dict[str, torch.device]:
    rng = random.Random(seed)
    return {path: on(rng.randrange(num_devices)) for path, _ in model.named_modules()}


@dataclass(frozen=True)
class AppliedModules:
    """`runtime` is None for one device, which needs no hooks."""

    runtime: ModuleRuntime | None
    moved: MovedWeights


def apply_modules(
    model: nn.Module,
    device_of_module: Mapping[str, torch.device],
    *,
    outputs: str = "where-computed",
) -> AppliedModules:
    """Weights at the homes of their modules and hooks on these: module level without any graph."""
    homes = module_devices(model, device_of_module)
    moved = move_weights(model, weight_devices(model, homes))
    runtime = add_hooks(model, device_of_module, outputs=outputs)
    return AppliedModules(runtime if len(runtime.devices) > 1 else None, moved)


def place(model: nn.Module, modules: Mapping[str, int]) -> AppliedModules:
    """Applies a map from module path to the index of a simulated device."""
    return apply_modules(model, {path: on(index) for path, index in modules.items()})


def agrees(model: nn.Module, modules: dict[str, int], *args: Any, **kwargs: Any) -> None:
    """Outputs and gradients on the devices are those on the host."""
    expected = model(*args, **kwargs)
    expected.sum().backward()
    gradients = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    place(model, modules)
    found = model(*args, **kwargs)
    torch.testing.assert_close(to_host(found), expected, rtol=1e-6, atol=1e-6)
    found.sum().backward()
    for name, gradient in gradients.items():
        torch.testing.assert_close(to_host(model.get_parameter(name).grad), gradient)


@dataclass(frozen=True)
class Trained:
    losses: list[float]
    gradients: dict[str, Tensor]
    buffers: dict[str, Tensor]


def train(sample: Sample, steps: int) -> Trained:
    """Adam on the sample's batch; gradients are those of the last step."""
    optimizer = torch.optim.Adam(sample.model.parameters(), foreach=False)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = sample.loss()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    parameters = dict(sample.model.named_parameters())
    gradients = {name: to_host(p.grad) for name, p in parameters.items() if p.grad is not None}
    buffers = {name: to_host(buffer) for name, buffer in sample.model.named_buffers()}
    return Trained(losses, gradients, buffers)


def largest_difference(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> float:
    assert one.keys() == other.keys()
    differences = [
        float((one[name].double() - other[name].double()).abs().max())
        for name in one
        if one[name].numel()
    ]
    return max(differences, default=0.0)
