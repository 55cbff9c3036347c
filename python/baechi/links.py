"""The links between devices and the channels that their transfers hold, as matrices."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from baechi.errors import InputError
from baechi.units import parse_bandwidth, parse_ns

__all__ = [
    "ASSUMED_LINK",
    "ChannelSpec",
    "Link",
    "LinkSpec",
    "channel_names",
    "link_columns",
]


@dataclasses.dataclass(frozen=True, slots=True)
class Link:
    """One link: a tensor takes ``latency_ns + ceil(bytes * 10**9 / bytes_per_s)`` nanoseconds.

    Attributes:
        latency_ns: nanoseconds.
        bytes_per_s: bytes per second; 0 is infinitely fast, so only the latency counts.

    Raises:
        InputError: a figure is negative or not a whole number.
    """

    latency_ns: int
    bytes_per_s: int

    def __post_init__(self) -> None:
        """Checks both figures; they may be whole floats or text."""
        object.__setattr__(self, "latency_ns", parse_ns(self.latency_ns))
        object.__setattr__(self, "bytes_per_s", parse_bandwidth(self.bytes_per_s))


ASSUMED_LINK = Link(latency_ns=10_000, bytes_per_s=12_000_000_000)
"""What is taken, and named as assumed in results, where nothing is said about links."""

LinkSpec = Link | Mapping[tuple[str, str], Link] | tuple[npt.ArrayLike, npt.ArrayLike]
ChannelSpec = str | tuple[npt.ArrayLike, npt.ArrayLike]


def link_columns(
    links: LinkSpec | None, channels: ChannelSpec, names: Sequence[str]
) -> tuple[str, dict[str, npt.NDArray[Any]]]:
    """Spreads links and channels over all ordered pairs of devices.

    Args:
        links: as in the constructor of Cluster.
        channels: as in the constructor of Cluster.
        names: the device names.

    Returns:
        The name of the channels ("custom" if they equal none that has a name), and the matrices
        under the names that Cluster gives them, with diagonals of 0, in channels -1.

    Raises:
        InputError: as the constructor of Cluster.
    """
    name, send_channel, recv_channel = _channel_matrices(channels, len(names))
    latency_ns, bytes_per_s = _link_matrices(ASSUMED_LINK if links is None else links, names)
    columns: dict[str, npt.NDArray[Any]] = {
        "latency_ns": latency_ns,
        "bytes_per_s": bytes_per_s,
        "send_channel": send_channel.astype(np.int32),
        "recv_channel": recv_channel.astype(np.int32),
    }
    for column_name, column in columns.items():
        np.fill_diagonal(column, -1 if column_name.endswith("channel") else 0)
    return name, columns


def channel_names(
    send: npt.NDArray[np.int32], receive: npt.NDArray[np.int32], names: Sequence[str]
) -> tuple[str, ...]:
    """Names channels by what uses them: "gpu:0 out", "gpu:0 in", "gpu:0" (both), "channel 3"."""
    num_channels = int(max(send.max(), receive.max())) + 1
    senders: list[set[int]] = [set() for _ in range(num_channels)]
    receivers: list[set[int]] = [set() for _ in range(num_channels)]
    for matrix, users, axis in ((send, senders, 0), (receive, receivers, 1)):
        for pair in np.argwhere(matrix >= 0):
            users[matrix[tuple(pair)]].add(int(pair[axis]))
    found = [
        _channel_name(channel, users, names)
        for channel, users in enumerate(zip(senders, receivers, strict=True))
    ]
    # One device may have several channels of its own in one direction.
    return tuple(
        name if found.count(name) == 1 else f"{name}, channel {channel}"
        for channel, name in enumerate(found)
    )


def _link_matrices(
    links: LinkSpec, names: Sequence[str]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Spreads links over all ordered pairs of devices: (latency_ns, bytes_per_s).

    Raises:
        InputError: a pair has no link, or a link is of an unknown device or of one with itself.
    """
    shape = (len(names), len(names))
    if isinstance(links, Link):
        links = (links.latency_ns, links.bytes_per_s)
    if isinstance(links, tuple) and len(links) == 2:
        return (
            _whole_matrix(links[0], shape, "latency_ns"),
            _whole_matrix(links[1], shape, "bytes_per_s"),
        )
    if not isinstance(links, Mapping):
        raise InputError(
            f"{links!r} is not a link",
            hint='give Link(latency_ns, bytes_per_s), or {("gpu:0", "gpu:1"): Link(...), ...}',
        )
    position = {name: k for k, name in enumerate(names)}
    latency_ns, bytes_per_s = np.full(shape, -1, np.int64), np.zeros(shape, np.int64)
    for pair, link in links.items():
        if not isinstance(pair, tuple) or len(pair) != 2 or not isinstance(link, Link):
            raise InputError(f"{pair!r}: {link!r} is not a link of a (source, destination) pair")
        for name in pair:
            if name not in position:
                known = ", ".join(names)
                raise InputError(f'a link names device "{name}"', hint=f"the devices are {known}")
        if pair[0] == pair[1]:
            raise InputError(f'a link leads from device "{pair[0]}" to itself')
        latency_ns[position[pair[0]], position[pair[1]]] = link.latency_ns
        bytes_per_s[position[pair[0]], position[pair[1]]] = link.bytes_per_s
    for source, destination in np.argwhere(latency_ns < 0).tolist():
        if source != destination:
            only = ", only the other way" if latency_ns[destination, source] >= 0 else ""
            raise InputError(
                f'no link from "{names[source]}" to "{names[destination]}"{only}',
                hint="links have a direction; give one for every ordered pair of devices",
            )
    return latency_ns, bytes_per_s


