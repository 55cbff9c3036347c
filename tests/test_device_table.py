from pathlib import Path
from typing import Any

import pytest

from baechi.device_table import (
    DTYPES,
    OP_CLASSES,
    assumed_link,
    device_table,
    load_device_table,
)
from baechi.errors import InputError
from baechi.links import Link

TABLE = device_table()
PACKAGED = (
    Path(__file__).parent.parent.joinpath("python", "baechi", "devices.toml").read_text("utf-8")
)


@pytest.mark.parametrize("kind", TABLE.kinds.values(), ids=lambda kind: kind.name)
def test_every_figure_of_a_row_has_a_source(kind: Any) -> None:
    figures = ["memory", "bandwidth", "launch", "host_link", "peer_link"]
    for figure in [*figures, *(f"peak.{dtype}" for dtype in kind.flops_per_s)]:
        assert len(kind.source_of(figure)) > 5


@pytest.mark.parametrize("kind", TABLE.kinds.values(), ids=lambda kind: kind.name)
def test_narrower_types_are_never_slower(kind: Any) -> None:
    peaks = kind.flops_per_s
    assert peaks.get("fp64", 0) <= peaks["fp32"] <= kind.peak_flops_per_s("tf32")
    assert kind.peak_flops_per_s("fp16") <= kind.peak_flops_per_s("fp8")
    assert kind.memory_bytes_per_s > 10**10
    assert set(kind.efficiency) == {*OP_CLASSES, "memory"}
    assert set(peaks) <= set(DTYPES)


@pytest.mark.parametrize(
    ("name", "row"),
    [
        ("NVIDIA GeForce RTX 3090", "rtx-3090"),
        ("rtx3090", "rtx-3090"),
        ("RTX 2080 Ti", "rtx-2080-ti"),
        ("NVIDIA A100-SXM4-40GB", "a100-40gb"),
        ("NVIDIA A100 80GB PCIe", "a100-80gb-pcie"),
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("NVIDIA H100 PCIe", "h100-pcie"),
        ("Tesla V100-SXM2-32GB", "v100"),
        ("Tesla T4", "t4"),
        ("NVIDIA L40S", "l40s"),
        ("Apple M4 Max", "apple-m4-max"),
        ("gpu", "generic-gpu"),
        ("CPU", "cpu"),
    ],
)
def test_the_names_that_drivers_give_find_their_row(name: str, row: str) -> None:
    assert TABLE.kind(name).name == row


def test_no_name_finds_two_rows() -> None:
    names = [n for k in TABLE.kinds.values() for n in {k.name, k.title, *k.aliases}]
    assert all(TABLE.kind(name).name in TABLE.kinds for name in names)
    for kind in TABLE.kinds.values():
        assert {TABLE.kind(n).name for n in (kind.name, kind.title, *kind.aliases)} == {kind.name}


def test_an_unknown_kind_is_an_error_that_names_what_looks_alike() -> None:
    assert TABLE.find("h1000") is None
    with pytest.raises(InputError, match='no kind "rtx-3091"\nhint: write rtx-3090'):
        TABLE.kind("rtx-3091")


def test_a_type_without_a_peak_runs_as_the_next_wider_one() -> None:
    assert TABLE.kind("a100").peak_flops_per_s("fp8") == 312 * 10**12
    assert TABLE.kind("rtx-2080").peak_flops_per_s("tf32") == 10_100_000_000_000
    assert TABLE.kind("m1").peak_flops_per_s("fp64") is None


def test_devices_with_the_same_peer_link_use_it_and_others_go_through_the_host() -> None:
    small, large, card = map(TABLE.kind, ("a100-40", "a100-80", "rtx-4090"))
    assert assumed_link(small, large) == (Link("5us", "260GB/s"), "peer link nvlink3")
    assert assumed_link(card, card) == (Link("20us", "25GB/s"), "through the host")
    old = TABLE.kind("gtx-1080")
    assert assumed_link(old, card) == (Link("20us", "12.6GB/s"), "through the host")


def test_the_host_reaches_a_device_over_that_devices_host_link() -> None:
    card, host = TABLE.kind("h100"), TABLE.kind("cpu")
    assert assumed_link(card, host) == assumed_link(host, card)
    assert assumed_link(host, card)[0] == card.host_link


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("schema = 1", "schema = 2", "schema 2, this version reads 1"),
        ("schema = 1", "schema = [", "device table"),
        ('memory = "8GiB"', "", 'kinds.gtx-1080 has no "memory"'),
        ('memory = "8GiB"', 'memory = "much"', "'much' is not a size"),
        ('bandwidth = "320GB/s"', 'bandwidth = "0GB/s"', "bandwidth is 0, not above 0"),
        ("fp32 = 8.873", "fp32 = 0", "peak.fp32 is 0"),
        ("fp32 = 8.873", "fp31 = 8", "fp31 = 8"),
        ("fp32 = 8.873, ", "", "no peak for fp32"),
        ('class = "gpu"', 'class = "tpu"', "class 'tpu' is none of gpu, cpu"),
        ('peer_link = "nvlink2"', 'peer_link = "nvlink1"', "names a link 'nvlink1'"),
        ('memory = "pascal"', 'memory = "volta"', "sources.memory names 'volta'"),
        ('memory = "pascal", ', "", 'sources has no "memory"'),
        ("matmul = 0.70", "matmul = 1.70", "efficiency.gpu.matmul is 1.7"),
        ('title = "NVIDIA GeForce GTX 1080"', 'titel = "x"\ntitle = "y"', "unknown entry 'titel'"),
    ],
)
def test_a_table_that_cannot_be_used_is_an_error_that_names_the_entry(
    tmp_path: Path, old: str, new: str, message: str
) -> None:
    assert old in PACKAGED
    path = tmp_path / "devices.toml"
    path.write_text(PACKAGED.replace(old, new, 1))
    with pytest.raises(InputError, match=r'device table ".*devices.toml"') as caught:
        load_device_table(path)
    assert message in str(caught.value)
