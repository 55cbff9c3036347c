"""Recomputation of checkpointed functions: it finds the frames in which they ran at first.

A checkpointed module enters its own frame again when autograd calls it. A checkpointed function
that is not a module (a lambda, a bound method) may run torch functions before it enters a module,
on a thread of autograd that knows nothing of the forward pass. So `torch.utils.checkpoint` is
told, once and for the process, to remember the frame of what it is given inside a placed module.
Elsewhere it does what it did.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch.utils.checkpoint as checkpoints
from torch.overrides import _get_current_function_mode_stack

from baechi.torch.frames import Frame
from baechi.torch.glue import GlueMode
from baechi.torch.recomputing import recompute_regions_once

__all__ = ["follow_checkpoints"]


def follow_checkpoints() -> None:
    """Lets checkpointed functions be recomputed in their frames; a second call does nothing."""
    recompute_regions_once()
    original = checkpoints._checkpoint_impl  # both kinds of checkpoints pass through it
    if getattr(original, "follows_frames", False):
        return

    def checkpoint_in_frame(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        modes = _get_current_function_mode_stack()  # type: ignore[no-untyped-call]
        glue = [mode for mode in modes if isinstance(mode, GlueMode)]
        if glue:
            function = _InFrame(function, glue[-1])
        return original(function, *args, **kwargs)

    checkpoint_in_frame.follows_frames = True  # type: ignore[attr-defined]
    checkpoints._checkpoint_impl = checkpoint_in_frame


class _InFrame:
    """A function that runs in the frame in which it was given to a checkpoint."""

    def __init__(self, function: Callable[..., Any], mode: GlueMode) -> None:
        self._function = function
        self._runtime = mode.runtime
        self._frame = mode.runtime.state.frames[-1]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        was = self._frame
        frame = Frame(was.module, was.path, was.device, was.own_device)
        self._runtime.push(frame, learns=False)
        try:
            return self._function(*args, **kwargs)
        finally:
            self._runtime.pop(frame.module)