def _channel_matrices(
    channels: ChannelSpec, num_devices: int
) -> tuple[str, npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Spreads a channel rule over all ordered pairs of devices: (name, send, receive).

    Given matrices that equal those of a name get that name, all others "custom".

    Raises:
        InputError: an unknown name, or matrices of another shape or with ids out of range.
    """
    sender, receiver = np.indices((num_devices, num_devices))
    unlimited = np.full_like(sender, -1)
    named = {
        "duplex": (2 * sender, 2 * receiver + 1),
        "serial": (sender, receiver),
        "parallel": (unlimited, unlimited),
    }
    if isinstance(channels, str):
        if channels not in named:
            raise InputError(f'unknown channels "{channels}"', hint=f"one of {', '.join(named)}")
        return channels, *named[channels]
    if not isinstance(channels, tuple) or len(channels) != 2:
        raise InputError("channels are a name or two matrices: (send, receive)")
    # No more ids than the links could use: the core keeps a clock for every id up to the greatest.
    limit = 2 * num_devices * num_devices
    send = _whole_matrix(channels[0], sender.shape, "send channel", lowest=-1, limit=limit)
    receive = _whole_matrix(channels[1], sender.shape, "receive channel", lowest=-1, limit=limit)
    links = sender != receiver
    for name, pair in named.items():
        if (send == pair[0])[links].all() and (receive == pair[1])[links].all():
            return name, send, receive
    return "custom", send, receive


def _whole_matrix(
    values: npt.ArrayLike,
    shape: tuple[int, int],
    what: str = "matrix",
    *,
    lowest: int = 0,
    limit: int = 2**62,
) -> npt.NDArray[np.int64]:
    """Copies whole numbers into int64; one number stands for all.

    Raises:
        InputError: another shape, or anything but whole numbers from ``lowest`` to below ``limit``.
    """
    try:
        given = np.asarray(values)
    except ValueError as error:  # rows of different length
        raise InputError(f"{what} is not a matrix: {error}") from None
    if given.shape not in ((), shape):
        raise InputError(f"{what} has shape {given.shape}, the cluster needs {shape}")
    if given.dtype.kind not in "iuf" or not (np.isfinite(given) & (given == np.floor(given))).all():
        raise InputError(f"{what} holds something that is not a whole number")
    if not ((given >= lowest) & (given < limit)).all():
        raise InputError(f"{what} holds numbers below {lowest} or not below {limit}")
    return np.broadcast_to(given, shape).astype(np.int64)


def _channel_name(channel: int, users: tuple[set[int], set[int]], names: Sequence[str]) -> str:
    both = users[0] | users[1]
    if len(both) != 1:
        return f"channel {channel}"
    direction = "" if all(users) else " out" if users[0] else " in"
    return f"{names[both.pop()]}{direction}"
