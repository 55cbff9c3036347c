"""The graph: frozen columns, checks, order, fingerprint."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from baechi.builder import GraphBuilder
from baechi.columns import COLUMNS
from baechi.errors import CycleError, InputError
from baechi.graph import Graph


def two_ops(**changes: Any) -> Graph:
    columns: dict[str, Any] = {
        "op_names": ["a", "b"],
        "compute_ns": [5, 7],
        "tensor_producer": [0],
        "tensor_bytes": [4],
        "edge_tensor": [0],
        "edge_consumer": [1],
    }
    return Graph.from_arrays(**{**columns, **changes})


def test_counts_follow_from_the_columns() -> None:
    graph = two_ops()
    assert (graph.num_ops, graph.num_tensors, graph.num_edges, graph.num_kinds) == (2, 1, 1, 1)


def test_what_is_left_out_has_its_default() -> None:
    graph = Graph.from_arrays(num_ops=2)
    assert graph.op_names == ("op0", "op1")
    assert graph.compute_ns.tolist() == [[0, 0]]
    assert graph.forward_op.tolist() == [-1, -1]


def test_a_graph_may_be_empty() -> None:
    assert Graph.from_arrays(num_ops=0).topological_order().tolist() == []


def test_every_column_has_its_type_and_is_read_only() -> None:
    graph = two_ops()
    for column in COLUMNS:
        values = getattr(graph, column.name)
        assert values.dtype == column.dtype
        assert values.flags.c_contiguous
        with pytest.raises(ValueError, match="WRITEABLE"):
            values.setflags(write=True)


def test_the_columns_are_copies() -> None:
    given = np.array([4], np.int64)
    graph = two_ops(tensor_bytes=given)
    given[0] = 9
    assert graph.tensor_bytes.tolist() == [4]


def test_a_graph_is_frozen() -> None:
    with pytest.raises(AttributeError, match="frozen"):
        two_ops().group_names = ()
    with pytest.raises(AttributeError, match="frozen"):
        del two_ops().op_names


def test_a_graph_has_no_constructor() -> None:
    with pytest.raises(TypeError, match="from_arrays"):
        Graph()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"compute_ns": [5, 7.5]}, "compute_ns holds 7.5"),
        ({"compute_ns": [5, float("nan")]}, "compute_ns holds nan"),
        ({"compute_ns": [5, float("inf")]}, "compute_ns holds inf"),
        ({"compute_ns": [5, -2]}, r"compute_ns\[0, 1\] is -2"),
        ({"compute_ns": [5, 2**63]}, r"compute_ns\[0, 1\] is 9223372036854775808"),
        ({"compute_ns": [5, 2**70]}, "compute_ns has type object"),
        ({"compute_ns": ["5", "7"]}, "compute_ns has type"),
        ({"compute_ns": [5]}, "compute_ns has shape"),
        ({"compute_ns": [5, -1]}, 'op "b" can run on no device kind'),
        ({"compute_ns": [[5, 7]], "device_kinds": ()}, "at least one device kind"),
        ({"persistent_bytes": [[1, 2]]}, "one value per op"),
        ({"persistent_bytes": [1, [2]]}, "not an array"),
        ({"scratch_bytes": [-1, 0]}, r"scratch_bytes\[0\] is -1"),
        ({"tensor_bytes": [-4]}, r"tensor_bytes\[0\] is -4"),
        ({"tensor_transfer_ns": [-2]}, r"tensor_transfer_ns\[0\] is -2"),
        ({"tensor_class": [7]}, r"tensor_class\[0\] is 7"),
        ({"tensor_producer": [2]}, r"tensor_producer\[0\] is 2"),
        ({"tensor_producer": [-1]}, r"tensor_producer\[0\] is -1"),
        ({"edge_tensor": [1]}, r"edge_tensor\[0\] is 1"),
        ({"edge_consumer": [2**40]}, r"edge_consumer\[0\] is 1099511627776"),
        ({"edge_tensor": [0, 0]}, "edge_consumer has shape"),
        ({"group": [0, 1], "group_names": ["g"]}, r"group\[1\] is 1"),
        ({"group": [0, 0], "group_names": ["g", "g"]}, 'group name "g" is there twice'),
        ({"allowed_set": [0, -1]}, r"allowed_set\[0\] is 0"),
        ({"allowed_sets": [[]]}, "allowed_sets"),
        ({"allowed_sets": [["x"], ["x"]]}, "allowed_sets"),
        ({"role": [3, 0]}, r"role\[0\] is 3"),
        ({"forward_op": [-1, 0]}, 'op "b" has a forward op, but its role'),
        ({"role": [1, 1], "forward_op": [-1, 0]}, 'its forward op "a" has not the role'),
        ({"op_names": ["a", "a"]}, 'op name "a" is there twice'),
        ({"op_names": ["a", ""]}, "op name 1 is empty"),
        ({"op_names": ["a", 1]}, "op name 1 is 1, not a text"),
        ({"op_names": ["a", "\ud800"]}, "UTF-8"),
        ({"op_names": "ab"}, "not one text"),
        ({"op_kinds": ["conv"]}, "op_kinds has 1 texts, not 2"),
        ({"edge_consumer": [0]}, 'op "a" consumes its own output'),
        ({"edge_tensor": [0, 0], "edge_consumer": [1, 1]}, "twice"),
        ({"tensor_class": [6]}, 'control tensor of op "a" has bytes'),
        (
            {"tensor_producer": [0, 0], "tensor_bytes": [0, 0], "tensor_class": [6, 6]},
            'op "a" has more than one control tensor',
        ),
        ({"compute_ns": [2**61, 2**61]}, "the sum of compute_ns"),
        ({"persistent_bytes": [2**61, 2**61]}, "the sum of persistent_bytes"),
        ({"tensor_transfer_ns": [2**62]}, "the sum of tensor_transfer_ns"),
    ],
)
def test_a_wrong_column_is_refused_by_name(change: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        two_ops(**change)


def test_floats_without_a_fraction_are_integers() -> None:
    assert two_ops(compute_ns=np.array([5.0, 7.0])).compute_ns.tolist() == [[5, 7]]


def test_a_cycle_is_named_op_by_op() -> None:
    with pytest.raises(CycleError) as caught:
        Graph.from_arrays(
            op_names=["start", "a", "b", "c", "end"],
            tensor_producer=[0, 1, 2, 3, 3],
            edge_tensor=[0, 1, 2, 3, 4],
            edge_consumer=[1, 2, 3, 1, 4],
        )
    ops = caught.value.ops
    turn = ops.index("a")
    assert ops[turn:] + ops[:turn] == ("a", "b", "c")


def test_a_long_chain_against_insertion_order_needs_no_recursion() -> None:
    ops = np.arange(20_000)
    graph = Graph.from_arrays(
        num_ops=len(ops), tensor_producer=ops, edge_tensor=ops[1:], edge_consumer=ops[:-1]
    )
    assert graph.topological_order().tolist() == ops[::-1].tolist()


def test_topological_order_appends_a_consumer_after_its_last_producer() -> None:
    graph = Graph.from_arrays(
        op_names=["late", "x", "y", "early"],
        tensor_producer=[1, 2, 1],
        edge_tensor=[1, 0, 2],
        edge_consumer=[0, 0, 3],
    )
    assert graph.topological_order().tolist() == [1, 2, 3, 0]


def test_consumers_follow_in_edge_order() -> None:
    graph = Graph.from_arrays(
        num_ops=3, tensor_producer=[0], edge_tensor=[0, 0], edge_consumer=[2, 1]
    )
    assert graph.topological_order().tolist() == [0, 2, 1]


def test_index_finds_an_op_by_name() -> None:
    assert two_ops().index("b") == 1


def test_index_names_an_op_that_is_missing() -> None:
    with pytest.raises(InputError, match='no op "z"'):
        two_ops().index("z")


def test_tensor_names_count_the_data_tensors_of_a_producer() -> None:
    graph = Graph.from_arrays(
        op_names=["a", "b"], tensor_producer=[1, 0, 0, 0], tensor_class=[4, 4, 6, 0]
    )
    assert [graph.tensor_name(i) for i in range(4)] == ["b:0", "a:0", "^a", "a:1"]


def test_equal_content_is_equal_and_has_the_same_fingerprint_and_hash() -> None:
    assert two_ops() == two_ops()
    assert two_ops().fingerprint == two_ops().fingerprint
    assert hash(two_ops()) == hash(two_ops())


@pytest.mark.parametrize(
    "change",
    [
        {"compute_ns": [5, 8]},
        {"op_names": ["a", "c"]},
        {"op_kinds": ["conv", ""]},
        {"op_kinds": ["", "conv"]},
        {"module_paths": ["m", ""]},
        {"device_kinds": ["cpu"]},
        {"group_names": ["unused"]},
        {"allowed_sets": [["x", "y"]]},
        {"allowed_sets": [["x"], ["y"]]},
        {"allowed_sets": [["xy"]]},
        {"tensor_class": [5]},
        {"tensor_transfer_ns": [0]},
        {"edge_tensor": [], "edge_consumer": []},
    ],
)
def test_other_content_is_unequal_and_has_another_fingerprint(change: dict[str, Any]) -> None:
    assert two_ops(**change) != two_ops()
    assert two_ops(**change).fingerprint != two_ops().fingerprint


def test_insertion_order_is_part_of_the_fingerprint() -> None:
    edges: dict[str, Any] = {
        "tensor_producer": [0, 0],
        "tensor_bytes": [1, 1],
        "edge_consumer": [1, 1],
    }
    assert (
        two_ops(**edges, edge_tensor=[0, 1]).fingerprint
        != two_ops(**edges, edge_tensor=[1, 0]).fingerprint
    )


def test_the_fingerprint_does_not_change_between_versions_and_machines() -> None:
    assert two_ops().fingerprint == FINGERPRINT


def test_the_fingerprint_does_not_depend_on_the_hash_seed() -> None:
    code = (
        "from baechi.graph import Graph;"
        "print(Graph.from_arrays(num_ops=3, group=[0, 1, 0]).fingerprint)"
    )
    runs = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)},
            capture_output=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(runs) == 1


def test_the_default_cluster_is_no_part_of_equality() -> None:
    marker: Any = object()
    graph = two_ops(default_cluster=marker)
    assert graph == two_ops()
    assert graph.fingerprint == two_ops().fingerprint
    assert graph.default_cluster is marker


def test_pickling_and_copying_keep_everything() -> None:
    graph = two_ops()
    for other in (pickle.loads(pickle.dumps(graph)), copy.deepcopy(graph)):
        assert other == graph
        assert not other.compute_ns.flags.writeable


def test_repr_shows_the_counts() -> None:
    assert repr(two_ops()) == "Graph(2 ops, 1 tensors, 1 edges, kinds: gpu)"


def test_comparing_with_something_else_is_false() -> None:
    assert GraphBuilder().build() != "a graph"


FINGERPRINT = "00fb5711df1346c3200873881bf491827c888d92a7f9d295b3d10ec4170c8945"
