"""The device table: peaks, memory, launch cost and links of the kinds of devices, each with source.

The figures are in ``devices.toml`` beside this file.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import os
import re
import tomllib
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from types import MappingProxyType
from typing import Any

from baechi.errors import InputError
from baechi.links import Link
from baechi.units import parse_bandwidth, parse_bytes, parse_ns

__all__ = [
    "DTYPES",
    "GENERIC_KIND",
    "OP_CLASSES",
    "DeviceKind",
    "DeviceTable",
    "assumed_link",
    "device_table",
    "load_device_table",
]

GENERIC_KIND = "generic-gpu"
"""The row for a device of which only the memory is known."""
DTYPES = ("fp64", "fp32", "tf32", "bf16", "fp16", "fp8", "int8")
OP_CLASSES = ("matmul", "convolution", "attention", "recurrent", "other")

_SCHEMA = 1
# A type without a peak is multiplied as this one.
_WIDER = {"tf32": "fp32", "bf16": "fp32", "fp16": "fp32", "fp8": "fp16", "int8": "fp16"}
_ROW = ("title", "class", "memory", "bandwidth", "peak", "launch", "host_link", "sources")
_FIGURES = ("memory", "bandwidth", "peak", "launch", "host_link", "peer_link")
_CLASSES = ("gpu", "cpu")


@dataclasses.dataclass(frozen=True, slots=True)
class DeviceKind:
    """One row of the device table.

    Attributes:
        name: the row's name, e.g. "h100".
        title: what it is, for people.
        aliases: other names that find the row.
        is_host: whether this is the host's own processor.
        memory_bytes: bytes of memory that such a device has.
        memory_bytes_per_s: the memory's peak rate.
        flops_per_s: dense peak by type, a multiply-add being two operations.
        launch_ns: what every kernel costs besides its work.
        efficiency: what of the peaks is reached, by op class, and "memory".
        host_link: the link to and from the host.
        peer_link: the link between two of this kind; None where copies go through the host.
        peer_link_name: that link's name in the table, "" for None.
        sources: figure ("memory", "bandwidth", "peak", "peak.fp64", ...) to where it is from.
    """

    name: str
    title: str
    aliases: tuple[str, ...]
    is_host: bool
    memory_bytes: int
    memory_bytes_per_s: int
    flops_per_s: Mapping[str, int]
    launch_ns: int
    efficiency: Mapping[str, float]
    host_link: Link
    peer_link: Link | None
    peer_link_name: str
    sources: Mapping[str, str]

    def peak_flops_per_s(self, dtype: str) -> int | None:
        """Dense peak for a type, that of the next wider one where it has none, None for fp64."""
        known: str | None = dtype
        while known is not None and known not in self.flops_per_s:
            known = _WIDER.get(known)
        return None if known is None else self.flops_per_s[known]

    def source_of(self, figure: str) -> str:
        """Where a figure is from: "peak.fp64" falls back on "peak"."""
        return self.sources.get(figure, self.sources[figure.split(".")[0]])


@dataclasses.dataclass(frozen=True, slots=True)
class DeviceTable:
    """The rows by name, in the file's order."""

    kinds: Mapping[str, DeviceKind]

    def find(self, name: str) -> DeviceKind | None:
        """The row with this name, title or alias; case, spaces and the vendor do not count.

        >>> device_table().find("NVIDIA GeForce RTX 3090").name
        'rtx-3090'
        """
        return self._by_alias().get(_plain(name))

    def kind(self, name: str) -> DeviceKind:
        """The row with this name, title or alias.

        Raises:
            InputError: there is no such row; the hint names those that look alike.
        """
        found = self.find(name)
        if found is None:
            known = self._by_alias()
            near = difflib.get_close_matches(_plain(name), known, n=3)
            names = list(dict.fromkeys(known[key].name for key in near)) or list(self.kinds)
            others = ", ".join(kind for kind in names if kind != GENERIC_KIND)
            others += ", or " if others else ""
            raise InputError(
                f'the device table has no kind "{name}"',
                hint=f'write {others}"{GENERIC_KIND}" for any other accelerator',
            )
        return found

    def _by_alias(self) -> dict[str, DeviceKind]:
        return {
            _plain(name): kind
            for kind in self.kinds.values()
            for name in (kind.name, kind.title, *kind.aliases)
        }


@functools.cache
def device_table() -> DeviceTable:
    """The table that comes with the package."""
    text = resources.files("baechi").joinpath("devices.toml").read_text("utf-8")
    return _read_table(text, "devices.toml")


def load_device_table(path: str | os.PathLike[str]) -> DeviceTable:
    """Reads a table of the same form from another file.

    Raises:
        InputError: the file is no device table; the message names the file and the entry.
        OSError: the file cannot be read.
    """
    return _read_table(Path(path).read_text("utf-8"), os.fspath(path))


