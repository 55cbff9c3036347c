"""Planning: from a model and devices to a `ModelPlan`."""

from __future__ import annotations

import dataclasses
import fnmatch
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import torch

from baechi import _core
from baechi.cluster import Cluster
from baechi.errors import InputError, OutOfMemoryError
from baechi.torch.capture import capture
from baechi.torch.costs import Costs
from baechi.torch.device_argument import TorchDevices, kind_of, read_torch_devices
from baechi.torch.fingerprints import describe, ties_of
from baechi.torch.losses import LossArgument, loss_value
from baechi.torch.model_plan import Compared, ModelPlan, PlannedDevice
from baechi.torch.module_map import compress
from baechi.torch.modules import Units, find_units
from baechi.torch.operator_graph import OperatorGraph, make_graph
from baechi.torch.optimizers import Optimizer, read_optimizer
from baechi.torch.pricing import CANNOT_RUN, Price, price
from baechi.torch.search import Objective, Outcome, Task, search
from baechi.torch.trace import Trace
from baechi.torch.tracing import trace_program
from baechi.torch.trees import flatten
from baechi.torch.work import MathModes
from baechi.units import format_bytes

__all__ = ["Planned", "plan", "study"]

_FOREACH = ("cuda", "xpu", "mtia", "privateuseone")  # where PyTorch's optimizers prefer foreach


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
    pin: Mapping[str, str] | None = None,
    granularity: Literal["module", "op"] = "module",
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
        optimizer: a name of `baechi.torch.optimizers.NAMES` or a torch optimizer of this model; in
            training "adamw" if it is left out, and the plan says so.
        loss: takes the model's output to a scalar; by default the output itself, its `.loss` or
            its `["loss"]`.
        objective: "fastest" step; "fewest-devices"; or "most-headroom", the smallest share of its
            limit on the fullest device.
        pin: module or parameter paths, or patterns of such ("encoder.*"), to device names.
        granularity: "module" keeps a module's weights and own ops together; "op" places ops that
            use no weights one by one.
        autocast: as under ``torch.autocast`` with this type.
        costs: measured times (`baechi.torch.measuring`); other ops have analytic prices.
        confirm: rehearse the plan without values, and plan again with closer limits if a device
            then takes more than its limit.

    Raises:
        OutOfMemoryError: no placement was found that fits; it says what would.
        InputError: an argument is wrong; the message names it.
        PlacementError: pins contradict each other.
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
        autocast=autocast,
        costs=costs,
    )
    if not confirm or planned.plan.level != "op":
        return _fitting(planned)
    from baechi.torch.confirming import confirmed

    return _fitting(confirmed(planned, model, args, kwargs or {}))


@dataclasses.dataclass(frozen=True)
class Planned:
    """A plan with everything that it was made from."""

    plan: ModelPlan
    task: Task
    outcome: Outcome
    found: Mapping[str, Outcome]
    context: _Context


@dataclasses.dataclass(frozen=True)
class _Context:
    """What the plan says beside the placement."""

    cluster: Cluster
    mode: str
    optimizer: Optimizer | None
    granularity: str
    level: str
    reasons: tuple[str, ...]
    model: Mapping[str, str]
    inputs: tuple[str, ...]
    prices: Mapping[str, int]
    notes: tuple[str, ...]
    autocast: str


def study(
    model: torch.nn.Module,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    devices: TorchDevices = None,
    mode: str = "training",
    optimizer: Any = None,
    loss: LossArgument = None,
    objective: Objective = "fastest",
    pin: Mapping[str, str] | None = None,
    granularity: str = "module",
    autocast: torch.dtype | None = None,
    costs: Costs | None = None,
) -> Planned:
    """Plans without rehearsing and without complaining that nothing fits; see `plan`."""
    _check_choice("mode", mode, ("training", "inference"))
    _check_choice("objective", objective, ("fastest", "fewest-devices", "most-headroom"))
    _check_choice("granularity", granularity, ("module", "op"))
    if not isinstance(model, torch.nn.Module):
        raise InputError(f"the model is {type(model).__name__}, not a torch.nn.Module")
    cluster, notes = read_torch_devices(devices)
    training = mode == "training"
    reader, more = _optimizer(optimizer, model, cluster, training)
    notes = (*notes, *more)
    captured = capture(model, args, kwargs, training=training, autocast=autocast)
    if captured.program is None:
        raise InputError(
            "the model could not be captured: " + "; ".join(captured.reasons)
        )
    trace = _trace(model, captured.program, args, kwargs or {}, training, loss, autocast)
    parents = frozenset(
        name for name, module in model.named_modules() if any(True for _ in module.children())
    )
    units = find_units(trace, parents)
    task, prices = _task(
        trace, units, cluster, reader, objective, pin or {}, granularity, costs or Costs({})
    )
    outcome, found = search(task)
    context = _Context(
        cluster,
        mode,
        reader,
        granularity,
        captured.level,
        captured.reasons,
        describe(model),
        _inputs_text(captured.program, args, kwargs or {}),
        prices,
        notes,
        str(autocast).removeprefix("torch.") if autocast else "",
    )
    return Planned(made_of(task, outcome, found, context), task, outcome, found, context)


