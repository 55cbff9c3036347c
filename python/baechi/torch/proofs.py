"""Proofs that no placement of a model fits, whatever a search may find.

At the end of a training step every weight, buffer, gradient and state of the optimizer is on some
device, and none of them twice; modules of a unit, and what is pinned, are together.
"""

from __future__ import annotations

from baechi.torch.tasks import Task, caps_of
from baechi.units import format_bytes

__all__ = ["proof_of_misfit"]


def proof_of_misfit(task: Task) -> str | None:
    """Why nothing can fit; None where that is not proved."""
    kept, caps, names = _kept_bytes(task), caps_of(task.cluster), task.cluster.names
    what = "weights, buffers, gradients and optimizer state" if task.parameters else "weights"
    if sum(kept) > sum(caps):
        return (
            f"{what} take {format_bytes(sum(kept))}, and all devices together have "
            f"{format_bytes(sum(caps))}"
        )
    for device, cap in enumerate(caps):
        pinned = sum(kept[unit] for unit, at in enumerate(task.pinned) if at == device)
        if pinned > cap:
            return (
                f"{what} of what is pinned to {names[device]} take {format_bytes(pinned)}, and it "
                f"has {format_bytes(cap)}"
            )
    largest = max(range(len(kept)), key=kept.__getitem__, default=0)
    if kept and kept[largest] > max(caps):
        members = task.units.members[largest]
        others = f" and {len(members) - 1} modules that must be beside it" if members[1:] else ""
        return (
            f'{what} of "{task.units.names[largest]}"{others} take {format_bytes(kept[largest])}, '
            f"and no device has more than {format_bytes(max(caps))}"
        )
    return None


def _kept_bytes(task: Task) -> list[int]:
    """What each unit holds at the end of a step."""
    kept = [0] * len(task.units.names)
    for storage, unit in task.units.of_storage.items():
        kept[unit] += task.trace.storages[storage].nbytes
    for storage, nbytes, shape in task.parameters:
        assert task.optimizer is not None, "an optimizer updates them"
        gradient_and_state = nbytes + task.optimizer.state_bytes(nbytes, shape)
        kept[task.units.of_storage[storage]] += gradient_and_state
    return kept
