"""Comparing: one row per algorithm, bounds, and the table that is printed."""

from __future__ import annotations

from pathlib import Path

import pytest

import baechi
from baechi import Cluster, Device, Graph, InputError, Link, Plan, placer, workloads
from baechi.errors import SolverError

ROOT = Path(__file__).parent.parent
LINK = Link(latency_ns=1, bytes_per_s=10**9)


def fork_join(memory: int = 1000) -> tuple[Graph, Cluster]:
    graph = workloads.diamond(2, compute_ns=100, tensor_bytes=10)
    devices = [Device("d0", "gpu", memory), Device("d1", "gpu", memory)]
    return graph, Cluster(devices, LINK)


def test_every_algorithm_has_a_row_in_order() -> None:
    found = baechi.compare(*fork_join())
    assert [row.algorithm for row in found.rows] == [n for n in baechi.ALGORITHMS if n != "best"]
    assert all(row.error is None and row.plan is not None for row in found.rows)


def test_torch_rules_leave_the_reserving_algorithms_out() -> None:
    names = [row.algorithm for row in baechi.compare(*fork_join(), rules="baechi-torch").rows]
    assert "m-etf" in names
    assert "m-etf-reserve" not in names


def test_rows_hold_what_place_finds() -> None:
    graph, cluster = fork_join()
    found = baechi.compare(graph, cluster, ["m-etf", "single"])
    for name in ("m-etf", "single"):
        assert found[name].plan == baechi.place(graph, cluster, name)
    with pytest.raises(KeyError):
        found["m-sct"]


def test_best_of_a_comparison_is_what_best_places() -> None:
    graph, cluster = fork_join()
    best = baechi.compare(graph, cluster).best
    assert best is not None
    assert best.makespan_ns == baechi.place(graph, cluster).makespan_ns == 311


def test_bounds_are_the_longest_path_and_the_work_spread_evenly() -> None:
    found = baechi.compare(*fork_join(), ["single"])
    assert (found.critical_path_ns, found.work_bound_ns, found.lower_bound_ns) == (300, 200, 300)
    wide = Graph.from_arrays(compute_ns=[10] * 5)
    found = baechi.compare(wide, fork_join()[1], ["single"])
    assert (found.critical_path_ns, found.work_bound_ns, found.lower_bound_ns) == (10, 25, 25)


def test_bounds_count_each_op_on_its_fastest_device() -> None:
    cluster = Cluster([Device("d0", "gpu", 10), Device("d1", "gpu", 10, speed=2.0)], LINK)
    found = baechi.compare(Graph.from_arrays(compute_ns=[10]), cluster, ["single"])
    assert found.lower_bound_ns == 5


def test_what_does_not_fit_is_a_row_with_its_reason() -> None:
    graph, cluster = fork_join(memory=25)
    found = baechi.compare(graph, cluster, ["single", "m-etf"])
    row = found["single"]
    assert row.plan is None
    assert row.error is not None
    assert 'needs 10 B on device "d0"' in row.error
    assert "single: " in str(found)


def test_without_any_plan_there_is_no_best() -> None:
    found = baechi.compare(*fork_join(memory=5))
    assert found.best is None
    assert all(row.plan is None for row in found.rows)
    assert str(found).count("no plan") == len(found.rows)


def test_a_plan_over_its_limit_is_shown_but_never_best() -> None:
    graph = Graph.from_arrays(compute_ns=[1, 1], persistent_bytes=[30, 30])
    cluster = Cluster([Device("d0", "gpu", 70), Device("d1", "gpu", 10)], LINK)
    found = baechi.compare(graph, cluster, ["m-topo", "single"], rules="baechi-tf")
    shown = found["m-topo"]
    assert shown.plan is not None or shown.error is not None
    assert found.best is not None
    assert found.best.fits


def test_the_table_shows_steps_peaks_and_what_was_assumed() -> None:
    graph, _ = fork_join()
    text = str(baechi.compare(graph, "2x1KiB", ["single", "m-etf"]))
    lines = text.splitlines()
    assert lines[0].split()[:2] == ["algorithm", "step"]
    assert lines[1].startswith("single")
    assert "1.00x" in lines[1]
    assert any("lower bound 300 ns" in line for line in lines)
    assert any(line.startswith("note: links were not given") for line in lines)


def test_unknown_algorithms_and_missing_clusters_are_input_errors() -> None:
    graph, cluster = fork_join()
    with pytest.raises(InputError, match='no algorithm "magic"'):
        baechi.compare(graph, cluster, ["magic"])
    with pytest.raises(InputError, match="no cluster was given"):
        baechi.compare(graph)
    with pytest.raises(InputError, match='no rules "magic"'):
        baechi.compare(graph, cluster, rules="magic")


def many_chains() -> tuple[Graph, Cluster]:
    """Chains whose transfers are long, ready in turns: m-ETF alone tears them apart."""
    builder = baechi.GraphBuilder()
    for step in range(6):
        for chain in range(3):
            builder.op(f"{chain}.{step}", compute_ns=10, persistent_bytes=5)
            if step:
                builder.connect(f"{chain}.{step - 1}", f"{chain}.{step}", bytes=40)
    devices = [Device("d0", "gpu", 60 + 90), Device("d1", "gpu", 60 + 90)]
    return builder.build(), Cluster(devices, LINK)


def test_best_tries_the_grouped_graph_and_is_never_worse_for_it() -> None:
    graph, cluster = many_chains()
    plan = baechi.place(graph, cluster)
    table = {row.algorithm: row for row in plan.candidates}
    assert {"grouped contiguous", "grouped m-topo", "grouped m-etf"} < set(table)
    assert plan.fits
    steps = [row.makespan_ns for row in table.values() if row.makespan_ns and row.error is None]
    assert plan.makespan_ns == min(steps)


def test_a_grouped_winner_replays_from_its_file(tmp_path: Path) -> None:
    graph = baechi.load_graph(
        ROOT / "benches/workloads/dnn-partitioning/throughput-inputs/OperatorGraphs"
        "/bert_l-3_inference.json"
    )
    cluster = Cluster("3xaccelerator:1GiB")
    plan = baechi.place(graph, cluster)
    assert plan.algorithm.startswith("grouped ")
    plan.save(tmp_path / "plan.json")
    loaded = Plan.load(tmp_path / "plan.json", graph)
    assert loaded.algorithm == plan.algorithm
    assert baechi.simulate(graph, cluster, loaded).makespan_ns == plan.makespan_ns


def test_best_goes_on_without_m_sct_where_the_solver_has_no_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def give_up(*_: object, **__: object) -> None:
        raise SolverError("a piece of 3 ops was not solved")

    monkeypatch.setattr(placer, "find_favorites", give_up)
    graph, cluster = fork_join()
    plan = baechi.place(graph, cluster)
    assert plan.makespan_ns == 311
    assert plan.provenance.notes[-1] == "m-sct was left out: a piece of 3 ops was not solved"
    rows = {row.algorithm: row.error for row in plan.candidates}
    assert rows["m-sct"] == rows["m-sct-reserve"] == "a piece of 3 ops was not solved"
    with pytest.raises(SolverError):
        baechi.place(graph, cluster, "m-sct")
