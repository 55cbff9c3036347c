"""Transforms: whether code runs inside of ``torch.func`` or takes forward-mode derivatives."""

from __future__ import annotations

import torch
from torch.autograd import forward_ad

from baechi.errors import InputError

__all__ = ["is_transformed", "refuse_forward_mode"]


def is_transformed() -> bool:
    """Whether tensors may be those of ``torch.func`` (grad, vjp, jvp, vmap) or dual numbers."""
    return _is_forward_mode() or torch._C._functorch.maybe_current_level() is not None


def refuse_forward_mode() -> None:
    """Raises InputError where torch would read memory that simulated tensors do not have."""
    if _is_forward_mode():
        raise InputError(
            "simulated devices have no forward-mode derivatives (torch.func.jvp, "
            "torch.autograd.forward_ad)",
            hint="take them before a plan is applied, on real devices, or in reverse mode: "
            "torch.autograd.functional.jvp",
        )


def _is_forward_mode() -> bool:
    return forward_ad._current_level >= 0
