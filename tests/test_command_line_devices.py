import json
from pathlib import Path

import pytest
import torch

from baechi.cli import main
from baechi.cluster import Cluster
from baechi.torch import detection, machine

Capture = pytest.CaptureFixture[str]
CARDS = tuple(
    machine.FoundDevice(f"cuda:{k}", "NVIDIA H200", "h200", 140 * 2**30) for k in range(2)
)


@pytest.fixture
def two_cards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(detection, "accelerators", lambda: CARDS)


@pytest.mark.usefixtures("two_cards")
def test_devices_writes_a_cluster_of_the_accelerators(tmp_path: Path, capsys: Capture) -> None:
    path = tmp_path / "here.json"
    assert main(["devices", "-o", str(path), "--reserve", "1GiB"]) == 0
    cluster = Cluster.load(path)
    assert (cluster.names, cluster.kinds) == (("cuda:0", "cuda:1"), ("h200", "h200"))
    assert cluster.reserve_bytes.tolist() == [2**30] * 2
    assert cluster.bytes_per_s[0, 1] == 390 * 10**9
    text = capsys.readouterr()
    assert "2 devices with 278 GiB" in text.out
    assert "cuda:1: NVIDIA H200, 140 GiB" in text.err
    assert "links assumed: peer link nvlink4" in text.err
    assert f"the cluster is in {path}" in text.err


@pytest.mark.usefixtures("two_cards")
def test_devices_as_json_with_the_cpu(capsys: Capture) -> None:
    assert main(["devices", "--json", "--with-cpu"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["num_devices"], found["links_assumed"], found["file"]) == (3, True, None)
    assert Cluster.from_json_dict(found["cluster"]).kinds == ("h200", "h200", "cpu")


def test_without_an_accelerator_the_cpu_is_described_and_it_is_said(
    monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setattr(detection, "accelerators", lambda: ())
    assert main(["devices", "--json"]) == 0
    text = capsys.readouterr()
    assert [d["kind"] for d in json.loads(text.out)["cluster"]["devices"]] == ["cpu"]
    assert "this machine has no accelerator" in text.err


def test_pytorchs_accelerators_are_what_is_found() -> None:
    count = torch.accelerator.device_count() if torch.accelerator.is_available() else 0
    assert len(machine.accelerators()) == count


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-o", "here.toml"], "here.toml: a cluster is written as .json"),
        (["--reserve", "much"], "'much' is not a size"),
        (["--reserve", "9TiB"], "reserves 9 TiB of"),
    ],
)
def test_a_mistake_ends_with_code_2(arguments: list[str], message: str, capsys: Capture) -> None:
    assert main(["devices", *arguments]) == 2
    assert message in capsys.readouterr().err
