"""What this machine has: its accelerators and its CPU, their memory, kinds and fingerprints."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import platform
from pathlib import Path

import torch

from baechi.device_table import GENERIC_KIND, device_table

__all__ = ["FoundDevice", "accelerators", "available_bytes", "fingerprint", "host", "software"]


@dataclasses.dataclass(frozen=True, slots=True)
class FoundDevice:
    """A device of this machine.

    Attributes:
        device: how PyTorch writes it, e.g. "cuda:0".
        title: what the driver calls it.
        kind: its row in the device table; generic-gpu where there is none.
        memory_bytes: its total memory.
    """

    device: str
    title: str
    kind: str
    memory_bytes: int


def accelerators() -> tuple[FoundDevice, ...]:
    """The accelerators of this machine, in PyTorch's order; empty where there is none."""
    if not torch.accelerator.is_available():
        return ()
    current = torch.accelerator.current_accelerator()
    assert current is not None, "an accelerator is available"
    count = torch.accelerator.device_count()
    return tuple(_accelerator(torch.device(current.type, k)) for k in range(count))


def host() -> FoundDevice:
    """The CPU with the whole memory of the machine."""
    memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return FoundDevice("cpu", _cpu_title(), "cpu", memory_bytes)


def available_bytes() -> int:
    """Memory of the host that is free or can be freed; all of it where the system does not say."""
    try:
        lines = Path("/proc/meminfo").read_text("ascii").splitlines()
    except OSError:
        lines = []
    found = (int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    return next(found, host().memory_bytes)


def software(device: str) -> str:
    """Versions and settings that times on a device depend on."""
    if torch.device(device).type == "cpu":
        return f"torch {torch.__version__}, {torch.get_num_threads()} threads"
    runtime = torch.version.cuda or torch.version.hip or platform.platform()
    precision = torch.get_float32_matmul_precision()
    return f"torch {torch.__version__}, runtime {runtime}, float32 products {precision}"


def fingerprint(device: FoundDevice) -> str:
    """Sixteen hex digits that change with the device, its memory and the software.

    Devices that are alike share them, so that one costs file serves all.
    """
    parts = [device.title, device.memory_bytes, software(device.device)]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]


def _accelerator(device: torch.device) -> FoundDevice:
    module = torch.get_device_module(device)
    title, memory_bytes = str(device), 0
    if hasattr(module, "get_device_properties"):
        properties = module.get_device_properties(device.index)
        title, memory_bytes = properties.name, int(properties.total_memory)
    elif device.type == "mps":
        title, memory_bytes = _cpu_title(), int(torch.mps.recommended_max_memory())
    row = device_table().find(title)
    return FoundDevice(str(device), title, GENERIC_KIND if row is None else row.name, memory_bytes)


def _cpu_title() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    except OSError:
        lines = []
    names = (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    return next(names, "") or platform.processor() or platform.machine() or "CPU"