def assumed_link(source: DeviceKind, destination: DeviceKind) -> tuple[Link, str]:
    """The link that is assumed between two devices, and what it is in words.

    Devices with the same peer link use it, all others copy through the host: both latencies, at the
    rate of the slower host link.
    """
    if source.is_host or destination.is_host:
        device = destination if source.is_host else source
        return device.host_link, f"host link of {device.name}"
    if source.peer_link is not None and source.peer_link_name == destination.peer_link_name:
        return source.peer_link, f"peer link {source.peer_link_name}"
    links = (source.host_link, destination.host_link)
    staged = Link(sum(link.latency_ns for link in links), min(link.bytes_per_s for link in links))
    return staged, "through the host"


def _plain(name: str) -> str:
    """A name without what spells differently: case, the vendor's words, spaces and dashes."""
    words = re.split(r"[^a-z0-9.]+", name.lower())
    return "".join(word for word in words if word not in {"nvidia", "geforce", "tesla"})


def _read_table(text: str, where: str) -> DeviceTable:
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InputError(f'device table "{where}": {error}') from None
    try:
        if document.get("schema") != _SCHEMA:
            raise InputError(f"schema {document.get('schema')!r}, this version reads {_SCHEMA}")
        links = {
            name: Link(_entry(row, "latency", name), _entry(row, "bandwidth", name))
            for name, row in _table(document, "links").items()
        }
        kinds = {
            name: _read_kind(name, row, links, document)
            for name, row in _table(document, "kinds").items()
        }
    except InputError as error:
        raise InputError(f'device table "{where}": {error}') from None
    return DeviceTable(MappingProxyType(kinds))


def _read_kind(
    name: str, row: Mapping[str, Any], links: Mapping[str, Link], document: Mapping[str, Any]
) -> DeviceKind:
    where = f"kinds.{name}"
    if not isinstance(row, Mapping):
        raise InputError(f"{where} is not a table")
    fields = {field: _entry(row, field, where) for field in _ROW}
    unknown = set(row) - {*_ROW, "aliases", "peer_link"}
    if unknown:
        raise InputError(f"{where} has an unknown entry {sorted(unknown)[0]!r}")
    if fields["class"] not in _CLASSES:
        raise InputError(f"{where}: class {fields['class']!r} is none of {', '.join(_CLASSES)}")
    peer = row.get("peer_link", "")
    for link in filter(None, (fields["host_link"], peer)):
        if link not in links:
            raise InputError(f"{where} names a link {link!r}, the table has {', '.join(links)}")
    return DeviceKind(
        name=name,
        title=fields["title"],
        aliases=tuple(row.get("aliases", ())),
        is_host=fields["class"] == "cpu",
        memory_bytes=parse_bytes(fields["memory"]),
        memory_bytes_per_s=_positive(parse_bandwidth(fields["bandwidth"]), f"{where}.bandwidth"),
        flops_per_s=_read_peaks(fields["peak"], f"{where}.peak"),
        launch_ns=parse_ns(fields["launch"]),
        efficiency=_read_efficiency(document, fields["class"]),
        host_link=links[fields["host_link"]],
        peer_link=links[peer] if peer else None,
        peer_link_name=peer,
        sources=_read_sources(fields["sources"], where, _table(document, "sources")),
    )


def _read_peaks(peaks: Any, where: str) -> Mapping[str, int]:
    found: dict[str, int] = {}
    for dtype, tera in (peaks if isinstance(peaks, Mapping) else {}).items():
        if dtype not in DTYPES or isinstance(tera, bool) or not isinstance(tera, int | float):
            raise InputError(f"{where}: {dtype} = {tera!r}", hint=f"types are {', '.join(DTYPES)}")
        found[dtype] = _positive(round(tera * 10**12), f"{where}.{dtype}")
    if "fp32" not in found:
        raise InputError(f"{where} has no peak for fp32")
    return MappingProxyType(found)


def _read_efficiency(document: Mapping[str, Any], device_class: str) -> Mapping[str, float]:
    where = f"efficiency.{device_class}"
    table = _entry(_table(document, "efficiency"), device_class, "efficiency")
    shares = {name: _entry(table, name, where) for name in (*OP_CLASSES, "memory")}
    for name, share in shares.items():
        if not isinstance(share, int | float) or not 0 < share <= 1:
            raise InputError(f"{where}.{name} is {share!r}, not above 0 and at most 1")
    return MappingProxyType(shares)


def _read_sources(sources: Any, where: str, known: Mapping[str, Any]) -> Mapping[str, str]:
    found: dict[str, str] = {}
    for figure in _FIGURES:
        _entry(sources, figure, f"{where}.sources")
    for figure, source in sources.items():
        if source not in known and not str(source).startswith("assumed"):
            raise InputError(f"{where}.sources.{figure} names {source!r}, not one of [sources]")
        found[figure] = str(known.get(source, source))
    return MappingProxyType(found)


def _positive(amount: int, where: str) -> int:
    if amount <= 0:
        raise InputError(f"{where} is {amount}, not above 0")
    return amount


def _table(document: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    table = document.get(name)
    if not isinstance(table, Mapping):
        raise InputError(f"it has no table [{name}]")
    return table


def _entry(table: Any, name: str, where: str) -> Any:
    if not isinstance(table, Mapping) or name not in table:
        raise InputError(f'{where} has no "{name}"')
    return table[name]
