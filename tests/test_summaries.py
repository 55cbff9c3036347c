"""Summaries: the same facts at every width, and a column for all that makes up a peak."""

from __future__ import annotations

import dataclasses
import re

import pytest

import baechi
from baechi import Plan, workloads
from baechi.summaries import DeviceLine, Summary, bar
from baechi.tables import plain_text
from baechi.units import format_bytes, format_bytes_short

WIDTHS = (60, 80, 100, 120, 200)


@pytest.fixture(scope="module", params=[1, 2, 8, 64])
def plan(request: pytest.FixtureRequest) -> Plan:
    graph = workloads.transformer_like(layers=2, heads=4, seed=0)
    return baechi.place(graph, f"{request.param}x2GiB", "round-robin")


def shown(summary: Summary, width: int) -> list[str]:
    return plain_text(summary.renderables(width), width).splitlines()


def head(summary: Summary, width: int) -> list[str]:
    return next(x.split() for x in shown(summary, width) if x.split()[:1] == ["device"])


@pytest.mark.parametrize("width", WIDTHS)
def test_there_is_a_line_per_device_with_its_peak_cap_and_busy_share(
    plan: Plan, width: int
) -> None:
    lines = shown(plan.summary, width)
    assert max(map(len, lines)) <= width
    for device in plan.devices:
        (line,) = (line for line in lines if line.split()[0] == device.name)
        sizes = (device.peak_bytes, device.cap_bytes)
        written = [" / ".join(map(size, sizes)) for size in (format_bytes, format_bytes_short)]
        assert any(peak_and_cap in line for peak_and_cap in written)
        assert f"{device.busy_ns / plan.makespan_ns:.0%}" in line
        if width >= 120:
            assert f" {device.num_ops} " in line


@pytest.mark.parametrize("width", WIDTHS)
def test_what_is_shown_of_a_peak_adds_up_to_it(plan: Plan, width: int) -> None:
    lines = shown(plan.summary, width)
    factor = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30}
    for device in plan.devices:
        line = next(line for line in lines if line.split()[0] == device.name)
        cells = line.split("%")[1]
        *parts, peak, _ = [
            float(number) * factor[unit]
            for number, unit in re.findall(r"(\d[\d.]*) ?([KMG]?)(?:i?B?)(?= |$)", cells)
        ]
        # Each is rounded to a tenth of its unit.
        assert sum(parts) == pytest.approx(peak, rel=0.05, abs=2**18)


@pytest.fixture
def trained() -> Summary:
    """Two devices that hold something of everything that a PyTorch model has."""
    classes = ("weight", "buffer", "gradient", "optimizer", "activation", "scratch", "copy")
    devices = tuple(
        DeviceLine(
            name=f"cuda:{at}",
            num_ops=1234,
            busy=0.5,
            peak_bytes=7 * (10 + at) * 2**30 + 7 * 2**26,
            cap_bytes=80 * 2**30,
            held=dict.fromkeys(classes, (10 + at) * 2**30 + 2**26),
        )
        for at in range(2)
    )
    return Summary(headline="a plan", devices=devices)


def test_all_that_makes_up_a_peak_has_its_column_in_100_characters(trained: Summary) -> None:
    assert str(trained).splitlines()[1:3] == [
        "  device  busy  weights  buffers  gradients  optimizer  activations  scratch  copies"
        "     peak / cap",
        "  cuda:0   50%   10.1Gi   10.1Gi     10.1Gi     10.1Gi       10.1Gi   10.1Gi  10.1Gi"
        "  70.4Gi / 80Gi",
    ]


def test_of_everything_that_is_shown_bars_go_first_then_ops_then_long_words(
    trained: Summary,
) -> None:
    bars, ops, long_units, short_units, short_words, summed = (
        shown(trained, width) for width in (130, 117, 111, 100, 90, 70)
    )
    assert bars[2].endswith("#########.")
    assert "ops" in ops[1]
    assert "10.1 GiB" in long_units[2]
    assert "optimizer" in short_units[1]
    assert "optim " in short_words[1]
    assert "buffers" in short_words[1]
    assert "rest" in summed[1]


def test_what_is_nowhere_has_no_column(trained: Summary) -> None:
    lines = [
        dataclasses.replace(x, held={**x.held, "buffer": 0, "copy": 0}) for x in trained.devices
    ]
    found = head(Summary(headline="", devices=tuple(lines)), 100)
    assert "weights" in found
    assert not {"buffers", "copies"} & {*found}


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
