"""The `devices` argument: text, a file, a mapping, a cluster or nothing, as a cluster with notes.

Sizes and counts are read by ``baechi.devices``; here names become PyTorch's ("cuda:0"), kinds those
of the device table, and links what the table assumes between such kinds.
"""

from __future__ import annotations

import collections
import dataclasses
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from baechi.cluster import Cluster, as_cluster
from baechi.device_table import GENERIC_KIND, DeviceKind, assumed_link, device_table
from baechi.devices import Device, Size, read_devices
from baechi.errors import InputError
from baechi.links import ChannelSpec, Link, LinkSpec
from baechi.torch.machine import accelerators
from baechi.units import format_bytes, format_ns, parse_bytes

__all__ = ["DeviceName", "TorchDevices", "device_name", "kind_of", "read_torch_devices"]

DeviceName = str | int | torch.device
"""A device, as text, by the number of an accelerator, or as torch writes it."""

TorchDevices = (
    str | os.PathLike[str] | Cluster | Iterable[Device] | Mapping[DeviceName, Size] | None
)
"""Every way to write devices down that ``read_torch_devices`` takes."""

_KIND_ALONE = re.compile(r"([0-9]+\s*[xX]\s*)?([a-zA-Z][^:]*)")
_HINT = 'write devices as in "2x24GiB,12GiB", "2xh100:80GB,cpu:256GB" or {"cuda:0": "24GiB"}'


def read_torch_devices(devices: TorchDevices) -> tuple[Cluster, tuple[str, ...]]:
    """Reads devices and says what was assumed about them.

    Args:
        devices: text such as "2x24GiB,12GiB" (cuda:0 to cuda:2) or "2xh100:80GB,cpu:256GB"; the
            path of a cluster file; a cluster; devices; a mapping of a device to its size, where an
            integer n is the n-th accelerator and a key may be any device string, also of a type
            that PyTorch here does not have; or None for the accelerators of this machine with all
            their memory. A size without a kind is of the kind generic-gpu; a kind without a size,
            as in "8xh200", has the memory of its row in the device table.

    Returns:
        The cluster, whose links come from the device table unless they were given, and notes of
        everything that was assumed.

    Raises:
        InputError: anything else; two devices of one name; a device without memory; a kind that the
            table does not have; or None on a machine without accelerators.
        OSError: the file cannot be read.
    """
    notes: list[str] = []
    channels: ChannelSpec = "duplex"
    links: LinkSpec | None = None
    if devices is None:
        found, notes = _of_this_machine()
    elif isinstance(devices, Mapping):
        found = _of_mapping(devices)
    elif isinstance(devices, str) and not _is_file(devices):
        text, notes = _with_sizes(devices)
        found = [dataclasses.replace(d, kind=_row(d.kind).name) for d in read_devices(text)]
        found = _with_torch_names(found)
    else:
        cluster = as_cluster(devices)
        found = _with_torch_names(cluster.devices)
        channels = cluster.channels
        if channels == "custom":
            channels = (cluster.send_channel, cluster.recv_channel)
        links = None if cluster.links_assumed else (cluster.latency_ns, cluster.bytes_per_s)
    _check(found)
    notes += _generic_notes(found)
    if links is not None:
        return Cluster(found, links, channels), tuple(notes)
    links, assumed = _assumed_links(found)
    cluster = Cluster(found, links or None, channels)
    object.__setattr__(cluster, "links_assumed", True)
    return cluster, (*notes, *assumed)


def kind_of(device: Device) -> DeviceKind:
    """The row of the device table that prices a device: its kind's, or generic-gpu."""
    table = device_table()
    return table.find(device.kind) or table.kind(GENERIC_KIND)


def _of_this_machine() -> tuple[list[Device], list[str]]:
    found = accelerators()
    if not found:
        raise InputError(
            "no devices were given, and this machine has no accelerator",
            hint='say devices="2x24GiB", or whatever the machine has that will run the model',
        )
    sizes = ", ".join(f"{d.device} {format_bytes(d.memory_bytes)} ({d.title})" for d in found)
    note = f"devices were not given: the accelerators of this machine with all memory: {sizes}"
    return [Device(d.device, d.kind, d.memory_bytes) for d in found], [note]


def _with_sizes(text: str) -> tuple[str, list[str]]:
    """Gives items that are kinds alone, such as "8xh200", the memory of the device table."""
    items = []
    notes: dict[str, None] = {}
    for item in text.split(","):
        match = _KIND_ALONE.fullmatch(item.strip())
        if match is not None:
            kind = device_table().kind(match[2])
            if kind.is_host or kind.name == GENERIC_KIND:
                raise InputError(f'"{item.strip()}" has no size', hint=_HINT)
            notes[f"{kind.name}: {format_bytes(kind.memory_bytes)} as in the device table"] = None
            item = f"{match[1] or ''}{kind.name}:{kind.memory_bytes}"
        items.append(item)
    return ",".join(items), list(notes)


