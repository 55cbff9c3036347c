"""Rehearsal: a planned model run on simulated devices, with real numbers or with bytes alone."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from baechi.cluster import Cluster
from baechi.errors import InputError
from baechi.torch.capture import capture
from baechi.torch.device_argument import kind_of
from baechi.torch.layouts import place_names
from baechi.torch.losses import LossArgument, loss_value
from baechi.torch.model_plan import ModelPlan
from baechi.torch.module_apply import apply_modules
from baechi.torch.parameters import move_weights, named_weights
from baechi.torch.placed_graph import place_program
from baechi.torch.pricing import roofline_ns
from baechi.torch.remaking import OptimizerArgument, remake
from baechi.torch.signatures import signature_of
from baechi.torch.simdev import OpContext, SimulatedDevices, resolve, simulated, to_host
from baechi.torch.tracing import trace_call
from baechi.torch.trees import flatten
from baechi.torch.twins import twin_of
from baechi.torch.work import work_of
from baechi.units import format_bytes, format_ns

__all__ = ["Rehearsal", "rehearse"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rehearsal:
    """What was measured on simulated devices.

    Attributes:
        devices: names as in the plan.
        losses: of each step; empty in a dry rehearsal and in inference.
        peak_bytes: the most that each device held, over all steps.
        cap_bytes: what it may hold.
        copies: copies between devices in the last step.
        copied_bytes: their bytes.
        step_ns: time of the last step by the virtual clocks and the plan's prices.
        dry: whether there were bytes but no numbers.
        level: "op" where the placed graph ran, "module" where the model's own code did.
    """

    devices: tuple[str, ...]
    losses: tuple[float, ...]
    peak_bytes: tuple[int, ...]
    cap_bytes: tuple[int, ...]
    copies: int
    copied_bytes: int
    step_ns: int
    dry: bool
    level: str

    def __str__(self) -> str:
        """One line per device and the losses."""
        lines = [
            f"{'dry rehearsal' if self.dry else 'rehearsal'} at {self.level} level: step "
            f"{format_ns(self.step_ns)}, {self.copies} copies of {format_bytes(self.copied_bytes)}"
        ]
        for name, peak, cap in zip(self.devices, self.peak_bytes, self.cap_bytes, strict=True):
            lines.append(f"  {name}  peak {format_bytes(peak)} of {format_bytes(cap)}")
        if self.losses:
            lines.append("  losses " + ", ".join(f"{loss:.6f}" for loss in self.losses))
        return "\n".join(lines)


def rehearse(
    model: torch.nn.Module,
    plan: ModelPlan,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    steps: int = 1,
    dry: bool = False,
    loss: LossArgument = None,
    optimizer: OptimizerArgument = None,
    level: str | None = None,
) -> Rehearsal:
    """Runs a copy of a model as planned on simulated devices whose limits are enforced.

    The model itself is not touched. Numbers are those of the CPU to the last bit; a dry rehearsal
    has bytes, copies and clocks, but no numbers, and needs no memory for the model.

    Args:
        model: the planned model; for a dry rehearsal its weights may be on meta.
        plan: its plan.
        args: positional arguments of forward.
        kwargs: keyword arguments of forward.
        steps: how many steps; state of an optimizer is there from the second on.
        dry: without numbers.
        loss: as in `plan`, whose loss is the default as long as the plan knows it.
        optimizer: one of the model, of whose options the copy's is made, or a function that makes
            one of parameters; by default the plan's, with PyTorch's defaults.
        level: "op" or "module" instead of the plan's own.

    Raises:
        torch.OutOfMemoryError: a device needed more than its limit.
        PlanMismatchError: the plan was made for another model.
        InputError: weights on meta in a rehearsal that is not dry.
    """
    plan.check(model)
    level = plan.level if level is None else level
    if not dry and any(weight.is_meta for _, weight in named_weights(model)):
        raise InputError("the weights are on meta", hint="rehearse with dry=True")
    kwargs = kwargs or {}
    if plan.asked is not None:
        loss = plan.asked.loss if loss is None else loss
        optimizer = plan.asked.optimizer if optimizer is None else optimizer
    stage = _Stage(plan, model, args, kwargs, loss, level)
    caps = [device.cap_bytes for device in plan.devices]
    prices = _Prices(plan.cluster)
    simulation = simulated(caps, dry=dry, cost_ns=prices.op_ns, link_ns=prices.link_ns)
    with _old_objects_spared(), simulation as devices:
        call = stage.set_up(_stand_in(model, dry))
        updater = None
        if stage.training:
            updater = remake(plan.optimizer, optimizer, model, stage.model, dry=dry)
        return _run(stage, call, devices, steps, updater, dry)


@contextlib.contextmanager
def _old_objects_spared() -> Iterator[None]:
    """Collects garbage of the rehearsal alone: all objects of a program take half a second."""
    if gc.get_freeze_count():  # the caller's own arrangement
        yield
        return
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def _stand_in(model: torch.nn.Module, dry: bool) -> torch.nn.Module:
    """A copy whose weights may be moved: the real numbers, or none."""
    if not dry:
        return copy.deepcopy(model)

    def on_meta(tensor: torch.Tensor) -> torch.Tensor:
        made = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")
        if isinstance(tensor, torch.nn.Parameter):
            return torch.nn.Parameter(made, requires_grad=tensor.requires_grad)
        return made

    return twin_of(model, on_meta)


class _Stage:
    """One rehearsal's plan, program and arguments."""

    def __init__(
        self,
        plan: ModelPlan,
        model: torch.nn.Module,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        loss: LossArgument,
        level: str,
    ) -> None:
        self.plan, self.args, self.kwargs, self.loss, self.level = plan, args, kwargs, loss, level
        self.training = plan.mode == "training"
        self.targets = {name: resolve(f"simdev:{at}") for at, name in enumerate(plan.cluster.names)}
        self.autocast = getattr(torch, plan.autocast) if plan.autocast else None
        if level == "op":
            captured = capture(model, args, kwargs, training=self.training, autocast=self.autocast)
            if captured.program is None:
                raise InputError(
                    "this call has no graph: " + "; ".join(captured.reasons),
                    hint='rehearse with level="module"',
                )
            self.program = captured.program
            trace = trace_call(
                model,
                self.program,
                args,
                kwargs,
                training=self.training,
                loss=loss,
                autocast=self.autocast,
            )
            self.placement = place_names(plan, self.program, trace, model)

    def set_up(self, model: torch.nn.Module) -> Callable[[], Any]:
        """Moves the weights of a stand-in; what runs one forward of it."""
        self.model = model
        if self.level == "module":
            modules = {p: self.targets[name] for p, name in self.plan.placement.items()}
            modules.setdefault("", self.targets[self.plan.cluster.names[0]])
            if apply_modules(model, modules).runtime is None:  # one device, no hooks that copy
                return lambda: self._call_on(model, next(iter(modules.values())))
            return lambda: model(*self.args, **self.kwargs)
        homes = {w: self.targets[d] for w, d in self.placement.home_of_weight.items()}
        placed = place_program(
            self.program,
            {node: self.targets[name] for node, name in self.placement.device_of_node.items()},
            homes,
        )
        move_weights(model, _with_ties(model, homes))
        return lambda: placed(model, self.args, self.kwargs)

    def _call_on(self, model: torch.nn.Module, device: torch.device) -> Any:
        tensors, tree = flatten((tuple(self.args), dict(self.kwargs)))
        args, kwargs = tree.rebuild([tensor.to(device) for tensor in tensors])
        return model(*args, **kwargs)


