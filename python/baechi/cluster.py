"""Cluster: devices, the links between them, and the channels that transfers hold, as columns."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import numpy.typing as npt

from baechi.devices import (
    Device,
    DeviceSpec,
    Size,
    allowed_matrix,
    device_columns,
    devices_from_columns,
    kind_indices,
    read_devices,
)
from baechi.errors import InputError
from baechi.links import ChannelSpec, Link, LinkSpec, channel_names, link_columns
from baechi.units import format_bytes, parse_bytes

if TYPE_CHECKING:
    from baechi import _core
    from baechi.graph import Graph

__all__ = ["Cluster", "Device", "Link", "as_cluster"]


@dataclasses.dataclass(frozen=True, init=False, eq=False, repr=False)
class Cluster:
    """Devices, one link per ordered pair of them, and channels; frozen.

    Attributes:
        devices: the devices; the position of one is its index everywhere else.
        names, kinds: of each device, by index.
        channels: "serial", "duplex", "parallel", or "custom" where the channels were given.
        links_assumed: no links were given, so 10 us and 12 GB/s were taken for each.
        memory_bytes, reserve_bytes: int64[devices], bytes; the cap is memory minus reserve.
        speed: float64[devices]; compute times are divided by it.
        latency_ns: int64[devices, devices], nanoseconds from row to column.
        bytes_per_s: int64[devices, devices], bytes per second; 0 is infinitely fast.
        send_channel, recv_channel: int32[devices, devices], the channels that a transfer from row
            to column holds while it runs; -1 for none. Diagonals mean nothing (0, and -1 here).
    """

    devices: tuple[Device, ...]
    names: tuple[str, ...]
    kinds: tuple[str, ...]
    channels: str
    links_assumed: bool
    memory_bytes: npt.NDArray[np.int64]
    reserve_bytes: npt.NDArray[np.int64]
    speed: npt.NDArray[np.float64]
    latency_ns: npt.NDArray[np.int64]
    bytes_per_s: npt.NDArray[np.int64]
    send_channel: npt.NDArray[np.int32]
    recv_channel: npt.NDArray[np.int32]

    def __init__(
        self, devices: DeviceSpec, links: LinkSpec | None = None, channels: ChannelSpec = "duplex"
    ) -> None:
        """Reads the devices, the links and the channels.

        Args:
            devices: devices; or text such as "4x8GiB", "24GiB,12GiB", "2xh100:80GB,cpu:256GB"; or a
                mapping of names to sizes such as ``{"cuda:0": "24GiB", 1: 12e9}``
                (``baechi.devices.read_devices``).
            links: one link for all ordered pairs; or one per ordered pair of device names; or two
                integer matrices (latency_ns, bytes_per_s) from row to column; None takes 10 us and
                12 GB/s for all and says so in ``links_assumed``.
            channels: "serial" (one transfer at a time on a device), "duplex" (one out and one in),
                "parallel" (no limit), or two integer matrices (send, receive) of channel ids.

        Raises:
            InputError: no devices, two of one name, a link missing or of an unknown device,
                channels of another name or shape, or anything that a Device or Link refuses.
        """
        found = read_devices(devices)
        names = tuple(device.name for device in found)
        channels_name, matrices = link_columns(links, channels, names)
        columns = {**device_columns(found), **matrices}
        for column in columns.values():
            column.setflags(write=False)
        fields: dict[str, object] = {"devices": found, "names": names, "channels": channels_name}
        fields |= {"kinds": tuple(device.kind for device in found), "links_assumed": links is None}
        fields |= columns
        for field, value in fields.items():
            object.__setattr__(self, field, value)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Reads devices from text such as "4x8GiB"; links are assumed, channels are duplex.

        >>> Cluster.parse("2xh100:80GB,cpu:256GB").names
        ('h100:0', 'h100:1', 'cpu:0')
        """
        return cls(text)

    @classmethod
    def from_arrays(
        cls,
        memory_bytes: Sequence[int],
        *,
        links: LinkSpec | None = None,
        channels: ChannelSpec = "duplex",
        names: Sequence[str] | None = None,
        kinds: Sequence[str] | None = None,
        reserve_bytes: Sequence[int] | None = None,
        speed: Sequence[float] | None = None,
    ) -> Self:
        """Builds a cluster from columns with one entry per device.

        Args:
            memory_bytes: bytes of memory.
            links: as in the constructor, e.g. the matrices (latency_ns, bytes_per_s).
            channels: as in the constructor.
            names: device names; by default the kind and a number per kind, "gpu:0".
            kinds: device kinds, by default "gpu" for all.
            reserve_bytes: bytes that no plan may use, by default 0.
            speed: what compute times are divided by, by default 1.

        Raises:
            InputError: as in the constructor, or columns of unequal length.
        """
        devices = devices_from_columns(memory_bytes, names, kinds, reserve_bytes, speed)
        return cls(devices, links, channels)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Cluster:
        """Reads a cluster from a JSON or TOML file (docs/formats-cluster.md).

        Raises:
            InputError: the file does not describe a cluster; the message names file and place.
            OSError: the file cannot be read.
        """
        from baechi.formats.cluster_files import load_cluster

        return load_cluster(path)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the cluster as sorted JSON in one step; OSError where it cannot."""
        from baechi.formats.cluster_files import save_cluster

        save_cluster(self, path)

    @property
    def num_devices(self) -> int:
        """Number of devices."""
        return len(self.devices)

    @functools.cached_property
    def fingerprint(self) -> str:
        """SHA-256 of everything that times, bytes and placements depend on, as hex digits."""
        named = json.dumps([self.names, self.kinds], separators=(",", ":"))
        digest = hashlib.sha256(f"baechi cluster {named}".encode())
        for field in dataclasses.fields(self):
            column = getattr(self, field.name)
            if isinstance(column, np.ndarray):
                digest.update(column.astype(column.dtype.newbyteorder("<")).tobytes())
        return digest.hexdigest()

    def index(self, name: str | int) -> int:
        """The index of the device with this name (an integer k means the name "k").

        Raises:
            InputError: there is no such device.
        """
        try:
            return self.names.index(str(name))
        except ValueError:
            known = ", ".join(self.names)
            raise InputError(f'no device "{name}"', hint=f"the devices are {known}") from None

    def channel_names(self) -> tuple[str, ...]:
        """A name per channel id for display: "gpu:0 out", "gpu:0 in", "gpu:0" or "channel 3"."""
        return channel_names(self.send_channel, self.recv_channel, self.names)

    def with_memory(self, memory: Size | Mapping[str, Size]) -> Cluster:
        """The same cluster with other memory sizes, in bytes or as text.

        Args:
            memory: one size for all, or by name; devices that are not named keep theirs.

        Raises:
            InputError: no such device, not a size, or less than the device's reserve.
        """
        sizes = memory if isinstance(memory, Mapping) else dict.fromkeys(self.names, memory)
        devices = list(self.devices)
        for name, size in sizes.items():
            k = self.index(name)
            devices[k] = dataclasses.replace(devices[k], memory_bytes=parse_bytes(size))
        return self._with(devices)

    def with_channels(self, channels: ChannelSpec) -> Cluster:
        """The same cluster with other channels, given as in the constructor.

        Raises:
            InputError: no such channels, or matrices of another shape.
        """
        return self._with(self.devices, channels)

    def flatten(self, graph: Graph) -> _core.FlatCluster:
        """The columns for the Rust core, with kinds and allowed devices as this graph numbers them.

        Args:
            graph: the graph to place; one with a single kind of device fits every device.

        Raises:
            InputError: the graph has several kinds and a device is of none of them, or it limits
                ops to a device that this cluster does not have.
        """
        from baechi import _core

        return _core.FlatCluster(
            self.memory_bytes,
            self.reserve_bytes,
            kind_indices(self.devices, graph.device_kinds),
            self.speed,
            self.latency_ns,
            self.bytes_per_s,
            self.send_channel,
            self.recv_channel,
            allowed_matrix(self.names, graph.allowed_sets),
        )

    def to_json_dict(self) -> dict[str, Any]:
        """Everything as plain dicts, lists and numbers, as in docs/formats-cluster.md."""
        from baechi.formats.cluster_files import write_document

        return write_document(self)

    @classmethod
    def from_json_dict(cls, document: Mapping[str, Any]) -> Cluster:
        """Reads what ``to_json_dict`` wrote or a person did; InputError where entries are wrong."""
        from baechi.formats.cluster_files import read_document

        return read_document(document)

    def _repr_html_(self) -> str:
        from baechi.report.notebooks import cluster_html

        return cluster_html(self)

    def __eq__(self, other: object) -> bool:
        """Equal names, kinds and columns; whether links were assumed does not count."""
        if not isinstance(other, Cluster):
            return NotImplemented
        return self.fingerprint == other.fingerprint

    def __hash__(self) -> int:
        """Agrees with ``==``."""
        return hash(self.fingerprint)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles through JSON, so that the columns stay read-only."""
        return type(self).from_json_dict, (self.to_json_dict(),)

    def __repr__(self) -> str:
        """Devices with their memory, and the channels."""
        devices = ", ".join(f"{d.name} {format_bytes(d.memory_bytes)}" for d in self.devices)
        assumed = ", links assumed" if self.links_assumed else ""
        return f"<Cluster {devices}; {self.channels} channels{assumed}>"

    def _with(self, devices: Sequence[Device], channels: ChannelSpec | None = None) -> Cluster:
        if channels is None:
            custom = self.channels == "custom"
            channels = (self.send_channel, self.recv_channel) if custom else self.channels
        changed = Cluster(devices, (self.latency_ns, self.bytes_per_s), channels)
        object.__setattr__(changed, "links_assumed", self.links_assumed)
        return changed


def as_cluster(value: Cluster | DeviceSpec | os.PathLike[str]) -> Cluster:
    """Makes a cluster of whatever describes one.

    Args:
        value: a cluster, the path of a .json or .toml file (as text too), or what Cluster takes.

    Raises:
        InputError: it describes no cluster.
        OSError: the file cannot be read.
    """
    if isinstance(value, Cluster):
        return value
    if isinstance(value, os.PathLike) or (
        isinstance(value, str) and Path(value).suffix.lower() in (".json", ".toml")
    ):
        return Cluster.load(value)
    return Cluster(value)
