"""Graphs in files and in networkx: what goes in comes out, and nothing else goes in."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from baechi.builder import GraphBuilder
from baechi.errors import CycleError, InputError
from baechi.formats import load_graph
from baechi.graph import MEMORY_CLASSES, Graph
from baechi.workloads import diamond, training_blocks

NAMES = st.text(min_size=1, max_size=4).filter(lambda name: name.isascii() or _is_utf8(name))
SIZES = st.integers(0, 2**50)


def _is_utf8(text: str) -> bool:
    return text.encode(errors="replace").decode() == text


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    """Any graph: several kinds, groups, device sets, roles, shared and unconsumed tensors."""
    kinds = draw(st.lists(NAMES, min_size=1, max_size=3, unique=True))
    builder = GraphBuilder(kinds)
    names = draw(st.lists(NAMES, max_size=6, unique=True))
    forward: list[str] = []
    for name in names:
        times = {kind: draw(st.none() | SIZES) for kind in kinds}
        times[kinds[0]] = draw(SIZES)
        belongs = draw(st.none() | st.sampled_from(forward)) if forward else None
        builder.op(
            name,
            times,
            kind=draw(NAMES | st.just("")),
            module=draw(NAMES | st.just("")),
            persistent_bytes=draw(SIZES),
            scratch_bytes=draw(SIZES),
            group=draw(st.none() | st.sampled_from("gh")),
            allowed_devices=draw(st.none() | st.lists(NAMES, min_size=1, max_size=3)),
            role="forward" if belongs is None else "backward",
            forward_op=belongs,
        )
        if belongs is None:
            forward.append(name)
    edges = []
    for name in draw(st.lists(st.sampled_from(names), max_size=8)) if names else []:
        transfer_ns, memory = draw(st.none() | SIZES), draw(st.sampled_from(MEMORY_CLASSES[:-1]))
        tensor = builder.tensor(name, draw(SIZES), memory_class=memory, transfer_ns=transfer_ns)
        edges += [
            (tensor, other) for other in names[names.index(name) + 1 :] if draw(st.booleans())
        ]
    for tensor, consumer in draw(st.permutations(edges)):
        builder.edge(tensor, consumer)
    if len(names) > 1 and draw(st.booleans()):
        builder.control_edge(names[0], names[-1])
    return builder.build()


@pytest.mark.parametrize("suffix", [".json", ".npz"])
@given(graph=graphs())
@settings(deadline=None, max_examples=60)
def test_a_saved_graph_loads_as_the_same_graph(
    suffix: str, graph: Graph, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.getbasetemp() / f"round-trip{suffix}"
    graph.save(path)
    loaded = load_graph(path)
    assert loaded == graph
    assert loaded.fingerprint == graph.fingerprint


@given(graph=graphs())
@settings(deadline=None, max_examples=60)
def test_a_graph_comes_back_from_networkx(graph: Graph) -> None:
    assert Graph.from_networkx(graph.to_networkx()) == graph


@pytest.mark.parametrize("suffix", [".json", ".npz"])
def test_the_same_graph_gives_the_same_bytes(suffix: str, tmp_path: Path) -> None:
    for name in "ab":
        training_blocks(60, seed=1).save(tmp_path / f"{name}{suffix}")
    assert (tmp_path / f"a{suffix}").read_bytes() == (tmp_path / f"b{suffix}").read_bytes()


@pytest.mark.parametrize("suffix", [".json", ".npz"])
def test_the_suffix_does_not_matter_for_loading(suffix: str, tmp_path: Path) -> None:
    graph = diamond(seed=1)
    graph.save(tmp_path / f"graph{suffix}")
    (tmp_path / f"graph{suffix}").rename(tmp_path / "graph")
    assert load_graph(tmp_path / "graph") == graph


def test_another_suffix_cannot_be_saved(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"not \"\.txt\""):
        diamond(seed=1).save(tmp_path / "graph.txt")


def test_a_json_file_has_one_op_per_line_and_sorted_keys(tmp_path: Path) -> None:
    diamond(compute_ns=1, tensor_bytes=2).save(tmp_path / "graph.json")
    lines = (tmp_path / "graph.json").read_text().splitlines()
    assert '{"compute_ns": {"gpu": 1}, "name": "op1"},' in lines
    keys = list(json.loads("\n".join(lines)))
    assert keys == sorted(keys)


def test_a_missing_file_is_an_os_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        load_graph(tmp_path / "none.json")


def document(**changes: Any) -> dict[str, Any]:
    """A small graph file with fields replaced."""
    ops = [{"name": "a", "compute_ns": {"gpu": 1}}, {"name": "b", "compute_ns": 2}]
    whole: dict[str, Any] = {"format": "baechi-graph", "schema": 1, "device_kinds": ["gpu"]}
    whole |= {"ops": ops, "tensors": [{"producer": "a"}], "edges": [["a", 0, "b"]]}
    return whole | changes


def test_a_json_file_by_hand_may_leave_out_defaults(tmp_path: Path) -> None:
    (tmp_path / "graph.json").write_text(json.dumps(document()))
    assert load_graph(tmp_path / "graph.json").compute_ns.tolist() == [[1, 2]]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"schema": 2}, "schema 2 is unknown"),
        ({"schema": True}, '"schema" is True'),
        ({"extra": 1}, 'unknown field "extra"'),
        ({"ops": {}}, '"ops" is not an array'),
        ({"ops": [{"name": "a"}]}, 'op "a" has no field "compute_ns"'),
        ({"ops": [{"compute_ns": 1}]}, 'op 0 has no field "name"'),
        ({"ops": [{"name": "a", "compute_ns": 1.0}]}, '"compute_ns" of op "a" is 1.0'),
        ({"ops": [{"name": "a", "compute_ns": -1}]}, '"compute_ns" of op "a" is -1'),
        ({"ops": [{"name": "a", "compute_ns": {"tpu": 1}}]}, 'unknown device kind "tpu"'),
        (
            {"ops": [{"name": "a", "compute_ns": {}}], "tensors": [], "edges": []},
            'op "a" can run on no device kind',
        ),
        ({"ops": [{"name": "a", "compute_ns": 1, "size": 1}]}, 'op "a" has an unknown field'),
        ({"ops": [{"name": "a", "compute_ns": 1, "group": "g"}]}, '"group" of op "a" is "g"'),
        ({"ops": [{"name": "a", "compute_ns": 1, "role": "x"}]}, '"role" of op "a" is "x"'),
        ({"ops": [{"name": "a", "compute_ns": 1, "scratch_bytes": 2**62}]}, "too large"),
        ({"ops": [{"name": "\ud800", "compute_ns": 1}], "tensors": [], "edges": []}, "UTF-8"),
        ({"tensors": [{"producer": "z"}]}, '"producer" of tensor 0 of op "z" is "z"'),
        ({"tensors": [{"producer": "a", "bytes": None}]}, '"bytes" of tensor 0 of op "a" is None'),
        ({"edges": [["a", 1, "b"]]}, 'op "a" has no output 1'),
        ({"edges": [["a", "b"]]}, "edge 0 is not"),
        ({"edges": [["a", 0, "b"], ["a", 0, "b"]]}, "twice"),
    ],
)
def test_a_wrong_json_file_is_refused_with_file_field_and_op(
    changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    path = tmp_path / "wrong.json"
    path.write_text(json.dumps(document(**changes)))
    with pytest.raises(InputError, match=message) as caught:
        load_graph(path)
    assert str(caught.value).startswith(str(path))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "Expecting value"),
        (b"\xff\xfe", "UTF-8"),
        (b"[" * 200_000, "nested too deeply"),
        (b'{"a":' * 200_000, "nested too deeply"),
        (b'{"a": 1, "a": 2}', 'key "a" is there twice'),
        (b'{"a": NaN}', "NaN is not a number"),
        (b'{"a": -Infinity}', "-Infinity is not a number"),
        (b'{"a": 1e99999999999999999999}', "out of range"),
        (b'{"a": ' + b"1" * 5000 + b"}", "digits"),
        (b'{"a": 1}', "not a graph file"),
        (b"[1]", "not a graph file"),
        (b'{"format": "baechi-plan"}', "not a graph file"),
    ],
)
def test_what_is_no_graph_file_is_refused(content: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / "wrong").write_bytes(content)
    with pytest.raises(InputError, match=message):
        load_graph(tmp_path / "wrong")


def test_a_cycle_in_a_file_keeps_its_type(tmp_path: Path) -> None:
    tensors = [{"producer": "a"}, {"producer": "b"}]
    whole = document(tensors=tensors, edges=[["a", 0, "b"], ["b", 0, "a"]])
    (tmp_path / "cycle.json").write_text(json.dumps(whole))
    with pytest.raises(CycleError):
        load_graph(tmp_path / "cycle.json")