def _with_torch_names(devices: Sequence[Device]) -> list[Device]:
    """Names that only number kinds ("h100:0") become PyTorch's, numbered over all kinds."""
    renamed = []
    counts: collections.Counter[str] = collections.Counter()
    num_hosts = sum(device.kind == "cpu" for device in devices)
    for device in devices:
        row = kind_of(device)
        kind, colon, number = device.name.partition(":")
        if colon and number.isdecimal() and device_table().find(kind) is row:
            prefix = _torch_type(row)
            name = f"{prefix}:{counts[prefix]}"
            counts[prefix] += 1
            name = "cpu" if row.is_host and num_hosts == 1 else name
            device = dataclasses.replace(device, name=name)
        renamed.append(device)
    return renamed


def _row(kind: str) -> DeviceKind:
    return device_table().kind(GENERIC_KIND if kind == "gpu" else kind)


def _torch_type(row: DeviceKind) -> str:
    if row.is_host:
        return "cpu"
    return "mps" if row.name.startswith("apple-") else "cuda"


def _of_mapping(sizes: Mapping[Any, Size]) -> list[Device]:
    devices = []
    for key, size in sizes.items():
        name = device_name(key)
        kind = "cpu" if name.split(":")[0] == "cpu" else GENERIC_KIND
        devices.append(Device(name, kind, parse_bytes(size)))
    return devices


def device_name(key: Any) -> str:
    """The name of a device that is given as text, a torch device, or an accelerator's number."""
    if isinstance(key, torch.device):
        return str(key)
    if isinstance(key, bool) or not isinstance(key, str | int):
        raise InputError(f"{key!r} is not a device", hint=_HINT)
    if key == "disk":
        raise InputError('no op runs on "disk"', hint="leave it out")
    if isinstance(key, str) and not key.isdecimal():
        return key
    if int(key) < 0:
        raise InputError(f"{key!r} is not the number of an accelerator", hint="count from 0")
    return f"cuda:{int(key)}"


def _is_file(devices: object) -> bool:
    if isinstance(devices, str):
        return Path(devices).suffix.lower() in (".json", ".toml")
    return isinstance(devices, os.PathLike)


def _check(devices: Sequence[Device]) -> None:
    read_devices(devices)
    names: dict[str, str] = {}
    for device in devices:
        # "cuda" is "cuda:0" to PyTorch.
        known = names.setdefault(device.name.removesuffix(":0"), device.name)
        if known != device.name:
            raise InputError(f'"{known}" and "{device.name}" are the same device')
        if device.memory_bytes <= device.reserve_bytes:
            raise InputError(
                f'device "{device.name}" has no memory to use: '
                f"{format_bytes(device.memory_bytes)}, of which "
                f"{format_bytes(device.reserve_bytes)} are reserved",
                hint="leave the device out, or give it memory",
            )


def _generic_notes(devices: Sequence[Device]) -> tuple[str, ...]:
    """Which devices are priced as generic-gpu, by the kind that was written."""
    names: dict[str, list[str]] = {}
    for device in devices:
        if kind_of(device).name == GENERIC_KIND:
            names.setdefault(device.kind, []).append(device.name)
    notes = []
    for kind, of_kind in names.items():
        unknown = kind not in (GENERIC_KIND, "gpu")
        why = f'kind "{kind}" is not in the device table' if unknown else "no kind was given"
        notes.append(f"{', '.join(of_kind)}: {why}, priced as {GENERIC_KIND}")
    return tuple(notes)


def _assumed_links(
    devices: Sequence[Device],
) -> tuple[dict[tuple[str, str], Link], list[str]]:
    """Links from the device table, and one note for every sort of link."""
    links: dict[tuple[str, str], Link] = {}
    sorts: dict[tuple[str, Link], list[str]] = {}
    kinds = [kind_of(device) for device in devices]
    for i, source in enumerate(devices):
        for j, destination in enumerate(devices):
            if i == j:
                continue
            link, what = assumed_link(kinds[i], kinds[j])
            links[source.name, destination.name] = link
            if i < j:
                pair = f"{source.name} - {destination.name}"
                sorts.setdefault((what, link), []).append(pair)
    notes = [
        f"links assumed: {what}, {format_ns(link.latency_ns)} and "
        f"{link.bytes_per_s / 10**9:g} GB/s, for {_shown(pairs)}"
        for (what, link), pairs in sorts.items()
    ]
    return links, notes


def _shown(pairs: Sequence[str]) -> str:
    shown = ", ".join(pairs[:3])
    return shown if len(pairs) <= 3 else f"{shown} and {len(pairs) - 3} more pairs"
