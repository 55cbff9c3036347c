"""Tests that the drop-in gives every recorded answer of the original placers."""

import math

import networkx as nx
import pytest

import baseline_tf
import vectors
from baechi.errors import BaechiError, OutOfMemoryError, PlacementError
from baechi.original import tf, torch
from original_graphs import small_graph

UNLIMITED = 10**9


TF_RUNS = vectors.runs(vectors.tf_records())
TORCH_RUNS = vectors.runs(vectors.torch_records())


def place_tf(graph, devices, record, name):
    colocation, reserve_memory = record["colocation"], name.endswith("_reserve")
    if name.startswith("m_topo"):
        return tf.m_topo(graph, devices, colocation, uniform=name == "m_topo")
    if name.startswith("m_etf"):
        return tf.m_etf(graph, devices, colocation, reserve_memory)
    favorites = dict(record["results"][name]["favorites"])
    return tf.m_sct(graph, devices, 0.1, colocation, reserve_memory, favorites)


def place_torch(graph, devices, record, name):
    if name.startswith("m_topo"):
        return torch.m_topo(graph, devices, uniform=name == "m_topo")
    if name == "m_etf":
        return torch.m_etf(graph, devices)
    return torch.m_sct(graph, devices, favorites=dict(record["results"][name]["favorites"]))


def outcome(place, record, name):
    """Place a rebuilt graph; return it and the error of ours, if any."""
    graph = vectors.op_graph(record)
    try:
        assert place(graph, vectors.device_graph(record), record, name) is graph
    except BaechiError as error:
        return graph, error
    return graph, None


@pytest.mark.parametrize(("record", "name"), TF_RUNS)
def test_tf_equals_the_record(record, name):
    expected = record["results"][name]
    graph, error = outcome(place_tf, record, name)
    assert (error is None) == ("error" not in expected)
    if error is not None:
        assert isinstance(error, OutOfMemoryError | PlacementError)
        return
    assert vectors.column(graph, "p") == expected["p"]
    if "start" in expected:
        assert vectors.column(graph, "start_ts") == expected["start"]
        assert graph.graph["makespan"] == expected["makespan"]
    tf.virtual_scheduler(graph, vectors.device_graph(record))
    assert vectors.column(graph, "p") == expected["p"]
    assert graph.graph["makespan"] == expected["replay_makespan"]
    assert graph.graph["peak"] == expected["replay_peak"]


@pytest.mark.parametrize(("record", "name"), TORCH_RUNS)
def test_torch_equals_the_record(record, name):
    expected = record["results"][name]
    graph, error = outcome(place_torch, record, name)
    assert (error is None) == ("error" not in expected)
    assert vectors.column(graph, "topo_order") == expected["topo_order"]
    if error is not None:
        assert isinstance(error, OutOfMemoryError | PlacementError)
        return
    assert vectors.column(graph, "p") == expected["p"]
    assert graph.graph["peak"] == expected["peak_mem"]
    if "start" in expected:
        assert vectors.column(graph, "start_ts") == pytest.approx(expected["start"], abs=1e-5)
        assert graph.graph["makespan"] == pytest.approx(expected["makespan"], abs=1e-5)


def f21():
    """Build the golden graph F21."""
    durations = {0: 9, 1: 9, 2: 8, 3: 5, 4: 6, 5: 4}
    return small_graph(durations, [(0, 2, 2), (1, 2, 3), (1, 3, 1), (4, 5, 3)])


@pytest.mark.parametrize(("num_devices", "at_half"), [(2, 24), (3, 19)])
def test_m_sct_solves_the_linear_program_itself(num_devices, at_half):
    devices = vectors.devices([UNLIMITED] * num_devices)
    usual = {2: 22, 3: 20}[num_devices]
    assert tf.m_sct(f21(), devices).graph["makespan"] == usual
    assert torch.m_sct(f21(), devices, threshold=0.1).graph["makespan"] == usual
    assert torch.m_sct(f21(), devices).graph["makespan"] == at_half


