"""Predictions of the memory ledger beside what devices measure, for random placements of units."""

import dataclasses
import functools
import gc
import random
from collections.abc import Callable
from types import ModuleType

import torch
from torch.utils._pytree import tree_map_only

import torch_checkpointed
from baechi.torch.costs import Costs
from baechi.torch.measuring import measure_costs
from baechi.torch.memory import Memory
from baechi.torch.outcomes import evaluate
from baechi.torch.parameters import move_weights, named_weights
from baechi.torch.placed_graph import PlacedProgram, place_program
from baechi.torch.planning import Prepared, prepare
from baechi.torch.simdev import resolve, simulated
from torch_models import BY_NAME, Sample, loss_of


def adam(parameters: object) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, foreach=False)  # type: ignore[arg-type]


def built(name: str, mode: str) -> Sample:
    return torch_checkpointed.build(name) if mode == "checkpointing" else BY_NAME[name].build()


def costs_on(device: torch.device, name: str, mode: str) -> Costs:
    """What one device takes for a model's step."""
    sample = built(name, mode)
    move_weights(sample.model, {n: device for n, _ in named_weights(sample.model)})
    args, kwargs = tree_map_only(torch.Tensor, lambda t: t.to(device), (sample.args, sample.kwargs))
    return measure_costs(sample.model, args, kwargs, training=mode != "inference", repeats=1)


@functools.cache
def prepared(
    name: str, mode: str, num_devices: int, measured_on: torch.device | None = None
) -> Prepared:
    sample = built(name, mode)
    optimizer = None if mode == "inference" else adam(sample.model.parameters())
    return prepare(
        sample.model,
        sample.args,
        sample.kwargs,
        devices=f"{num_devices}x100GiB",
        mode="inference" if mode == "inference" else "training",
        optimizer=optimizer,
        costs=None if measured_on is None else costs_on(measured_on, name, mode),
    )


@dataclasses.dataclass(frozen=True)
class Case:
    """A model, its prediction under a random placement, and how to run it there."""

    sample: Sample
    memory: Memory
    placed: PlacedProgram
    homes: dict[str, torch.device]
    mode: str


def random_case(
    name: str,
    mode: str,
    seed: int,
    device: Callable[[int], torch.device],
    *,
    num_devices: int = 3,
    measured_on: torch.device | None = None,
    in_place: bool = False,
) -> Case:
    """Units anywhere for odd seeds, three consecutive parts of the model for even ones."""
    planned = prepared(name, mode, num_devices, measured_on)
    task = dataclasses.replace(planned.task, accumulate_in_place=in_place)
    rng = random.Random(seed)
    num_units = len(task.units.names)
    if seed % 2:
        devices = [rng.randrange(num_devices) for _ in range(num_units)]
    else:
        cuts = [rng.randrange(num_units + 1) for _ in range(num_devices - 1)]
        devices = [sum(at >= cut for cut in cuts) for at in range(num_units)]
    outcome = evaluate(task, devices, "random")
    sample = built(name, mode)
    graph = planned.program.graph_module.graph
    nodes = [node for node in graph.nodes if node.op not in ("placeholder", "output")]
    steps = outcome.layout.device_of_step
    storages = {one.name: at for at, one in enumerate(task.trace.storages) if one.name}
    of_storage = outcome.layout.home_of_storage
    homes = {
        given.name: device(of_storage[storages[given.name]])
        for given in planned.program.inputs
        if given.kind in ("parameter", "buffer") or given.attribute is not None
    }
    placed = place_program(
        planned.program,
        {node.name: device(steps[at]) for at, node in enumerate(nodes)},
        homes,
    )
    return Case(sample, outcome.memory, placed, homes, mode)


def move(case: Case) -> None:
    by_tensor = {
        id(w): case.homes[n] for n, w in named_weights(case.sample.model) if n in case.homes
    }
    move_weights(
        case.sample.model, {n: by_tensor[id(w)] for n, w in named_weights(case.sample.model)}
    )


def run_steps(case: Case, begin: Callable[[], None], *, steps: int = 2) -> None:
    """Runs steps; `begin` is called before each, and the last one is in the steady state."""
    model, args, kwargs = case.sample.model, case.sample.args, case.sample.kwargs
    optimizer = None if case.mode == "inference" else adam(model.parameters())
    for _ in range(steps):
        gc.collect()
        if optimizer is not None:
            optimizer.zero_grad(set_to_none=True)
        begin()
        if optimizer is None:
            with torch.no_grad():
                case.placed(model, args, kwargs)
            continue
        output = case.placed(model, args, kwargs)
        loss = loss_of(output)
        loss.backward()
        optimizer.step()
        del output, loss


@dataclasses.dataclass(frozen=True)
class Measured:
    peaks: list[int]
    copies: int


def on_simulated_devices(name: str, mode: str, seed: int) -> tuple[Memory, Measured]:
    case = random_case(name, mode, seed, lambda at: resolve(f"simdev:{at}"))
    gc.freeze()  # what is there already is not looked at again
    with simulated(3) as devices:
        move(case)

        def begin() -> None:
            devices.reset_peaks()
            devices.clear_transfers()

        run_steps(case, begin)
        copies = sum(t.source >= 0 for t in devices.transfers)
        return case.memory, Measured([devices.peak_bytes(at) for at in range(3)], copies)


def on_virtual_devices(
    name: str, mode: str, seed: int, counters: ModuleType
) -> tuple[Memory, Measured]:
    """Peaks of the test-only device type; call it where `virtual_device.init(3)` was."""
    first = torch.device("vdev", 0)
    case = random_case(
        name, mode, seed, lambda at: torch.device("vdev", at), measured_on=first, in_place=True
    )
    move(case)

    def begin() -> None:
        counters.reset_counts()
        for device in range(3):
            counters.reset_peak(device)

    run_steps(case, begin)
    peaks = [counters.peak(device) for device in range(3)]
    return case.memory, Measured(peaks, counters.copies())
