"""One device, and the short ways to write a list of devices down.

"4x8GiB" is gpu:0 to gpu:3 with 8 GiB each, "24GiB,12GiB" two devices, "2xh100:80GB,cpu:256GB" is
h100:0, h100:1 and cpu:0; a mapping gives a name and a size per device.
"""

from __future__ import annotations

import dataclasses
import math
import numbers
import re
from collections.abc import Iterable, Mapping, Sequence, Sized
from typing import Any, SupportsIndex

import numpy as np
import numpy.typing as npt

from baechi.errors import InputError
from baechi.units import format_bytes, parse_bytes

__all__ = [
    "Device",
    "DeviceSpec",
    "Size",
    "allowed_matrix",
    "device_columns",
    "devices_from_columns",
    "kind_indices",
    "number_names",
    "read_devices",
]

_ITEM = re.compile(r"(?:([0-9]{1,9})\s*[xX]\s*)?(?:([a-zA-Z][\w.-]*)\s*:)?\s*([^:]+)", re.ASCII)
# A typing error should not ask for a matrix of a billion links.
_MAX_COUNT = 4096
_HINT = 'write devices as in "4x8GiB", "24GiB,12GiB" or "2xh100:80GB,cpu:256GB"'


@dataclasses.dataclass(frozen=True, slots=True)
class Device:
    """One device.

    Attributes:
        name: unique in its cluster, not empty.
        kind: what runs at the same speed and can run the same ops, e.g. "gpu", "cpu", "h100".
        memory_bytes: bytes of memory.
        reserve_bytes: bytes of it that no plan may use; the cap is memory minus reserve.
        speed: compute times of its kind are divided by this.

    Raises:
        InputError: an empty name or kind, a size that is negative or not whole, a reserve above
            the memory, or a speed that is not finite and above 0.
    """

    name: str
    kind: str
    memory_bytes: int
    reserve_bytes: int = 0
    speed: float = 1.0

    def __post_init__(self) -> None:
        """Checks every field; sizes may be whole floats or text."""
        for field in ("name", "kind"):
            text = getattr(self, field)
            if not isinstance(text, str) or not text:
                raise InputError(f"a device's {field} is text and not empty, not {text!r}")
            if text.encode(errors="replace").decode() != text:
                raise InputError(f"a device's {field} {text!r} cannot be written as UTF-8")
        for field in ("memory_bytes", "reserve_bytes"):
            try:
                object.__setattr__(self, field, parse_bytes(getattr(self, field)))
            except InputError as error:
                raise InputError(f'device "{self.name}": {field}: {error}') from None
        if self.reserve_bytes > self.memory_bytes:
            raise InputError(
                f'device "{self.name}" reserves {format_bytes(self.reserve_bytes)} '
                f"of {format_bytes(self.memory_bytes)} memory"
            )
        if not _is_speed(self.speed):
            raise InputError(
                f'device "{self.name}" has speed {self.speed!r}',
                hint="a speed is a finite number above 0; 2.0 halves every compute time",
            )
        object.__setattr__(self, "speed", float(self.speed))


Size = SupportsIndex | float | str
DeviceSpec = (
    str | Mapping[str, Size] | Mapping[int, Size] | Mapping[str | int, Size] | Iterable[Device]
)
"""Every way to write devices down that ``read_devices`` takes."""


def read_devices(
    devices: DeviceSpec,
) -> tuple[Device, ...]:
    """Reads devices from text, from a mapping of names to sizes, or from Device objects.

    Args:
        devices: items ``[count x][kind:]size`` with commas between them (the kind is "gpu" unless
            given, and devices of a kind are numbered over all items: "gpu:0", "gpu:1", ...); or a
            mapping whose keys are names (an integer k becomes the name "k") and whose values are
            bytes or text such as "24GiB", where the kind is "cpu" if the name starts with "cpu" and
            "gpu" otherwise; or devices.

    Returns:
        The devices in the order given.

    Raises:
        InputError: anything else, a size that cannot be read, a count of 0 or above 4096, no
            devices, or two of one name.

    >>> [(device.name, device.memory_bytes) for device in read_devices("2xh100:80GB,cpu:256GB")]
    [('h100:0', 80000000000), ('h100:1', 80000000000), ('cpu:0', 256000000000)]
    """
    if isinstance(devices, str):
        found = _from_text(devices)
    elif isinstance(devices, Mapping):
        found = [_from_entry(key, size) for key, size in devices.items()]
    elif isinstance(devices, Iterable):
        found = list(devices)
    else:
        raise InputError(f"{devices!r} does not describe devices", hint=_HINT)
    if not found:
        raise InputError("a cluster needs at least one device", hint=_HINT)
    names: set[str] = set()
    for device in found:
        if not isinstance(device, Device):
            raise InputError(f"{device!r} is not a device", hint=_HINT)
        if device.name in names:
            raise InputError(f'two devices have the name "{device.name}"')
        names.add(device.name)
    return tuple(found)