def _check_choice(name: str, value: str, known: Sequence[str]) -> None:
    if value not in known:
        raise InputError(f"{name} is {value!r}", hint=f"choose from {', '.join(known)}")


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


def _trace(
    model: torch.nn.Module,
    program: Any,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    training: bool,
    loss: LossArgument,
    autocast: torch.dtype | None,
) -> Trace:
    weights = {
        name: _on_meta(tensor, training)
        for name, tensor in (*model.named_parameters(), *model.named_buffers())
    }
    inputs = [_on_meta(tensor, False) for tensor in program.bind(args, kwargs)]

    def scalar(output: Any) -> torch.Tensor:
        return loss_value(output, loss)

    return trace_program(
        program,
        weights,
        inputs,
        training=training,
        loss=scalar if training else None,
        ties=ties_of(model),
        modes=MathModes.of_this_process(autocast),
    )


def _on_meta(tensor: torch.Tensor, training: bool) -> torch.Tensor:
    made = torch.empty_strided(
        tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta"
    )
    if isinstance(tensor, torch.nn.Parameter):
        return torch.nn.Parameter(made, requires_grad=training and tensor.requires_grad)
    return made


def _task(
    trace: Trace,
    units: Units,
    cluster: Cluster,
    optimizer: Optimizer | None,
    objective: Objective,
    pin: Mapping[str, str],
    granularity: str,
    costs: Costs,
) -> tuple[Task, dict[str, int]]:
    parameters = _trained(trace, optimizer)
    persistent = [0] * len(units.names)
    updates: list[dict[str, int]] = [{} for _ in units.names]  # dtype -> bytes
    shapes = {storage: shape for storage, _, shape in parameters}
    for storage, unit in units.of_storage.items():
        one = trace.storages[storage]
        persistent[unit] += one.nbytes
        if storage in shapes and optimizer is not None:
            persistent[unit] += optimizer.state_bytes(one.nbytes, shapes[storage])
            updates[unit][one.dtype] = updates[unit].get(one.dtype, 0) + one.nbytes
    kinds = list(dict.fromkeys(cluster.kinds))
    tables = {kind: _prices(trace, cluster, kind, costs) for kind in kinds}

    def priced(works: Sequence[str], kind: str) -> int:
        times = [tables[kind][work].time_ns for work in works]
        return CANNOT_RUN if CANNOT_RUN in times else sum(times)

    update_ns = None
    if optimizer is not None:
        update_ns = [
            [_update_ns(optimizer, sizes, cluster, kind) for kind in kinds] for sizes in updates
        ]
    pinned = _pins(units, pin, cluster, trace)
    operators = make_graph(
        trace,
        units,
        kinds,
        priced,
        persistent_bytes=persistent,
        update_ns=update_ns,
        allowed={u: (cluster.names[d],) for u, d in enumerate(pinned) if d >= 0},
        free_glue=granularity == "op",
    )
    sources = [tables[kinds[0]][work].source for step in trace.steps for work in step.works]
    counted = {source: sources.count(source) for source in sorted(set(sources))}
    caps = tuple(int(m - r) for m, r in zip(cluster.memory_bytes, cluster.reserve_bytes, strict=True))
    task = Task(
        trace, units, operators, cluster, caps, pinned, objective, optimizer, parameters,
        granularity == "op", accumulate_in_place=False,
    )
    return task, counted


def _trained(
    trace: Trace, optimizer: Optimizer | None
) -> tuple[tuple[int, int, tuple[int, ...]], ...]:
    """Storage, bytes and shape of the parameters that get a gradient and are updated."""
    if optimizer is None:
        return ()
    reached = {f.parameter for f in trace.functions if f.parameter >= 0}
    found = []
    for at, storage in enumerate(trace.storages):
        if at not in reached:
            continue
        names = trace.ties.get(storage.name, (storage.name,))
        if optimizer.names is None or optimizer.names.intersection(names):
            found.append((at, storage.nbytes, storage.shape))
    return tuple(found)


def _prices(trace: Trace, cluster: Cluster, kind: str, costs: Costs) -> dict[str, Price]:
    device = next(d for d, k in zip(cluster.devices, cluster.kinds, strict=True) if k == kind)
    return price(trace.works, kind_of(device), costs.for_kind(kind))


def _update_ns(
    optimizer: Optimizer, sizes: Mapping[str, int], cluster: Cluster, kind: str
) -> int:
    from baechi.torch.pricing import roofline_ns

    device = next(d for d, k in zip(cluster.devices, cluster.kinds, strict=True) if k == kind)
    times = [
        roofline_ns(optimizer.work(nbytes, "fp32"), kind_of(device)) for nbytes in sizes.values()
    ]
    return max(0, sum(times))


