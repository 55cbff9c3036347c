import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import baechi
from baechi.cluster import Cluster, Device, Link, as_cluster
from baechi.errors import InputError

GIB = 2**30


def test_columns_have_the_types_of_the_border_and_are_read_only() -> None:
    cluster = Cluster("2x8GiB", Link(1, 12e9))  # type: ignore[arg-type]
    types = {
        "memory_bytes": np.int64,
        "reserve_bytes": np.int64,
        "speed": np.float64,
        "latency_ns": np.int64,
        "bytes_per_s": np.int64,
        "send_channel": np.int32,
        "recv_channel": np.int32,
    }
    for name, dtype in types.items():
        column = getattr(cluster, name)
        assert column.dtype == dtype
        assert column.flags.c_contiguous
        with pytest.raises(ValueError, match="read-only"):
            column[...] = 0
    with pytest.raises(AttributeError):
        cluster.channels = "serial"  # type: ignore[misc]


def test_columns_of_the_caller_are_copied() -> None:
    latency_ns = np.array([[0, 1], [1, 0]])
    cluster = Cluster("2x8GiB", (latency_ns, 1))
    latency_ns[:] = 9
    assert cluster.latency_ns.tolist() == [[0, 1], [1, 0]]


def test_an_unknown_device_is_named_with_those_that_exist() -> None:
    with pytest.raises(InputError, match=r'no device "tpu:0"\nhint: the devices are gpu:0, gpu:1'):
        Cluster("2x8GiB").index("tpu:0")


def test_memory_can_be_replaced_for_all_or_by_name() -> None:
    cluster = Cluster("2x8GiB", channels="serial")
    assert cluster.with_memory("4GiB").memory_bytes.tolist() == [4 * GIB] * 2
    changed = cluster.with_memory({"gpu:1": 7})
    assert changed.memory_bytes.tolist() == [8 * GIB, 7]
    assert (changed.channels, changed.links_assumed) == ("serial", True)
    with pytest.raises(InputError, match='no device "x"'):
        cluster.with_memory({"x": 7})


def test_channels_can_be_replaced() -> None:
    cluster = Cluster("2x8GiB", Link(1, 1))
    changed = cluster.with_channels("parallel")
    assert changed.channels == "parallel"
    assert not changed.links_assumed
    assert changed != cluster
    assert changed.with_channels("duplex") == cluster


def test_arrays_make_a_cluster() -> None:
    cluster = Cluster.from_arrays(
        np.array([10, 20]),
        links=([[0, 1], [2, 0]], 5),
        channels="serial",
        kinds=["gpu", "cpu"],
        reserve_bytes=np.array([1, 2]),
        speed=np.array([1.0, 0.5]),
    )
    assert cluster.names == ("gpu:0", "cpu:0")
    assert cluster.reserve_bytes.tolist() == [1, 2]
    assert cluster.speed.tolist() == [1.0, 0.5]
    assert cluster.latency_ns.tolist() == [[0, 1], [2, 0]]
    with pytest.raises(InputError, match=r"lengths \[2, 2, 2, 1, 2\]"):
        Cluster.from_arrays([1, 2], reserve_bytes=[0])


def test_the_fingerprint_covers_every_column_and_name() -> None:
    def device(**fields: Any) -> Device:
        return Device(**{"name": "a", "kind": "gpu", "memory_bytes": 10, **fields})

    other = Device("b", "gpu", 10)
    changes: list[dict[str, Any]] = [
        {},
        {"name": "c"},
        {"kind": "cpu"},
        {"memory_bytes": 11},
        {"reserve_bytes": 1},
        {"speed": 2.0},
    ]
    clusters = [Cluster([device(**change), other], Link(1, 1)) for change in changes]
    clusters.append(Cluster([other, device()], Link(1, 1)))
    clusters += [Cluster([device(), other], link) for link in (Link(2, 1), Link(1, 2))]
    clusters += [Cluster([device(), other], Link(1, 1), name) for name in ("serial", "parallel")]
    assert len({cluster.fingerprint for cluster in clusters}) == len(clusters)
    assert len(set(clusters)) == len(clusters)


def test_an_assumed_link_equals_the_same_link_given() -> None:
    assert Cluster("2x8GiB") == Cluster("2x8GiB", Link(10_000, 12 * 10**9))
    assert Cluster("2x8GiB") != "2x8GiB"


def test_whatever_describes_a_cluster_is_one(tmp_path: Path) -> None:
    cluster = Cluster("2x8GiB")
    path = tmp_path / "two.json"
    cluster.save(path)
    assert as_cluster(cluster) is cluster
    for value in ("2x8GiB", path, str(path), {"gpu:0": "8GiB", "gpu:1": 8 * GIB}, cluster.devices):
        assert as_cluster(value) == cluster


class Kinds:
    """The part of a graph that flattening a cluster reads."""

    def __init__(self, *kinds: str, allowed: tuple[tuple[str, ...], ...] = ()) -> None:
        self.device_kinds = kinds
        self.allowed_sets = allowed


@pytest.fixture
def flattened(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Flattens a cluster and returns what crossed the border, in order."""
    core = types.SimpleNamespace(FlatCluster=lambda *columns: columns)
    monkeypatch.setitem(sys.modules, "baechi._core", core)
    monkeypatch.setattr(baechi, "_core", core, raising=False)
    return lambda cluster, graph: cluster.flatten(graph)


def test_a_graph_with_one_kind_fits_every_device(flattened: Any) -> None:
    columns = flattened(Cluster("gpu:1GB,cpu:1GB"), Kinds("anything"))
    assert columns[2].tolist() == [0, 0]
    assert [column.dtype for column in columns] == [
        *("int64", "int64", "int32", "float64", "int64", "int64", "int32", "int32", "uint8")
    ]
    assert columns[8].shape == (0, 2)


def test_kinds_and_allowed_sets_are_numbered_as_in_the_graph(flattened: Any) -> None:
    cluster = Cluster("2xgpu:1GB,cpu:1GB")
    graph = Kinds("cpu", "gpu", allowed=(("gpu:1",), ("cpu:0", "gpu:0")))
    columns = flattened(cluster, graph)
    assert columns[2].tolist() == [1, 1, 0]
    assert columns[8].tolist() == [[0, 1, 0], [1, 0, 1]]


def test_a_kind_that_the_graph_has_no_times_for_is_named(flattened: Any) -> None:
    with pytest.raises(InputError, match=r'device "tpu:0" is of kind "tpu", .* cpu, gpu'):
        flattened(Cluster("gpu:1GB,tpu:1GB"), Kinds("cpu", "gpu"))


def test_an_allowed_device_that_is_not_there_is_named(flattened: Any) -> None:
    graph = Kinds("gpu", allowed=(("gpu:0",), ("gpu:0", "gpu:9")))
    with pytest.raises(InputError, match=r'allowed set 1\): the cluster has no device "gpu:9"'):
        flattened(Cluster("2x1GB"), graph)
