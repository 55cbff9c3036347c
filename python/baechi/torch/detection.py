"""The cluster of this machine: its accelerators, or its CPU, with links assumed or measured."""

from __future__ import annotations

from collections.abc import Sequence

from baechi.cluster import Cluster
from baechi.devices import Device, Size
from baechi.links import Link
from baechi.torch.device_argument import read_torch_devices
from baechi.torch.links import measure_link
from baechi.torch.machine import FoundDevice, accelerators, host
from baechi.units import format_bytes

__all__ = ["cluster_of_machine"]


def cluster_of_machine(
    *, with_cpu: bool = False, reserve: Size = 0, measure: bool = False
) -> tuple[Cluster, tuple[str, ...]]:
    """Describes the devices of this machine with all their memory.

    Args:
        with_cpu: whether the CPU is a device beside the accelerators; without any it always is.
        reserve: memory of each device that no plan may use.
        measure: measures the links between them instead of taking those of the device table.

    Returns:
        The cluster, and notes of what was found and assumed.

    Raises:
        InputError: a device has less memory than the reserve.
    """
    found = list(accelerators())
    notes = [f"{d.device}: {d.title}, {format_bytes(d.memory_bytes)}" for d in found]
    if not found:
        notes = ["this machine has no accelerator that PyTorch can use: only its CPU"]
    if with_cpu or not found:
        cpu = host()
        found.append(cpu)
        notes.append(f"{cpu.device}: {cpu.title}, {format_bytes(cpu.memory_bytes)}")
    devices = [_device(each, reserve) for each in found]
    if not measure or len(devices) < 2:
        cluster, assumed = read_torch_devices(devices)
        return cluster, (*notes, *assumed)
    return Cluster(devices, _measured(found)), (*notes, "links measured")


def _device(found: FoundDevice, reserve: Size) -> Device:
    return Device(found.device, found.kind, found.memory_bytes, reserve)  # type: ignore[arg-type]


def _measured(devices: Sequence[FoundDevice]) -> dict[tuple[str, str], Link]:
    return {
        (source.device, destination.device): measure_link(source.device, destination.device)
        for source in devices
        for destination in devices
        if source is not destination
    }