def _pins(
    units: Units, pin: Mapping[str, str], cluster: Cluster, trace: Trace
) -> tuple[int, ...]:
    """Device index of each unit that a pin covers, -1 for the others."""
    pinned = [-1] * len(units.names)
    why: dict[int, str] = {}
    names = [name for group in trace.ties.values() for name in group]
    for pattern, device in pin.items():
        index = cluster.index(str(device))
        covered = {
            unit
            for unit, paths in enumerate(units.members)
            for path in paths
            if _covers(pattern, path)
        }
        for name in names:
            if _matches(pattern, name):
                path = trace.ties[name][0].rpartition(".")[0]
                covered.add(units.of_path[path])
        if not covered:
            raise InputError(
                f'pin "{pattern}" matches no module and no parameter',
                hint="write paths as in model.named_modules(), or a pattern such as 'encoder.*'",
            )
        for unit in covered:
            if pinned[unit] >= 0 and pinned[unit] != index:
                raise InputError(
                    f'pins "{why[unit]}" and "{pattern}" send "{units.names[unit]}" to '
                    f"{cluster.names[pinned[unit]]} and {cluster.names[index]}",
                    hint="modules that share a tensor or ops have one device",
                )
            pinned[unit], why[unit] = index, pattern
    return tuple(pinned)


def _matches(pattern: str, name: str) -> bool:
    return name == pattern or fnmatch.fnmatchcase(name, pattern)


def _covers(pattern: str, path: str) -> bool:
    """Whether a pin covers a module: itself, or a module above it."""
    while path:
        if _matches(pattern, path):
            return True
        path = path.rpartition(".")[0]
    return pattern == ""


def _inputs_text(program: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[str, ...]:
    tensors = program.bind(args, kwargs)
    return tuple(
        f"{path}: {str(t.dtype).removeprefix('torch.')}[{','.join(map(str, t.shape))}]"
        for path, t in zip(program.call.tree.paths, tensors, strict=True)
    )


def made_of(
    task: Task, outcome: Outcome, found: Mapping[str, Outcome], context: _Context
) -> ModelPlan:
    """The plan that says what an outcome is."""
    cluster, units = task.cluster, task.units
    names = cluster.names
    by_path = {
        path: names[outcome.device_of_unit[unit]]
        for unit, paths in enumerate(units.members)
        for path in paths
    }
    steps = outcome.layout.device_of_step
    devices = tuple(
        PlannedDevice(
            name=names[at],
            cap_bytes=task.caps[at],
            peak_bytes=memory.peak_bytes,
            peak_at=memory.at,
            by_class=dict(memory.by_class),
            busy_ns=outcome.busy_ns[at],
            num_ops=steps.count(at),
        )
        for at, memory in enumerate(outcome.memory.devices)
    )
    moved = [m for m in outcome.memory.moved if m.source >= 0]
    optimizer = context.optimizer
    return ModelPlan(
        modules=compress(by_path),
        ops={task.trace.steps[step].key: names[d] for step, d in outcome.exceptions.items()},
        together=tuple(
            (paths, names[outcome.device_of_unit[unit]])
            for unit, paths in enumerate(units.members)
            if len(paths) > 1
        ),
        cluster=cluster,
        mode=context.mode,
        objective=task.objective,
        optimizer=f"{optimizer.name} ({optimizer.implementation})" if optimizer else "",
        granularity=context.granularity,
        level=context.level,
        reasons=context.reasons,
        devices=devices,
        step_ns=outcome.step_ns,
        copies=len(moved),
        copied_bytes=sum(m.nbytes for m in moved),
        compared=_compared(task, found),
        model=context.model,
        inputs=context.inputs,
        prices=context.prices,
        confirmed=(),
        notes=context.notes,
        versions={"baechi": _core.__version__, "torch": torch.__version__.partition("+")[0]},
        autocast=context.autocast,
    )


def _compared(task: Task, found: Mapping[str, Outcome]) -> tuple[Compared, ...]:
    """One device (the best), an even split and a split by weights alone."""
    singles = [outcome for name, outcome in found.items() if name.startswith("only ")]
    rows = [("one device", min(singles, key=lambda outcome: outcome.rank(task)))]
    rows += [(n, found[n]) for n in ("even split", "weights-only split") if n in found]
    return tuple(
        Compared(
            name=name,
            step_ns=outcome.step_ns,
            missing_bytes=sum(
                max(0, peak - cap)
                for peak, cap in zip(outcome.memory.peaks, task.caps, strict=True)
            ),
        )
        for name, outcome in rows
    )


def _fitting(planned: Planned) -> ModelPlan:
    """The plan, or an error that says what would fit."""
    found, task = planned.plan, planned.task
    if found.is_within_limits:
        return found
    lacking = max(found.devices, key=lambda d: d.peak_bytes - d.cap_bytes)
    peaks = ", ".join(f"{d.name} {format_bytes(d.peak_bytes)}" for d in found.devices)
    alone = min(
        (max(outcome.memory.peaks) for name, outcome in planned.found.items() if "only " in name),
    )
    raise OutOfMemoryError(
        f"no placement was found that fits: the best needs {peaks}; {lacking.name} has "
        f"{format_bytes(lacking.cap_bytes)}, {lacking.peak_bytes - lacking.cap_bytes} bytes too few",
        hint=f"give devices of those sizes, or one of {format_bytes(alone)}; a smaller batch or "
        "checkpointing needs less",
    )
