"""The border to Rust: what crosses, what is refused, and long calls that let others work."""

from __future__ import annotations

import contextlib
import itertools
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from baechi import BaechiError, Cluster, CycleError, Graph, InputError, _core, workloads
from baechi.columns import COLUMNS
from baechi.errors import OutOfMemoryError, PlacementError

CLUSTER_COLUMNS = (
    "memory_bytes",
    "reserve_bytes",
    "kind",
    "speed",
    "latency_ns",
    "bytes_per_s",
    "send_channel",
    "recv_channel",
    "allowed",
)


def graph_columns(graph: Graph) -> dict[str, Any]:
    return {column.name: getattr(graph, column.name).copy() for column in COLUMNS}


def cluster_columns(num_devices: int = 2) -> dict[str, Any]:
    cluster = Cluster.from_arrays([1000] * num_devices)
    names = [name for name in CLUSTER_COLUMNS if name not in ("kind", "allowed")]
    columns = {name: getattr(cluster, name).copy() for name in names}
    columns |= {"kind": np.zeros(num_devices, np.int32)}
    columns |= {"allowed": np.zeros((0, num_devices), np.uint8)}
    return {name: columns[name] for name in CLUSTER_COLUMNS}


def flat(graph: Graph) -> tuple[_core.FlatGraph, _core.FlatCluster]:
    return graph.flatten(), _core.FlatCluster(*cluster_columns().values())


CHAIN = workloads.chain(3, compute_ns=5, tensor_bytes=2)


@pytest.mark.parametrize("name", [column.name for column in COLUMNS])
def test_a_graph_column_of_another_type_is_refused(name: str) -> None:
    columns = graph_columns(CHAIN)
    columns[name] = columns[name].astype(np.float32)
    with pytest.raises(TypeError):
        _core.FlatGraph(*columns.values())


@pytest.mark.parametrize("name", [column.name for column in COLUMNS])
def test_a_graph_column_of_another_length_is_refused(name: str) -> None:
    columns = graph_columns(CHAIN)
    columns[name] = columns[name][..., :-1].copy()
    with pytest.raises(InputError):
        _core.FlatGraph(*columns.values())


@pytest.mark.parametrize("name", [column.name for column in COLUMNS])
def test_a_graph_column_of_other_dimensions_is_refused(name: str) -> None:
    columns = graph_columns(CHAIN)
    columns[name] = columns[name][np.newaxis]
    with pytest.raises(TypeError):
        _core.FlatGraph(*columns.values())


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("compute_ns", -2, r"compute_ns\[1\] = -2 is not allowed"),
        ("persistent_bytes", -1, r"persistent_bytes\[1\] = -1"),
        ("persistent_bytes", 2**62, "the sum of persistent_bytes does not fit"),
        ("group", 7, "group numbers"),
        ("forward_op", 3, r"forward_op\[1\] = 3"),
        ("tensor_producer", -1, r"tensor_producer\[1\] = -1"),
        ("edge_tensor", 3, r"edge_tensor\[1\] = 3"),
        ("edge_consumer", 3, r"edge_consumer\[1\] = 3"),
    ],
)
def test_a_bad_value_is_named_with_its_place(name: str, value: int, message: str) -> None:
    columns = graph_columns(CHAIN)
    columns[name][..., 1] = value
    with pytest.raises(InputError, match=message):
        _core.FlatGraph(*columns.values())


def test_a_cycle_is_given_by_indices() -> None:
    columns = graph_columns(CHAIN)
    columns["edge_consumer"][1] = 0
    with pytest.raises(CycleError) as caught:
        _core.FlatGraph(*columns.values())
    assert sorted(caught.value.ops) == [0, 1]


