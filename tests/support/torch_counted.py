"""What a plan counts for a placement of a model's modules, at both levels, without a search."""

import random
from collections.abc import Mapping
from dataclasses import dataclass

from baechi.torch.capture import capture
from baechi.torch.costs import Costs
from baechi.torch.device_argument import read_torch_devices
from baechi.torch.flat_trace import FlatTrace, flatten, flatten_units, lay_out
from baechi.torch.ledger import replay
from baechi.torch.memory import Memory
from baechi.torch.modules import Units, find_units, parents_of, with_other_names
from baechi.torch.program import Program
from baechi.torch.stand_ins import kernels_of
from baechi.torch.trace import Trace
from baechi.torch.tracing_levels import trace_at
from torch_models import ModelCase

NUM_DEVICES = 3


@dataclass(frozen=True)
class Level:
    """A training step as one level runs it."""

    trace: Trace
    units: Units
    flat: FlatTrace

    def counted(self, device_of: Mapping[str, int]) -> Memory:
        """What the ledger finds; devices by path of a unit."""
        devices = [device_of[name] for name in self.units.names]
        units = flatten_units(self.trace, self.flat, self.units)
        layout = lay_out(self.flat, units, devices, NUM_DEVICES)
        return replay(self.trace, self.flat, layout, NUM_DEVICES)


def levels_of(case: ModelCase) -> tuple[dict[str, Level], tuple[Program, ...]]:
    """The levels at which a model can run, and its graph if it has one."""
    sample = case.build()
    model, args, kwargs = sample.model, sample.args, sample.kwargs
    captured = capture(model, args, kwargs, training=True)
    cluster, _ = read_torch_devices(f"{NUM_DEVICES}x1GiB")
    options = {"training": True, "loss": None, "autocast": None}
    found = {}
    for level in ("op", "module") if captured.level == "op" else ("module",):
        kernels = kernels_of(cluster, Costs({}))
        trace = trace_at(level, captured, model, args, kwargs, kernels=kernels, **options).trace
        units = with_other_names(find_units(trace, parents_of(model)), model)
        found[level] = Level(trace, units, flatten(trace))
    program = captured.program
    return found, () if program is None or captured.level != "op" else (program,)


def in_parts(levels: Mapping[str, Level], rng: random.Random) -> dict[str, int]:
    """Three consecutive parts of a model, by path."""
    units = next(iter(levels.values())).units
    size = len(units.names)
    cuts = sorted(rng.sample(range(1, size), 2)) if size > 2 else [1, 1]
    devices = [sum(at >= cut for cut in cuts) for at in range(size)]
    return _by_path(levels, devices)


def scattered(levels: Mapping[str, Level], rng: random.Random) -> dict[str, int]:
    """Every unit on any device, by path."""
    units = next(iter(levels.values())).units
    return _by_path(levels, [rng.randrange(NUM_DEVICES) for _ in units.names])


def _by_path(levels: Mapping[str, Level], devices: list[int]) -> dict[str, int]:
    first, *others = (level.units for level in levels.values())
    found = {path: devices[unit] for path, unit in first.of_path.items()}
    for units in others:  # a unit that is known at one level only goes where its group is
        for paths in units.members:
            known = [found[path] for path in paths if path in found]
            found.update(dict.fromkeys(paths, known[0] if known else 0))
    return found