def test_figure_1_of_the_paper():
    edges = [(1, 2, 1), (2, 3, 1), (3, 4, 1), (1, 5, 1), (5, 6, 1), (6, 4, 1)]
    sizes = {1: 1, 2: 2, 3: 2, 4: 1, 5: 1, 6: 1}
    for limit, makespan in ((UNLIMITED, 8), (4, 9)):
        for place in (tf.m_etf, tf.m_sct, torch.m_etf, torch.m_sct):
            graph = small_graph({1: 1, 2: 3, 3: 3, 4: 1, 5: 3, 6: 1}, edges, sizes)
            assert place(graph, vectors.devices([limit] * 2)).graph["makespan"] == makespan


def test_keys_of_ops_and_devices_may_be_anything_hashable():
    keys = {0: "a", 1: ("b", 1), 2: frozenset({2}), 3: 3.5, 4: object(), 5: b"f"}
    graph = nx.relabel_nodes(f21(), keys)
    devices = nx.relabel_nodes(vectors.devices([UNLIMITED] * 2), {0: "first", 1: ("second",)})
    for _, device in devices.nodes(data=True):
        del device["id"]
    plain = tf.m_etf(f21(), vectors.devices([UNLIMITED] * 2))
    tf.m_etf(graph, devices)
    names = {0: "first", 1: ("second",)}
    for op, key in keys.items():
        assert graph.nodes[key]["p"] == names[plain.nodes[op]["p"]]
        assert graph.nodes[key]["start_ts"] == plain.nodes[op]["start_ts"]
    tf.m_sct(graph, devices, favorites={"a": frozenset({2})})
    tf.virtual_scheduler(graph, devices)
    torch.m_etf(graph, devices)


def test_the_id_of_a_device_is_its_attribute():
    devices = vectors.devices([UNLIMITED])
    devices.nodes[0]["id"] = 7
    assert {p for _, p in torch.m_etf(f21(), devices).nodes(data="p")} == {7}


def test_an_edge_that_was_added_again_counts_as_the_last():
    """The order of in-edges decides which transfer queues first; ids tell the old order."""

    def joined(again):
        graph = small_graph({0: 1, 1: 1, 2: 9, 3: 1}, [(0, 3, 4), (1, 3, 4), (2, 3, 4)])
        attributes = graph.edges[0, 3]
        if again:
            graph.remove_edge(0, 3)
            graph.add_edge(0, 3, **attributes)
        return graph

    for again in (False, True):
        graph, expected = joined(again), joined(again)
        devices = vectors.devices([UNLIMITED] * 3)
        assert tf.m_etf(graph, devices) is graph
        baseline_tf.m_etf(expected, devices)
        assert dict(graph.nodes(data=True)) == dict(expected.nodes(data=True))
    assert tf._flatten(joined(False), devices, False).edges.parent.tolist() == [0, 1, 2]
    assert tf._flatten(joined(True), devices, False).edges.parent.tolist() == [1, 2, 0]


def test_contradicting_orders_count_as_those_of_a_copy():
    graph = small_graph({0: 1, 1: 1, 2: 1, 3: 1}, [(0, 2, 1), (0, 3, 1), (1, 2, 1), (1, 3, 1)])
    # Ops 0 and 1 have op 2 before op 3, op 2 has op 1 before op 0, op 3 the other way round: with
    # the children of op 1 turned, no order of the edges gives all four.
    graph.pred[2]._atlas.update({0: graph.pred[2]._atlas.pop(0)})
    graph.succ[1]._atlas.update({2: graph.succ[1]._atlas.pop(2)})
    flat = tf._flatten(graph, vectors.devices([9]), False)
    copied = tf._flatten(graph.copy(), vectors.devices([9]), False)
    assert flat.edges.parent.tolist() == copied.edges.parent.tolist() == [0, 0, 1, 1]
    assert flat.edges.child.tolist() == copied.edges.child.tolist() == [2, 3, 3, 2]


