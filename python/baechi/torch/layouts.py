"""Layouts: what a model plan means for the steps and weights of a trace."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import torch

from baechi.torch.flat_trace import flatten, flatten_units, lay_out
from baechi.torch.model_plan import ModelPlan
from baechi.torch.modules import Layout, Units, find_units
from baechi.torch.program import Program
from baechi.torch.trace import Trace

__all__ = ["Placement", "layout_of", "parents_of", "place_names", "with_other_names"]


@dataclasses.dataclass(frozen=True)
class Placement:
    """Where the ops and weights of a program go, by their names.

    Attributes:
        device_of_node: device name by node of the program's graph.
        home_of_weight: device name by parameter or buffer, as the program's inputs name it.
        layout: the same by the trace's numbers.
    """

    device_of_node: Mapping[str, str]
    home_of_weight: Mapping[str, str]
    layout: Layout


def parents_of(model: torch.nn.Module) -> frozenset[str]:
    """Paths of the modules that have children."""
    return frozenset(
        name for name, module in model.named_modules() if next(module.children(), None) is not None
    )


def with_other_names(units: Units, model: torch.nn.Module) -> Units:
    """Units that know their modules also by the other paths at which a model has them."""
    members = [list(paths) for paths in units.members]
    of_path = units.of_path
    first: dict[int, str] = {}
    for path, module in model.named_modules(remove_duplicate=False):
        known = first.setdefault(id(module), path)
        if known != path and known in of_path and path not in of_path:
            members[of_path[known]].append(path)
    return dataclasses.replace(units, members=tuple(map(tuple, members)))


def layout_of(plan: ModelPlan, trace: Trace, units: Units) -> Layout:
    """Device index of every step and weight."""
    index = {name: at for at, name in enumerate(plan.cluster.names)}
    device_of_unit = [index[plan.device_of(name)] for name in units.names]
    steps = {step.key: at for at, step in enumerate(trace.steps)}
    exceptions = {steps[key]: index[name] for key, name in plan.ops.items() if key in steps}
    flat = flatten(trace)
    num_devices = len(plan.cluster.names)
    return lay_out(flat, flatten_units(trace, flat, units), device_of_unit, num_devices, exceptions)


def place_names(
    plan: ModelPlan, program: Program, trace: Trace, model: torch.nn.Module
) -> Placement:
    """Where a plan puts the nodes and weights of a program."""
    units = find_units(trace, parents_of(model))
    layout = layout_of(plan, trace, units)
    names = plan.cluster.names
    nodes = [n for n in program.graph_module.graph.nodes if n.op not in ("placeholder", "output")]
    of_storage = {one.name: at for at, one in enumerate(trace.storages) if one.name}
    return Placement(
        {n.name: names[layout.device_of_step[at]] for at, n in enumerate(nodes)},
        {
            given.name: names[layout.home_of_storage[of_storage[given.name]]]
            for given in program.inputs
            if given.kind != "user" and given.name in of_storage
        },
        layout,
    )
