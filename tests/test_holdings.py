"""Holdings: what makes up the peak of each device, against the core's peaks and curves."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import baechi
from baechi import Cluster, Device, GraphBuilder, Link
from baechi.holdings import CATEGORIES, at_peaks, curve, holders, holdings
from strategies import CHANNELS, cases, placements


def chain() -> tuple[baechi.Graph, Cluster]:
    """a (10 ns, 100 B kept, 7 B scratch) sends 50 B to b on another device."""
    builder = GraphBuilder()
    builder.op("a", 10, persistent_bytes=100, scratch_bytes=7)
    builder.op("b", 20, persistent_bytes=30)
    builder.connect("a", "b", 50)
    devices = [Device("d0", "gpu", 1000), Device("d1", "gpu", 1000)]
    return builder.build(), Cluster(devices, Link(latency_ns=10, bytes_per_s=10**9))


@given(data=st.data(), retention=st.sampled_from(["liveness", "training"]))
def test_the_categories_add_up_to_the_core_s_peaks_and_curves(
    data: st.DataObject, retention: str
) -> None:
    case = data.draw(cases(channels=data.draw(st.sampled_from(CHANNELS))))
    homes = data.draw(placements(case))
    schedule = baechi.simulate(case.graph, case.cluster, homes, retention=retention)
    held = holdings(schedule)
    sums = [sum(found.values()) for found in at_peaks(schedule, held)]
    assert sums == schedule.peak_bytes.tolist()
    for device in range(case.cluster.num_devices):
        times, by_category = curve(held, device)
        expected_times, expected = schedule.memory(device)
        assert by_category.sum(axis=0)[-1] == expected[-1]
        for time in {*times.tolist(), *expected_times.tolist()}:
            ours = np.searchsorted(times, time, side="right") - 1
            theirs = np.searchsorted(expected_times, time, side="right") - 1
            assert by_category.sum(axis=0)[ours] == expected[theirs]


def test_outputs_copies_and_scratch_have_categories_of_their_own() -> None:
    graph, cluster = chain()
    schedule = baechi.simulate(graph, cluster, {"a": "d0", "b": "d1"})
    first, second = at_peaks(schedule)
    assert first == {"persistent": 100, "activation": 50, "scratch": 7}
    assert second == {"persistent": 30, "copy": 50}


def test_holders_are_named_the_largest_first() -> None:
    graph, cluster = chain()
    schedule = baechi.simulate(graph, cluster, {"a": "d0", "b": "d1"})
    assert holders(schedule, 0) == [
        ("a", "persistent", 100),
        ("a:0", "activation", 50),
        ("a", "scratch", 7),
    ]
    assert holders(schedule, 1) == [("a:0", "copy", 50), ("b", "persistent", 30)]


@pytest.mark.parametrize("rules", ["baechi-tf", "baechi-torch"])
def test_nothing_is_said_of_peaks_that_the_originals_count_in_another_way(rules: str) -> None:
    graph, cluster = chain()
    schedule = baechi.simulate(graph, cluster, {"a": "d0", "b": "d1"}, rules=rules)
    assert at_peaks(schedule) == ({}, {})


def test_every_class_of_a_tensor_is_a_category() -> None:
    assert set(baechi.graph.MEMORY_CLASSES) < set(CATEGORIES)
