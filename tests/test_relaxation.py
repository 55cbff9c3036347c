"""Tests of m-SCT's linear program: its optimum, its constraints, and the rounding."""

import os
import signal
import subprocess
import sys
import threading

import numpy as np
import pytest
from hypothesis import given, settings

import baseline_lp
import families
import vectors
from baechi import relaxation, simplex
from baechi.cluster import Cluster
from baechi.errors import InputError, SolverError
from baechi.graph import Graph
from baechi.relaxation import favorites, relax, solve
from baechi.workloads import random_layered
from original_graphs import cases

RECORDS = [
    pytest.param(record, result["lp_optimum"], id=f"{record['id']}-{name}")
    for record in vectors.tf_records() + vectors.torch_records()
    for name, result in record["results"].items()
    if "lp_optimum" in result
]


def program(graph):
    """The arguments of `solve` for a graph with the originals' attributes."""
    edges = sorted(graph.edges(data=True), key=lambda edge: edge[2]["id"])
    number = {op: i for i, op in enumerate(graph.nodes)}
    return (
        np.array([number[parent] for parent, _, _ in edges], np.int32),
        np.array([number[child] for _, child, _ in edges], np.int32),
        np.array([edge["weight"] for _, _, edge in edges], np.float64),
        np.array([weight for _, weight in graph.nodes(data="weight")], np.float64),
    )


def pairs(transfers, compute_ns, channels="parallel"):
    """A graph of (parent, child, transfer in ns) edges, each a tensor of its own, and a cluster."""
    graph = Graph.from_arrays(
        compute_ns=compute_ns,
        tensor_producer=[parent for parent, _, _ in transfers],
        tensor_transfer_ns=[transfer_ns for _, _, transfer_ns in transfers],
        edge_tensor=range(len(transfers)),
        edge_consumer=[child for _, child, _ in transfers],
    )
    return graph, Cluster("2x1GiB", channels=channels)


@pytest.mark.parametrize(("record", "optimum"), RECORDS)
def test_the_optimum_is_the_recorded_one(record, optimum):
    assert solve(*program(vectors.op_graph(record))).optimum == pytest.approx(optimum, abs=2e-6)


@settings(max_examples=100)
@given(cases())
def test_the_values_meet_every_constraint(case):
    parent, child, transfer, compute = program(case.tf(ids=True)[0])
    relaxation = solve(parent, child, transfer, compute)
    values = relaxation.values
    assert values.min(initial=0) >= -1e-9
    assert values.max(initial=1) <= 1 + 1e-9
    for end in (parent, child):
        count = np.bincount(end, minlength=len(compute))
        spared = np.bincount(end, weights=1 - values, minlength=len(compute))
        assert (spared[count > 0] <= 1 + 1e-6).all()
    start = np.zeros(len(compute))
    for _ in compute:
        arrival = start[parent] + compute[parent] + transfer * values
        np.maximum.at(start, child, arrival)
    assert (start + compute).max(initial=0) <= relaxation.optimum + 1e-5


@settings(max_examples=50)
@given(cases(most_ops=10))
def test_the_vertex_is_that_of_the_literal_layout(case):
    graph, _ = case.tf(ids=True)
    optimum, favorite_edges = baseline_lp.lp_favorites(graph, threshold=0.1)
    relaxation = solve(*program(graph))
    assert relaxation.optimum == pytest.approx(optimum)
    rounded = [baseline_lp.is_favorite(value, 0.1) for value in relaxation.values]
    assert list(np.flatnonzero(rounded)) == favorite_edges


def test_a_program_without_ops_or_pairs_is_solved():
    nothing = np.empty(0, np.int32)
    assert solve(nothing, nothing, np.empty(0), np.empty(0)).optimum == 0
    assert solve(nothing, nothing, np.empty(0), np.array([3, 5])).optimum == 5