def _with_ties(
    model: torch.nn.Module, homes: Mapping[str, torch.device]
) -> dict[str, torch.device]:
    """A device for every name of every weight."""
    first: dict[int, str] = {}
    found: dict[str, torch.device] = {}
    default = next(iter(homes.values()), resolve("simdev:0"))
    for name, weight in named_weights(model):
        found[name] = homes.get(first.setdefault(id(weight), name), default)
    return found


def _run(
    stage: _Stage,
    call: Callable[[], Any],
    devices: SimulatedDevices,
    steps: int,
    updater: torch.optim.Optimizer | None,
    dry: bool,
) -> Rehearsal:
    plan = stage.plan
    losses: list[float] = []
    before = 0
    devices.reset_peaks()
    for _ in range(steps):
        gc.collect()
        devices.clear_transfers()
        before = max(devices.clock_ns(at) for at in range(len(devices)))
        if updater is None:
            with torch.no_grad():
                call()
            continue
        stage.model.zero_grad(set_to_none=True)
        with devices.phase("forward"):
            output = call()
            scalar = loss_value(output, stage.loss)
        with devices.phase("backward"):
            scalar.backward()  # type: ignore[no-untyped-call]
        with devices.phase("optimizer"):
            updater.step()
        if not dry:
            losses.append(float(to_host(scalar.detach())))
        del output, scalar
    moved = [t for t in devices.transfers if t.source >= 0 and t.destination >= 0]
    return Rehearsal(
        devices=plan.cluster.names,
        losses=tuple(losses),
        peak_bytes=tuple(devices.peak_bytes(at) for at in range(len(devices))),
        cap_bytes=tuple(device.cap_bytes for device in plan.devices),
        copies=len(moved),
        copied_bytes=sum(t.nbytes for t in moved),
        step_ns=max(devices.clock_ns(at) for at in range(len(devices))) - before,
        dry=dry,
        level=stage.level,
    )


class _Prices:
    """Prices for the virtual clocks: the roofline by signature, and the cluster's links."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.kinds = [kind_of(device) for device in cluster.devices]
        self.known: dict[tuple[int, str], int] = {}

    def op_ns(self, context: OpContext) -> int:
        key = (context.device, signature_of(context.op, context.args, context.kwargs))
        if key not in self.known:
            work = work_of(context.op, context.args, context.kwargs, context.outputs)
            ns = max(0, roofline_ns(work, self.kinds[context.device]))
            self.known[key] = round(ns / float(self.cluster.speed[context.device]))
        return self.known[key]

    def link_ns(self, source: int, destination: int, nbytes: int) -> int:
        if source < 0 or destination < 0:
            return 0
        rate = int(self.cluster.bytes_per_s[source, destination])
        latency = int(self.cluster.latency_ns[source, destination])
        return latency + (-(-nbytes * 10**9 // rate) if rate else 0)
