"""Reading and writing a cluster as JSON or TOML (docs/formats-cluster.md)."""

from __future__ import annotations

import dataclasses
import json
import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from baechi.cluster import Cluster, Device, Link
from baechi.devices import DeviceSpec, read_devices
from baechi.errors import InputError
from baechi.files import write_atomically
from baechi.formats import strict_json
from baechi.units import parse_bandwidth, parse_ns

__all__ = ["load_cluster", "read_document", "save_cluster", "write_document"]

_SCHEMA = 1
# A person writes sizes and times as text under the short names, `save` numbers under the long.
_SHORT = {
    "memory": "memory_bytes",
    "reserve": "reserve_bytes",
    "latency": "latency_ns",
    "bandwidth": "bytes_per_s",
}
_LINK = ("latency_ns", "bytes_per_s")
_IN_HOST = ("duplex", "serial", "parallel", "shared")
_BETWEEN_HOSTS = ("host-duplex", "host-serial", "duplex", "serial", "parallel")


def load_cluster(path: str | os.PathLike[str]) -> Cluster:
    """Reads a .toml file as TOML and any other as JSON.

    Raises:
        InputError: the file does not describe a cluster; the message names the file.
        OSError: the file cannot be read.
    """
    data = Path(path).read_bytes()
    try:
        text = data.decode()
        is_toml = Path(path).suffix.lower() == ".toml"
        return read_document(tomllib.loads(text) if is_toml else strict_json.parse(text))
    except RecursionError:
        raise InputError(f'cluster file "{os.fspath(path)}": nested too deeply') from None
    except ValueError as error:  # the decoders' errors and InputError are ValueErrors
        raise InputError(f'cluster file "{os.fspath(path)}": {error}') from error


def save_cluster(cluster: Cluster, path: str | os.PathLike[str]) -> None:
    """Writes sorted JSON in one step, so that no reader sees half a file.

    Raises:
        InputError: the name ends in .toml, which is not how JSON is read.
        OSError: the file cannot be written.
    """
    if Path(path).suffix.lower() == ".toml":
        raise InputError(
            f'cluster file "{os.fspath(path)}": clusters are written as JSON',
            hint="give it a name that ends in .json",
        )
    text = json.dumps(write_document(cluster), indent=2, sort_keys=True, ensure_ascii=False)
    write_atomically(path, f"{text}\n".encode())


def write_document(cluster: Cluster) -> dict[str, Any]:
    """The cluster as plain dicts, lists and numbers; equal links are one number."""
    channels: str | dict[str, Any] = cluster.channels
    if channels == "custom":
        channels = {
            "receive": cluster.recv_channel.tolist(),
            "send": cluster.send_channel.tolist(),
        }
    return {
        "channels": channels,
        "devices": [dict(sorted(dataclasses.asdict(d).items())) for d in cluster.devices],
        "links": {
            "assumed": cluster.links_assumed,
            "bytes_per_s": _one_or_all(cluster.bytes_per_s),
            "latency_ns": _one_or_all(cluster.latency_ns),
        },
        "schema": _SCHEMA,
    }


def read_document(document: Mapping[str, Any]) -> Cluster:
    """Reads the parsed content of a cluster file, a person's or a saved one.

    Raises:
        InputError: another schema number, an entry that is missing or unknown, or a value that
            cannot be read; the message names the place.
    """
    if not isinstance(document, Mapping):
        raise InputError(f"a cluster is a table, not {document!r}")
    if document.get("schema", _SCHEMA) != _SCHEMA:
        raise InputError(f"cluster schema {document['schema']!r}, this version reads {_SCHEMA}")
    if "hosts" in document:
        return _read_hosts(_entries(document, "cluster", ("hosts",), ("schema", "network")))
    entries = _entries(document, "cluster", ("devices",), ("schema", "links", "channels"))
    channels = entries.get("channels", "duplex")
    if isinstance(channels, Mapping):
        matrices = _entries(channels, "channels", ("send", "receive"), ())
        channels = (matrices["send"], matrices["receive"])
    links, assumed = _read_links(entries.get("links"))
    cluster = Cluster(_read_devices(entries["devices"], "devices"), links, channels)
    object.__setattr__(cluster, "links_assumed", assumed)
    return cluster


def _read_hosts(document: dict[str, Any]) -> Cluster:
    """Devices are named "host/device"; links follow from the hosts, channels from both tables."""
    hosts = [
        _entries(host, f"hosts[{k}]", ("name", "devices"), ("link", "channels"))
        for k, host in enumerate(_list(document["hosts"], "hosts"))
    ]
    network = _entries(document.get("network", {}), "network", (), ("link", "channels"))
    devices: list[Device] = []
    host_of: list[int] = []
    for k, host in enumerate(hosts):
        for device in read_devices(_read_devices(host["devices"], f"hosts[{k}].devices")):
            name = f"{host['name']}/{device.name}"
            devices.append(dataclasses.replace(device, name=name))
            host_of.append(k)
    links: dict[tuple[str, str], Link] = {}
    ids = np.full((2, len(devices), len(devices)), -1, np.int64)
    for i, source in enumerate(devices):
        for j, destination in enumerate(devices):
            if i == j:
                continue
            here = host_of[i] == host_of[j]
            where = f"hosts[{host_of[i]}]" if here else "network"
            table = hosts[host_of[i]] if here else network
            if "link" not in table:
                raise InputError(f'{where} has no link, "{source.name}" needs one to reach others')
            links[source.name, destination.name] = _read_link(table["link"], f"{where}.link")
            known = _IN_HOST if here else _BETWEEN_HOSTS
            rule = table.get("channels", known[0])
            if rule not in known:
                raise InputError(f"{where}: unknown channels {rule!r}", hint=f"one of {known}")
            ids[:, i, j] = _channel_ids(rule, (i, j), (host_of[i], host_of[j]), len(devices))
    return Cluster(devices, links, _dense(ids))


