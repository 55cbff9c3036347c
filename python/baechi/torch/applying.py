"""Applying a placement to a model, asking how it runs, and taking the placement off."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn
from torch.optim import Optimizer

from baechi.errors import InputError
from baechi.torch.application import LEVELS, Application
from baechi.torch.application_status import Status
from baechi.torch.applied_class import (
    STATE,
    applied_class,
    change_class,
    original_class,
)
from baechi.torch.compiled_modules import add_forwards, remove_forwards
from baechi.torch.compiling import CompileArgument, Compiling, read_compile
from baechi.torch.computed_weights import let_go_of_graphs
from baechi.torch.module_homes import module_devices
from baechi.torch.module_hooks import add_hooks, remove_hooks
from baechi.torch.parameters import move_back, move_weights, weight_devices
from baechi.torch.placement_rule import ModulePlacement
from baechi.torch.program import Program
from baechi.torch.simdev_tensor import sim_index

__all__ = ["apply_placement", "remove_placement", "status"]


def apply_placement(
    model: nn.Module,
    placement: ModulePlacement,
    *,
    optimizers: Sequence[Optimizer] = (),
    level: str = "auto",
    outputs: str = "where-computed",
    programs: Sequence[Program] = (),
    compile: CompileArgument = False,
    fallback_cost: str = "",
    planned_graph: bool = False,
) -> nn.Module:
    """Moves the weights of a model to their devices and lets it run there; returns the model.

    Of a model that runs so already, the weights that are elsewhere are moved.

    Args:
        model: it stays the same object, and so do its parameters.
        placement: devices by module path.
        optimizers: made before and used already; their state moves with the parameters.
        level: "auto" runs placed graphs where they may stand for the model; "op" raises
            PlacementError where they may not; "module" never does.
        outputs: "where-computed", or "inputs" for the device of the first input tensor.
        programs: captured before, so that the calls they were captured for need not be again.
        compile: whether the parts on each device are compiled; options of torch.compile.
        fallback_cost: what is said beside the reason of a call that runs no graph.
        planned_graph: in inference the graph is what was planned, also for a single device.

    Raises:
        InputError: another placement is applied already, or something has no device.
        PlacementError: a weight cannot be moved.
    """
    if level not in LEVELS:
        raise InputError(f'level is "{level}"', hint=f"one of {', '.join(LEVELS)}")
    if STATE in vars(model):
        return _apply_again(model, placement, optimizers, level)
    compiling = _read_compile(compile, placement)
    homes = module_devices(model, placement.modules)
    changed = applied_class(type(model))  # type: ignore[arg-type]
    let_go_of_graphs(model)
    moved = move_weights(model, weight_devices(model, homes), optimizers=optimizers)
    runtime = add_hooks(model, placement.modules, outputs=outputs, with_root=False)
    if compiling is not None and compiling.is_possible():
        add_forwards(model, placement.modules, compiling, runtime)
    application = Application(placement, moved, runtime, level, programs, compiling)
    application.fallback_cost, application.planned_graph = fallback_cost, planned_graph
    vars(model)[STATE] = application
    change_class(model, changed)
    return model


def _apply_again(
    model: nn.Module, placement: ModulePlacement, optimizers: Sequence[Optimizer], level: str
) -> nn.Module:
    """Moves weights that came since, as those of ``load_state_dict(assign=True)``."""
    application = _application(model)
    if (application.placement, application.level) != (placement, level):
        raise InputError("another plan is applied to the model already", hint="remove it first")
    homes = module_devices(model, placement.modules)
    move_weights(model, weight_devices(model, homes), optimizers=optimizers)
    application.forget_refusals()
    return model


def remove_placement(model: nn.Module, *, optimizers: Sequence[Optimizer] = ()) -> nn.Module:
    """Gives back the model as it was, with the weights as they are now; returns the model."""
    application = _application(model)
    move_back(model, application.moved, optimizers=optimizers)
    remove_hooks(model)
    remove_forwards(model)
    change_class(model, original_class(model))
    del vars(model)[STATE]
    return model


def status(model: nn.Module) -> Status:
    """How the model has been running since the plan was applied."""
    application = _application(model)
    calls, compiling = application.calls, application.compiling
    return Status(
        application.last,
        calls["op"],
        calls["module"],
        application.num_graphs,
        dict(application.reasons),
        0 if compiling is None else compiling.num_parts,
        {} if compiling is None else dict(compiling.reasons),
    )


def _read_compile(compile: CompileArgument, placement: ModulePlacement) -> Compiling | None:
    devices = {*placement.modules.values(), *placement.ops.values()}
    is_simulated = any(sim_index(device) is not None for device in devices)
    refused = "simulated devices run op by op" if is_simulated else ""
    return read_compile(compile, refused=refused)


def _application(model: nn.Module) -> Application:
    found = vars(model).get(STATE)
    if not isinstance(found, Application):
        raise InputError("no plan is applied to the model", hint="plan.apply(model)")
    return found
