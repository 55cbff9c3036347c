"""Planning: from a model and devices to a `ModelPlan`."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch

from baechi.cluster import Cluster
from baechi.errors import InputError
from baechi.torch.asked import Asked
from baechi.torch.capture import capture
from baechi.torch.confirming import confirmed
from baechi.torch.costs import Costs
from baechi.torch.device_argument import DeviceName, TorchDevices, read_torch_devices
from baechi.torch.drafting import Context, draft
from baechi.torch.fingerprints import (
    describe,
    describe_inputs,
    refuse_placed,
    refuse_scripted,
    refuse_unmade,
    refuse_wrapped,
)
from baechi.torch.garbage import old_objects_spared
from baechi.torch.losses import LossArgument
from baechi.torch.model_plan import ModelPlan
from baechi.torch.modules import find_units, parents_of, unseen_modules, with_other_names
from baechi.torch.optimizers import Optimizer, read_optimizer
from baechi.torch.outcomes import Outcome
from baechi.torch.program import Program
from baechi.torch.search import search
from baechi.torch.shortages import shortage
from baechi.torch.simdev import outside
from baechi.torch.stand_ins import kernels_of
from baechi.torch.tasks import Objective, Task, make_task
from baechi.torch.tracing_levels import trace_at

__all__ = ["Planned", "Prepared", "plan", "prepare", "searched", "study"]

_FOREACH = ("cuda", "xpu", "mtia", "privateuseone")  # where PyTorch's optimizers prefer foreach


@outside()
def plan(
    model: torch.nn.Module,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    devices: TorchDevices = None,
    mode: Literal["training", "inference"] = "training",
    optimizer: Any = None,
    loss: LossArgument = None,
    objective: Objective = "fastest",
    pin: Mapping[str, DeviceName] | None = None,
    granularity: Literal["module", "op"] = "module",
    level: Literal["auto", "op", "module"] = "auto",
    autocast: torch.dtype | None = None,
    costs: Costs | None = None,
    confirm: bool = True,
) -> ModelPlan:
    """Decides which module of a model goes to which device, and predicts memory and time.

    Nothing is run and nothing is moved; weights may be on meta. The same arguments give the same
    plan, byte for byte.

    Args:
        model: any module, as it is to be called.
        args: positional arguments of forward, as they will be; only shapes and types are read.
        kwargs: keyword arguments of forward.
        devices: text such as "2x24GiB,12GiB", a file, a `Cluster`, a mapping of device to size, or
            None for the accelerators of this machine (`baechi.torch.read_torch_devices`).
        mode: "training" counts gradients, optimizer and what backward needs; "inference" does not.
        optimizer: a name of `baechi.torch.optimizers.NAMES`, a torch optimizer of this model, or a
            function that makes one of a list of parameters; in training "adamw" if it is left out,
            and the plan says so.
        loss: takes the model's output to a scalar; by default the output itself, its `.loss` or
            its `["loss"]`. Labels that it brings along are copied to where the output is.
        objective: "fastest" step; "fewest-devices"; or "most-headroom", the smallest share of its
            limit on the fullest device, to within 5 %.
        pin: module or parameter paths, or patterns of such ("encoder.*"), to devices.
        granularity: "module" keeps a module's weights and own ops together; "op" places ops that
            use no weights one by one.
        level: "module" predicts for the model's own code with hooks, as `plan.apply` runs it where
            a graph cannot stand for the model; "op" raises in that case.
        autocast: as under ``torch.autocast`` with this type.
        costs: measured times (`baechi.torch.measuring`); other ops have analytic prices.
        confirm: rehearse the plan without values, and plan again with closer limits if a device
            then takes over 2 % more than predicted, or more than its limit.

    Raises:
        OutOfMemoryError: no placement was found that fits; it says what would.
        InputError: an argument is wrong or pins contradict each other; the message names them.
    """
    planned = study(
        model,
        args,
        kwargs,
        devices=devices,
        mode=mode,
        optimizer=optimizer,
        loss=loss,
        objective=objective,
        pin=pin,
        granularity=granularity,
        level=level,
        autocast=autocast,
        costs=costs,
    )

    def checked(one: Planned) -> Planned:
        return confirmed(one, model, args, kwargs or {}) if confirm else one

    planned = checked(planned)
    if not planned.plan.is_within_limits:
        raise shortage(planned, checked)
    return planned.plan


@dataclasses.dataclass(frozen=True)
class Planned:
    """A plan with everything that it was made from."""

    plan: ModelPlan
    program: Program | None
    task: Task
    outcome: Outcome
    found: Mapping[str, Outcome]
    context: Context


def study(
    model: torch.nn.Module,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    **options: Any,
) -> Planned:
    """Plans without rehearsing and without complaining that nothing fits; options of `prepare`."""
    with old_objects_spared():
        return searched(prepare(model, args, kwargs, **options))


def searched(prepared: Prepared) -> Planned:
    """Searches what was prepared."""
    task, context = prepared.task, prepared.context
    outcome, found = search(task)
    made = draft(task, outcome, found, context)
    return Planned(made, prepared.program, task, outcome, found, context)


@dataclasses.dataclass(frozen=True)
class Prepared:
    """What is to be searched, with what a plan says beside the placement."""

    program: Program | None
    task: Task
    context: Context


def prepare(
    model: torch.nn.Module,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    devices: TorchDevices = None,
    mode: str = "training",
    optimizer: Any = None,
    loss: LossArgument = None,
    objective: Objective = "fastest",
    pin: Mapping[str, DeviceName] | None = None,
    granularity: str = "module",
    level: str = "auto",
    autocast: torch.dtype | None = None,
    costs: Costs | None = None,
    backward: str = "colocated",
) -> Prepared:
    """Captures, traces and prices a call without searching; see `plan`."""
    _check_choice("mode", mode, ("training", "inference"))
    _check_choice("objective", objective, ("fastest", "fewest-devices", "most-headroom"))
    _check_choice("granularity", granularity, ("module", "op"))
    _check_choice("level", level, ("auto", "op", "module"))
    _check_choice("backward", backward, ("colocated", "free"))
    if not isinstance(model, torch.nn.Module):
        is_class = isinstance(model, type)
        found = f"the class {model.__name__}" if is_class else type(model).__name__
        raise InputError(
            f"the model is {found}, not a torch.nn.Module",
            hint=f"pass an object: {model.__name__}(...)" if is_class else "pass the module itself",
        )
    if type(model).forward is torch.nn.Module.forward and "forward" not in vars(model):
        raise InputError(
            f"the model, a {type(model).__name__}, has no forward, so it cannot be called",
            hint="pass the module that calls its parts",
        )
    _check_autocast(autocast)
    costs = costs or Costs({})
    refuse_wrapped(model)
    refuse_placed(model, (args, kwargs))
    refuse_scripted(model)
    refuse_unmade(model)
    cluster, notes = read_torch_devices(devices)
    training = mode == "training"
    reader, more = _optimizer(optimizer, model, cluster, training)
    notes = (*notes, *more)
    captured = capture(model, args, kwargs, training=training, autocast=autocast)
    trace, taken, reasons, more = trace_at(
        level,
        captured,
        model,
        args,
        kwargs or {},
        training=training,
        loss=loss,
        autocast=autocast,
        kernels=kernels_of(cluster, costs),
    )
    notes = (*notes, *more)
    units = with_other_names(find_units(trace, parents_of(model)), model)
    if unseen := unseen_modules(trace, units):
        listed = ", ".join(f'"{name}"' for name in unseen[:5]) + (", ..." if unseen[5:] else "")
        notes = (*notes, f"not used by this call, but given a device: {listed}")
    task, prices, more = make_task(
        trace,
        units,
        cluster,
        reader,
        objective,
        pin or {},
        granularity,
        costs,
        free_backward=backward == "free",
    )
    notes = (*notes, *more, *_left_out(task))
    context = Context(
        cluster,
        mode,
        reader,
        granularity,
        taken,
        reasons,
        describe(model),
        describe_inputs(model, args, kwargs or {}),
        prices,
        notes,
        str(autocast).removeprefix("torch.") if autocast else "",
        Asked.of(model, loss, optimizer if training else None),
    )
    return Prepared(captured.program, task, context)


def _check_choice(name: str, value: str, known: Sequence[str]) -> None:
    if value not in known:
        raise InputError(f"{name} is {value!r}", hint=f"choose from {', '.join(known)}")


def _check_autocast(autocast: Any) -> None:
    if autocast not in (None, torch.bfloat16, torch.float16):
        raise InputError(
            f"autocast is {autocast!r}", hint="give torch.bfloat16, torch.float16 or None"
        )


def _optimizer(
    optimizer: Any, model: torch.nn.Module, cluster: Cluster, training: bool
) -> tuple[Optimizer | None, tuple[str, ...]]:
    if not training:
        return None, ()
    notes: tuple[str, ...] = ()
    if optimizer is None:
        optimizer = "adamw"
        notes = ("no optimizer was named, so adamw was taken",)
    types = {name.partition(":")[0] for name in cluster.names}
    foreach = bool(types) and all(kind in _FOREACH for kind in types)
    return read_optimizer(optimizer, model, foreach), notes


def _left_out(task: Task) -> tuple[str, ...]:
    """A note on parameters that get gradients and are not updated."""
    if task.optimizer is None or task.optimizer.names is None:
        return ()
    storages = task.trace.storages
    updated = {storage for storage, _, _ in task.parameters}
    reached = {f.parameter for f in task.trace.functions if f.parameter >= 0}
    names = [storages[at].name for at in sorted(reached - updated)]
    if not names:
        return ()
    shown = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
    return (
        f"{shown}: gradients, but no updates by the optimizer; predicted for model.zero_grad(), "
        "which drops them, and freezing them would save them",
    )
