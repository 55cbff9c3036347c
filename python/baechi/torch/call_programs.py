"""Call programs: the program that stands for a call of an applied model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import nn

from baechi.errors import InputError
from baechi.torch.applied_class import STATE, change_class, hand_down, original_class
from baechi.torch.capture import capture
from baechi.torch.compiled_modules import detached_forwards
from baechi.torch.modes import without_modes
from baechi.torch.module_hooks import detached_hooks
from baechi.torch.program import Program

__all__ = ["has_form", "program_for"]


def program_for(
    model: nn.Module,
    programs: Sequence[Program],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    autocast: torch.dtype | None,
) -> Program:
    """One of these programs if it stands for the call, else a new one.

    Raises:
        InputError: no graph may run the call; the message says why.
    """
    flags = tuple(module.training for module in model.modules())
    is_enabled = torch.is_grad_enabled()
    for program in programs:
        is_same_mode = program.training_flags == flags and program.grad_enabled == is_enabled
        is_same_mode = is_same_mode and program.autocast == autocast
        if is_same_mode and has_form(program, args, kwargs):
            return program
    if len(set(flags)) == 1 and flags[0] != is_enabled:
        modes = "training mode without gradients", "evaluation mode with gradients"
        raise InputError(f"the model is in {modes[is_enabled]}, for which no graph is made")
    with _undisturbed(model):
        captured = capture(model, args, kwargs, training=is_enabled, autocast=autocast)
    if captured.program is None or captured.level != "op":
        raise InputError("; ".join(captured.reasons))
    if captured.program.training_flags != flags:
        raise InputError("some modules are in another mode than the model")
    return captured.program


def has_form(program: Program, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether a program was captured for a call with such inputs."""
    try:
        tensors = program.bind(args, kwargs)
    except InputError:
        return False
    nodes = [node for node in program.graph_module.graph.nodes if node.op == "placeholder"]
    return all(
        _form(node.meta["val"]) == _form(tensors[given.index])
        for node, given in zip(nodes, program.inputs, strict=True)
        if given.kind == "user"
    )


def _form(value: torch.Tensor) -> tuple[Any, ...]:
    return value.shape, value.dtype, value.stride(), value.requires_grad


@contextmanager
def _undisturbed(model: nn.Module) -> Iterator[None]:
    """Capturing meets the user's model, and no mode that looks at its ops."""
    applied = type(model)
    hand_down(model)
    state = vars(model).pop(STATE)
    with ExitStack() as stack:
        stack.enter_context(detached_hooks(model))
        stack.enter_context(detached_forwards(model))
        stack.enter_context(without_modes())
        change_class(model, original_class(model))
        try:
            yield
        finally:
            change_class(model, applied)
            vars(model)[STATE] = state
