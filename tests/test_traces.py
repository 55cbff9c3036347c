"""Traces: events that a viewer accepts, with the times and bytes of the schedule."""

from __future__ import annotations

import json
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import jsonschema
import pytest

import baechi
from baechi import Cluster, workloads
from baechi.report import replay, trace_text

# The JSON trace event format, as far as we use it.
SCHEMA = json.loads((Path(__file__).parent / "data" / "trace-schema.json").read_text())
CHANNELS = ("duplex", "serial", "parallel")


def trace_of(channels: str = "duplex") -> tuple[baechi.Schedule, list[dict[str, Any]]]:
    graph = workloads.transformer_like(layers=1, seed=0)
    cluster = Cluster("3x512MiB", baechi.Link("10us", "12GB/s"), channels)
    schedule = replay(baechi.place(graph, cluster, "round-robin"))
    document = json.loads(trace_text(schedule))
    jsonschema.validate(document, SCHEMA)
    return schedule, document["traceEvents"]


def test_the_schema_refuses_what_a_viewer_would() -> None:
    for wrong in ({"name": "a", "ph": "X", "pid": 0, "tid": 0, "ts": 1}, {"ph": "C"}, {"ph": "Z"}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate({"traceEvents": [wrong]}, SCHEMA)


@pytest.mark.parametrize("channels", CHANNELS)
def test_every_op_and_transfer_is_there_once_on_each_of_its_tracks(channels: str) -> None:
    schedule, events = trace_of(channels)
    kinds = Counter(event["cat"] for event in events if event["ph"] == "X")
    tracks = {"duplex": 2, "serial": 2, "parallel": 1}[channels]
    num_transfers = tracks * len(schedule.transfers.tensor)
    assert kinds == {"op": schedule.graph.num_ops, "transfer": num_transfers}


def test_times_are_those_of_the_schedule_in_microseconds() -> None:
    schedule, events = trace_of()
    ops = {event["name"]: event for event in events if event.get("cat") == "op"}
    for at, name in enumerate(schedule.graph.op_names):
        assert ops[name]["pid"] == schedule.device[at]
        assert round(ops[name]["ts"] * 1000) == schedule.start_ns[at]
        assert round((ops[name]["ts"] + ops[name]["dur"]) * 1000) == schedule.end_ns[at]


@pytest.mark.parametrize("channels", CHANNELS)
def test_slices_of_a_track_do_not_overlap_unless_transfers_have_no_channel(channels: str) -> None:
    _, events = trace_of(channels)
    tracks: dict[tuple[int, int], list[tuple[float, float]]] = {}
    for event in events:
        if event["ph"] == "X" and (event["cat"] == "op" or channels != "parallel"):
            track = tracks.setdefault((event["pid"], event["tid"]), [])
            track.append((event["ts"], event["ts"] + event["dur"]))
    for slices in tracks.values():
        slices.sort()
        for (_, end), (start, _) in pairwise(slices):
            assert start >= end - 1e-6


def test_a_flow_leads_from_the_producer_over_the_transfer_to_the_consumer() -> None:
    schedule, events = trace_of()
    transfers, graph = schedule.transfers, schedule.graph
    flows: dict[int, list[dict[str, Any]]] = {}
    for event in events:
        if event["ph"] in "stf":
            flows.setdefault(event["id"], []).append(event)
    assert len(flows) == len(transfers.tensor)
    for at, steps in flows.items():
        assert "".join(step["ph"] for step in steps) == "sttf"
        producer = graph.tensor_producer[transfers.tensor[at]]
        assert steps[0]["pid"] == schedule.device[producer]
        assert steps[-1]["pid"] == schedule.device[transfers.consumer[at]]
        assert steps[0]["ts"] <= steps[1]["ts"] <= steps[-1]["ts"]


def test_counters_reach_the_peaks() -> None:
    schedule, events = trace_of()
    highest = [0] * schedule.cluster.num_devices
    for event in events:
        if event["ph"] == "C":
            highest[event["pid"]] = max(highest[event["pid"]], sum(event["args"].values()))
    assert highest == schedule.peak_bytes.tolist()


def test_a_plan_writes_its_trace(tmp_path: Path) -> None:
    plan = baechi.place(workloads.chain(3, seed=0), "2x1GiB")
    plan.trace(tmp_path / "plan.json")
    jsonschema.validate(json.loads((tmp_path / "plan.json").read_text()), SCHEMA)
