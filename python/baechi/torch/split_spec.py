"""Split specs: the cuts of a plan as `torch.distributed.pipelining` takes them."""

from __future__ import annotations

from torch.distributed.pipelining import SplitPoint

from baechi.errors import PlacementError
from baechi.graph import Graph
from baechi.torch.model_plan import ModelPlan
from baechi.torch.model_plan_report import operators_of

__all__ = ["split_spec_of"]

_FORWARD = 0


def split_spec_of(plan: ModelPlan) -> dict[str, SplitPoint]:
    """The modules before which `pipeline(..., split_spec=...)` has to cut.

    Stages are in the order in which the forward pass comes to the devices. Ops that belong to no
    module's weights run in the stage in which they lie, whatever the plan says.

    Raises:
        PlacementError: the forward pass comes back to a device, or goes on to the next within a
            module; the op is named.
        InputError: the plan was read from a file, which does not hold its operator graph.
    """
    operators = operators_of(plan)
    graph = operators.provenance.made_for
    assert isinstance(graph, Graph)
    spec: dict[str, SplitPoint] = {}
    begun: set[str] = set()  # modules of which some op has run
    left: list[int] = []
    current = -1
    for op in operators.order.argsort(kind="stable").tolist():
        name, path = graph.op_names[op], graph.module_paths[op]
        group = graph.group_names[graph.group[op]]
        if graph.role[op] != _FORWARD or graph.op_kinds[op] == "weights":
            continue
        if group.startswith("(glue"):
            begun.update(_above(path))
            continue
        device = int(operators.device[op])
        if device != current and current >= 0:
            left.append(current)
            if device in left:
                raise PlacementError(
                    f'not a chain: op "{name}" goes back to {operators.devices[device].name}',
                    hint="pin modules so that each device has one stretch of the model",
                )
            spec[_beginning(path, begun, name)] = SplitPoint.BEGINNING
        current = device
        begun.update(_above(path))
    return spec


def _above(path: str) -> list[str]:
    """A module and those that it lies in, the outermost first."""
    parts = path.split(".") if path else []
    return [".".join(parts[: at + 1]) for at in range(len(parts))]


def _beginning(path: str, begun: set[str], op: str) -> str:
    """The outermost module that begins here."""
    for module in _above(path):
        if module not in begun:
            return module
    raise PlacementError(
        f'the cut before op "{op}" is not at the beginning of a module',
        hint="pin modules so that the cut lies between two of them",
    )
