import re
from pathlib import Path
from typing import Any

import pytest
import torch

from baechi.cluster import Cluster, Device
from baechi.device_table import device_table
from baechi.errors import InputError
from baechi.links import Link
from baechi.torch import device_argument, machine
from baechi.torch.device_argument import kind_of, read_torch_devices

GIB = 2**30


def described(devices: Any) -> list[tuple[str, str, int]]:
    cluster, _ = read_torch_devices(devices)
    return [(d.name, d.kind, d.memory_bytes) for d in cluster.devices]


def test_sizes_alone_are_cuda_devices_of_the_generic_kind_and_the_notes_say_so() -> None:
    cluster, notes = read_torch_devices("2x24GiB,12GiB")
    assert described("2x24GiB,12GiB") == [
        ("cuda:0", "generic-gpu", 24 * GIB),
        ("cuda:1", "generic-gpu", 24 * GIB),
        ("cuda:2", "generic-gpu", 12 * GIB),
    ]
    assert notes[0] == "cuda:0, cuda:1, cuda:2: no kind was given, priced as generic-gpu"
    assert cluster.links_assumed


def test_kinds_are_rows_of_the_table_and_names_count_over_all_kinds() -> None:
    assert described("2xh100:80GB,rtx3090:24GiB,cpu:256GB") == [
        ("cuda:0", "h100", 80 * 10**9),
        ("cuda:1", "h100", 80 * 10**9),
        ("cuda:2", "rtx-3090", 24 * GIB),
        ("cpu", "cpu", 256 * 10**9),
    ]


def test_a_kind_alone_has_the_memory_of_the_table_and_a_note_says_so() -> None:
    _, notes = read_torch_devices("2xH200,a100-40gb")
    assert described("2xH200,a100-40gb") == [
        ("cuda:0", "h200", 141 * 10**9),
        ("cuda:1", "h200", 141 * 10**9),
        ("cuda:2", "a100-40gb", 40 * GIB),
    ]
    assert notes[:2] == (
        "h200: 131.3 GiB as in the device table",
        "a100-40gb: 40 GiB as in the device table",
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("2x24GiB,cpu", '"cpu" has no size'),
        ("2xgeneric-gpu", '"2xgeneric-gpu" has no size'),
        ("2xh300", 'the device table has no kind "h300"'),
    ],
)
def test_a_kind_alone_needs_a_size_in_the_table(text: str, message: str) -> None:
    with pytest.raises(InputError, match=re.escape(message)):
        read_torch_devices(text)


def test_links_are_those_of_the_table_and_named_as_assumed() -> None:
    cluster, notes = read_torch_devices("2xh100:80GB,rtx3090:24GiB,cpu:256GB")
    rate = {
        (a, b): int(cluster.bytes_per_s[cluster.index(a), cluster.index(b)])
        for a, b in [("cuda:0", "cuda:1"), ("cuda:0", "cuda:2"), ("cuda:0", "cpu")]
    }
    assert rate == {
        ("cuda:0", "cuda:1"): 390 * 10**9,
        ("cuda:0", "cuda:2"): 25 * 10**9,
        ("cuda:0", "cpu"): 50 * 10**9,
    }
    assert notes == (
        "links assumed: peer link nvlink4, 5 us and 390 GB/s, for cuda:0 - cuda:1",
        "links assumed: through the host, 20 us and 25 GB/s, for cuda:0 - cuda:2, cuda:1 - cuda:2",
        "links assumed: host link of h100, 10 us and 50 GB/s, for cuda:0 - cpu, cuda:1 - cpu",
        "links assumed: host link of rtx-3090, 10 us and 25 GB/s, for cuda:2 - cpu",
    )


def test_a_mapping_is_read_as_accelerate_reads_it() -> None:
    sizes = {0: "24GiB", 1: 12e9, "cpu": "64GiB"}
    assert described(sizes) == [
        ("cuda:0", "generic-gpu", 24 * GIB),
        ("cuda:1", "generic-gpu", 12 * 10**9),
        ("cpu", "cpu", 64 * GIB),
    ]


def test_any_device_is_a_key_also_of_a_type_that_nobody_heard_of() -> None:
    sizes = {"warp:3": "1GiB", torch.device("xpu", 1): "2GiB", "simdev:0": 5}
    assert [name for name, _, _ in described(sizes)] == ["warp:3", "xpu:1", "simdev:0"]


