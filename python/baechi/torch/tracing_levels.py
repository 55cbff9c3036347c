"""Which trace a plan is made from: of the captured graph, or of the model's own code."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from baechi.errors import InputError
from baechi.torch.eager_tracing import trace_eager
from baechi.torch.losses import LossArgument
from baechi.torch.program import Capture
from baechi.torch.stand_ins import Kernels
from baechi.torch.trace import Trace
from baechi.torch.tracing import trace_call

__all__ = ["trace_at"]


def trace_at(
    level: str,
    captured: Capture,
    model: torch.nn.Module,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    *,
    training: bool,
    loss: LossArgument,
    autocast: torch.dtype | None,
    kernels: Kernels,
) -> tuple[Trace, tuple[str, ...]]:
    """The trace of a level, and notes about how it was made.

    At module level the model's own code is traced, on meta or, where it reads numbers, in one real
    step on a copy. Weights without numbers leave the captured graph, if there is one.

    Raises:
        InputError: nothing could be traced; the message says why.
    """
    options: dict[str, Any] = {
        "training": training,
        "loss": loss,
        "autocast": autocast,
        "kernels": kernels,
    }
    if level == "op":
        assert captured.program is not None
        return trace_call(model, captured.program, args, kwargs, **options), ()
    try:
        trace = trace_eager(model, args, kwargs, **options)
    except InputError as error:
        if captured.program is None:
            raise error
        trace = trace_call(model, captured.program, args, kwargs, **options)
        return trace, ("memory is that of the exported graph: the model's own code needs numbers",)
    notes = trace.left_out
    if trace.source == "real step":
        how = "captured in one real step on a copy, on the CPU: its code reads numbers"
        notes = (how, *notes)
    return trace, notes
