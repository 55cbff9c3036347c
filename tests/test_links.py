from typing import Any

import numpy as np
import pytest

from baechi.cluster import Cluster, Link
from baechi.errors import InputError


def test_links_are_assumed_where_none_are_given() -> None:
    cluster = Cluster("2x8GiB")
    assert cluster.links_assumed
    assert "links assumed" in repr(cluster)
    assert cluster.latency_ns.tolist() == [[0, 10_000], [10_000, 0]]
    assert cluster.bytes_per_s.tolist() == [[0, 12 * 10**9], [12 * 10**9, 0]]


def test_one_link_serves_every_ordered_pair() -> None:
    cluster = Cluster("3x8GiB", Link(5, 0))
    assert not cluster.links_assumed
    assert cluster.latency_ns.tolist() == [[0, 5, 5], [5, 0, 5], [5, 5, 0]]
    assert not cluster.bytes_per_s.any()


def test_links_may_differ_by_direction() -> None:
    cluster = Cluster("2x8GiB", {("gpu:0", "gpu:1"): Link(1, 2), ("gpu:1", "gpu:0"): Link(3, 4)})
    assert cluster.latency_ns.tolist() == [[0, 1], [3, 0]]
    assert cluster.bytes_per_s.tolist() == [[0, 2], [4, 0]]


@pytest.mark.parametrize(
    ("links", "message"),
    [
        ({("gpu:0", "gpu:1"): Link(1, 1)}, 'no link from "gpu:1" to "gpu:0", only the other way'),
        ({}, 'no link from "gpu:0" to "gpu:1"\n'),
        ({("gpu:0", "gpu:7"): Link(1, 1)}, '"gpu:7"'),
        ({("gpu:0", "gpu:0"): Link(1, 1)}, "to itself"),
        ({"gpu:0": Link(1, 1)}, "not a link of a"),
        ({("gpu:0", "gpu:1"): 5}, "not a link of a"),
        (5, "5 is not a link"),
        (([[0, 1, 1]] * 3, 1), r"latency_ns has shape \(3, 3\), the cluster needs \(2, 2\)"),
        (([[0, 1], [1]], 1), "latency_ns is not a matrix"),
        (([[0, -1], [1, 0]], 1), "latency_ns holds numbers below 0"),
        ((1, [[0, float("nan")], [1, 0]]), "bytes_per_s holds something that is not a whole"),
        ((1, 0.5), "bytes_per_s holds something that is not a whole"),
        ((1, "fast"), "bytes_per_s holds something that is not a whole"),
    ],
)
def test_links_that_do_not_cover_the_cluster_are_named(links: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        Cluster("2x8GiB", links)


@pytest.mark.parametrize("figures", [(-1, 1), (1, -1), (0.5, 1), (1, float("inf"))])
def test_a_link_refuses_impossible_figures(figures: Any) -> None:
    with pytest.raises(InputError):
        Link(*figures)


def test_serial_has_one_channel_per_device() -> None:
    cluster = Cluster("3x8GiB", channels="serial")
    assert cluster.send_channel.tolist() == [[-1, 0, 0], [1, -1, 1], [2, 2, -1]]
    assert cluster.recv_channel.tolist() == [[-1, 1, 2], [0, -1, 2], [0, 1, -1]]
    assert cluster.channel_names() == ("gpu:0", "gpu:1", "gpu:2")


def test_duplex_has_one_channel_out_and_one_in_per_device() -> None:
    cluster = Cluster("2x8GiB", channels="duplex")
    assert cluster.send_channel.tolist() == [[-1, 0], [2, -1]]
    assert cluster.recv_channel.tolist() == [[-1, 3], [1, -1]]
    assert cluster.channel_names() == ("gpu:0 out", "gpu:0 in", "gpu:1 out", "gpu:1 in")


def test_parallel_has_no_channels() -> None:
    cluster = Cluster("2x8GiB", channels="parallel")
    assert (cluster.send_channel == -1).all()
    assert (cluster.recv_channel == -1).all()
    assert cluster.channel_names() == ()


def test_channels_may_be_given_as_ids() -> None:
    switch = np.zeros((3, 3), np.int32)
    cluster = Cluster("3x8GiB", channels=(switch, switch))
    assert cluster.channels == "custom"
    assert cluster.channel_names() == ("channel 0",)


def test_given_channels_that_equal_a_named_rule_take_its_name() -> None:
    named = Cluster("3x8GiB", channels="serial")
    given_as_ids = Cluster("3x8GiB", channels=(named.send_channel, named.recv_channel))
    assert given_as_ids.channels == "serial"
    assert given_as_ids == named


@pytest.mark.parametrize(
    "channels",
    ["half", None, 3, ([[0]], [[0]]), ([[0, 8], [0, 0]], 0), ([[0, -2], [0, 0]], 0), (0.5, 0)],
)
def test_channels_that_cannot_be_read_are_refused(channels: Any) -> None:
    with pytest.raises(InputError, match="channel"):
        Cluster("2x8GiB", channels=channels)


def test_channels_of_one_device_in_one_direction_have_different_names() -> None:
    send = [[-1, 0, 1], [2, -1, 2], [3, 3, -1]]
    receive = [[-1, 4, 5], [6, -1, 5], [6, 4, -1]]
    names = Cluster("3x1GiB", channels=(send, receive)).channel_names()
    assert names[:3] == ("gpu:0 out, channel 0", "gpu:0 out, channel 1", "gpu:1 out")
    assert len(set(names)) == 7
