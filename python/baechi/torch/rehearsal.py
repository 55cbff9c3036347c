"""Rehearsal: a planned model run on simulated devices, with real numbers or with bytes alone."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal

import torch

from baechi.cluster import Cluster
from baechi.errors import InputError
from baechi.torch.capture import capture
from baechi.torch.device_argument import kind_of
from baechi.torch.losses import LossArgument, loss_value
from baechi.torch.model_plan import ModelPlan
from baechi.torch.parameters import named_weights
from baechi.torch.plan_application import apply_plan
from baechi.torch.pricing import roofline_ns
from baechi.torch.program import Program
from baechi.torch.real_rehearsal import own_call, stand_still, why_without_numbers
from baechi.torch.remaking import OptimizerArgument, remake
from baechi.torch.signatures import signature_of
from baechi.torch.simdev import NoValuesError, OpContext, SimulatedDevices, simulated, to_host
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
    program: Program | None = None,
) -> Rehearsal:
    """Runs a copy of a model as planned on simulated devices whose limits are enforced.

    The model itself is not touched. Numbers are those of the CPU to the last bit; a dry rehearsal
    has bytes, copies and clocks, but no numbers, and needs no memory for the model. Where a dry
    one needs numbers all the same, because the model branches on them, and they are there, the
    steps run with them on a copy that an optimizer does not change; `Rehearsal.dry` says so.

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
        program: what `capture` made of this call, so that it need not be made again.

    Raises:
        torch.OutOfMemoryError: a device needed more than its limit.
        PlanMismatchError: the plan was made for another model.
        InputError: weights on meta in a rehearsal that is not dry.
        NoValuesError: a dry rehearsal needs numbers, and there are none; it says why.
    """
    plan.check(model)
    level = plan.level if level is None else level
    if not dry and any(weight.is_meta for _, weight in named_weights(model)):
        raise InputError("the weights are on meta", hint="rehearse with dry=True")
    kwargs = kwargs or {}
    if plan.asked is not None:
        loss = plan.asked.loss if loss is None else loss
        optimizer = plan.asked.optimizer if optimizer is None else optimizer
    stage = _Stage(plan, model, args, kwargs, loss, level, program)
    if not dry:
        return _rehearsed(stage, model, optimizer, steps, "real")
    with torch.random.fork_rng(devices=[]):
        try:
            return _rehearsed(stage, model, optimizer, steps, "dry")
        except NoValuesError as error:
            needed_bytes = sum(device.peak_bytes for device in plan.devices)
            if why := why_without_numbers(model, args, kwargs, needed_bytes):
                raise NoValuesError(error.what, why) from error
        return _rehearsed(stage, model, optimizer, steps, "still")


def _rehearsed(
    stage: _Stage,
    model: torch.nn.Module,
    optimizer: OptimizerArgument,
    steps: int,
    how: Literal["real", "dry", "still"],
) -> Rehearsal:
    """Runs steps with numbers, without, or with numbers of weights that stay as they are."""
    plan, dry = stage.plan, how == "dry"
    caps = [device.cap_bytes for device in plan.devices]
    prices = _Prices(plan.cluster)
    simulation = simulated(caps, dry=dry, cost_ns=prices.op_ns, link_ns=prices.link_ns)
    with _old_objects_spared(), simulation as devices:
        call = stage.set_up(_stand_in(model, dry), dry=dry)
        updater = None
        if stage.training:
            updater = remake(plan.optimizer, optimizer, model, stage.model, dry=dry)
            if how == "still":
                stand_still(updater)
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
        program: Program | None,
    ) -> None:
        self.plan, self.args, self.kwargs, self.loss, self.level = plan, args, kwargs, loss, level
        self.training = plan.mode == "training"
        self.autocast = getattr(torch, plan.autocast) if plan.autocast else None
        self.programs = () if program is None else (program,)
        if level == "op" and program is None:
            captured = capture(model, args, kwargs, training=self.training, autocast=self.autocast)
            if captured.program is None:
                raise InputError(
                    "this call has no graph: " + "; ".join(captured.reasons),
                    hint='rehearse with level="module"',
                )
            self.programs = (captured.program,)

    def set_up(self, model: torch.nn.Module, *, dry: bool) -> Callable[[], Any]:
        """Applies the plan to a stand-in, on simulated devices; what runs one forward of it."""
        self.model = model
        if all(module.training != self.training for module in model.modules()):
            model.train(self.training)  # as it was captured
        names = self.plan.cluster.names
        simulated_names = {name: f"simdev:{at}" for at, name in enumerate(names)}
        apply_plan(
            self.plan, model, devices=simulated_names, level=self.level, programs=self.programs
        )

        def call() -> Any:
            args, kwargs = own_call(self.args, self.kwargs, dry=dry)
            if self.autocast is None:
                return model(*args, **kwargs)
            with torch.autocast("cpu", self.autocast):  # simulated devices have the host's
                return model(*args, **kwargs)

        return call


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
