"""Memory counters: what the allocator of a device has given out, and its most since a reset."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

__all__ = ["MemoryCounter", "counter_of"]

_FUNCTIONS = ("memory_allocated", "max_memory_allocated", "reset_peak_memory_stats")


class MemoryCounter(NamedTuple):
    """The counter of one device."""

    module: Any
    device: torch.device

    def held_bytes(self) -> int:
        """Bytes that are given out now."""
        return int(self.module.memory_allocated(self.device))

    def peak_bytes(self) -> int:
        """The most since `reset_peak`."""
        return int(self.module.max_memory_allocated(self.device))

    def reset_peak(self) -> None:
        """The peak is what is held now."""
        self.module.reset_peak_memory_stats(self.device)


def counter_of(device: torch.device) -> MemoryCounter | None:
    """The counter of a device; None where its type has none, as CPUs.

    What counts is a device module (``torch.cuda``, ``torch.xpu``, or what another type registered)
    with the functions ``memory_allocated``, ``max_memory_allocated`` and
    ``reset_peak_memory_stats``, each of a device.
    """
    module = torch.get_device_module(device)
    if device.type == "cpu" or not all(hasattr(module, name) for name in _FUNCTIONS):
        return None
    return MemoryCounter(module, device)
