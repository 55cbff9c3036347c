"""Costs files: what was measured on a device, kept for later plans."""

from pathlib import Path
from typing import Any

import pytest

from baechi.errors import InputError
from baechi.torch.costs import Costs, DeviceCosts


def costs_of(kind: str, times_ns: dict[str, int], fingerprint: str = "f") -> Costs:
    return Costs({fingerprint: DeviceCosts("a device", kind, "events", "torch 2.15", times_ns)})


def test_a_costs_file_is_read_back_as_it_was(tmp_path: Path) -> None:
    costs = costs_of("h100", {"b": 2, "a": 1})
    costs.save(tmp_path / "costs.json")
    again = Costs.load(tmp_path / "costs.json")
    assert again.for_kind("h100") == {"a": 1, "b": 2}
    again.save(tmp_path / "again.json")
    assert (tmp_path / "again.json").read_bytes() == (tmp_path / "costs.json").read_bytes()


def costs_with_scratch(scratch_bytes: dict[str, int], *signatures: str) -> Costs:
    times = dict.fromkeys(signatures, 1)
    return Costs(
        {"f": DeviceCosts("a device", "h100", "events", "2.15", times, "cuda", scratch_bytes)}
    )


def test_scratch_is_kept_in_the_file_beside_the_times(tmp_path: Path) -> None:
    costs_with_scratch({"b": 512}, "a", "b").save(tmp_path / "costs.json")
    again = Costs.load(tmp_path / "costs.json")
    assert again.scratch_for("h100") == ("cuda", {"b": 512})
    assert again.scratch_for("cpu") == ("", {})


def test_a_costs_file_without_scratch_is_read_as_before(tmp_path: Path) -> None:
    costs_of("h100", {"a": 1}).save(tmp_path / "costs.json")
    assert "scratch" not in (tmp_path / "costs.json").read_text()
    assert Costs.load(tmp_path / "costs.json").scratch_for("h100") == ("", {})


def test_newer_scratch_replaces_what_was_measured_again() -> None:
    older = costs_with_scratch({"a": 1, "b": 2}, "a", "b")
    both = older.merged(costs_with_scratch({"c": 3}, "b", "c"))
    assert both.scratch_for("h100") == ("cuda", {"a": 1, "c": 3})
    assert older.merged(costs_of("h100", {"b": 3})).scratch_for("h100") == (
        "cuda",
        {"a": 1, "b": 2},
    )


def test_times_are_found_by_kind_and_newer_ones_come_first() -> None:
    both = costs_of("h100", {"a": 1, "b": 2}).merged(costs_of("h100", {"b": 3}))
    assert both.for_kind("h100") == {"a": 1, "b": 3}
    assert both.for_kind("cpu") == {}
    two = costs_of("h100", {"a": 1}, "f").merged(costs_of("h100", {"a": 5, "c": 7}, "g"))
    assert two.for_kind("h100") == {"a": 1, "c": 7}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "costs.json"),
        ("[]", '"format": "baechi costs"'),
        ('{"format": "baechi costs", "schema": 9}', "schema 9, this version reads 1"),
        ('{"format": "baechi costs", "schema": 1}', "devices is not a table"),
        ('{"format": "baechi costs", "schema": 1, "devices": {"f": {}}}', "devices.f does not"),
    ],
)
def test_a_file_that_has_no_costs_is_named(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "costs.json"
    path.write_text(text)
    with pytest.raises(InputError, match="costs file") as caught:
        Costs.load(path)
    assert message in str(caught.value)


@pytest.mark.parametrize("time_ns", [-1, 1.5, True, 2**62])
def test_a_time_that_is_none_is_an_error(tmp_path: Path, time_ns: Any) -> None:
    costs_of("cpu", {"a": time_ns}).save(tmp_path / "costs.json")
    with pytest.raises(InputError, match=r'times_ns\["a"\]'):
        Costs.load(tmp_path / "costs.json")


@pytest.mark.parametrize("nbytes", [-1, 1.5, "2"])
def test_scratch_that_is_none_is_an_error(tmp_path: Path, nbytes: Any) -> None:
    costs_with_scratch({"a": nbytes}, "a").save(tmp_path / "costs.json")
    with pytest.raises(InputError, match=r'scratch_bytes\["a"\]'):
        Costs.load(tmp_path / "costs.json")
