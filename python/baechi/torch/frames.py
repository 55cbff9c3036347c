"""What a thread is running of a placed model, and which changes in place would be lost.

A module that changes an argument in place changes a copy of it if the argument came from another
device. Nobody may notice: the original is often dropped (a ReLU in place after a convolution).
So the original is remembered as stale, and reading it afterwards is an error.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from baechi.errors import PlacementError
from baechi.torch.transfer_cache import TransferCache, version_of
from baechi.torch.trees import tensors_in

__all__ = [
    "Frame",
    "ThreadState",
    "lost_change",
    "mark_changed_copies",
    "refuse_stale",
    "remember_stale",
]

# By the address of the storage: a reference to it, and who changed its copy.
Stale = dict[int, tuple[weakref.ref[Any], str]]


class Frame:
    """A placed module that is running on a thread.

    ``device`` is None where its parts are on several devices; ``own_device`` is that of its own
    weights; ``moved`` has (original, copy, version) of each moved argument; ``depth`` counts
    calls of the module within itself.
    """

    __slots__ = ("depth", "device", "module", "moved", "own_device", "path")

    def __init__(
        self, module: nn.Module, path: str, device: torch.device | None, own_device: torch.device
    ) -> None:
        """Starts without moved arguments."""
        self.module = module
        self.path = path
        self.device = device
        self.own_device = own_device
        self.moved: list[tuple[Tensor, Tensor, int]] = []
        self.depth = 0


class ThreadState(threading.local):
    """One thread's frames, the mode and copies of its pass, and stale originals.

    ``key`` tells passes apart whose copies are used alike; None where nothing is learned.
    """

    def __init__(self) -> None:
        """Starts outside of any placed module."""
        self.frames: list[Frame] = []
        self.cache = TransferCache()
        self.mode: TorchFunctionMode | None = None
        self.key: tuple[str, bool, bool] | None = None
        self.stale: Stale = {}


def mark_changed_copies(state: ThreadState, frame: Frame) -> None:
    """Remembers the originals whose copies the frame's module has changed in place."""
    for original, copy, version in frame.moved:
        if version_of(copy) != version:
            remember_stale(state, original, frame.path)


def remember_stale(state: ThreadState, original: Tensor, path: str) -> None:
    """Remembers an original that the module at the path did not change, but should have."""
    storage = original.untyped_storage()
    state.stale[storage._cdata] = weakref.ref(storage), path


def refuse_stale(
    stale: Mapping[int, tuple[weakref.ref[Any], str]], values: Any, reader: str
) -> None:
    """Raises if one of the tensors is a stale original."""
    for value in tensors_in(values):
        entry = stale.get(value.untyped_storage()._cdata)
        if entry is not None and entry[0]() is not None:
            raise lost_change(f'module "{entry[1]}"', reader)


def lost_change(changer: str, reader: str) -> PlacementError:
    """The error for a change in place that the reader would not see."""
    return PlacementError(
        f"{changer} changes an input in place that came from another device, and {reader} would"
        " read the value from before",
        hint="put the two on one device (a pin), or use the op that is not in place",
    )