def kind_indices(devices: Sequence[Device], graph_kinds: Sequence[str]) -> npt.NDArray[np.int32]:
    """For each device the index of its kind among a graph's kinds; a graph's only kind fits all.

    Raises:
        InputError: a device is of none of the graph's kinds.
    """
    position = {kind: k for k, kind in enumerate(graph_kinds)}
    if len(position) == 1:
        return np.zeros(len(devices), np.int32)
    for device in devices:
        if device.kind not in position:
            raise InputError(
                f'device "{device.name}" is of kind "{device.kind}", '
                f"the graph has times for {', '.join(graph_kinds)}",
                hint="name the devices' kinds as the graph does, or add times for this kind",
            )
    return np.array([position[device.kind] for device in devices], np.int32)


def allowed_matrix(
    names: Sequence[str], allowed_sets: Sequence[Iterable[str]]
) -> npt.NDArray[np.uint8]:
    """A graph's sets of allowed devices as uint8[sets, devices]: 1 where the device is in the set.

    Raises:
        InputError: a set names a device that is not there.
    """
    position = {name: k for k, name in enumerate(names)}
    allowed = np.zeros((len(allowed_sets), len(names)), np.uint8)
    for row, allowed_set in enumerate(allowed_sets):
        for name in allowed_set:
            if name not in position:
                raise InputError(
                    f"ops limited to {', '.join(allowed_set)} (allowed set {row}): "
                    f'the cluster has no device "{name}"',
                    hint=f"the devices are {', '.join(names)}",
                )
            allowed[row, position[name]] = 1
    return allowed


def devices_from_columns(
    memory_bytes: Sequence[int],
    names: Sequence[str] | None = None,
    kinds: Sequence[str] | None = None,
    reserve_bytes: Sequence[int] | None = None,
    speed: Sequence[float] | None = None,
) -> list[Device]:
    """Builds devices from columns; None is kind "gpu", no reserve, speed 1, and numbered names.

    Raises:
        InputError: columns of unequal length, or anything that a Device refuses.
    """
    if isinstance(memory_bytes, str) or not isinstance(memory_bytes, Sized):
        raise InputError(f"memory is {memory_bytes!r}, not one size per device")
    count = len(memory_bytes)
    kinds = ["gpu"] * count if kinds is None else kinds
    columns = (
        number_names(kinds) if names is None else names,
        kinds,
        memory_bytes,
        [0] * count if reserve_bytes is None else reserve_bytes,
        [1.0] * count if speed is None else speed,
    )
    lengths = [len(column) for column in columns]
    if set(lengths) != {count}:
        raise InputError(f"names, kinds, memory, reserve and speed have lengths {lengths}")
    return [Device(*values) for values in zip(*columns, strict=True)]


def device_columns(devices: Sequence[Device]) -> dict[str, npt.NDArray[Any]]:
    """The numbers of devices as columns, under the names that Cluster gives them."""
    return {
        "memory_bytes": np.array([device.memory_bytes for device in devices], np.int64),
        "reserve_bytes": np.array([device.reserve_bytes for device in devices], np.int64),
        "speed": np.array([device.speed for device in devices], np.float64),
    }


def number_names(kinds: Iterable[str]) -> list[str]:
    """Names devices by kind and a number per kind.

    >>> number_names(["gpu", "cpu", "gpu"])
    ['gpu:0', 'cpu:0', 'gpu:1']
    """
    names: list[str] = []
    count: dict[str, int] = {}
    for kind in kinds:
        names.append(f"{kind}:{count.get(kind, 0)}")
        count[kind] = count.get(kind, 0) + 1
    return names


def _is_speed(speed: object) -> bool:
    if isinstance(speed, bool) or not isinstance(speed, numbers.Real):
        return False
    try:
        return math.isfinite(speed) and float(speed) > 0
    except OverflowError:  # an integer that no float can hold
        return False


def _from_text(text: str) -> list[Device]:
    kinds: list[str] = []
    sizes: list[int] = []
    for item in text.split(","):
        match = _ITEM.fullmatch(item.strip())
        if match is None:
            raise InputError(f'"{item.strip()}" in "{text}" is not a device', hint=_HINT)
        count = int(match[1] or 1)
        if not 1 <= count <= _MAX_COUNT:
            raise InputError(f'"{item.strip()}" in "{text}" asks for {count} devices', hint=_HINT)
        if match[2] is None and match[3][0].isalpha():
            raise InputError(f'"{item.strip()}" in "{text}" has no size', hint=_HINT)
        kinds += [match[2] or "gpu"] * count
        sizes += [parse_bytes(match[3])] * count
    return list(map(Device, number_names(kinds), kinds, sizes))


def _from_entry(key: object, size: Size) -> Device:
    if isinstance(key, bool) or not isinstance(key, str | int):
        raise InputError(f"{key!r} is not a device name", hint="names are text or integers")
    name = str(key)
    return Device(name, "cpu" if name.startswith("cpu") else "gpu", parse_bytes(size))
