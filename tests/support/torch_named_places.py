"""Where a plan puts the nodes and weights of a program, by its trace."""

import torch

from baechi.torch.flat_trace import flatten, flatten_units, lay_out
from baechi.torch.model_plan import ModelPlan
from baechi.torch.modules import find_units, parents_of
from baechi.torch.program import Program
from baechi.torch.trace import Trace


def place_names(
    plan: ModelPlan, program: Program, trace: Trace, model: torch.nn.Module
) -> tuple[dict[str, str], dict[str, str]]:
    """Device name by node of the graph, and by parameter or buffer as the program names it."""
    names = plan.cluster.names
    index = {name: at for at, name in enumerate(names)}
    units, flat = find_units(trace, parents_of(model)), flatten(trace)
    device_of_unit = [index[plan.device_of(name)] for name in units.names]
    steps = {step.key: at for at, step in enumerate(trace.steps)}
    exceptions = {steps[key]: index[name] for key, name in plan.ops.items()}
    layout = lay_out(
        flat, flatten_units(trace, flat, units), device_of_unit, len(names), exceptions
    )
    nodes = [n for n in program.graph_module.graph.nodes if n.op not in ("placeholder", "output")]
    storages = {one.name: at for at, one in enumerate(trace.storages) if one.name}
    return (
        {n.name: names[layout.device_of_step[at]] for at, n in enumerate(nodes)},
        {
            given.name: names[layout.home_of_storage[storages[given.name]]]
            for given in program.inputs
            if given.kind != "user" and given.name in storages
        },
    )
