"""Shortages: the error of a model that fits nowhere, with sizes of devices that would do."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from baechi.errors import OutOfMemoryError
from baechi.torch.confirming import replanned
from baechi.torch.proofs import proof_of_misfit
from baechi.torch.tasks import caps_of
from baechi.units import format_bytes

if TYPE_CHECKING:
    from baechi.torch.planning import Planned

__all__ = ["shortage"]

_ROUNDS = 4
_KEEPS_LESS = "weights of a smaller type, or an optimizer with less state, keep less"


def shortage(planned: Planned, confirm: Callable[[Planned], Planned]) -> OutOfMemoryError:
    """The error for a plan that does not fit.

    It names memory with which the same call finds a plan, which was tried: what the best placement
    lacks is added until it does.
    """
    plan = planned.plan
    needs = _needs(planned)
    lacking = max(plan.devices, key=lambda d: needs[d.name] - d.cap_bytes)
    missing = needs[lacking.name] - lacking.cap_bytes
    enough = _enough(planned, confirm)
    listed = ", ".join(f"{name} {format_bytes(nbytes)}" for name, nbytes in needs.items())
    sizes = ", ".join(f'"{name}": {nbytes}' for name, nbytes in enough.items())
    proof = proof_of_misfit(planned.task)
    error = OutOfMemoryError(
        lacking.peak_at,
        lacking.name,
        needs[lacking.name],
        lacking.cap_bytes,
        message=(f"proved infeasible: {proof}; " if proof else "no placement was found that fits: ")
        + f"the best needs {listed}; {lacking.name} has {format_bytes(lacking.cap_bytes)}, "
        f"{missing} bytes too few",
        hint=(f"devices={{{sizes}}} would do; " if enough else "")
        + (_KEEPS_LESS if proof else "a smaller batch or checkpointing needs less"),
    )
    error.enough = enough
    error.proved_infeasible = proof is not None
    return error


def _needs(planned: Planned) -> dict[str, int]:
    """What the placement takes on each device: predicted or, if it was more, measured."""
    devices, predicted = planned.plan.devices, planned.outcome.memory.peaks
    measured = planned.plan.confirmed or predicted
    return {
        device.name: max(nbytes, seen)
        for device, nbytes, seen in zip(devices, predicted, measured, strict=True)
    }


def _enough(planned: Planned, confirm: Callable[[Planned], Planned]) -> dict[str, int]:
    """Memory with which the search finds a plan that fits; empty if that was not found.

    A search fills a limit by what is predicted; so what a rehearsal took beyond that is added.
    """
    for _ in range(_ROUNDS):
        needs = _needs(planned)
        predicted = planned.outcome.memory.peaks
        for device, nbytes in zip(planned.plan.devices, predicted, strict=True):
            needs[device.name] += needs[device.name] - nbytes
        memory = {
            device.name: device.reserve_bytes + max(cap, needs[device.name])
            for device, cap in zip(
                planned.task.cluster.devices, caps_of(planned.task.cluster), strict=True
            )
        }
        cluster = planned.task.cluster.with_memory(memory)
        planned = confirm(replanned(planned, caps_of(cluster), cluster))
        if planned.plan.is_within_limits:
            return memory
    return {}
