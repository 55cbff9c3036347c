"""Proofs that no placement of a model fits, whatever a search may find."""

from __future__ import annotations

from baechi.torch.tasks import Task
from baechi.units import format_bytes

__all__ = ["proof_of_misfit"]


def proof_of_misfit(task: Task) -> str | None:
    """Why nothing can fit; None where that is not proved.

    At the end of a training step every weight, buffer, gradient and state of the optimizer is on
    some device, and none of them twice.
    """
    kept = int(task.operators.graph.persistent_bytes.sum())
    kept += sum(nbytes for _, nbytes, _ in task.parameters)
    room = sum(task.caps)
    if kept <= room:
        return None
    what = "weights, buffers, gradients and optimizer state" if task.parameters else "weights"
    return f"{what} take {format_bytes(kept)}, and all devices together have {format_bytes(room)}"
