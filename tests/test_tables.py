"""Tables: the same facts at every width, the most important ones where there is little room."""

from __future__ import annotations

import re

import pytest

import baechi
from baechi import Plan, workloads
from baechi.tables import Column, DeviceLine, Summary, bar, fitted, plain_text
from baechi.units import format_bytes

WIDTHS = (60, 80, 120, 200)


@pytest.fixture(scope="module", params=[1, 2, 8, 64])
def plan(request: pytest.FixtureRequest) -> Plan:
    graph = workloads.transformer_like(layers=2, heads=4, seed=0)
    return baechi.place(graph, f"{request.param}x2GiB", "round-robin")


def shown(summary: Summary, width: int) -> list[str]:
    return plain_text(summary.renderables(width), width).splitlines()


@pytest.mark.parametrize("width", WIDTHS)
def test_there_is_a_line_per_device_with_its_peak_cap_and_busy_share(
    plan: Plan, width: int
) -> None:
    lines = shown(plan.summary, width)
    assert max(map(len, lines)) <= width
    for device in plan.devices:
        (line,) = (line for line in lines if line.split()[0] == device.name)
        peak, cap = format_bytes(device.peak_bytes), format_bytes(device.cap_bytes)
        assert f"{peak} / {cap}" in line
        assert f"{device.busy_ns / plan.makespan_ns:.0%}" in line
        assert f" {device.num_ops} " in line
        assert re.search(r"[#.]{10}", line)


@pytest.mark.parametrize("width", WIDTHS)
def test_what_is_shown_of_a_peak_adds_up_to_it(plan: Plan, width: int) -> None:
    lines = shown(plan.summary, width)
    head = next(line for line in lines if line.split()[:1] == ["device"])
    if "rest" not in head and "persistent" not in head:
        assert width == 60
        return
    factor = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
    for device in plan.devices:
        line = next(line for line in lines if line.split()[0] == device.name)
        *parts, peak, _ = [
            float(number) * factor[unit] for number, unit in re.findall(r"([\d.]+) (\w?i?B)", line)
        ]
        # Each is rounded to a tenth of its unit.
        assert sum(parts) == pytest.approx(peak, rel=0.05, abs=2**18)


def test_wide_terminals_show_more() -> None:
    graph = workloads.transformer_like(layers=2, heads=4, seed=0)
    summary = baechi.place(graph, "2x2GiB", "round-robin").summary
    heads = {
        width: next(line for line in shown(summary, width) if line.split()[:1] == ["device"])
        for width in WIDTHS
    }
    for heading in ("persistent", "weights", "activations", "gradients", "copies", "peak at"):
        assert heading in heads[200]
    assert "rest" not in heads[200]
    assert "rest" in heads[80]
    assert "peak at" not in heads[60]
    assert all("peak / cap" in head for head in heads.values())


def line(name: str, peak_bytes: int, cap_bytes: int = 100) -> DeviceLine:
    return DeviceLine(name=name, num_ops=1, busy=0.5, peak_bytes=peak_bytes, cap_bytes=cap_bytes)


def test_what_does_not_fit_comes_first() -> None:
    summary = Summary(headline="a plan", devices=(line("d0", 50), line("d1", 130)))
    assert str(summary).splitlines()[:2] == [
        "does not fit: d1 needs 30 B more than its 100 B",
        "a plan",
    ]


def test_many_deficits_are_summed_up_after_the_worst() -> None:
    devices = tuple(line(f"d{at}", 101 + at) for at in range(64))
    lines = str(Summary(headline="a plan", devices=devices)).splitlines()
    assert lines[0] == "does not fit: d63 needs 64 B more than its 100 B"
    assert lines[3] == "so do 61 other devices, 1891 B in all"
    assert lines[4] == "a plan"


def test_a_bar_is_full_at_the_cap_and_marked_above_it() -> None:
    assert [bar(share) for share in (0, 0.5, 1, 1.01)] == [
        "..........",
        "#####.....",
        "##########",
        "#########!",
    ]
    assert [bar(share, blocks=True) for share in (0, 0.55, 1)] == [
        "░░░░░░░░░░",
        "█████▌░░░░",
        "██████████",
    ]
    assert bar(2, blocks=True) == "█████████!"


def test_a_device_without_memory_has_a_line() -> None:
    assert "0 B / 0 B" in str(Summary(headline="a plan", devices=(line("d0", 0, 0),)))


def test_long_names_are_cut_but_never_the_peak() -> None:
    name = "/job:worker/replica:0/task:3/device:GPU:1"
    lines = shown(Summary(headline="a plan", devices=(line(name, 50),)), 60)
    assert "50 B / 100 B" in lines[-1]


def test_the_least_important_columns_go_first() -> None:
    ranks = {"a": 3, "b": 1, "c": 2}
    columns = [Column(heading=h, cells=["1234"], importance=at) for h, at in ranks.items()]
    assert [column.heading for column in fitted(columns, 16)] == ["a", "b", "c"]
    assert [column.heading for column in fitted(columns, 10)] == ["a", "c"]
    assert [column.heading for column in fitted(columns, 1)] == ["a"]


def test_a_column_that_is_too_wide_does_not_take_others_with_it() -> None:
    columns = [
        Column(heading=heading, cells=["x" * width], importance=importance)
        for heading, width, importance in (("a", 4, 3), ("b", 90, 2), ("c", 4, 1))
    ]
    assert [column.heading for column in fitted(columns, 60)] == ["a", "c"]


def test_names_are_never_read_as_markup() -> None:
    odd = line("[red]d0[/red]:smile:", 50)
    assert "[red]d0[/red]:smile:" in str(Summary(headline="a [b]plan[/b]", devices=(odd,)))
    assert "a [b]plan[/b]" in str(Summary(headline="a [b]plan[/b]", devices=(odd,)))


def test_names_cannot_write_on_the_terminal() -> None:
    odd = line("d\x1b[2J\n0", 50)
    text = str(Summary(headline="a\x07 plan", devices=(odd,)))
    assert "d\\x1b[2J\\n0" in text
    assert "a\\x07 plan" in text
    assert len(text.splitlines()) == 3


def test_wide_characters_count_twice() -> None:
    assert Column(heading="op", cells=["層/注意"]).width == 7