@pytest.mark.parametrize("name", CLUSTER_COLUMNS)
def test_a_cluster_column_of_another_type_or_length_is_refused(name: str) -> None:
    columns = cluster_columns()
    other = columns | {name: columns[name].astype(np.complex64)}
    with pytest.raises(TypeError):
        _core.FlatCluster(*other.values())
    if name in ("memory_bytes", "allowed"):  # one tells the number of devices, one may be empty
        return
    short = columns | {name: columns[name][:-1].copy()}
    with pytest.raises((InputError, TypeError)):
        _core.FlatCluster(*short.values())


@pytest.mark.parametrize(
    ("name", "value"),
    [("memory_bytes", -1), ("speed", 0.0), ("speed", np.nan), ("latency_ns", -1), ("kind", 9)],
)
def test_a_bad_cluster_value_is_refused(name: str, value: float) -> None:
    columns = cluster_columns()
    columns[name].flat[0] = value
    with pytest.raises(InputError, match=name):
        _core.place(CHAIN.flatten(), _core.FlatCluster(*columns.values()), "single", "physical")


@pytest.mark.parametrize("number", [-1, 3, 2**31 - 1])
def test_devices_favorites_and_labels_out_of_range_are_refused(number: int) -> None:
    graph, cluster = flat(CHAIN)
    column = np.array([0, number, 0], np.int32)
    order = np.array([0, 1, 2], np.int32)
    calls: list[Callable[[], object]] = [
        lambda: _core.simulate_given(graph, cluster, column, "physical"),
        lambda: _core.simulate_given(graph, cluster, column, "physical", limits=True),
        lambda: _core.simulate_given(graph, cluster, column, "baechi-tf"),
        lambda: _core.simulate_launched(graph, cluster, column, order, "physical"),
        lambda: _core.simulate_launched(graph, cluster, order * 0, column, "physical"),
        lambda: _core.simulate_many(graph, cluster, column[None], None),
    ]
    if number >= 0:
        calls += [
            lambda: _core.place(graph, cluster, "m-sct", "physical", favorites=column),
            lambda: _core.coplace(graph, column, 10),
            lambda: _core.fuse(graph, column, "liveness"),
        ]
    for call in calls:
        with pytest.raises(InputError):
            call()


@pytest.mark.parametrize("code", [2, 3, 4, 5, 99, 2**40, -7])
def test_waits_for_what_is_not_earlier_are_refused_or_mean_nothing(code: int) -> None:
    graph, cluster = flat(CHAIN)
    device, order = np.array([0, 1, 0], np.int32), np.array([0, 1, 2], np.int32)
    op_wait = np.array([-1, code, -1], np.int64)
    transfer_wait = np.array([code, -1], np.int64)
    for waits in ({"op_wait": op_wait}, {"transfer_wait": transfer_wait}):
        try:
            schedule = _core.simulate_launched(graph, cluster, device, order, "physical", **waits)
        except InputError:
            continue
        assert schedule.makespan_ns > 0


@given(st.data())
def test_no_panic_reaches_python(data: st.DataObject) -> None:
    """Random columns give a schedule or an exception of ours, never "internal error"."""
    ops, tensors, edges = (data.draw(st.integers(0, 4)) for _ in range(3))

    def ints(length: int, dtype: Any, low: int = -2, high: int = 5) -> Any:
        special = st.sampled_from([2**62, 2**31 - 1, -(2**31)]) if dtype == np.int64 else st.just(0)
        values = st.one_of(st.integers(low, high), st.integers(low, high), special)
        return np.array(data.draw(st.lists(values, min_size=length, max_size=length)), dtype)

    low = data.draw(st.sampled_from([-2, 0]))
    columns = [
        ints(ops, np.int64, low)[None],
        *(ints(ops, np.int64, low) for _ in range(2)),
        *(ints(ops, np.int32, -1, 2) for _ in range(2)),
        ints(ops, np.uint8, 0, 3),
        ints(ops, np.int32, -1, 1),
        ints(tensors, np.int32, 0, max(ops - 1, 0)),
        ints(tensors, np.int64, low),
        ints(tensors, np.int64, -1),
        ints(tensors, np.uint8, 0, 9),
        ints(edges, np.int32, 0, max(tensors - 1, 0)),
        ints(edges, np.int32, 0, max(ops - 1, 0)),
    ]
    cluster = cluster_columns() | {"memory_bytes": ints(2, np.int64, 0)}
    with only_refusals():
        graph = _core.FlatGraph(*columns)
        flat_cluster = _core.FlatCluster(*cluster.values())
        chosen = ints(ops, np.int32, -1, ops)
        for name, rules in itertools.product(_core.ALGORITHMS, ("physical", "baechi-tf")):
            with only_refusals():
                _core.place(graph, flat_cluster, name, rules, favorites=chosen)


