"""Plans: what travels, what a person may edit, and how a changed graph is noticed."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import baechi
from baechi import Cluster, Device, Graph, GraphBuilder, InputError, Link, Plan, PlanMismatchError

CLUSTER = Cluster([Device("d0", "gpu", 40), Device("d1", "gpu", 40)], Link(1, 10**9), "serial")


def diamond(**changes: Any) -> GraphBuilder:
    """a feeds b and c, both feed d; changes are keyword arguments of op c."""
    builder = GraphBuilder()
    builder.op("a", 3)
    builder.op("b", 4, group="g")
    builder.op("c", **({"compute_ns": 5} | changes))
    builder.op("d", 2, persistent_bytes=7)
    for producer, consumer in ("ab", "ac", "bd", "cd"):
        builder.connect(producer, consumer, 6)
    return builder


def plan_of_diamond(algorithm: str = "best") -> Plan:
    return baechi.place(diamond().build(), CLUSTER, algorithm)


def waiting_plan() -> tuple[Graph, Cluster, Plan]:
    """The received copy has room only when `first` has ended."""
    builder = GraphBuilder()
    builder.op("source", 1, allowed_devices="d0")
    builder.op("first", 20, scratch_bytes=30, allowed_devices="d1")
    builder.op("second", 1, allowed_devices="d1")
    builder.connect("source", "second", 20)
    graph = builder.build()
    return graph, CLUSTER, baechi.place(graph, CLUSTER, "m-topo")


def test_a_loaded_plan_equals_the_saved_one(tmp_path: Path) -> None:
    plan = plan_of_diamond()
    plan.save(tmp_path / "plan.json")
    loaded = Plan.load(tmp_path / "plan.json")
    assert loaded == plan
    assert loaded.to_json() == (tmp_path / "plan.json").read_text()
    assert loaded.placement == plan.placement
    assert loaded.launch_order == plan.launch_order
    assert loaded.devices == plan.devices
    assert loaded.candidates == plan.candidates
    assert dict(loaded.transfer_order) == dict(plan.transfer_order)
    assert dict(loaded.held) == dict(plan.held)
    assert loaded.provenance.cluster == CLUSTER


def test_a_plan_that_waits_for_memory_names_what_it_waits_for(tmp_path: Path) -> None:
    graph, cluster, plan = waiting_plan()
    [wait] = plan.waits
    assert (wait.what, wait.waits_for) == (("source:0", "d1"), "first")
    plan.save(tmp_path / "plan.json")
    loaded = Plan.load(tmp_path / "plan.json", graph)
    assert loaded.waits == plan.waits
    assert baechi.simulate(graph, cluster, loaded).makespan_ns == plan.makespan_ns == 42


def test_a_plan_is_not_hashable_and_differs_from_other_things() -> None:
    assert plan_of_diamond() != "plan"
    assert plan_of_diamond("single") != plan_of_diamond("round-robin")
    with pytest.raises(TypeError):
        hash(plan_of_diamond())


def test_a_plan_holds_the_transfers_of_each_channel_in_order() -> None:
    plan = baechi.place(diamond().build(), CLUSTER, "round-robin")
    assert plan.placement == {"a": "d0", "b": "d1", "c": "d0", "d": "d1"}
    order = [("a:0", "d1"), ("c:0", "d1")]
    assert {name: list(moved) for name, moved in plan.transfer_order.items()} == {
        "d0": order,
        "d1": order,
    }


def test_transfers_without_a_channel_are_listed_as_unlimited() -> None:
    cluster = CLUSTER.with_channels("parallel")
    plan = baechi.place(diamond().build(), cluster, "round-robin")
    assert list(plan.transfer_order) == ["unlimited"]


def test_every_channel_of_given_channels_has_its_own_list() -> None:
    send, receive = [[-1, 0], [1, -1]], [[-1, 2], [3, -1]]
    cluster = CLUSTER.with_channels((send, receive))
    plan = baechi.place(diamond().build(), cluster, "round-robin")
    assert [len(moved) for moved in plan.transfer_order.values()] == [2, 2]


def test_a_person_may_move_an_op_in_the_file(tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    plan_of_diamond("single").save(file)
    text = file.read_text()
    assert text.count('"c": "d0"') == 1
    file.write_text(text.replace('"c": "d0"', '"c": "d1"'))
    graph = diamond().build()
    moved = Plan.load(file, graph)
    assert dict(moved.placement) == {"a": "d0", "b": "d0", "c": "d1", "d": "d0"}
    schedule = baechi.simulate(graph, CLUSTER, moved)
    assert schedule.makespan_ns == 3 + 7 + 5 + 7 + 2


def test_a_wait_for_a_transfer_that_an_edit_removed_is_an_input_error(tmp_path: Path) -> None:
    builder = GraphBuilder()
    for name in ("source", "first", "second"):
        builder.op(name, 20 if name == "first" else 1, scratch_bytes=30 * (name == "first"))
    builder.connect("source", "second", 20)
    graph = builder.build()
    _, cluster, plan = waiting_plan()
    plan = dataclasses.replace(
        plan,
        device=plan.device * 0,
        provenance=dataclasses.replace(plan.provenance, made_for=graph),
    )
    with pytest.raises(InputError, match='transfer of "source:0" to d1, which does not happen'):
        baechi.simulate(graph, cluster, plan)


def test_a_file_that_cannot_be_replaced_stays_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "plan.json"
    plan_of_diamond("single").save(file)
    before = file.read_bytes()

    def refuse(*_: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(Path, "replace", refuse)
    with pytest.raises(OSError, match="disk full"):
        plan_of_diamond("m-etf").save(file)
    assert file.read_bytes() == before
    assert list(tmp_path.iterdir()) == [file]


def without_b() -> GraphBuilder:
    builder = GraphBuilder()
    builder.op("a", 3)
    builder.op("c", 5)
    builder.op("d", 2, persistent_bytes=7)
    builder.connect("a", "c", 6)
    builder.connect("c", "d", 6)
    return builder


def with_e() -> GraphBuilder:
    builder = diamond()
    builder.op("e", 1)
    return builder


def reordered(compute_ns: int = 5) -> GraphBuilder:
    builder = GraphBuilder()
    builder.op("a", 3)
    builder.op("c", compute_ns)
    builder.op("b", 4, group="g")
    builder.op("d", 2, persistent_bytes=7)
    for producer, consumer in ("ab", "ac", "bd", "cd"):
        builder.connect(producer, consumer, 6)
    return builder


def other_edges() -> GraphBuilder:
    builder = diamond()
    builder.connect("b", "c", 1)
    return builder


def renamed() -> GraphBuilder:
    builder = GraphBuilder()
    for name, compute_ns in {"a": 3, "b": 4, "x": 5}.items():
        builder.op(name, compute_ns, group="g" if name == "b" else None)
    builder.op("d", 2, persistent_bytes=7)
    for producer, consumer in ("ab", "ax", "bd", "xd"):
        builder.connect(producer, consumer, 6)
    return builder


OTHER_ORDER = 'the ops are in another order, from op "c" on'


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        (lambda: diamond(compute_ns=6), ['op "c" has other compute time']),
        (lambda: diamond(persistent_bytes=1), ['op "c" has other memory']),
        (lambda: diamond(scratch_bytes=1), ['op "c" has other memory']),
        (lambda: diamond(group="h"), ['op "c" has other constraints']),
        (lambda: diamond(allowed_devices="d0"), ['op "c" has other constraints']),
        (lambda: diamond(role="update"), ['op "c" has other constraints']),
        (
            lambda: diamond(compute_ns=6, scratch_bytes=1, group="h"),
            [f'op "c" has other {aspect}' for aspect in ("compute time", "memory", "constraints")],
        ),
        (without_b, ['op "b" is gone', 'op "a" has other memory', 'op "d" has other inputs']),
        (with_e, ['op "e" is new']),
        (reordered, [OTHER_ORDER]),
        (lambda: reordered(compute_ns=9), ['op "c" has other compute time', OTHER_ORDER]),
        (other_edges, ['op "b" has other memory', 'op "c" has other inputs']),
        (renamed, ['op "c" is gone', 'op "x" is new', 'op "d" has other inputs']),
        (lambda: diamond(kind="conv"), None),
    ],
)
def test_a_plan_for_a_changed_graph_names_every_difference(
    changed: Callable[[], GraphBuilder], expected: list[str] | None, tmp_path: Path
) -> None:
    plan_of_diamond("single").save(tmp_path / "plan.json")
    with pytest.raises(PlanMismatchError) as caught:
        Plan.load(tmp_path / "plan.json", changed().build())
    if expected is None:
        assert len(caught.value.differences) == 1
    else:
        assert set(expected) <= set(caught.value.differences)
        assert all(difference in str(caught.value) for difference in expected)


def edited(tmp_path: Path, change: Callable[[dict[str, Any]], None]) -> Path:
    """A plan file in which one thing was changed."""
    file = tmp_path / "plan.json"
    waiting_plan()[2].save(file)
    document = json.loads(file.read_text())
    change(document)
    file.write_text(json.dumps(document))
    return file


WRONG: tuple[Any, ...] = (None, True, -1, 1.5, "text", [], {}, [1], {"a": 1}, [[1, 2]], [["a"]])
FIELDS = tuple(json.loads(plan_of_diamond().to_json()))


@pytest.mark.parametrize("field", FIELDS)
def test_a_plan_file_without_a_field_is_an_input_error(field: str, tmp_path: Path) -> None:
    file = edited(tmp_path, lambda document: document.pop(field))
    with pytest.raises(InputError) as caught:
        Plan.load(file)
    assert str(file) in str(caught.value)
    assert field in str(caught.value)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every place in a document; of long lists the first."""
    found = [path] if path else []
    if isinstance(value, dict):
        for name, member in value.items():
            found += places(member, (*path, name))
    if isinstance(value, list) and value:
        found += places(value[0], (*path, 0))
    return found


