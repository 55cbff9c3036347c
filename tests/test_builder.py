"""The builder: every mistake at the call that makes it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from baechi.builder import GraphBuilder
from baechi.errors import CycleError, InputError
from baechi.graph import MEMORY_CLASSES


@pytest.fixture
def builder() -> GraphBuilder:
    """Two ops, a and b, on two device kinds."""
    result = GraphBuilder(("gpu", "cpu"))
    result.op("a", 5)
    result.op("b", {"gpu": 7, "cpu": None})
    return result


def test_op_returns_its_name(builder: GraphBuilder) -> None:
    assert builder.op("c", 1) == "c"


def test_one_time_is_the_time_on_every_kind(builder: GraphBuilder) -> None:
    assert builder.build().compute_ns[:, 0].tolist() == [5, 5]


def test_a_kind_without_a_time_cannot_run_the_op(builder: GraphBuilder) -> None:
    builder.op("c", {"cpu": 3})
    assert builder.build().compute_ns[:, 1:].tolist() == [[7, -1], [-1, 3]]


def test_connect_adds_a_tensor_per_call(builder: GraphBuilder) -> None:
    assert [builder.connect("a", "b", 4), builder.connect("a", "b", 8)] == [0, 1]
    assert builder.build().tensor_bytes.tolist() == [4, 8]


def test_one_tensor_has_many_consumers(builder: GraphBuilder) -> None:
    builder.op("c", 1)
    tensor = builder.tensor("a", 4, memory_class="weight", transfer_ns=9)
    builder.edge(tensor, "c")
    builder.edge(tensor, "b")
    graph = builder.build()
    assert graph.edge_consumer.tolist() == [2, 1]
    assert graph.tensor_transfer_ns.tolist() == [9]


def test_control_edges_share_the_one_control_tensor(builder: GraphBuilder) -> None:
    builder.op("c", 1)
    builder.control_edge("a", "b")
    builder.control_edge("a", "c")
    graph = builder.build()
    assert graph.num_tensors == 1
    assert MEMORY_CLASSES[graph.tensor_class[0]] == "control"
    assert graph.edge_consumer.tolist() == [1, 2]


def test_groups_and_device_sets_are_kept_once(builder: GraphBuilder) -> None:
    builder.op("c", 1, group="g", allowed_devices=["gpu:1", "gpu:0"])
    builder.op("d", 1, group="g", allowed_devices={"gpu:0", "gpu:1"})
    graph = builder.build()
    assert graph.group.tolist() == [-1, -1, 0, 0]
    assert graph.allowed_sets == (("gpu:0", "gpu:1"),)


def test_one_device_may_be_given_as_text(builder: GraphBuilder) -> None:
    builder.op("c", 1, allowed_devices="gpu:0")
    assert builder.build().allowed_sets == (("gpu:0",),)


def test_a_backward_op_knows_its_forward_op(builder: GraphBuilder) -> None:
    builder.op("a/grad", 1, role="backward", forward_op="a")
    assert builder.build().forward_op.tolist() == [-1, -1, 0]


def test_numpy_integers_are_integers(builder: GraphBuilder) -> None:
    builder.op("c", np.int32(3), persistent_bytes=np.int64(4))
    assert builder.build().persistent_bytes.tolist() == [0, 0, 4]


def test_building_twice_gives_equal_graphs_and_the_builder_goes_on(builder: GraphBuilder) -> None:
    first = builder.build()
    assert builder.build() == first
    builder.op("c", 1)
    assert (first.num_ops, builder.build().num_ops) == (2, 3)


def test_a_cycle_is_found_when_building(builder: GraphBuilder) -> None:
    builder.connect("a", "b")
    builder.connect("b", "a")
    with pytest.raises(CycleError, match='"a"'):
        builder.build()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda b: b.op("a", 1), 'op "a" is there already'),
        (lambda b: b.op("", 1), "not empty"),
        (lambda b: b.op(3, 1), "a text"),
        (lambda b: b.op("c", -1), "compute_ns is -1"),
        (lambda b: b.op("c", 1.0), "compute_ns is 1.0"),
        (lambda b: b.op("c", True), "compute_ns is True"),
        (lambda b: b.op("c", 2**62), "compute_ns is"),
        (lambda b: b.op("c", {"tpu": 1}), "unknown device kind 'tpu'"),
        (lambda b: b.op("c", {}), 'op "c" can run on no device kind'),
        (lambda b: b.op("c", {"gpu": None}), 'op "c" can run on no device kind'),
        (lambda b: b.op("c", 1, persistent_bytes=-4), "persistent_bytes is -4"),
        (lambda b: b.op("c", 1, scratch_bytes=0.5), "scratch_bytes is 0.5"),
        (lambda b: b.op("c", 1, kind=3), "kind is 3"),
        (lambda b: b.op("c", 1, group=""), "group is ''"),
        (lambda b: b.op("c", 1, role="sideways"), "role 'sideways'"),
        (lambda b: b.op("c", 1, allowed_devices=[]), "allowed devices is empty"),
        (lambda b: b.op("c", 1, allowed_devices=[0]), "allowed device is 0"),
        (lambda b: b.op("c", 1, role="backward", forward_op="z"), "no op 'z'"),
        (lambda b: b.op("c", 1, forward_op="a"), "forward op"),
        (lambda b: b.tensor("z", 1), "no op 'z'"),
        (lambda b: b.tensor("a", -1), 'tensor of op "a": bytes is -1'),
        (lambda b: b.tensor("a", 1, memory_class="cache"), "memory class 'cache'"),
        (lambda b: b.tensor("a", 0, memory_class="control"), "control"),
        (lambda b: b.tensor("a", 0, transfer_ns=-1), "transfer_ns is -1"),
        (lambda b: b.edge(0, "a"), "tensor 0 is not there"),
        (lambda b: b.edge(b.tensor("a", 1), "a"), "its own output"),
        (lambda b: b.edge(b.connect("a", "b"), "b"), "consumes tensor 0 already"),
        (lambda b: b.connect("a", "a"), "its own output"),
        (lambda b: b.connect("a", ["b"]), "no op"),
        (lambda b: b.control_edge("a", "a"), "wait for itself"),
        (lambda b: [b.control_edge("a", "b"), b.control_edge("a", "b")], "already"),
        (lambda _: GraphBuilder(()), "at least one device kind"),
        (lambda _: GraphBuilder("gpu"), "not one text"),
        (lambda _: GraphBuilder(("gpu", "gpu")), "twice"),
    ],
)
def test_a_mistake_is_refused_at_once(
    builder: GraphBuilder, call: Callable[[GraphBuilder], object], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        call(builder)


@pytest.mark.parametrize(
    "call",
    [
        lambda b: b.op("c", 1, role="sideways", group="new"),
        lambda b: b.op("c", 1, group="new", allowed_devices=[]),
        lambda b: b.op("c", 1, allowed_devices=["new"], role="backward", forward_op="z"),
        lambda b: b.connect("a", "z"),
        lambda b: b.connect("a", "a"),
        lambda b: b.control_edge("a", "z"),
    ],
)
def test_a_refused_call_leaves_no_trace(
    builder: GraphBuilder, call: Callable[[GraphBuilder], object]
) -> None:
    before = builder.build()
    with pytest.raises(InputError):
        call(builder)
    assert builder.build() == before