def test_a_cluster_keeps_its_links_and_channels() -> None:
    given = Cluster("h100:80GB,h100:40GB", Link("3us", "300GB/s"), "serial")
    cluster, notes = read_torch_devices(given)
    assert cluster.names == ("cuda:0", "cuda:1")
    assert cluster.bytes_per_s[0, 1] == 300 * 10**9
    assert (cluster.channels, cluster.links_assumed, notes) == ("serial", False, ())


def test_a_cluster_without_links_gets_those_of_the_table() -> None:
    cluster, _ = read_torch_devices(Cluster("2xh100:80GB", channels="serial"))
    assert cluster.bytes_per_s[0, 1] == 390 * 10**9
    assert (cluster.channels, cluster.links_assumed) == ("serial", True)


def test_a_file_is_read_and_names_of_its_own_stay(tmp_path: Path) -> None:
    path = tmp_path / "two.toml"
    path.write_text(
        'devices = [{ name = "left", kind = "a6000", memory = "48GiB", reserve = "1GiB" }]'
    )
    cluster, notes = read_torch_devices(str(path))
    assert cluster.devices == (Device("left", "a6000", 48 * GIB, GIB),)
    assert notes == ('left: kind "a6000" is not in the device table, priced as generic-gpu',)
    assert kind_of(cluster.devices[0]).name == "generic-gpu"
    assert read_torch_devices(path)[0] == cluster


def test_devices_are_taken_as_they_are() -> None:
    devices = [Device("cuda:1", "h100", 5), Device("cuda:0", "h100", 6)]
    assert read_torch_devices(devices)[0].devices == tuple(devices)


def test_nothing_means_the_accelerators_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    found = machine.FoundDevice("cuda:0", "NVIDIA H200", "h200", 140 * GIB)
    monkeypatch.setattr(device_argument, "accelerators", lambda: (found,))
    cluster, notes = read_torch_devices(None)
    assert cluster.devices == (Device("cuda:0", "h200", 140 * GIB),)
    assert "with all memory: cuda:0 140 GiB (NVIDIA H200)" in notes[0]


@pytest.mark.skipif(torch.accelerator.is_available(), reason="this machine has an accelerator")
def test_nothing_on_a_machine_without_accelerators_is_an_error() -> None:
    with pytest.raises(InputError, match='has no accelerator\nhint: say devices="2x24GiB"'):
        read_torch_devices(None)


@pytest.mark.parametrize(
    ("devices", "message"),
    [
        ("", "is not a device"),
        ("hi100:80GB", 'no kind "hi100"\nhint: write h100'),
        ("0x8GiB", "asks for 0 devices"),
        ("2x0GiB", 'device "cuda:0" has no memory to use: 0 B'),
        ({}, "at least one device"),
        ({0: 0}, 'device "cuda:0" has no memory to use'),
        ({0: 1, "cuda:0": 2}, 'two devices have the name "cuda:0"'),
        ({"cuda": 1, "cuda:0": 2}, '"cuda" and "cuda:0" are the same device'),
        ({"cpu": 1, torch.device("cpu", 0): 2}, '"cpu" and "cpu:0" are the same device'),
        ({"disk": 1}, 'no op runs on "disk"'),
        ({True: 1}, "True is not a device"),
        ({-1: 1}, "-1 is not the number of an accelerator"),
        ({0: "much"}, "'much' is not a size"),
        ([Device("a", "gpu", 5, 5)], 'device "a" has no memory to use: 5 B, of which 5 B'),
        (7, "7 does not describe devices"),
    ],
)
def test_devices_that_cannot_be_used_are_named(devices: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        read_torch_devices(devices)


def test_the_same_text_gives_the_same_cluster_whatever_this_machine_has(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = read_torch_devices({0: "8GiB", 1: "8GiB"})
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device("xpu"))
    assert read_torch_devices({0: "8GiB", 1: "8GiB"}) == before


@pytest.mark.parametrize("row", device_table().kinds)
def test_every_row_can_be_asked_for_by_name(row: str) -> None:
    assert described(f"2x{row}:1GiB")[0][1] == row
