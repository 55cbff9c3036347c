"""Stages: a copy of a planned model on simulated devices, which is run there step by step."""

from __future__ import annotations

import contextlib
import dataclasses
import gc
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import torch

from baechi.cluster import Cluster
from baechi.errors import InputError
from baechi.torch.applied_class import STATE
from baechi.torch.capture import capture
from baechi.torch.device_argument import kind_of
from baechi.torch.garbage import old_objects_spared
from baechi.torch.losses import LossArgument, loss_value
from baechi.torch.meta_kernels import form_of
from baechi.torch.model_plan import ModelPlan
from baechi.torch.plan_application import apply_plan
from baechi.torch.pricing import roofline_ns
from baechi.torch.program import Program
from baechi.torch.real_rehearsal import own_call, stand_still
from baechi.torch.remaking import OptimizerArgument, remake
from baechi.torch.signatures import signature_of
from baechi.torch.simdev import OpContext, SimulatedDevices, simulated, to_host
from baechi.torch.simdev_books import Transfer
from baechi.torch.surroundings import surroundings_kept
from baechi.torch.twins import twin_of
from baechi.torch.work import work_of

__all__ = ["How", "Running", "Stage", "StepRun"]

How = Literal["real", "dry", "still"]
"""With numbers, without, or with numbers of weights that stay as they are."""


@dataclasses.dataclass(frozen=True, slots=True)
class StepRun:
    """What one step took.

    Attributes:
        loss: None in inference and without numbers.
        before_update: the most bytes that each device held in forward and backward.
        in_update: the same in the optimizer's step; zeros without one.
        transfers: copies between devices.
        step_ns: its time by the virtual clocks.
    """

    loss: float | None
    before_update: tuple[int, ...]
    in_update: tuple[int, ...]
    transfers: tuple[Transfer, ...]
    step_ns: int

    @property
    def peak_bytes(self) -> tuple[int, ...]:
        """The most bytes that each device held."""
        return tuple(map(max, self.before_update, self.in_update))


class Stage:
    """A plan, its model, and how the model is called."""

    def __init__(
        self,
        plan: ModelPlan,
        model: torch.nn.Module,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        *,
        loss: LossArgument = None,
        optimizer: OptimizerArgument = None,
        level: str,
        program: Program | None = None,
    ) -> None:
        """Captures the call unless its program is given, where a graph is to run.

        Args:
            plan: its limits are enforced.
            model: the planned model, which is not touched.
            args: positional arguments of forward.
            kwargs: keyword arguments of forward.
            loss: by default the plan's, as long as the plan knows it; so is the optimizer.
            optimizer: one of the model, or a function that makes one of parameters.
            level: "op" or "module".
            program: what `capture` made of this call.

        Raises:
            InputError: a graph is to run, and the call has none.
        """
        if plan.asked is not None:
            loss = plan.asked.loss if loss is None else loss
            optimizer = plan.asked.optimizer if optimizer is None else optimizer
        self.plan, self.model, self.args, self.kwargs = plan, model, args, kwargs
        self.loss, self.optimizer, self.level = loss, optimizer, level
        self.training = plan.mode == "training"
        self.autocast = getattr(torch, plan.autocast) if plan.autocast else None
        self.programs: tuple[Program, ...] = () if program is None else (program,)
        if level == "op" and program is None:
            captured = capture(model, args, kwargs, training=self.training, autocast=self.autocast)
            if captured.program is None:
                raise InputError(
                    "this call has no graph: " + "; ".join(captured.reasons),
                    hint='rehearse with level="module"',
                )
            self.programs = (captured.program,)

    @contextlib.contextmanager
    def running(self, how: How) -> Iterator[Running]:
        """A stand-in of the model, applied to simulated devices for the length of the block."""
        plan, dry = self.plan, how == "dry"
        caps = [device.cap_bytes for device in plan.devices]
        prices = _Prices(plan.cluster)
        simulation = simulated(caps, dry=dry, cost_ns=prices.op_ns, link_ns=prices.link_ns)
        with surroundings_kept(self.model), old_objects_spared(), simulation as devices:
            stand_in = self._applied(_stand_in(self.model, how))
            updater = None
            if self.training:
                updater = remake(plan.optimizer, self.optimizer, self.model, stand_in, dry=dry)
                if how == "still":
                    stand_still(updater)
            devices.reset_peaks()
            yield Running(self, stand_in, devices, updater)

    def _applied(self, model: torch.nn.Module) -> torch.nn.Module:
        if all(module.training != self.training for module in model.modules()):
            model.train(self.training)  # as it was captured
        names = self.plan.cluster.names
        simulated_names = {name: f"simdev:{at}" for at, name in enumerate(names)}
        return apply_plan(
            self.plan, model, devices=simulated_names, level=self.level, programs=self.programs
        )