def test_a_view_of_a_larger_graph_can_be_placed():
    graph = f21()
    view = nx.subgraph_view(graph, filter_node=lambda op: op != 5)
    tf.m_etf(view, vectors.devices([UNLIMITED]))
    assert graph.nodes[4]["p"] == 0
    assert "p" not in graph.nodes[5]


def test_an_edge_without_tensors_only_orders():
    graph = small_graph({0: 5, 1: 1}, [(0, 1, 99)], {0: 2, 1: 2})
    graph.edges[0, 1]["tensor"] = []
    devices = vectors.devices([2, 2])
    assert tf.m_etf(graph, devices).graph["makespan"] == 6
    assert vectors.column(graph, "p") == [0, 1]
    assert tf.virtual_scheduler(graph, devices).graph["makespan"] == 6


def test_a_replay_waits_for_a_producer_on_another_device_that_sends_nothing():
    """Here ours leaves the original's letter: there the consumer runs before its producer."""
    ends = []
    for replay in (tf.virtual_scheduler, baseline_tf.virtual_scheduler):
        graph = small_graph({0: 5, 1: 1}, [(0, 1, 99)], {0: 2, 1: 2})
        graph.edges[0, 1]["tensor"] = []
        graph.nodes[0]["p"], graph.nodes[1]["p"] = 0, 1
        ends.append(vectors.column(replay(graph, vectors.devices([2, 2])), "end_ts"))
    assert ends == [[5, 6], [5, 1]]


def test_topo_order_breaks_ties_in_tf_where_every_op_has_one():
    graph = small_graph({0: 1, 1: 1, 2: 1}, [])
    for op, number in ((0, 9), (1, 4), (2, 5)):
        graph.nodes[op]["topo_order"] = number
    assert vectors.column(tf.m_etf(graph, vectors.devices([9])), "start_ts") == [2, 0, 1]
    del graph.nodes[2]["topo_order"]
    assert vectors.column(tf.m_etf(graph, vectors.devices([9])), "start_ts") == [0, 1, 2]


def test_m_topo_has_the_times_of_a_replay_and_its_own_peaks():
    graph = tf.m_topo(small_graph({0: 2, 1: 3}, [(0, 1, 4)], {0: 5, 1: 5}), vectors.devices([9]))
    assert graph.graph == {"makespan": 5, "peak": [10]}
    graph = torch.m_topo(small_graph({1: 3, 0: 2}, [], {0: 5, 1: 5}), vectors.devices([9]))
    assert (vectors.column(graph, "topo_order"), vectors.column(graph, "start_ts")) == (
        [0, 1],
        [0, 2],
    )
    assert graph.graph == {"makespan": 5, "peak": [10]}


def test_limits_may_be_floats():
    for place in (tf.m_etf, torch.m_etf):
        graph = small_graph({0: 1, 1: 1}, [], {0: 5, 1: 5})
        assert place(graph, vectors.devices([9.9, math.inf])).graph["peak"] == [5, 5]


def test_torch_sizes_may_have_fractions():
    graph = small_graph({0: 0.5, 1: 1.25}, [(0, 1, 9)], {0: 2.5, 1: 2.25})
    assert torch.m_etf(graph, vectors.devices([4.75])).graph == {"makespan": 1.75, "peak": [4.75]}
    with pytest.raises(OutOfMemoryError):
        torch.m_etf(graph, vectors.devices([4.625]))


def test_a_graph_without_ops_takes_no_time():
    for place in (tf.m_topo, tf.m_etf, tf.m_sct, torch.m_topo, torch.m_etf, torch.m_sct):
        graph = place(nx.DiGraph(), vectors.devices([1, 1])).graph
        assert graph == {"makespan": 0, "peak": [0, 0]}
