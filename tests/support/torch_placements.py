"""Random legal placements of programs, and models that are trained under them."""

import dataclasses
import functools
import random
from collections.abc import Sequence

import torch

from baechi.torch.capture import capture
from baechi.torch.parameters import move_weights
from baechi.torch.placed_graph import PlacedProgram, is_placed, place_program
from baechi.torch.program import Capture, Program
from baechi.torch.simdev import SimulatedDevices, resolve, simulated, to_host
from torch_models import BY_NAME, Sample, loss_of


@functools.cache
def captured(name: str, dtype: torch.dtype) -> Capture:
    """What capture makes of a model of the table in training; many tests share it."""
    sample = BY_NAME[name].build(dtype=dtype)
    return capture(sample.model, sample.args, sample.kwargs, training=True)


def program_of(name: str, dtype: torch.dtype) -> Program:
    """The training program of a model of the table that has one."""
    taken = captured(name, dtype)
    assert taken.reasons == ()
    assert taken.program is not None
    return taken.program


def random_placement(
    program: Program, seed: int, devices: Sequence[torch.device]
) -> tuple[dict[str, torch.device], dict[str, torch.device]]:
    """A device for every op, and for every weight by name; what shares memory stays together."""
    rng = random.Random(seed)
    device_of: dict[str, torch.device] = {}
    for group in program.colocated:
        device_of |= dict.fromkeys(group, rng.choice(devices))
    nodes = list(program.graph_module.graph.nodes)
    for node in nodes:
        device_of.setdefault(node.name, rng.choice(devices))
    placeholders = [node for node in nodes if node.op == "placeholder"]
    home_of = {
        given.name: device_of[node.name]
        for node, given in zip(placeholders, program.inputs, strict=True)
        if given.kind in ("parameter", "buffer")
    }
    return {node.name: device_of[node.name] for node in nodes if is_placed(node)}, home_of


def move_to(model: torch.nn.Module, home_of: dict[str, torch.device]) -> None:
    """Moves each weight home; tied ones under all their names."""
    by_id = {}
    named = [*model.named_parameters(remove_duplicate=False)]
    named += model.named_buffers(remove_duplicate=False)
    for name, weight in named:
        by_id.setdefault(id(weight), home_of.get(name))
    move_weights(model, {name: by_id[id(weight)] for name, weight in named})


@dataclasses.dataclass
class Trained:
    """What came of some steps: losses, and gradients and buffers after the last."""

    losses: list[torch.Tensor]
    gradients: dict[str, torch.Tensor]
    buffers: dict[str, torch.Tensor]


def step(
    sample: Sample, optimizer: torch.optim.Optimizer, placed: PlacedProgram | None
) -> torch.Tensor:
    optimizer.zero_grad(set_to_none=True)
    if placed is None:
        loss = sample.loss()
    else:
        loss = loss_of(placed(sample.model, sample.args, sample.kwargs))
    loss.backward()
    optimizer.step()
    return to_host(loss.detach())


def trained(sample: Sample, placed: PlacedProgram | None, steps: int = 3) -> Trained:
    optimizer = torch.optim.Adam(sample.model.parameters())
    losses = [step(sample, optimizer, placed) for _ in range(steps)]
    gradients = {
        name: to_host(weight.grad)
        for name, weight in sample.model.named_parameters()
        if weight.grad is not None
    }
    buffers = {name: to_host(value) for name, value in sample.model.named_buffers()}
    return Trained(losses, gradients, buffers)


def trained_on_three(name: str, dtype: torch.dtype, seed: int, steps: int = 3) -> Trained:
    """Trains a model of the table op by op on three simulated devices."""
    sample = BY_NAME[name].build(dtype=dtype)
    program = program_of(name, dtype)
    with simulated(3):
        device_of, home_of = random_placement(program, seed, three())
        move_to(sample.model, home_of)
        return trained(sample, place_program(program, device_of, home_of), steps)


def three() -> list[torch.device]:
    return [resolve(f"simdev:{number}") for number in range(3)]


def copies_made(devices: SimulatedDevices) -> list[tuple[int, int, int]]:
    return sorted((one.source, one.destination, one.nbytes) for one in devices.transfers)
