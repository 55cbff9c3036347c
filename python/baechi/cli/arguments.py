"""Arguments that several commands share, and reading what they name."""

from __future__ import annotations

import argparse
import contextlib
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from baechi.cli.output import progress
from baechi.errors import InputError

if TYPE_CHECKING:
    from baechi.cluster import Cluster
    from baechi.graph import Graph

__all__ = [
    "add_cluster",
    "add_graph",
    "add_json",
    "add_placing",
    "add_rules",
    "file_named",
    "given_link",
    "placing_options",
    "read_cluster",
    "read_graph",
]

RULES = ("physical", "baechi-tf", "baechi-torch")


def add_graph(parser: argparse.ArgumentParser) -> None:
    """The graph, first of all."""
    parser.add_argument("graph", metavar="GRAPH", help="a graph file, or - for stdin")


def add_json(parser: argparse.ArgumentParser) -> None:
    """Data for programs instead of text for people."""
    parser.add_argument("--json", action="store_true", help="write JSON instead of text")


def add_cluster(parser: argparse.ArgumentParser) -> None:
    """Devices and links."""
    parser.add_argument(
        "-d",
        "--devices",
        metavar="DEVICES",
        help='devices such as "4x8GiB" or "2xh100:80GB,cpu:256GB", or a .json or .toml file',
    )
    parser.add_argument(
        "--link", metavar="LATENCY,RATE", help='one link for all pairs, such as "10us,12GB/s"'
    )
    parser.add_argument(
        "--channels",
        choices=("duplex", "serial", "parallel"),
        help="which transfers exclude each other",
    )


def add_rules(parser: argparse.ArgumentParser, default: str | None = "physical") -> None:
    """The rules of a placement's cost."""
    parser.add_argument("--rules", choices=RULES, default=default, help="what a placement costs")
    parser.add_argument(
        "--retention",
        choices=("liveness", "training"),
        default="liveness" if default else None,
        help="how long outputs of forward ops stay",
    )


def add_placing(parser: argparse.ArgumentParser) -> None:
    """What `baechi.place` takes besides the algorithm."""
    add_rules(parser)
    parser.add_argument(
        "--favorites", choices=("lp", "greedy", "none"), help="how m-SCT finds favorite children"
    )
    parser.add_argument("--threshold", type=float, help="of m-SCT's rounding")
    parser.add_argument("--seed", type=int, default=0, help="of the random placement")
    parser.add_argument(
        "--no-repair", action="store_true", help="do not search on where a placer ran out of memory"
    )


def placing_options(arguments: argparse.Namespace) -> dict[str, Any]:
    """Keyword arguments of `baechi.place`."""
    return {
        "rules": arguments.rules,
        "retention": arguments.retention,
        "favorites": arguments.favorites,
        "threshold": arguments.threshold,
        "seed": arguments.seed,
        "repair": not arguments.no_repair,
    }


def read_graph(path: str) -> Graph:
    """The graph of a file or of stdin."""
    from baechi.formats import load_graph

    with file_named(path) as file, progress(f"reading {path}"):
        return load_graph(file)


def read_cluster(arguments: argparse.Namespace, *defaults: Cluster | None) -> Cluster:
    """The cluster of `--devices`, or the first default that there is, with the links asked for."""
    from baechi.cluster import Cluster, as_cluster

    found: Any = arguments.devices or next((known for known in defaults if known), None)
    if found is None:
        raise InputError("no devices were given", hint="say --devices 4x8GiB, or name a file")
    cluster = as_cluster(found)
    channels = arguments.channels or cluster.channels
    if arguments.link is not None:
        return Cluster(cluster.devices, given_link(arguments.link), _channels(channels))
    return cluster if arguments.channels is None else cluster.with_channels(channels)


@contextlib.contextmanager
def file_named(path: str) -> Iterator[str]:
    """The path; for - that of a file with what stdin had."""
    if path != "-":
        yield path
        return
    with tempfile.TemporaryDirectory(prefix="baechi-") as folder:
        file = Path(folder, "stdin")
        file.write_bytes(sys.stdin.buffer.read())
        yield str(file)


def given_link(text: str) -> Any:
    """The link of `--link`."""
    from baechi.cluster import Link
    from baechi.units import parse_bandwidth, parse_ns

    latency, comma, rate = text.partition(",")
    if not comma:
        raise InputError(f'--link "{text}" is not latency,rate', hint='write "10us,12GB/s"')
    return Link(parse_ns(latency), parse_bandwidth(rate))


def _channels(channels: str) -> str:
    if channels == "custom":
        raise InputError(
            "--link takes the place of all links, but these devices have channels of their own",
            hint="say --channels too, or change the links in the file",
        )
    return channels
