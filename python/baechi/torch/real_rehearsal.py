"""Real rehearsals: when a step whose code reads numbers may be run with those of the model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from baechi.torch.machine import available_bytes
from baechi.torch.parameters import named_weights
from baechi.torch.trees import flatten
from baechi.torch.twins import twin_of_call
from baechi.units import format_bytes

__all__ = ["own_call", "stand_still", "why_without_numbers"]


def why_without_numbers(
    model: torch.nn.Module,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    needed_bytes: int,
) -> str:
    """Why a copy of the model cannot run a step on this host; empty where it can.

    Args:
        model: the planned model.
        args: positional arguments of forward.
        kwargs: keyword arguments of forward.
        needed_bytes: what all devices together hold at most; a quarter more is asked for.
    """
    inputs, _ = flatten([list(args), dict(kwargs)])
    if any(weight.is_meta for _, weight in named_weights(model)):
        return "the weights are on meta: load them"
    if any(tensor.is_meta for tensor in inputs):
        return "the inputs are on meta: pass real ones"
    available = available_bytes()
    if needed_bytes + needed_bytes // 4 > available:
        return (
            f"a step takes {format_bytes(needed_bytes)}, and {format_bytes(available)} are free on "
            "this host: use a larger one"
        )
    return ""


def own_call(
    args: Sequence[Any], kwargs: Mapping[str, Any], *, dry: bool = False
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """A copy of a call, whose tensors, containers and objects the model may change.

    Without numbers, inputs that take gradients are on meta, where their gradients are.
    """

    def copied(tensor: torch.Tensor) -> torch.Tensor:
        made = tensor.detach().clone()
        return (made.to("meta") if dry else made).requires_grad_() if tensor.requires_grad else made

    return twin_of_call(args, kwargs, copied)


def stand_still(optimizer: torch.optim.Optimizer) -> None:
    """Lets an optimizer make its state without moving weights, so that every step is the same."""
    for group in optimizer.param_groups:
        if group.get("lr") is not None:
            group["lr"] = group["lr"] * 0
