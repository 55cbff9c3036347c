"""Tests of what the drop-in raises: errors with the names of the caller's graph."""

import networkx as nx
import pytest

import vectors
from baechi.errors import CycleError, InputError, OutOfMemoryError, PlacementError
from baechi.original import tf, torch
from original_graphs import small_graph

PLACERS = [tf.m_topo, tf.m_etf, tf.m_sct, torch.m_topo, torch.m_etf, torch.m_sct]


def pair(**attributes):
    """Build two ops "a" and "b" of 4 bytes with a tensor from one to the other."""
    return small_graph({"a": 1, "b": 1}, [("a", "b", 1)], {"a": 4, "b": 4}, **attributes)


@pytest.mark.parametrize("place", [tf.m_etf, tf.m_sct, torch.m_etf, torch.m_sct])
def test_what_does_not_fit_is_named_with_its_device_and_bytes(place):
    devices = vectors.devices([4, 3])
    devices.nodes[0]["id"], devices.nodes[1]["id"] = "large", "small"
    graph = pair()
    with pytest.raises(OutOfMemoryError, match=r'op "b" needs 4 .* on device "small"') as error:
        place(graph, devices)
    assert (error.value.op, error.value.device) == ("b", "small")
    assert (error.value.needed_bytes, error.value.free_bytes) == (4, 3)
    assert error.value.num_placed == 1
    assert [graph.nodes[op]["p"] for op in "ab"] == ["large", None]


def test_what_m_topo_leaves_over_is_named_with_its_bytes():
    graph = pair(peak_mem={"a": 9, "b": 9})
    with pytest.raises(OutOfMemoryError, match='op "b" needs 9 B on device 0, which has 8 B'):
        torch.m_topo(graph, vectors.devices([1]))
    assert dict(graph.nodes(data="topo_order")) == {"a": 0, "b": None}
    with pytest.raises(OutOfMemoryError, match='op "a" needs 9 B on device 0, which has 1 B'):
        torch.m_topo(graph, vectors.devices([1]), uniform=False)
    with pytest.raises(OutOfMemoryError, match='op "b" needs 4 B on device 1, which has 3 B'):
        tf.m_topo(pair(), vectors.devices([4, 3]), uniform=False)


def test_a_member_that_does_not_fit_with_its_group_is_a_placement_error():
    graph = pair(persistent_memory={"a": 0, "b": 0}, output_memory={"a": [1], "b": [9]})
    for op in "ab":
        graph.nodes[op]["colocation_group"] = "both"
    with pytest.raises(PlacementError, match="op 'a' cannot be placed on device 0: a member") as e:
        tf.m_etf(graph, vectors.devices([5]), colocation=True)
    assert (e.value.op, e.value.device) == ("a", 0)
    tf.m_etf(pair(), vectors.devices([50]), colocation=True)


def test_a_tensor_that_cannot_be_received_is_a_placement_error():
    graph = small_graph({"a": 1, "b": 1}, [("a", "b", 0)], {"a": 4, "b": 2}, peak_mem={"b": 1})
    graph.edges["a", "b"]["requested_bytes"] = 3
    with pytest.raises(PlacementError, match=r"op 'b' .* not enough memory to receive"):
        torch.m_etf(graph, vectors.devices([4, 4]))
    assert dict(graph.nodes(data="topo_order")) == {"a": 0, "b": 1}
    assert dict(graph.nodes(data="p")) == {"a": 0, "b": 1}


@pytest.mark.parametrize("place", [tf.m_etf, torch.m_etf])
def test_a_failure_leaves_nothing_of_an_earlier_run(place):
    graph = place(pair(), vectors.devices([50]))
    with pytest.raises(OutOfMemoryError):
        place(graph, vectors.devices([1]))
    assert graph.graph == {}
    assert {node[name] for _, node in graph.nodes(data=True) for name in ("p", "start_ts")} == {
        None
    }


def test_a_negative_limit_keeps_everything_out():
    graph = small_graph({"a": 1}, [])
    with pytest.raises(OutOfMemoryError):
        tf.m_etf(graph, vectors.devices([-1]))
    assert tf.m_etf(graph, vectors.devices([0])).nodes["a"]["p"] == 0


@pytest.mark.parametrize("place", PLACERS)
def test_a_cycle_is_named(place):
    graph = pair()
    graph.add_edge("b", "a", **graph.edges["a", "b"])
    graph.edges["b", "a"]["tensor"] = [{"name": "back", "weight": 1}]
    with pytest.raises(CycleError) as error:
        place(graph, vectors.devices([9]))
    assert set(error.value.ops) == {"a", "b"}


