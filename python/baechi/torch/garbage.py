"""Garbage: collecting that of one task alone."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator

__all__ = ["collected_rarely", "old_objects_spared"]

_RARELY = 20_000  # new objects before garbage among them is looked for; Python's own: 700


@contextlib.contextmanager
def old_objects_spared() -> Iterator[None]:
    """Collects what is made in this block alone: looking at all that was imported takes seconds.

    Where the caller has frozen objects, they stay frozen and the rest is collected as always.
    """
    if gc.get_freeze_count():
        yield
        return
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


@contextlib.contextmanager
def collected_rarely() -> Iterator[None]:
    """For a block that makes many objects which stay and hold no memory of tensors."""
    young, *older = gc.get_threshold()
    gc.set_threshold(max(young, _RARELY) if young else 0, *older)
    try:
        yield
    finally:
        gc.set_threshold(young, *older)
