import contextlib
import copy
import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from baechi.cluster import Cluster, Device, Link
from baechi.errors import InputError

GIB = 2**30
TWO_HOSTS = """
[[hosts]]
name = "left"
devices = "2x8GiB"
link = { latency = "1us", bandwidth = "50GB/s" }
channels = "CHANNELS"

[[hosts]]
name = "right"
devices = "12GiB"

[network]
link = { latency = "20us", bandwidth = "10GB/s" }
channels = "NETWORK"
"""


def two_hosts(folder: Path, *, channels: str, network: str) -> Cluster:
    path = folder / "cluster.toml"
    path.write_text(TWO_HOSTS.replace("CHANNELS", channels).replace("NETWORK", network))
    return Cluster.load(path)


figures = st.integers(0, 2**61)


@st.composite
def clusters(draw: st.DrawFn) -> Cluster:
    count = draw(st.integers(1, 4))
    shape = (count, count)

    def matrix(low: int, high: int) -> np.ndarray[Any, Any]:
        values = draw(st.lists(st.integers(low, high), min_size=count**2, max_size=count**2))
        return np.array(values).reshape(shape)

    devices = [
        Device(
            draw(st.sampled_from(["gpu", "näme", 'a"b\\', " "])) + str(k),
            draw(st.sampled_from(["gpu", "cpu"])),
            draw(figures),
            0,
            draw(st.floats(1e-9, 1e9)),
        )
        for k in range(count)
    ]
    links = draw(
        st.one_of(
            st.none(),
            st.builds(Link, figures, figures),
            st.builds(lambda: (matrix(0, 2**61), matrix(0, 2**61))),
        )
    )
    ids = st.builds(lambda: (matrix(-1, count), matrix(-1, count)))
    channels = draw(st.one_of(st.sampled_from(["serial", "duplex", "parallel"]), ids))
    return Cluster(devices, links, channels)


@given(clusters())
def test_json_and_pickle_give_back_an_equal_cluster(cluster: Cluster) -> None:
    text = json.dumps(cluster.to_json_dict(), sort_keys=True)
    for again in (
        Cluster.from_json_dict(json.loads(text)),
        pickle.loads(pickle.dumps(cluster)),
        copy.deepcopy(cluster),
    ):
        assert again == cluster
        assert again.channels == cluster.channels
        assert again.links_assumed == cluster.links_assumed
        assert json.dumps(again.to_json_dict(), sort_keys=True) == text
        assert not again.memory_bytes.flags.writeable


def test_a_saved_cluster_is_loaded_and_saved_byte_for_byte(tmp_path: Path) -> None:
    cluster = Cluster("2xh100:80GB,cpu:1TB", Link(3, 7), channels="serial")
    cluster.save(tmp_path / "first.json")
    Cluster.load(tmp_path / "first.json").save(tmp_path / "second.json")
    assert (tmp_path / "first.json").read_bytes() == (tmp_path / "second.json").read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["first.json", "second.json"]


def test_json_is_not_written_where_toml_would_be_read(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"written as JSON\nhint: .* ends in \.json"):
        Cluster("2x8GiB").save(tmp_path / "cluster.TOML")
    assert list(tmp_path.iterdir()) == []


def test_a_toml_file_lists_devices_and_links_as_text(tmp_path: Path) -> None:
    path = tmp_path / "home.toml"
    path.write_text(
        """
        channels = "serial"
        [[devices]]
        name = "cuda:0"
        kind = "a6000"
        memory = "48GiB"
        reserve = "1GiB"
        speed = 0.5
        [[devices]]
        name = "cpu"
        memory_bytes = 256_000_000_000
        [[links]]
        between = ["cuda:0", "cpu"]
        latency = "10us"
        bandwidth = "12GB/s"
        """
    )
    link = Link(10_000, 12 * 10**9)
    devices = [Device("cuda:0", "a6000", 48 * GIB, GIB, 0.5), Device("cpu", "gpu", 256 * 10**9)]
    assert Cluster.load(path) == Cluster(devices, link, "serial")
    assert not Cluster.load(path).links_assumed


def test_a_toml_file_may_be_one_line(tmp_path: Path) -> None:
    path = tmp_path / "short.toml"
    path.write_text('devices = "4x8GiB"')
    assert Cluster.load(path) == Cluster("4x8GiB")
    assert Cluster.load(path).links_assumed


