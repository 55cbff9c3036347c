"""Modes of torch, which see every function or op, set aside for a while."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from torch.overrides import _get_current_function_mode_stack, _pop_mode_temporarily
from torch.utils._python_dispatch import _disable_current_modes

__all__ = ["without_modes"]


@contextmanager
def without_modes() -> Iterator[None]:
    """What runs in this block is seen by no mode that was entered before."""
    with ExitStack() as stack:
        stack.enter_context(_disable_current_modes())
        for _ in _get_current_function_mode_stack():  # type: ignore[no-untyped-call]
            stack.enter_context(_pop_mode_temporarily())
        yield
