"""Rehearsal: a planned model run on simulated devices, with real numbers or with bytes alone."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from baechi.errors import InputError
from baechi.torch.fingerprints import refuse_placed
from baechi.torch.losses import LossArgument
from baechi.torch.model_plan import ModelPlan
from baechi.torch.parameters import named_weights
from baechi.torch.program import Program
from baechi.torch.real_rehearsal import why_without_numbers
from baechi.torch.remaking import OptimizerArgument
from baechi.torch.simdev import NoValuesError, outside
from baechi.torch.stages import How, Stage, StepRun
from baechi.torch.twins import a_hook_failed
from baechi.units import counted, format_bytes, format_ns

__all__ = ["Rehearsal", "rehearsal_of", "rehearse"]


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
        moved = counted(self.copies, "copy", "copies")
        size = f" of {format_bytes(self.copied_bytes)}" if self.copies else ""
        lines = [
            f"{'dry rehearsal' if self.dry else 'rehearsal'} at {self.level} level: step "
            f"{format_ns(self.step_ns)}, {moved}{size}"
        ]
        for name, peak, cap in zip(self.devices, self.peak_bytes, self.cap_bytes, strict=True):
            lines.append(f"  {name}  peak {format_bytes(peak)} of {format_bytes(cap)}")
        if self.losses:
            lines.append("  losses " + ", ".join(f"{loss:.6f}" for loss in self.losses))
        return "\n".join(lines)


@outside()
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
    one needs numbers all the same, because the model branches on them or a hook fails without, and
    they are there, the steps run with them on a copy that an optimizer does not change;
    `Rehearsal.dry` says so.

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
    if steps < 1:
        raise InputError(f"steps is {steps}", hint="run one step or more")
    if not isinstance(plan, ModelPlan):
        raise InputError(
            f"plan is a {type(plan).__name__}, not the plan of a model",
            hint="baechi.rehearse(model, plan, args)",
        )
    plan.check(model)
    refuse_placed(model, (args, kwargs))
    if not dry and any(weight.is_meta for _, weight in named_weights(model)):
        raise InputError("the weights are on meta", hint="rehearse with dry=True")
    kwargs = kwargs or {}
    stage = Stage(
        plan,
        model,
        args,
        kwargs,
        loss=loss,
        optimizer=optimizer,
        level=plan.level if level is None else level,
        program=program,
    )
    if not dry:
        return _rehearsed(stage, steps, "real")[0]
    needed_bytes = sum(device.peak_bytes for device in plan.devices)
    with torch.random.fork_rng(devices=[]):
        try:
            found, all_hooks_ran = _rehearsed(stage, steps, "dry")
        except NoValuesError as error:
            if why := why_without_numbers(model, args, kwargs, needed_bytes):
                raise NoValuesError(error.what, why) from error
        else:
            if all_hooks_ran or why_without_numbers(model, args, kwargs, needed_bytes):
                return found
        return _rehearsed(stage, steps, "still")[0]


def _rehearsed(stage: Stage, steps: int, how: How) -> tuple[Rehearsal, bool]:
    """What the steps took, and whether no hook failed in them."""
    try:
        with stage.running(how) as running:
            runs = [running.step() for _ in range(steps)]
            return rehearsal_of(stage, runs, dry=how == "dry"), not a_hook_failed(running.model)
    except torch.OutOfMemoryError as error:
        names = stage.plan.cluster.names
        error.args = (re.sub(r"simdev:(\d+)", lambda at: names[int(at[1])], str(error)),)
        raise


def rehearsal_of(stage: Stage, runs: Sequence[StepRun], *, dry: bool) -> Rehearsal:
    """What the steps of a stage took."""
    last = runs[-1]
    return Rehearsal(
        devices=stage.plan.cluster.names,
        losses=tuple(run.loss for run in runs if run.loss is not None),
        peak_bytes=tuple(map(max, zip(*(run.peak_bytes for run in runs), strict=True))),
        cap_bytes=tuple(device.cap_bytes for device in stage.plan.devices),
        copies=len(last.transfers),
        copied_bytes=sum(t.nbytes for t in last.transfers),
        step_ns=last.step_ns,
        dry=dry,
        level=stage.level,
    )