@pytest.mark.parametrize("number", range(len(WRONG)))
def test_a_wrong_value_anywhere_in_a_plan_file_is_an_input_error(
    number: int, tmp_path: Path
) -> None:
    file = tmp_path / "plan.json"
    waiting_plan()[2].save(file)
    text = file.read_text()
    for place in places(json.loads(text)):
        document = json.loads(text)
        at: Any = document
        for step in place[:-1]:
            at = at[step]
        at[place[-1]] = WRONG[number]
        file.write_text(json.dumps(document))
        try:
            Plan.load(file).to_json()
        except InputError as error:
            message = str(error)
        else:
            continue  # another value of the right type may be fine
        assert str(file) in message, place
        assert place[0] in message or place[0] in ("format", "schema"), place


def test_a_file_that_is_no_plan_is_an_input_error(tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    for text, message in {
        "": "Expecting value",
        "[]": "not a plan file",
        '{"format": "baechi-graph"}': "not a plan file",
        '{"format": "baechi-plan", "schema": 99}': "schema 99 is unknown",
    }.items():
        file.write_text(text)
        with pytest.raises(InputError, match=message) as caught:
            Plan.load(file)
        assert str(file) in str(caught.value)
    with pytest.raises(OSError, match="No such file"):
        Plan.load(tmp_path / "missing.json")