@contextlib.contextmanager
def only_refusals() -> Iterator[None]:
    try:
        yield
    except BaechiError as error:
        if "internal error" in str(error):
            raise AssertionError("a panic") from error


def test_the_core_speaks_in_indices() -> None:
    graph, cluster = flat(workloads.chain(3, compute_ns=5, tensor_bytes=2000))
    with pytest.raises(OutOfMemoryError) as caught:
        _core.place(graph, cluster, "m-etf", "physical")
    error = caught.value
    assert (error.op, error.device, error.needed_bytes, error.free_bytes) == (0, 0, 2000, 1000)
    assert error.__dict__["placed_ops"].tolist() == []
    alone = Graph.from_arrays(compute_ns=[1], allowed_sets=[["d0"]], allowed_set=[0])
    nowhere = cluster_columns() | {"allowed": np.zeros((1, 2), np.uint8)}
    with pytest.raises(PlacementError, match="op 0 may run on no device"):
        _core.place(alone.flatten(), _core.FlatCluster(*nowhere.values()), "single", "physical")


def test_other_threads_run_during_a_long_call() -> None:
    graph = workloads.random_layered(60_000, 300, seed=1)
    cluster = Cluster("16x1TiB")
    args = graph.flatten(), cluster.flatten(graph), "m-etf", "physical"
    call = threading.Thread(target=_core.place, args=args)
    call.start()
    turns = 0
    while call.is_alive():
        turns += 1
    call.join()
    assert turns > 1000


INTERRUPTED = """
import os, signal, sys, threading, time
import numpy as np
import baechi
from baechi import workloads

graph = workloads.random_layered(300_000, 500, seed=1)
cluster = baechi.Cluster("16x1TiB")
graph.flatten(), graph.fingerprint
sent = []

def interrupt():
    sent.append(time.monotonic())
    os.kill(os.getpid(), signal.SIGINT)

threading.Timer(0.4, interrupt).start()
try:
    for _ in range(100):
        if sys.argv[1] == "simulate_many":
            baechi.simulate_many(graph, cluster, np.zeros((50, graph.num_ops), np.int32))
        else:
            baechi.place(graph, cluster, sys.argv[1], favorites="greedy")
except KeyboardInterrupt:
    late = time.monotonic() - sent[0]
    print("stopped" if late < 1 else f"{late} s late")
"""


@pytest.mark.parametrize("what", ["m-etf", "m-sct", "contiguous", "best", "simulate_many"])
def test_ctrl_c_stops_a_long_call_within_a_second(what: str) -> None:
    command = [sys.executable, "-c", INTERRUPTED, what]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.stdout == "stopped\n", done.stderr


def test_what_is_needed_of_numpy_is_there_before_the_first_call() -> None:
    # At the first array the numpy crate would import this, and panic where that fails.
    script = """
import sys
from baechi import GraphBuilder, _core
builder = GraphBuilder()
builder.op("a", compute_ns=1)
graph = builder.build()
sys.modules["numpy._core.multiarray"] = sys.modules["numpy._core._multiarray_umath"] = None
print(graph.flatten())
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout == "FlatGraph(1 ops, 0 tensors)\n", done.stderr
