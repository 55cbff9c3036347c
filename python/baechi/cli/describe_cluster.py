"""A cluster in words: its devices, links and channels."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from baechi.cli.output import Outcome
from baechi.units import format_bytes, format_ns

if TYPE_CHECKING:
    from rich.console import RenderableType

    from baechi.cluster import Cluster

__all__ = ["outcome"]

_MOST_LINKS = 12


def outcome(cluster: Cluster) -> Outcome:
    """For `baechi show`."""
    return Outcome(
        document=lambda: {
            "kind": "cluster",
            "num_devices": cluster.num_devices,
            "fingerprint": cluster.fingerprint,
            "links_assumed": cluster.links_assumed,
            "cluster": cluster.to_json_dict(),
        },
        shown=lambda width, _: _shown(cluster, width),
    )


def _shown(cluster: Cluster, width: int) -> list[RenderableType]:
    from baechi.tables import Column, as_table, fitted, hanging

    devices = cluster.devices
    total = format_bytes(int(cluster.memory_bytes.sum() - cluster.reserve_bytes.sum()))
    caps = [format_bytes(d.memory_bytes - d.reserve_bytes) for d in devices]
    columns = [
        Column(heading="device", cells=cluster.names, importance=99, is_text=True),
        Column(heading="kind", cells=cluster.kinds, importance=50, is_text=True),
        Column(heading="memory", cells=[format_bytes(d.memory_bytes) for d in devices]),
        Column(heading="reserve", cells=[format_bytes(d.reserve_bytes) for d in devices]),
        Column(heading="cap", cells=caps, importance=90),
        Column(heading="speed", cells=[f"{d.speed:g}" for d in devices], importance=60),
    ]
    return [
        hanging(
            f"{cluster.num_devices} device{'s' if cluster.num_devices > 1 else ''} with {total}, "
            f"{cluster.channels} channels",
            width,
            "bold",
        ),
        as_table(fitted(columns, width - 2), indent=2),
        *(hanging(f"  {line}", width) for line in _links(cluster)),
    ]


def _links(cluster: Cluster) -> list[str]:
    """One line per kind of link, the most frequent first."""
    pairs: dict[tuple[int, int], list[str]] = {}
    for source, name in enumerate(cluster.names):
        for destination, other in enumerate(cluster.names):
            if source != destination:
                link = (
                    int(cluster.latency_ns[source, destination]),
                    int(cluster.bytes_per_s[source, destination]),
                )
                pairs.setdefault(link, []).append(f"{name} -> {other}")
    assumed = " (assumed: none were given)" if cluster.links_assumed else ""
    lines = []
    for (latency, rate), names in sorted(pairs.items(), key=lambda item: -len(item[1])):
        where = names[0] if len(names) == 1 else f"{len(names)} links, such as {names[0]}"
        where = "all links" if len(pairs) == 1 else where
        lines.append(f"{where}: {format_ns(latency)}, {_rate(rate)}{assumed}")
    more = (
        [f"... {len(lines) - _MOST_LINKS} other kinds of link"] if len(lines) > _MOST_LINKS else []
    )
    return lines[:_MOST_LINKS] + more


def _rate(bytes_per_s: int) -> Any:
    for unit, name in ((10**12, "TB/s"), (10**9, "GB/s"), (10**6, "MB/s"), (10**3, "kB/s")):
        if bytes_per_s >= unit:
            return f"{bytes_per_s / unit:g} {name}"
    return f"{bytes_per_s} B/s" if bytes_per_s else "infinitely fast"