def test_the_solver_says_nothing():
    code = (
        "import numpy as np; from baechi.simplex import solve;"
        "solve(np.array([0], np.int32), np.array([1], np.int32), np.ones(1), np.ones(2))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, timeout=60)
    assert (done.stdout, done.stderr) == (b"", b"")


def test_a_solver_of_the_caller_with_other_threads_is_not_disturbed():
    code = (
        "import highspy, numpy as np; from baechi.simplex import _quiet_highs, solve\n"
        "def ours(): solve(np.zeros(1, np.int32), np.ones(1, np.int32), np.ones(1), np.ones(2))\n"
        "def theirs():\n"
        "    model = _quiet_highs()\n"
        "    model.setOptionValue('threads', 2)\n"
        "    model.addVar(0, 1)\n"
        "    assert model.run() == highspy.HighsStatus.kOk\n"
        "ours(); theirs(); ours(); theirs()\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_what_is_not_solved_in_time_is_an_error():
    graph = random_layered(3000, 50, seed=1)
    parent = graph.tensor_producer[graph.edge_tensor].astype(np.int32)
    times = np.ones(len(parent)), np.ones(graph.num_ops)
    with pytest.raises(SolverError, match=r"3000 ops .* not solved: time limit reached"):
        solve(parent, graph.edge_consumer, *times, time_limit=0.0)


def test_shares_keep_to_the_guide_while_the_core_of_a_deep_block_is_not_complete(monkeypatch):
    run, answers = simplex._run, [True, True]
    monkeypatch.setattr(
        simplex,
        "_run",
        lambda *given: run(*given) if answers and answers.pop() else "Time limit reached",
    )
    graph = families.family("rnn", 20_000, ratio=1.0, seed=1)
    found = favorites(graph, families.unit_cluster())
    assert found.counters["num_core_rounds"] >= 1
    assert 1e-8 < found.gap < 7e-4  # the guide alone: 1.7e-3


@pytest.mark.parametrize("seed", [0, 3, 4])
def test_windows_find_the_shares_that_the_core_leaves_open(seed):
    program = families.program("rnn", 3_000, seed=seed)
    found = relax(*program, whole_ops=0, block_nodes=300, deep_nodes=300)
    assert found.counters["num_windows"] > 0
    optimum = solve(*program).optimum
    assert found.lower_bound == pytest.approx(optimum, rel=1e-9)
    assert found.upper_bound == pytest.approx(optimum, rel=1e-9)


def test_a_deep_block_is_solved_whatever_its_guide_is_worth(monkeypatch):
    monkeypatch.setattr(relaxation, "_SWEEPS", 1)
    program = families.program("rnn", 3_000, seed=2)
    found = relax(*program, whole_ops=0, block_nodes=300, deep_nodes=300)
    assert found.upper_bound == pytest.approx(found.lower_bound, rel=1e-9)


@pytest.mark.parametrize("delay_s", [0.05, 0.15, 0.3])
def test_ctrl_c_is_not_lost_while_the_core_works(delay_s):
    graph = families.family("rnn", 100_000, ratio=1.0, seed=2)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    cluster = families.unit_cluster()
    pressed = threading.Timer(delay_s, os.kill, (os.getpid(), signal.SIGINT))
    try:
        pressed.start()
        with pytest.raises(KeyboardInterrupt):
            favorites(graph, cluster)
    finally:
        pressed.join()
        signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("time_limit", ["1", True, -1.0, float("nan")])
def test_what_is_no_time_limit_is_refused(time_limit):
    graph, cluster = pairs([(0, 1, 9)], [5, 5])
    with pytest.raises(InputError, match="time_limit is"):
        favorites(graph, cluster, time_limit=time_limit)


def test_favorites_hide_the_longest_transfer():
    graph, cluster = pairs([(0, 2, 9000), (1, 2, 1000)], [5000, 5000, 1000])
    assert favorites(graph, cluster).child.tolist() == [2, -1, -1]
    assert favorites(graph, cluster, "greedy").child.tolist() == [2, -1, -1]


@pytest.mark.parametrize(
    ("rules", "threshold", "expected"),
    [
        ("physical", None, [-1, -1, -1]),  # below 0.5
        ("physical", 0.51, [-1, 2, -1]),  # the later parent takes the child
        ("baechi-torch", None, [-1, 2, -1]),  # up to 0.5
        ("baechi-torch", 0.49, [-1, -1, -1]),
        ("baechi-tf", None, [-1, -1, -1]),  # up to 0.1
        ("baechi-tf", 0.5, [-1, 2, -1]),
    ],
)
def test_thresholds_by_rules(rules, threshold, expected):
    """Two equal parents share their child: both values are 0.5."""
    channels = {"baechi-tf": "serial", "baechi-torch": "parallel"}.get(rules, "duplex")
    graph, cluster = pairs([(0, 2, 8000), (1, 2, 8000)], [1000, 1000, 1000], channels)
    found = favorites(graph, cluster, rules=rules, threshold=threshold).child
    assert found.dtype == np.int32
    assert found.tolist() == expected


def test_an_op_has_at_most_one_favorite_and_one_parent_that_favors_it():
    graph = random_layered(400, 20, seed=3)
    for method in ("lp", "greedy"):
        found = favorites(graph, Cluster("4x8GiB"), method).child
        chosen = found[found >= 0]
        assert len(chosen) > 100
        assert len(set(chosen.tolist())) == len(chosen)


def test_unknown_methods_and_rules_are_refused():
    graph, cluster = pairs([(0, 1, 1)], [1, 1])
    with pytest.raises(InputError, match='no method "best"'):
        favorites(graph, cluster, "best")
    with pytest.raises(InputError, match='no rules "fast"'):
        favorites(graph, cluster, rules="fast")
