from typing import Any

import pytest

from baechi.cluster import Cluster, Device
from baechi.errors import InputError

GIB = 2**30


def test_a_count_and_a_size_number_the_devices() -> None:
    cluster = Cluster("4x8GiB")
    assert cluster.names == ("gpu:0", "gpu:1", "gpu:2", "gpu:3")
    assert cluster.kinds == ("gpu",) * 4
    assert cluster.memory_bytes.tolist() == [8 * GIB] * 4
    assert cluster.num_devices == 4


def test_sizes_alone_are_one_device_each() -> None:
    cluster = Cluster.parse("24GiB, 12GiB")
    assert cluster.names == ("gpu:0", "gpu:1")
    assert cluster.memory_bytes.tolist() == [24 * GIB, 12 * GIB]


def test_numbers_continue_per_kind_over_items() -> None:
    cluster = Cluster("2xh100:80GB,cpu:256GB,h100:40GB")
    assert cluster.names == ("h100:0", "h100:1", "cpu:0", "h100:2")
    assert cluster.kinds == ("h100", "h100", "cpu", "h100")
    assert cluster.memory_bytes.tolist() == [80 * 10**9, 80 * 10**9, 256 * 10**9, 40 * 10**9]


def test_a_mapping_keeps_names_and_writes_integer_keys_as_text() -> None:
    cluster = Cluster({"cuda:0": "24GiB", 1: 12e9, "cpu": "1GB"})
    assert cluster.names == ("cuda:0", "1", "cpu")
    assert cluster.kinds == ("gpu", "gpu", "cpu")
    assert cluster.memory_bytes.tolist() == [24 * GIB, 12 * 10**9, 10**9]
    assert cluster.index(1) == cluster.index("1") == 1


@pytest.mark.parametrize(
    ("devices", "message"),
    [
        ("", "is not a device"),
        ("4x", "'x' is not|is not a"),
        ("8GiB,", "is not a device"),
        ("0x8GiB", "asks for 0 devices"),
        ("99999x8GiB", "asks for 99999 devices"),
        ("gpu:0:8GiB", "is not a device"),
        ("4x8Gi", "'8Gi' is not a size"),
        ("4x8GiB,2xh200", '"2xh200" in "4x8GiB,2xh200" has no size'),
        ([], "at least one device"),
        ({}, "at least one device"),
        ({"a": None}, "None is not a size"),
        ({True: 1}, "not a device name"),
        ({1: 5, "1": 5}, 'two devices have the name "1"'),
        ([Device("a", "gpu", 1), Device("a", "gpu", 1)], 'two devices have the name "a"'),
        (["8GiB"], "'8GiB' is not a device"),
        (7, "7 does not describe devices"),
    ],
)
def test_devices_that_cannot_be_read_are_named(devices: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        Cluster(devices)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"memory_bytes": -1}, '"a": memory_bytes: .*negative'),
        ({"memory_bytes": 1.5}, '"a": memory_bytes'),
        ({"memory_bytes": float("nan")}, '"a": memory_bytes'),
        ({"memory_bytes": 2**63}, '"a": memory_bytes'),
        ({"reserve_bytes": -1}, '"a": reserve_bytes'),
        ({"reserve_bytes": 11}, "reserves 11 B of 10 B"),
        ({"speed": 0}, "speed 0"),
        ({"speed": -1.0}, "speed"),
        ({"speed": float("nan")}, "speed nan"),
        ({"speed": float("inf")}, "speed inf"),
        ({"speed": "fast"}, "speed 'fast'"),
        ({"speed": True}, "speed True"),
        ({"name": ""}, "name"),
        ({"kind": 3}, "kind"),
    ],
)
def test_a_device_refuses_impossible_figures(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Device(**{"name": "a", "kind": "gpu", "memory_bytes": 10, **fields})