def test_hosts_give_names_links_and_network_cards(tmp_path: Path) -> None:
    cluster = two_hosts(tmp_path, channels="duplex", network="host-duplex")
    assert cluster.names == ("left/gpu:0", "left/gpu:1", "right/gpu:0")
    assert cluster.latency_ns.tolist() == [[0, 1000, 20000], [1000, 0, 20000], [20000, 20000, 0]]
    send, receive = cluster.send_channel, cluster.recv_channel
    assert send[0, 2] == send[1, 2] != send[0, 1]
    assert receive[2, 0] == receive[2, 1] != receive[1, 0]
    assert send[0, 2] != receive[2, 0]
    assert send[0, 1] != send[1, 0] != receive[0, 1]
    assert Cluster.from_json_dict(cluster.to_json_dict()) == cluster


def test_one_card_serves_both_directions_where_it_is_serial(tmp_path: Path) -> None:
    cluster = two_hosts(tmp_path, channels="duplex", network="host-serial")
    assert cluster.send_channel[0, 2] == cluster.recv_channel[2, 1]
    assert cluster.send_channel[2, 0] == cluster.recv_channel[0, 2]
    assert cluster.send_channel[0, 2] != cluster.recv_channel[0, 2]


def test_devices_behind_one_switch_share_one_channel(tmp_path: Path) -> None:
    cluster = two_hosts(tmp_path, channels="shared", network="parallel")
    inside = {cluster.send_channel[0, 1], cluster.send_channel[1, 0], cluster.recv_channel[0, 1]}
    assert len(inside) == 1
    assert cluster.send_channel[0, 2] == cluster.recv_channel[2, 1] == -1


@pytest.mark.parametrize("name", ["duplex", "serial", "parallel"])
def test_hosts_with_one_plain_rule_are_a_plain_cluster(tmp_path: Path, name: str) -> None:
    cluster = two_hosts(tmp_path, channels=name, network=name)
    assert cluster.channels == name


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("devices = ", "Invalid value"),
        ("", 'no "devices"'),
        ('devices = "4x8GiB"\nlink = 3', 'unknown entry "link"'),
        ('devices = "4x8GiB"\nschema = 9', "schema 9"),
        ("devices = 4", "devices is not a list"),
        ('[[devices]]\nname = "a"', r'devices\[0\] has no "memory_bytes"'),
        ('[[devices]]\nname = "a"\nmemory = 1\nmemory_bytes = 1', "says the same twice"),
        ('devices = "2x8GiB"\nlinks = 3', "links is not a list"),
        ('devices = "2x8GiB"\nlinks = { latency = 3 }', 'links has no "bytes_per_s"'),
        (
            'devices = "2x8GiB"\n[[links]]\nsource = "gpu:0"\nlatency = 1\nbandwidth = 1',
            r"links\[0\] needs source and destination",
        ),
        (
            'devices = "2x8GiB"\n[[links]]\nbetween = ["gpu:0"]\nlatency = 1\nbandwidth = 1',
            "does not name two devices",
        ),
        ('devices = "2x8GiB"\n[channels]\nsend = 3', 'channels has no "receive"'),
        ("hosts = 3", "hosts is not a list"),
        ('[[hosts]]\nname = "a"', r'hosts\[0\] has no "devices"'),
        ('[[hosts]]\nname = "a"\ndevices = "2x8GiB"', r"hosts\[0\] has no link"),
        (TWO_HOSTS, "unknown channels 'CHANNELS'"),
    ],
)
def test_a_file_that_cannot_be_read_names_file_and_place(
    tmp_path: Path, text: str, message: str
) -> None:
    path = tmp_path / "broken.toml"
    path.write_text(text)
    with pytest.raises(InputError, match=message) as caught:
        Cluster.load(path)
    assert "broken.toml" in str(caught.value)


def test_broken_json_names_the_file(tmp_path: Path) -> None:
    path = tmp_path / "broken.json"
    path.write_bytes(b'{"devices": "\xff')
    with pytest.raises(InputError, match=r"broken\.json"):
        Cluster.load(path)


SCALARS = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8))
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=6,
)


@given(st.data())
def test_a_document_with_any_value_replaced_is_read_or_refused(data: st.DataObject) -> None:
    link = {"latency": 1, "bandwidth": "1GB/s"}
    document: Any = data.draw(
        st.sampled_from(
            [
                Cluster("2x8GiB", channels=([[0, 1], [2, 3]], 0)).to_json_dict(),
                {"devices": "2x8GiB", "links": [{"between": ["gpu:0", "gpu:1"], **link}]},
                {"hosts": [{"name": "a", "devices": "2x8GiB", "link": link}]},
            ]
        )
    )
    document = copy.deepcopy(document)
    place = document
    while True:
        key = data.draw(st.sampled_from(list(place) if isinstance(place, dict) else [0]))
        if not isinstance(place[key], dict | list) or data.draw(st.booleans()):
            break
        place = place[key]
    place[key] = data.draw(VALUES)
    with contextlib.suppress(InputError):
        Cluster.from_json_dict(document)
