"""What a replay of the memory ledger finds."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

__all__ = ["CLASSES", "HOST", "DeviceMemory", "Memory", "Moved", "Place"]

Place = tuple[int, int, int]
"""A value on a device; the third is the checkpointed region that has a copy of its own, or -1."""
HOST = -1
"""Where user inputs are."""
CLASSES = ("weight", "buffer", "gradient", "optimizer", "activation", "copy", "scratch")
WEIGHTS, BUFFERS, GRADIENTS, OPTIMIZER, ACTIVATIONS, COPIES, SCRATCH = range(7)


@dataclasses.dataclass(frozen=True, slots=True)
class Moved:
    """One transfer: `source` and `destination` are device indices, `HOST` is the host."""

    source: int
    destination: int
    nbytes: int
    backward: bool
    value: int


@dataclasses.dataclass(frozen=True, slots=True)
class DeviceMemory:
    """The peak of one device.

    Attributes:
        peak_bytes: the most that was allocated at once.
        at: the key of the step or the name of the autograd function that reached it.
        by_class: bytes of each of `CLASSES` at that moment.
    """

    peak_bytes: int
    at: str
    by_class: Mapping[str, int]


@dataclasses.dataclass(frozen=True, slots=True)
class Memory:
    """What a replay found: memory by device, transfers in program order, ends of storages.

    `order` lists the autograd functions in the order in which they ran; `deaths` says after which
    step or function each storage was dropped on its own device.
    """

    devices: tuple[DeviceMemory, ...]
    moved: tuple[Moved, ...]
    order: tuple[int, ...]
    deaths: Mapping[int, tuple[str, int]]

    @property
    def peaks(self) -> tuple[int, ...]:
        """Peak bytes by device."""
        return tuple(device.peak_bytes for device in self.devices)
