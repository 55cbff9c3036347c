"""Which trace a plan is made from: of the captured graph, or of the model's own code."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch

from baechi.errors import InputError
from baechi.torch.eager_tracing import trace_eager
from baechi.torch.losses import LossArgument, LossReadsNumbersError
from baechi.torch.program import Capture, Program
from baechi.torch.stand_ins import Kernels
from baechi.torch.trace import Trace
from baechi.torch.tracing import trace_call

__all__ = ["Traced", "trace_at"]


class Traced(NamedTuple):
    """A trace, of which level it is and why not of the other one, and notes on how it was made."""

    trace: Trace
    level: str
    reasons: tuple[str, ...]
    notes: tuple[str, ...] = ()


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
) -> Traced:
    """The trace of a level: "op", "module", or "auto" for the one that can be had.

    At module level the model's own code is traced, on meta or, where it reads numbers, in one real
    step on a copy. Weights without numbers leave the captured graph, if there is one.

    Raises:
        InputError: nothing could be traced at this level; the message says why.
    """
    if level == "op" and captured.level != "op":
        raise InputError(
            "no graph may stand for the model: " + "; ".join(captured.reasons),
            hint='plan with level="auto"',
        )
    options: dict[str, Any] = {
        "training": training,
        "loss": loss,
        "autocast": autocast,
        "kernels": kernels,
    }
    reasons = captured.reasons
    if level == "module" and captured.level == "op":
        reasons = ("module level was asked for",)
    elif captured.level == "op":
        assert captured.program is not None
        try:
            return Traced(trace_call(model, captured.program, args, kwargs, **options), "op", ())
        except LossReadsNumbersError:
            if level == "op":
                raise
            reasons = ("the loss function needs numbers, which a trace of the graph has not",)
            return _of_own_code(model, args, kwargs, None, reasons, options)
    return _of_own_code(model, args, kwargs, captured.program, reasons, options)


def _of_own_code(
    model: torch.nn.Module,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    program: Program | None,
    reasons: tuple[str, ...],
    options: Mapping[str, Any],
) -> Traced:
    """The trace of the model's own code; where it needs numbers that are not there, a program's."""
    try:
        trace = trace_eager(model, args, kwargs, **options)
    except InputError:
        if program is None:
            raise
        trace = trace_call(model, program, args, kwargs, **options)
        note = "memory is that of the exported graph: the model's own code needs numbers"
        return Traced(trace, "module", reasons, (note,))
    notes = trace.left_out
    if trace.source == "real step":
        note = "captured in one real step on a copy, on the CPU: its code reads numbers"
        notes = (note, *notes)
    return Traced(trace, "module", reasons, notes)
