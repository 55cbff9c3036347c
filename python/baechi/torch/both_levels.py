"""Both levels: what a planned call takes as planned, and what it takes run module by module."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from baechi.torch.losses import LossArgument
from baechi.torch.model_plan import ModelPlan
from baechi.torch.program import Program
from baechi.torch.rehearsal import Rehearsal, rehearsal_of, rehearse
from baechi.torch.simdev_tensor import sim_index
from baechi.torch.stages import Running, Stage
from baechi.torch.trees import tensors_in
from baechi.torch.twins import a_hook_failed, plain_tensors

__all__ = ["Measured", "measure"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Measured:
    """What a dry rehearsal without limits took, in the steady state.

    Attributes:
        planned: at the plan's level.
        module_level_peaks: peaks by device of the first call that runs module by module, where the
            plan is for op level; empty if it is not, or if such a call failed.
        failure: why it failed.
    """

    planned: Rehearsal
    module_level_peaks: tuple[int, ...] = ()
    failure: str = ""


def measure(
    plan: ModelPlan,
    model: torch.nn.Module,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    loss: LossArgument = None,
    program: Program | None = None,
) -> Measured:
    """Rehearses a call without numbers and limits; the arguments are those of `rehearse`.

    Of a plan for op level the first step runs module by module and makes the optimizer's state, the
    second one runs the graph; so both are measured at the cost of two steps. Where the first one
    keeps tensors in attributes, or a hook fails without numbers, the graph is rehearsed alone.

    Raises:
        NoValuesError: the call needs numbers, and there are none.
    """
    unlimited = tuple(dataclasses.replace(device, cap_bytes=2**60) for device in plan.devices)
    free = dataclasses.replace(plan, devices=unlimited)
    if plan.level == "module":
        return Measured(planned=rehearse(model, free, args, kwargs, steps=2, dry=True, loss=loss))
    stage = Stage(free, model, args, kwargs, loss=loss, level="op", program=program)
    peaks: tuple[int, ...] = ()
    failure = ""
    try:
        with stage.running("dry") as running:
            kept = plain_tensors(running.model).keys()
            alone = running.step("module").before_update
            state = _state_bytes(running)
            is_as_before = plain_tensors(running.model).keys() == kept
            graph = running.step("op")
            peaks = tuple(
                max(before + held, update)
                for before, held, update in zip(alone, state, graph.in_update, strict=True)
            )
            if is_as_before and not a_hook_failed(running.model):
                planned = rehearsal_of(stage, [graph], dry=True)
                return Measured(planned=planned, module_level_peaks=peaks)
    except Exception as error:  # whatever a user's forward may raise
        failure = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    (program,) = stage.programs
    planned = rehearse(model, free, args, kwargs, steps=2, dry=True, loss=loss, program=program)
    return Measured(planned=planned, module_level_peaks=peaks, failure=failure)


def _state_bytes(running: Running) -> list[int]:
    """What the optimizer's state takes on each device."""
    held: dict[int, tuple[int, int]] = {}
    state = {} if running.updater is None else running.updater.state
    for tensor in tensors_in(list(state.values())):
        device = sim_index(tensor.device)
        if device is not None:
            storage = tensor.untyped_storage()
            held[storage._cdata] = device, storage.nbytes()
    return [
        sum(nbytes for device, nbytes in held.values() if device == at)
        for at in range(len(running.devices))
    ]
