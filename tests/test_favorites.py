"""Tests of the certified solution of m-SCT's linear program: value, bounds, constraints, limits."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import baechi
import families
import vectors
from baechi import simplex
from baechi.errors import CycleError, InputError, SolverError
from baechi.original import tf
from baechi.relaxation import relax, solve

WORKLOADS = sorted(
    (Path(__file__).parents[1] / "benches/workloads/dnn-partitioning").glob("*-inputs/*/*.json")
)
# How a program is solved: whole, by blocks, by the nearly critical edges of every block.
WAYS = ({"whole_ops": 2_000}, {"whole_ops": 0}, {"whole_ops": 0, "block_nodes": 4})
NUM_RANDOM = 600


def random_program(seed):
    """Parents, children, transfers and durations: DAGs, chains, stars, trees; ties and zeros."""
    rng = np.random.default_rng(seed)
    num_ops = int(rng.integers(2, 60))
    tree = np.array([rng.integers(0, op) for op in range(1, num_ops)])
    ops = np.arange(num_ops)
    kind = seed % 6
    if kind == 1:
        parent, child = ops[:-1], ops[1:]
    elif kind == 2:
        parent, child = np.zeros(num_ops - 1, int), ops[1:]
    elif kind == 3:
        parent, child = tree, ops[1:]
    elif kind == 4:
        parent, child = num_ops - 1 - ops[1:], num_ops - 1 - tree
    else:
        ends = rng.integers(0, num_ops, (2, int(rng.choice([1, 2, 4])) * num_ops))
        low, high = ends.min(axis=0), ends.max(axis=0)
        keys = np.unique((low * num_ops + high)[low < high])
        parent, child = keys // num_ops, keys % num_ops
    if rng.random() < 0.5:
        compute = rng.integers(0, 4, num_ops).astype(float)
        transfer = rng.integers(0, 8, len(parent)).astype(float)
    else:
        compute = rng.lognormal(0.0, 1.0, num_ops)
        transfer = rng.lognormal(rng.choice([-2.0, 0.0, 2.0]), 1.0, len(parent))
    return parent.astype(np.int32), child.astype(np.int32), transfer, compute


def longest_path(parent, child, transfer, compute, values):
    """The makespan under the values, op by op."""
    start = np.zeros(len(compute))
    order = np.argsort(parent, kind="stable")  # parents come before their children
    for pair in order.tolist():
        end = start[parent[pair]] + compute[parent[pair]] + transfer[pair] * values[pair]
        start[child[pair]] = max(start[child[pair]], end)
    return (start + compute).max()


def check(program, relaxed, optimum):
    """Value, bounds and constraints of one solution."""
    parent, child, _, compute = program
    assert relaxed.lower_bound <= relaxed.upper_bound
    assert relaxed.lower_bound == pytest.approx(optimum, rel=1e-9, abs=1e-9)
    assert relaxed.upper_bound == pytest.approx(optimum, rel=1e-9, abs=1e-9)
    assert relaxed.values.min(initial=0.0) >= 0.0
    assert relaxed.values.max(initial=1.0) <= 1.0
    for end in (parent, child):
        spared = np.bincount(end, weights=1.0 - relaxed.values, minlength=len(compute))
        assert spared.max(initial=0.0) <= 1.0 + 1e-9


@pytest.mark.parametrize("first", range(0, NUM_RANDOM, 100))
def test_the_value_is_that_of_the_whole_program_on_random_graphs(first):
    for seed in range(first, first + 100):
        program = random_program(seed)
        optimum = solve(*program).optimum
        for way in WAYS:
            check(program, relax(*program, **way), optimum)


def test_the_upper_bound_is_the_longest_path_under_the_values():
    for seed in range(0, 60, 6):
        program = random_program(seed)
        relaxed = relax(*program)
        path = longest_path(*program, relaxed.values)
        assert path <= relaxed.upper_bound <= path * (1 + 1e-12)


@pytest.mark.parametrize("ratio", [0.1, 1.0, 10.0])
@pytest.mark.parametrize("path", WORKLOADS, ids=lambda path: f"{path.parts[-3]}/{path.stem}")
def test_the_value_is_that_of_the_whole_program_on_the_workloads(path, ratio):
    graph = baechi.load_graph(path)
    parent = graph.tensor_producer[graph.edge_tensor]
    transfer = graph.tensor_transfer_ns[graph.edge_tensor].astype(float)
    compute = np.maximum(graph.compute_ns[0], 0).astype(float)
    transfer *= ratio * compute.mean() / max(transfer.mean(), 1.0)
    keys, first = np.unique(parent * graph.num_ops + graph.edge_consumer, return_index=True)
    ends = (keys // graph.num_ops).astype(np.int32), (keys % graph.num_ops).astype(np.int32)
    scale = 1e-3  # HiGHS' tolerances are absolute
    program = (*ends, transfer[first] * scale, compute * scale)
    optimum = solve(*program).optimum
    for way in WAYS[:2]:
        relaxed = relax(*program, **way)
        assert relaxed.lower_bound <= relaxed.upper_bound
        assert relaxed.lower_bound == pytest.approx(optimum, rel=1e-8)
        assert relaxed.upper_bound == pytest.approx(optimum, rel=1e-8)


@pytest.mark.parametrize("name", [*families.FAMILIES, "layered"])
def test_the_value_is_that_of_the_whole_program_on_families(name):
    graph = families.family(name, 3_000, ratio=1.0, seed=3)
    found = baechi.favorites(graph, families.unit_cluster())
    parent, child = found.parent_of_pair, found.child_of_pair
    transfer = graph.tensor_bytes[parent].astype(float)
    optimum = solve(parent, child, transfer / 1e5, graph.compute_ns[0] / 1e5).optimum * 1e5
    assert found.lower_bound_ns == pytest.approx(optimum, rel=1e-8)
    assert found.upper_bound_ns == pytest.approx(optimum, rel=1e-8)
    assert found.gap < 1e-9


@pytest.mark.parametrize(
    "record",
    [r for r in vectors.tf_records() if any("lp_optimum" in x for x in r["results"].values())],
    ids=lambda record: record["id"],
)
def test_the_bounds_of_the_original_enclose_the_recorded_optimum(record):
    optima = [x["lp_optimum"] for x in record["results"].values() if "lp_optimum" in x]
    graph = vectors.op_graph(record)
    before = {op: dict(node) for op, node in graph.nodes(data=True)}
    found = tf.favorites(graph)
    assert found.lower_bound == pytest.approx(optima[0], rel=1e-9, abs=1e-5)
    assert found.upper_bound == pytest.approx(optima[0], rel=1e-9, abs=1e-5)
    assert found.lower_bound <= found.upper_bound
    assert set(found.values) == set(graph.edges)
    assert {op: dict(node) for op, node in graph.nodes(data=True)} == before


def test_an_edge_that_was_set_free_stays_free_when_its_block_closes_early():
    program = np.zeros(1, np.int32), np.ones(1, np.int32), np.array([2.0]), np.array([1.0, 3.0])
    relaxed = relax(*program, whole_ops=0)
    assert relaxed.values.tolist() == [0.0]
    assert (relaxed.lower_bound, relaxed.upper_bound) == pytest.approx((4.0, 4.0))
    assert relaxed.counters["num_programs"] == 0


def test_what_was_dropped_as_never_critical_still_bounds_a_block():
    """0 -> 1 -> 3 decides; behind it, only 0 -> 2 -> 4 would be left, and it is shorter."""
    program = (
        np.array([0, 0, 1, 1, 2], np.int32),
        np.array([1, 2, 3, 4, 5], np.int32),
        np.array([0.042, 0.093, 0.686, 0.04, 0.43]),
        np.array([3.871, 1.217, 2.469, 0.238, 0.604, 0.187]),
    )
    optimum = solve(*program).optimum
    check(program, relax(*program, whole_ops=0), optimum)


def test_greedy_favorites_come_with_bounds():
    graph = families.family("inception", 3_000, ratio=1.0, seed=1)
    cluster = families.unit_cluster()
    greedy, exact = (baechi.favorites(graph, cluster, method) for method in ("greedy", "lp"))
    assert greedy.lower_bound_ns <= exact.upper_bound_ns
    assert exact.lower_bound_ns <= greedy.upper_bound_ns
    assert 0.0 < greedy.gap < 0.25
    assert set(greedy.values.tolist()) == {0.0, 1.0}


@pytest.mark.parametrize("limit_s", [0.0, 0.3, 1.0])
def test_a_time_limit_is_honored_and_the_bounds_still_hold(limit_s):
    graph, cluster = families.family("layered", 6_000, ratio=10.0, seed=1), families.unit_cluster()
    graph.flatten()
    start = time.perf_counter()
    found = baechi.favorites(graph, cluster, time_limit=limit_s)
    elapsed = time.perf_counter() - start
    assert elapsed < 1.1 * limit_s + 0.5  # the machine may be busy
    assert 0 < found.lower_bound_ns <= found.upper_bound_ns
    assert found.gap < 0.6
    assert len(set(found.child[found.child >= 0].tolist())) == (found.child >= 0).sum()


def test_negative_limits_cycles_and_bad_times_are_refused():
    one = np.zeros(1, np.int32)
    with pytest.raises(InputError, match="time_limit is -1"):
        relax(one, one + 1, np.ones(1), np.ones(2), time_limit=-1)
    with pytest.raises(CycleError):
        relax(np.array([0, 1], np.int32), np.array([1, 0], np.int32), np.ones(2), np.ones(2))
    for bad in (-1.0, np.nan, np.inf):
        with pytest.raises(InputError, match="transfer"):
            relax(one, one + 1, np.array([bad]), np.ones(2))


def test_a_program_without_ops_or_pairs_has_a_value():
    nothing = np.empty(0, np.int32)
    assert relax(nothing, nothing, np.empty(0), np.empty(0)).upper_bound == 0
    relaxed = relax(nothing, nothing, np.empty(0), np.array([3.0, 5.0]))
    assert (relaxed.lower_bound, relaxed.upper_bound) == pytest.approx((5.0, 5.0))


@pytest.mark.parametrize("answers", [["Infeasible"], ["Infeasible", "Unbounded"]])
def test_a_false_infeasible_is_asked_again_and_is_never_the_users_fault(monkeypatch, answers):
    run = simplex._run
    waiting = list(answers)
    monkeypatch.setattr(simplex, "_run", lambda *given: waiting.pop(0) if waiting else run(*given))
    program = random_program(5)
    if len(answers) == 1:
        relaxed = relax(*program)
        assert relaxed.upper_bound == pytest.approx(relaxed.lower_bound)
    else:
        with pytest.raises(SolverError, match=r"has a solution infeasible.* unbounded"):
            relax(*program)


def test_the_cheapest_link_and_the_fastest_device_count():
    graph = baechi.Graph.from_arrays(
        device_kinds=("fast", "slow"),
        compute_ns=[[100, 100, 100], [400, 400, 400]],
        tensor_producer=[0, 1],
        tensor_bytes=[1000, 1000],
        edge_tensor=[0, 1],
        edge_consumer=[2, 2],
    )
    devices = [
        baechi.Device("a", "slow", "1GiB"),
        baechi.Device("b", "fast", "1GiB"),
        baechi.Device("c", "slow", "1GiB"),
    ]
    slow, fast = (baechi.Link(latency_ns=0, bytes_per_s=rate) for rate in (10**9, 4 * 10**9))
    names = [device.name for device in devices]
    links = {(a, b): slow for a in names for b in names if a != b} | {("a", "c"): fast}
    found = baechi.favorites(graph, baechi.Cluster(devices, links))
    # 100 ns, half of a transfer of 250 ns each, 100 ns.
    assert found.upper_bound_ns == pytest.approx(325)
    assert found.lower_bound_ns == pytest.approx(325)


def test_a_plan_records_the_bounds():
    graph, cluster = families.family("inception", 300, ratio=1.0, seed=1), families.unit_cluster()
    found = baechi.favorites(graph, cluster)
    options = baechi.place(graph, cluster, "m-sct").provenance.options
    assert options["unlimited_lower_bound_ns"] <= found.lower_bound_ns
    assert options["unlimited_upper_bound_ns"] >= found.upper_bound_ns
    assert options["unlimited_upper_bound_ns"] - options["unlimited_lower_bound_ns"] <= 2


def test_favorites_are_the_same_for_every_hash_seed_and_thread_count():
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); import baechi, families, hashlib\n"
        "graph = families.family('rnn', 9000, ratio=1.0, seed=2)\n"
        "found = baechi.favorites(graph, families.unit_cluster())\n"
        "print(hashlib.sha256(found.child.tobytes() + found.values.tobytes()).hexdigest())\n"
    )
    support = str(Path(__file__).parent / "support")
    digests = set()
    for hash_seed, threads in (("0", "1"), ("1", "2")):
        variables = os.environ | {
            "PYTHONHASHSEED": hash_seed,
            "OMP_NUM_THREADS": threads,
            "RAYON_NUM_THREADS": threads,
        }
        done = subprocess.run(
            [sys.executable, "-c", code, support], env=variables, capture_output=True, check=True
        )
        digests.add(done.stdout)
    assert len(digests) == 1


def test_ctrl_c_reaches_the_solver():
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); import baechi, families, highspy\n"
        "graph = families.family('layered', 12000, ratio=10.0, seed=2)\n"
        "print('ready', flush=True)\n"
        "try:\n"
        "    baechi.favorites(graph, families.unit_cluster())\n"
        "except KeyboardInterrupt:\n"
        "    print('stopped')\n"
    )
    support = str(Path(__file__).parent / "support")
    child = subprocess.Popen(
        [sys.executable, "-c", code, support], stdout=subprocess.PIPE, text=True
    )
    assert child.stdout.readline() == "ready\n"
    time.sleep(2.0)
    child.send_signal(signal.SIGINT)
    start = time.perf_counter()
    assert child.communicate(timeout=60)[0] == "stopped\n"
    assert time.perf_counter() - start < 5.0