def _channel_ids(
    rule: str, pair: tuple[int, int], hosts: tuple[int, int], num_devices: int
) -> tuple[int, int]:
    """The send and the receive channel of a link; every device and every host has two ids.

    A host's shared channel (its switch) and its network card are different things, so the ids of
    switches come after those of cards.
    """
    if rule == "parallel":
        return -1, -1
    if rule == "shared":
        # A host has at least one device, so the cards' ids end below 4 * num_devices.
        return 4 * num_devices + hosts[0], 4 * num_devices + hosts[0]
    source, destination = pair
    if rule.startswith("host-"):
        source, destination = num_devices + hosts[0], num_devices + hosts[1]
    is_duplex = rule.endswith("duplex")
    return 2 * source, 2 * destination + is_duplex


def _dense(ids: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Renumbers the ids in use from 0, keeping their order."""
    used = np.unique(ids[ids >= 0])
    dense = np.where(ids >= 0, np.searchsorted(used, ids), -1)
    return dense[0], dense[1]


def _read_devices(devices: Any, where: str) -> DeviceSpec:
    if isinstance(devices, str | Mapping):
        return devices
    fields = ("kind", "reserve_bytes", "speed")
    found: list[Device] = []
    for k, device in enumerate(_list(devices, where)):
        entries = _entries(device, f"{where}[{k}]", ("name", "memory_bytes"), fields)
        found.append(Device(**{"kind": "gpu", **entries}))
    return found


def _read_links(links: Any) -> tuple[Any, bool]:
    """What the constructor of Cluster takes as links, and whether they are assumed."""
    if links is None:
        return None, True
    if isinstance(links, Mapping):
        entries = _entries(links, "links", _LINK, ("assumed",))
        latency_ns, bytes_per_s = entries["latency_ns"], entries["bytes_per_s"]
        assumed = bool(entries.get("assumed", False))
        if isinstance(latency_ns, str):
            latency_ns = parse_ns(latency_ns)
        if isinstance(bytes_per_s, str):
            bytes_per_s = parse_bandwidth(bytes_per_s)
        return (latency_ns, bytes_per_s), assumed
    found: dict[tuple[str, str], Link] = {}
    for k, table in enumerate(_list(links, "links")):
        ends = _entries(table, f"links[{k}]", (), ("between", "source", "destination", *_LINK))
        link = _read_link({name: ends.pop(name) for name in _LINK if name in ends}, f"links[{k}]")
        if set(ends) == {"between"}:
            pair = tuple(_list(ends["between"], f"links[{k}].between"))
            ordered = [pair, pair[::-1]]
        elif set(ends) == {"source", "destination"}:
            ordered = [(ends["source"], ends["destination"])]
        else:
            raise InputError(f"links[{k}] needs source and destination, or between")
        for names in ordered:
            if len(names) != 2 or not all(isinstance(name, str) for name in names):
                raise InputError(f"links[{k}] does not name two devices: {names!r}")
            if names in found:
                raise InputError(f"links[{k}] is a second link from {' to '.join(names)}")
            found[names] = link
    return found, False


def _read_link(table: Any, where: str) -> Link:
    return Link(**_entries(table, where, _LINK, ()))


def _list(value: Any, where: str) -> list[Any]:
    if not isinstance(value, list):
        raise InputError(f"{where} is not a list: {value!r}")
    return value


def _entries(
    table: Any, where: str, required: tuple[str, ...], optional: tuple[str, ...]
) -> dict[str, Any]:
    """A table's entries under their long names; refuses missing and unknown ones."""
    if not isinstance(table, Mapping):
        raise InputError(f"{where} is not a table: {table!r}")
    entries = {_SHORT.get(str(name), str(name)): value for name, value in table.items()}
    if len(entries) < len(table):
        raise InputError(f"{where} says the same twice: {', '.join(table)}")
    for name in required:
        if name not in entries:
            raise InputError(f'{where} has no "{name}"')
    for name in entries:
        if name not in (*required, *optional):
            known = ", ".join((*required, *optional))
            raise InputError(f'{where} has an unknown entry "{name}"', hint=f"known are {known}")
    return entries


def _one_or_all(matrix: npt.NDArray[np.int64]) -> int | list[list[int]]:
    links = matrix[~np.eye(len(matrix), dtype=bool)]
    same = links.size > 0 and bool((links == links[0]).all())
    return int(links[0]) if same else [list(map(int, row)) for row in matrix]
