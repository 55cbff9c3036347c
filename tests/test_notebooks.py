"""What a notebook shows: small, escaped HTML with the figures of the thing."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest

import baechi
from baechi import Cluster, GraphBuilder, workloads
from baechi.report import replay
from baechi.units import format_bytes, format_ns

HOSTILE = '<script>alert("x")</script>'


TAGS = re.findall("[a-z]+", "div style table caption thead tbody tr th td p span i b")


class Balanced(HTMLParser):
    """Fails on a tag that is not closed; collects the text outside of styles."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.words = ""
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        assert tag in TAGS
        self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" not in self.open:
            self.words += data + "\n"


def shown(thing: object) -> str:
    text: str = thing._repr_html_()  # type: ignore[attr-defined]
    assert len(text) < 20_000
    return Balanced(text).words


@pytest.fixture(scope="module")
def plan() -> baechi.Plan:
    return baechi.place(workloads.transformer_like(layers=1, seed=0), "2x512MiB")


def test_a_plan_shows_its_step_and_the_peaks(plan: baechi.Plan) -> None:
    words = shown(plan)
    assert format_ns(plan.makespan_ns) in words
    for device in plan.devices:
        assert format_bytes(device.peak_bytes) in words
        assert all(format_bytes(size) in words for size in plan.held[device.name].values())
    assert "activations" in words
    assert "assumed" in words


def test_a_schedule_shows_its_step_and_what_is_over_the_limit() -> None:
    builder = GraphBuilder()
    builder.op("a", 10, persistent_bytes=700)
    schedule = baechi.simulate(builder.build(), Cluster({"x": 500}), [0])
    assert shown(schedule).strip().startswith("does not fit: x needs 200 B more")
    assert "10 ns" in shown(schedule)


def test_a_graph_shows_its_counts_and_bytes(plan: baechi.Plan) -> None:
    graph = replay(plan).graph
    assert f"{graph.num_ops}" in shown(graph)
    assert format_bytes(int(graph.persistent_bytes.sum())) in shown(graph)


def test_a_cluster_shows_its_devices_and_assumed_links() -> None:
    words = shown(Cluster("2xh100:80GB,cpu:256GB"))
    assert "h100:1" in words
    assert "links were not given" in words


def test_a_comparison_shows_each_algorithm_and_the_reason_of_a_failure(plan: baechi.Plan) -> None:
    compared = baechi.compare(replay(plan).graph, "2x100MiB", ["single", "m-sct"])
    words = shown(compared)
    assert "m-sct" in words
    assert "single: op" in words


def test_names_are_text_and_many_devices_are_cut() -> None:
    builder = GraphBuilder()
    builder.op(HOSTILE, 10, persistent_bytes=1)
    names = {HOSTILE: 100} | {f"d{at}": 100 for at in range(199)}
    cluster = Cluster(names, baechi.Link("1us", "1GB/s"))
    found = baechi.place(builder.build(), cluster, "single")
    for thing in (cluster, found, replay(found)):
        assert "<script" not in thing._repr_html_()
        assert HOSTILE in shown(thing)
        assert "and 136 more" in shown(thing)
