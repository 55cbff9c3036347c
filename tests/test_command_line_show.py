"""The commands that show, compare and convert what there is, and the favorites."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest

import baechi
from commands import Files, run, valid

ROOT = Path(__file__).parents[1]
Capture = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return Files(tmp_path_factory.mktemp("commands"))


def test_show_tells_graph_plan_and_cluster_apart(files: Files, capsys: Capture) -> None:
    for path, kind in (
        (files.graph, "graph"),
        (files.plan, "plan"),
        (files.cluster, "cluster"),
        (files.uneven(), "cluster"),
        ("4x8GiB", "cluster"),
    ):
        assert valid(run(capsys, "show", path, "--json"), "show")["kind"] == kind
        assert run(capsys, "show", path).code == 0


def test_show_counts_a_graph(files: Files, capsys: Capture) -> None:
    graph = baechi.load_graph(files.graph)
    found = run(capsys, "show", files.graph, "--json", "--top", "1").document
    assert found["num_ops"] == graph.num_ops
    assert found["persistent_bytes"] == graph.persistent_bytes.sum()
    assert sum(found["tensor_bytes"].values()) == graph.tensor_bytes.sum()
    assert found["longest_ops"][0]["ns"] == graph.compute_ns.max()
    bounds = baechi.compare(graph, "1TiB", ["single"])
    assert found["longest_path_ns"] == bounds.critical_path_ns
    assert found["compute_ns"] == bounds.work_bound_ns


def test_show_describes_links(files: Files, capsys: Capture) -> None:
    text = run(capsys, "show", files.uneven()).out
    assert "d0 -> d1: 10 ns, 1 GB/s" in text
    assert "d1 -> d0: 20 ns, infinitely fast" in text
    assert "(assumed: none were given)" in run(capsys, "show", "2x8GiB").out


def test_show_says_who_holds_the_peak_and_what_takes_the_time(
    files: Files, capsys: Capture
) -> None:
    words = ("show", files.plan, "--graph", files.graph)
    found = valid(run(capsys, *words, "--json", "--top", "1000000"), "show")
    for peak in found["peaks"]:
        assert sum(held["bytes"] for held in peak["holders"]) == peak["peak_bytes"]
        sizes = [held["bytes"] for held in peak["holders"]]
        assert sizes == sorted(sizes, reverse=True)
    path = found["path"]
    assert path[-1]["end_ns"] == found["makespan_ns"]
    assert all(one["end_ns"] == other["start_ns"] for one, other in itertools.pairwise(path))
    text = run(capsys, *words, "--path").out
    assert f"longest path: {len(path)} steps" in text
    assert all(step["op"] in text for step in path if "op" in step)


def test_show_gives_the_bounds_of_the_linear_program(files: Files, capsys: Capture) -> None:
    text = run(capsys, "show", files.plan).out
    assert "favorites (lp): unlimited-device value" in text
    assert "gap 0.00%" in text


def test_favorites_are_those_of_the_api(files: Files, capsys: Capture) -> None:
    words = ("favorites", files.graph, "-d", files.cluster)
    found = valid(run(capsys, *words, "--json"), "favorites")
    expected = baechi.favorites(baechi.load_graph(files.graph), files.cluster)
    assert found["favorites"] == dict(expected.children)
    assert found["lower_bound_ns"] <= expected.lower_bound_ns
    assert found["upper_bound_ns"] >= expected.upper_bound_ns
    text = run(capsys, *words, "--list").out
    assert all(f"{op} -> {child}" in text for op, child in expected.children.items())
    assert "gap" in text


def test_diff_names_what_moved(files: Files, capsys: Capture) -> None:
    found = valid(run(capsys, "diff", files.plan, files.other, "--json"), "diff")
    one, other = baechi.Plan.load(files.plan), baechi.Plan.load(files.other)
    moved = {op: home for op, home in one.placement.items() if other.placement[op] != home}
    assert {row["op"]: row["before"] for row in found["moved"]} == moved
    assert found["equal"] is False
    text = run(capsys, "diff", files.plan, files.other, "--top", "1").out
    assert f"{len(moved)} ops moved" in text
    assert f"... {len(moved) - 1} more ops moved" in text


def test_equal_plans_have_no_difference(files: Files, capsys: Capture) -> None:
    assert run(capsys, "diff", files.plan, files.plan).out == "the plans are equal\n"
    found = valid(run(capsys, "diff", files.plan, files.plan, "--json"), "diff")
    assert (found["equal"], found["num_moved"]) == (True, 0)


def test_diff_names_ops_that_only_one_graph_has(
    files: Files, capsys: Capture, tmp_path: Path
) -> None:
    path = tmp_path / "plan.json"
    baechi.place(baechi.load_graph(files.small(persistent_bytes=1)), "2x8GiB").save(path)
    found = valid(run(capsys, "diff", files.plan, str(path), "--json"), "diff")
    assert found["ops_new"] == ["a", "b"]
    assert len(found["ops_gone"]) == found["before"]["num_ops"]
    assert "the graph differs: new a, b" in run(capsys, "diff", files.plan, str(path)).out


@pytest.mark.parametrize("suffix", [".npz", ".json"])
def test_convert_keeps_a_graph(files: Files, capsys: Capture, tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"copy{suffix}"
    done = run(capsys, "convert", files.graph, str(path), "--json")
    assert valid(done, "convert")["file_bytes"] == path.stat().st_size
    assert baechi.load_graph(path) == baechi.load_graph(files.graph)


def test_convert_keeps_clusters_and_plans(files: Files, capsys: Capture, tmp_path: Path) -> None:
    path = tmp_path / "copy.json"
    run(capsys, "convert", "2xh100:80GB,cpu:256GB", str(path))
    assert baechi.Cluster.load(path) == baechi.Cluster("2xh100:80GB,cpu:256GB")
    run(capsys, "convert", files.plan, str(path))
    assert path.read_text() == Path(files.plan).read_text()
    run(capsys, "convert", files.plan, str(path), "--placement")
    assert json.loads(path.read_text()) == dict(baechi.Plan.load(files.plan).placement)


def test_convert_reads_workloads_of_others(capsys: Capture, tmp_path: Path) -> None:
    folder = ROOT / "benches/workloads/dnn-partitioning/throughput-inputs/LayerGraphs"
    source = folder / "bert24_training.json"
    path = tmp_path / "bert.npz"
    assert run(capsys, "convert", str(source), str(path)).code == 0
    assert baechi.load_graph(path) == baechi.load_graph(source)


def test_perturb_gives_the_same_distribution_for_the_same_seed(
    files: Files, capsys: Capture
) -> None:
    words = ("perturb", files.graph, files.plan, "--samples", "5", "--remade", "2", "--json")
    one, other = run(capsys, *words), run(capsys, *words)
    found = valid(one, "perturb")
    assert one.out == other.out
    kept = found["kept"]
    assert kept["least_ns"] <= kept["median_ns"] <= kept["most_ns"]
    assert found["predicted_ns"] == baechi.Plan.load(files.plan).makespan_ns
    text = run(capsys, *words[:-1]).out
    assert "as it is" in text
    assert "made anew" in text


def test_a_report_is_written_with_a_trace(files: Files, capsys: Capture, tmp_path: Path) -> None:
    page, trace = tmp_path / "report.html", tmp_path / "trace.json"
    words = ("report", files.graph, files.plan, "-o", str(page), "--trace", str(trace))
    done = run(capsys, *words)
    assert done.err == f"baechi: the report is in {page}\nbaechi: the trace is in {trace}\n"
    assert page.read_text().startswith("<!DOCTYPE html>")
    assert "round-robin" not in page.read_text()
    assert json.loads(trace.read_text())["traceEvents"]
    found = valid(run(capsys, *words, "--compare", "--json"), "report")
    assert found["file_bytes"] == page.stat().st_size
    assert found["makespan_ns"] == baechi.Plan.load(files.plan).makespan_ns
    assert "round-robin" in page.read_text()


def test_a_report_takes_a_bare_placement_on_other_devices(
    files: Files, capsys: Capture, tmp_path: Path
) -> None:
    page = tmp_path / "report.html"
    words = ("report", files.graph, files.placement(), "-d", "2x1MiB", "-o", str(page), "--json")
    assert valid(run(capsys, *words), "report")["fits"] is False


@pytest.mark.parametrize("command", ["plan", "simulate"])
def test_plan_and_simulate_write_a_trace(
    files: Files, capsys: Capture, tmp_path: Path, command: str
) -> None:
    trace = tmp_path / "trace.json"
    placement = [files.plan] if command == "simulate" else ["-a", "m-sct"]
    words = (command, files.graph, *placement, "-d", files.cluster, "--trace", str(trace))
    assert run(capsys, *words).err.endswith(f"the trace is in {trace}\n")
    ops = [event for event in json.loads(trace.read_text())["traceEvents"] if event["ph"] == "X"]
    assert len(ops) >= baechi.load_graph(files.graph).num_ops