@pytest.mark.parametrize("place", [tf.m_etf, tf.m_sct, torch.m_etf, torch.m_sct])
def test_the_children_of_an_op_without_duration_are_never_placed(place):
    graph = pair(weight={"a": 0})
    with pytest.raises(PlacementError, match=r"op 'b' .* a producer that takes no time was missed"):
        place(graph, vectors.devices([50]))
    assert dict(graph.nodes(data="p")) == {"a": 0, "b": None}
    assert place(pair(weight={"b": 0}), vectors.devices([50])).graph["makespan"] == 1


@pytest.mark.parametrize("place", PLACERS)
@pytest.mark.parametrize(
    ("weight", "message"), [(-1, "weight of op 'a' is -1"), (None, "is None"), ("1", "is '1'")]
)
def test_a_bad_duration_is_named(place, weight, message):
    with pytest.raises(InputError, match=message):
        place(pair(weight={"a": weight}), vectors.devices([50]))


def test_tf_takes_floats_only_without_a_fraction():
    assert tf.m_etf(pair(weight={"a": 2.0}), vectors.devices([50])).graph["makespan"] == 3
    for name in ("weight", "temporary_memory", "persistent_memory"):
        with pytest.raises(InputError, match=f"{name} of op 'b' is 2.5, not an integer"):
            tf.m_etf(pair(**{name: {"b": 2.5}}), vectors.devices([50]))


@pytest.mark.parametrize("name", ["weight", "temporary_memory", "output_memory"])
def test_a_missing_attribute_of_an_op_is_named(name):
    graph = pair()
    del graph.nodes["b"][name]
    with pytest.raises(InputError, match=f"op 'b' has no attribute \"{name}\""):
        tf.m_etf(graph, vectors.devices([50]))


def test_a_missing_attribute_of_an_edge_or_device_is_named():
    graph = pair()
    del graph.edges["a", "b"]["tensor"], graph.edges["a", "b"]["requested_bytes"]
    with pytest.raises(InputError, match="edge 'a' -> 'b' or a tensor of it has no 'tensor'"):
        tf.m_etf(graph, vectors.devices([50]))
    with pytest.raises(InputError, match="edge 'a' -> 'b' has no attribute \"requested_bytes\""):
        torch.m_etf(graph, vectors.devices([50]))
    devices = vectors.devices([50])
    devices.nodes[0]["memory_limit"] = "8GB"
    with pytest.raises(InputError, match="memory_limit of device 0 is '8GB', not a number"):
        tf.m_etf(pair(), devices)
    del devices.nodes[0]["memory_limit"]
    with pytest.raises(InputError, match="device 0 has no attribute"):
        tf.m_etf(pair(), devices)


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ([[("x", 1)], [("x", 1)]], "tensor 'x' has two producers: 0 and 1"),
        ([[("x", 1), ("x", 1)], []], "edge 0 -> 2 carries a tensor twice"),
        ([[("x", 1), ("x", 2)], []], "tensor 'x' of op 0 has two weights"),
    ],
)
def test_a_tensor_has_one_producer_and_one_weight(tensors, message):
    graph = small_graph({0: 1, 1: 1, 2: 1}, [(0, 2, 1), (1, 2, 1)])
    for parent, carried in enumerate(tensors):
        graph.edges[parent, 2]["tensor"] = [{"name": n, "weight": w} for n, w in carried]
    with pytest.raises(InputError, match=message):
        tf.m_etf(graph, vectors.devices([50]))


def test_devices_are_needed_and_distinct():
    with pytest.raises(InputError, match="needs devices"):
        tf.m_etf(pair(), nx.DiGraph())
    devices = vectors.devices([1, 1])
    devices.nodes[1]["id"] = 0
    with pytest.raises(InputError, match="an id of its own"):
        tf.m_etf(pair(), devices)


def test_other_kinds_of_graphs_are_refused():
    for graph in (nx.Graph(), nx.MultiDiGraph()):
        with pytest.raises(InputError, match=r"must be a networkx\.DiGraph"):
            tf.m_etf(graph, vectors.devices([1]))


def test_a_favorite_is_an_op():
    with pytest.raises(InputError, match="favorites name 'z'"):
        tf.m_sct(pair(), vectors.devices([50]), favorites={"a": "z"})
    tf.m_sct(pair(), vectors.devices([50]), favorites={"a": None})


def test_reserving_wants_colocation():
    for place in (tf.m_etf, tf.m_sct):
        with pytest.raises(InputError, match="set colocation too"):
            place(pair(), vectors.devices([50]), reserve_memory=True)


def test_a_replay_wants_a_placement():
    graph = pair()
    with pytest.raises(InputError, match="op 'a' has no attribute \"p\""):
        tf.virtual_scheduler(graph, vectors.devices([50]))
    nx.set_node_attributes(graph, 3, "p")
    with pytest.raises(InputError, match="p of op 'a' is 3, which is no device"):
        tf.virtual_scheduler(graph, vectors.devices([50]))
