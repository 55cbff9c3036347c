"""Clusters that are none, and graphs that do not go with theirs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from baechi.builder import GraphBuilder
from baechi.cluster import Cluster, Device, Link
from baechi.errors import InputError, OutOfMemoryError, PlacementError
from baechi.placement import place
from refusals import Refusal, chain, refusal

__all__ = ["REFUSED_CLUSTERS"]

GIB = 2**30


def cluster(name: str, *words: str, devices: Any = "2x8GiB", **rest: Any) -> Refusal:
    return refusal(name, lambda _: Cluster(devices, **rest), *words)


def device(row: str, /, *words: str, **fields: Any) -> Refusal:
    given = {"name": "d", "kind": "gpu", "memory_bytes": GIB, **fields}
    return refusal(row, lambda _: Device(**given), *words)


def document(name: str, content: Any, *words: str, suffix: str = ".json") -> Refusal:
    """A cluster file of that text, or of that value as JSON."""

    def call(folder: Path) -> Cluster:
        path = folder / f"cluster{suffix}"
        if isinstance(content, bytes):
            path.write_bytes(content)
        else:
            path.write_text(content if isinstance(content, str) else json.dumps(content))
        return Cluster.load(path)

    return refusal(name, call, f"cluster{suffix}", *words)


def placed(name: str, *words: str, op: Any = None, devices: Any = "2x8GiB", error: Any) -> Refusal:
    def call(_: Path) -> Any:
        builder = GraphBuilder(("gpu", "cpu"))
        builder.op("first", 5)
        builder.op(**{"name": "stuck", "compute_ns": 5, **(op or {})})
        return place(builder.build(), Cluster(devices), "m-etf")

    return refusal(name, call, *words, error=error or InputError)


ONE_WAY = {("a", "b"): Link(5, 0)}
TWO = {"a": GIB, "b": GIB}
PLAIN = {"devices": [{"name": "d", "memory": 5}]}

REFUSED_CLUSTERS = [
    cluster("no devices", "at least one device", devices=[]),
    cluster("no devices as a mapping", "at least one device", devices={}),
    cluster("nothing for devices", '"" in ""', devices=""),
    cluster("None for devices", "None", devices=None),
    cluster("a number for devices", "7", devices=7),
    cluster("zero devices", '"0x8GiB"', "0 devices", devices="0x8GiB"),
    cluster("a billion devices", "999999999", devices="999999999x1GiB"),
    cluster("a size that is none", "'8Gib/s'", devices="8Gib/s"),
    cluster("a size of 2^62", str(2**62), devices={"a": 2**62}),
    cluster("a negative size", "-5", "negative", devices={"a": -5}),
    cluster("a size that is NaN", "nan", devices={"a": float("nan")}),
    cluster("a size that is infinite", "inf", devices={"a": float("inf")}),
    cluster("a size of 1e400 bytes", "1e99", devices="1e99"),
    cluster("a device name twice", '"d"', devices=[Device("d", "gpu", 1), Device("d", "gpu", 2)]),
    cluster("devices of another kind of thing", "'8GiB'", devices=["8GiB"]),
    cluster("a link missing", '"b" to "a"', "only the other way", devices=TWO, links=ONE_WAY),
    cluster("links of unknown devices", '"z"', links={("gpu:0", "z"): Link(1, 1)}),
    cluster("a link to itself", '"gpu:0" to itself', links={("gpu:0", "gpu:0"): Link(1, 1)}),
    cluster("a link that is text", "'fast'", links="fast"),
    cluster("a link of one name", "'gpu:0'", links={"gpu:0": Link(1, 1)}),
    cluster("latencies of another shape", "(3, 3)", "(2, 2)", links=(np.zeros((3, 3)), 0)),
    cluster("a NaN latency", "latency_ns", "whole", links=(np.full((2, 2), np.nan), 0)),
    cluster("a negative rate", "bytes_per_s", "below 0", links=(0, -5)),
    cluster("a latency of 2^62", "latency_ns", str(2**62), links=(2**62, 0)),
    cluster("a latency of 2^70", "latency_ns", links=(2**70, 0)),
    cluster("ragged latencies", "latency_ns is not a matrix", links=([[1, 2], [3]], 0)),
    cluster("unknown channels", '"triplex"', channels="triplex"),
    cluster("a number of channels", "channels", channels=3),
    cluster("a channel beyond all links", "send channel", "8", channels=(np.full((2, 2), 99), 0)),
    cluster("a channel below -1", "receive channel", "-1", channels=(0, np.full((2, 2), -2))),
    refusal("a negative latency", lambda _: Link(-1, 0), "-1", "negative"),
    refusal("a rate of text", lambda _: Link(0, "fast"), "'fast'"),
    refusal("a fractional latency", lambda _: Link("1.5ns", 0), "'1.5ns'"),
    device("a speed of 0", '"d" has speed 0', speed=0),
    device("a speed of NaN", '"d" has speed nan', speed=float("nan")),
    device("an infinite speed", "speed inf", speed=float("inf")),
    device("a speed beyond floats", '"d" has speed', speed=10**400),
    device("more reserve than memory", '"d" reserves 2 GiB of 1 GiB', reserve_bytes=2 * GIB),
    device("a device without a name", "name", "''", name=""),
    device("a kind that is a number", "kind", "7", kind=7),
    device("a device name that is not UTF-8", "\\ud800", name="\ud800"),
    refusal(
        "columns of unequal length",
        lambda _: Cluster.from_arrays([1, 2], names=["a"]),
        "[1, 2, 2, 2, 2]",
    ),
    refusal("memory that is one number", lambda _: Cluster.from_arrays(5), "5"),
    document("an empty cluster file", "", "line 1"),
    document("a cluster of a list", [1, 2], "[1, 2]"),
    document("another cluster schema", {**PLAIN, "schema": 9}, "schema 9"),
    document("an unknown cluster entry", {**PLAIN, "linkz": 1}, '"linkz"'),
    document("a cluster without devices", {"links": None}, '"devices"'),
    document("devices that are a number", {"devices": 5}, "devices", "5"),
    document(
        "a device with a typing error", {"devices": [{"name": "d", "memroy": 5}]}, '"memory_bytes"'
    ),
    document("a NaN for the memory", '{"devices": {"d": NaN}}', "NaN is not a number"),
    document("links that are a text", {**PLAIN, "links": "fast"}, "links", "'fast'"),
    document(
        "latency by name of a list",
        {**PLAIN, "links": {"latency": {}, "bandwidth": 1}},
        "latency_ns",
    ),
    document("a deep cluster file", "[" * 100_000 + "]" * 100_000, "nested too deeply"),
    document("a cluster file that is not UTF-8", b"\xff\xfe{}", "utf-8"),
    document("a long number", '{"devices": {"d": 1' + "0" * 5_000 + "}}", "d"),
    document("a key twice in a cluster", '{"devices": "8GiB", "devices": "9GiB"}', '"devices"'),
    document("channels of unknown names", {**PLAIN, "channels": {"send": 1}}, '"receive"'),
    document("channels that are a list", {**PLAIN, "channels": [1, 2]}, "channels"),
    document("hosts that are a number", {"hosts": 3}, "hosts"),
    document("a host without a name", {"hosts": [{"devices": "8GiB"}]}, "hosts[0]", '"name"'),
    document(
        "two hosts without a network",
        {"hosts": [{"name": name, "devices": "8GiB"} for name in "ab"]},
        "network",
        '"a/gpu:0"',
    ),
    document(
        "channels of a host by number",
        {
            "hosts": [
                {
                    "name": "a",
                    "devices": "2x8GiB",
                    "channels": [],
                    "link": {"latency": 1, "bandwidth": 1},
                }
            ]
        },
        "hosts[0]",
        "[]",
    ),
    document(
        "links in both forms",
        {
            "devices": {"a": 5, "b": 5},
            "links": [{"between": ["a", "b"], "source": "a", "latency": 1, "bandwidth": 1}],
        },
        "links[0]",
    ),
    document(
        "a link between numbers",
        {"devices": {"a": 5, "b": 5}, "links": [{"between": [1, 2], "latency": 1, "bandwidth": 1}]},
        "links[0]",
        "1",
    ),
    document("broken TOML", "devices = [", suffix=".toml"),
    document("a date for the memory", "[devices]\nd = 2020-01-01", "2020", suffix=".toml"),
    document("infinite memory in TOML", "[devices]\nd = inf", "inf", suffix=".toml"),
    document(
        "deep TOML", "devices = " + "[" * 50_000 + "]" * 50_000, "nested too deeply", suffix=".toml"
    ),
    placed(
        "a device of no kind of the graph",
        '"tpu:0"',
        '"tpu"',
        "gpu, cpu",
        devices="1xtpu:8GiB",
        error=None,
    ),
    placed(
        "an op for a kind that is not there",
        '"stuck"',
        op={"compute_ns": {"cpu": 5}},
        error=PlacementError,
    ),
    placed(
        "a pin to a device that is not there",
        '"gpu:7"',
        "gpu:0, gpu:1",
        op={"allowed_devices": ["gpu:7"]},
        error=None,
    ),
    placed(
        "an op larger than any device",
        '"stuck"',
        "9 GiB",
        "8 GiB",
        op={"persistent_bytes": 9 * GIB},
        error=OutOfMemoryError,
    ),
    placed(
        "no memory at all",
        '"stuck"',
        "1 B",
        "0 B",
        devices="2x0",
        op={"persistent_bytes": 1},
        error=OutOfMemoryError,
    ),
    placed(
        "all memory reserved",
        '"stuck"',
        "1 B",
        "0 B",
        devices=[Device("d", "gpu", 9, 9)],
        op={"scratch_bytes": 1},
        error=OutOfMemoryError,
    ),
    refusal("no cluster", lambda _: place(chain()), "no cluster was given"),
    refusal("a cluster that is a number", lambda _: place(chain(), 7), "7"),
    refusal(
        "latencies beyond any schedule",
        lambda _: place(chain(), Cluster("2x8GiB", Link(2**61, 0))),
        "64-bit",
    ),
    refusal(
        "a bandwidth of nearly nothing",
        lambda _: place(chain(persistent_bytes=0), Cluster("2x8GiB", Link(2**60, 1)), "single"),
        "64-bit",
    ),
    refusal(
        "speeds that make times endless",
        lambda _: place(chain(), Cluster([Device("d", "gpu", 9, speed=5e-324)])),
        "64-bit",
    ),
]
