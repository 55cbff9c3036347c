"""Transforms: whether code runs inside of ``torch.func`` or takes forward-mode derivatives."""

from __future__ import annotations

import torch
from torch.autograd import forward_ad

__all__ = ["is_forward_mode", "is_transformed"]


def is_forward_mode() -> bool:
    """Whether forward-mode derivatives are taken: ``torch.func.jvp``, ``dual_level``."""
    return forward_ad._current_level >= 0


def is_transformed() -> bool:
    """Whether tensors may be those of ``torch.func`` (grad, vjp, jvp, vmap) or dual numbers."""
    return is_forward_mode() or torch._C._functorch.maybe_current_level() is not None