class Running:
    """A stand-in on its devices."""

    def __init__(
        self,
        stage: Stage,
        model: torch.nn.Module,
        devices: SimulatedDevices,
        updater: torch.optim.Optimizer | None,
    ) -> None:
        """Made by `Stage.running`."""
        self.stage, self.model, self.devices, self.updater = stage, model, devices, updater

    def step(self, level: str | None = None) -> StepRun:
        """Runs one step, or one forward in inference.

        Args:
            level: "op" or "module"; by default the stage's. Only a stage of level "op" has both.
        """
        devices, updater = self.devices, self.updater
        vars(self.model)[STATE].level = level or self.stage.level
        gc.collect()
        devices.clear_transfers()
        start_ns = self._clock_ns()
        loss: float | None = None
        in_update = (0,) * len(devices)
        if updater is None:
            with torch.no_grad():
                self._call()
            before_update = devices.take_peaks()
        else:
            self.model.zero_grad(set_to_none=True)
            with devices.phase("forward"):
                output = self._call()
                scalar = loss_value(output, self.stage.loss)
            with devices.phase("backward"):
                scalar.backward()  # type: ignore[no-untyped-call]
            before_update = devices.take_peaks()
            with devices.phase("optimizer"):
                updater.step()
            in_update = devices.take_peaks()
            if not devices.dry:
                loss = float(to_host(scalar.detach()))
            del output, scalar
        moved = [t for t in devices.transfers if t.source >= 0 and t.destination >= 0]
        end_ns = self._clock_ns()
        return StepRun(loss, before_update, in_update, tuple(moved), end_ns - start_ns)

    def _call(self) -> Any:
        stage = self.stage
        args, kwargs = own_call(stage.args, stage.kwargs, dry=self.devices.dry)
        if stage.autocast is None:
            return self.model(*args, **kwargs)
        with torch.autocast("cpu", stage.autocast):  # simulated devices have the host's
            return self.model(*args, **kwargs)

    def _clock_ns(self) -> int:
        return max(self.devices.clock_ns(at) for at in range(len(self.devices)))


def _stand_in(model: torch.nn.Module, how: How) -> torch.nn.Module:
    """A copy whose weights may be moved: the real numbers, or none."""
    if how != "dry":
        return twin_of(model, None, "all" if how == "real" else "tolerant")

    def on_meta(tensor: torch.Tensor) -> torch.Tensor:
        made = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")
        if isinstance(tensor, torch.nn.Parameter):
            return torch.nn.Parameter(made, requires_grad=tensor.requires_grad)
        return made

    return twin_of(model, on_meta, "tolerant")


class _Prices:
    """Prices for the virtual clocks: the roofline by signature, and the cluster's links."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.kinds = [kind_of(device) for device in cluster.devices]
        self.known: dict[tuple[int, Any], int] = {}

    def op_ns(self, context: OpContext) -> int:
        call = context.op, context.args, context.kwargs
        key = context.device, form_of(*call) or signature_of(*call)
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
