"""The commands: what they find, in words and as JSON, and their exit codes."""

from __future__ import annotations

import csv
import io
import sys
from pathlib import Path

import jsonschema
import pytest

import baechi
from baechi.cli import COMMANDS
from commands import SCHEMA, Files, run, valid

DOCS = Path(__file__).parents[1] / "docs" / "command-line.md"
Capture = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return Files(tmp_path_factory.mktemp("commands"))


def test_the_schema_is_one_and_has_an_entry_for_every_command_that_writes_json() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    no_json = {"completion"}
    assert {*COMMANDS} - no_json <= {*SCHEMA["$defs"]}


def test_every_command_is_documented_and_has_help(capsys: Capture) -> None:
    text = DOCS.read_text()
    for name in COMMANDS:
        assert f"`{name} " in text
        done = run(capsys, name, "--help")
        assert done.code == 0
        assert f"usage: baechi {name}" in done.out


def test_plan_saves_what_place_finds_and_shows_what_print_shows(
    files: Files, capsys: Capture, tmp_path: Path
) -> None:
    path = str(tmp_path / "plan.json")
    words = ["-d", files.cluster, "-a", "m-etf", "-o", path]
    done = run(capsys, "plan", files.graph, *words)
    plan = baechi.place(baechi.load_graph(files.graph), files.cluster, "m-etf")
    assert (done.code, done.out) == (0, f"{plan}\n")
    assert baechi.Plan.load(path) == plan
    assert done.err == f"baechi: the plan is in {path}\n"


def test_plan_as_json(files: Files, capsys: Capture) -> None:
    done = run(capsys, "plan", files.graph, "-d", files.cluster, "-a", "m-sct", "--json")
    found = valid(done, "plan")
    plan = baechi.place(baechi.load_graph(files.graph), files.cluster, "m-sct")
    assert found["makespan_ns"] == plan.makespan_ns
    assert found["links_assumed"] is False
    for device, line in zip(plan.devices, found["devices"], strict=True):
        assert line["peak_bytes"] == device.peak_bytes == sum(line["held_bytes"].values())
    assert 0 <= found["favorites"]["lower_bound_ns"] <= found["favorites"]["upper_bound_ns"]
    assert found["favorites"]["gap"] < 1e-3


def test_a_plan_goes_to_stdout_where_it_is_asked_to(files: Files, capsys: Capture) -> None:
    done = run(capsys, "plan", files.graph, "-d", files.cluster, "-a", "single", "-o", "-")
    assert done.out == Path(files.other).read_text()


def test_plan_groups_first_where_asked(files: Files, capsys: Capture) -> None:
    words = ("-d", files.cluster, "-a", "m-etf", "--group")
    done = run(capsys, "plan", files.graph, *words)
    assert done.code == 0
    assert "note: placed as" in done.out


def test_assumed_links_are_named(files: Files, capsys: Capture) -> None:
    assumed = "note: links were not given: 10 us and 12 GB/s assumed for each"
    assert assumed in run(capsys, "plan", files.graph, "-d", "2x512MiB").out
    given = run(capsys, "plan", files.graph, "-d", "2x512MiB", "--link", "1us,100GB/s")
    assert "assumed" not in given.out


def test_a_link_and_channels_are_those_of_the_api(files: Files, capsys: Capture) -> None:
    words = ("-d", "2x512MiB", "--link", "1us,100GB/s", "--channels", "serial", "-a", "round-robin")
    done = run(capsys, "plan", files.graph, *words, "--json")
    cluster = baechi.Cluster("2x512MiB", baechi.Link("1us", "100GB/s"), channels="serial")
    plan = baechi.place(baechi.load_graph(files.graph), cluster, "round-robin")
    assert done.document["makespan_ns"] == plan.makespan_ns


def test_a_proof_ends_with_code_3_and_comes_first(files: Files, capsys: Capture) -> None:
    graph = files.small(persistent_bytes=1000)
    done = run(capsys, "plan", graph, "-d", "2x100", "--json")
    error = valid(done, "failure")["error"]
    assert done.code == error["exit_code"] == 3
    assert error["proved_infeasible"] is True
    assert done.err.startswith('baechi: error: proved infeasible: op "a" needs ')


def test_what_is_not_found_ends_with_code_4_and_a_limit_on_demand(
    files: Files, capsys: Capture
) -> None:
    graph = files.small(persistent_bytes=600)
    words = ("plan", graph, "-d", "2x1000", "-a", "single")
    done = run(capsys, *words)
    assert done.code == 4
    assert done.err.startswith("baechi: error: 200 B missing: ")
    assert done.err.endswith("--smallest-limit finds memory that is enough\n")
    done = run(capsys, *words, "--smallest-limit", "--json")
    limit = valid(done, "failure")["error"]["found_limit_bytes"]
    assert done.code == 4
    sizes = {name: int(size) for name, size in limit.items()}
    assert baechi.place(baechi.load_graph(graph), sizes, "single").fits


def test_a_plan_over_a_limit_is_shown_and_ends_with_code_4(files: Files, capsys: Capture) -> None:
    words = ("-d", "2x20MiB", "-a", "m-topo", "--rules", "baechi-tf")
    done = run(capsys, "plan", files.graph, *words)
    assert done.code == 4
    assert done.out.startswith("does not fit: gpu:")
    found = valid(run(capsys, "plan", files.graph, *words, "--json"), "plan")
    assert found["fits"] is False
    assert all(line["held_bytes"] == {} for line in found["devices"])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("plan", "nosuch.json", "-d", "2x8GiB"), "nosuch.json: No such file or directory"),
        (("plan", "GRAPH"), "no devices were given"),
        (("plan", "GRAPH", "-d", "2x8Gib.."), "8Gib.."),
        (("plan", "GRAPH", "-d", "2x8GiB", "--link", "10us"), "is not latency,rate"),
        (("plan", "GRAPH", "-d", "2x8GiB", "--seed", "-1"), "seed -1"),
        (("plan", "GRAPH", "-d", "2x8GiB", "-a", "best-of-all"), "invalid choice"),
        (("plan", "GRAPH", "-d", "2x8GiB", "-o", "/nowhere/plan.json"), "/nowhere"),
        (("compare", "GRAPH", "-d", "2x8GiB", "-a", "m-etf,m-egg"), 'no algorithm "m-egg"'),
        (("simulate", "GRAPH", "GRAPH", "-d", "1GiB"), "the placement has no device for op"),
        (("simulate", "GRAPH", "CLUSTER"), "no device"),
        (("show", "nosuch.json"), "No such file"),
        (("show", "4xpotatoes"), "4xpotatoes"),
        (("show", "GRAPH", "--graph", "GRAPH"), "--graph goes with a plan"),
        (("show", "GRAPH", "--top", "-1"), "--top -1 is negative"),
        (("diff", "PLAN", "GRAPH"), "not a plan"),
        (("convert", "GRAPH", "graph.xml"), ".xml"),
        (("convert", "GRAPH", "x.json", "--placement"), "--placement is of plans"),
        (("convert", "PLAN", "plan.npz"), ".npz"),
        (("perturb", "GRAPH", "PLAN", "--spread", "1.5"), "spread 1.5"),
        (("favorites", "GRAPH", "-d", "2x8GiB", "--time-limit", "-1"), "time_limit"),
        (("dance",), "invalid choice: 'dance'"),
        ((), "required: COMMAND"),
    ],
)
def test_a_mistake_ends_with_code_2_and_names_it(
    files: Files,
    capsys: Capture,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    words: tuple[str, ...],
    said: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    names = {"GRAPH": files.graph, "PLAN": files.plan, "CLUSTER": files.cluster}
    done = run(capsys, *(names.get(word, word) for word in words))
    assert (done.code, done.out) == (2, "")
    assert said in done.err
    assert "Traceback" not in done.err


def test_a_fault_of_ours_ends_with_code_1_and_says_so(
    files: Files, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr("baechi.placement.place", broken)
    done = run(capsys, "plan", files.graph, "-d", "2x8GiB", "--json")
    assert done.code == valid(done, "failure")["error"]["exit_code"] == 1
    assert "ZeroDivisionError: a bug" in done.err
    with pytest.raises(ZeroDivisionError):
        run(capsys, "plan", files.graph, "-d", "2x8GiB", "--debug")


def test_simulate_replays_a_plan_on_its_own_devices(files: Files, capsys: Capture) -> None:
    done = run(capsys, "simulate", files.graph, files.plan, "--json")
    found = valid(done, "simulate")
    assert done.code == 0
    assert found["makespan_ns"] == baechi.Plan.load(files.plan).makespan_ns
    text = run(capsys, "simulate", files.graph, files.plan).out
    assert text.startswith("step ")


def test_simulate_lists_ops_and_transfers_on_demand(files: Files, capsys: Capture) -> None:
    found = valid(run(capsys, "simulate", files.graph, files.plan, "--json", "--ops"), "simulate")
    assert max(op["end_ns"] for op in found["ops"]) == found["makespan_ns"]
    assert len(found["transfers"]) == found["num_transfers"]


def test_simulate_takes_the_placement_of_somebody_else(files: Files, capsys: Capture) -> None:
    words = ("-d", files.cluster, "--json")
    by_name = run(capsys, "simulate", files.graph, files.placement(), *words)
    found = valid(by_name, "simulate")
    assert [line["num_ops"] for line in found["devices"]] == [found["num_ops"], 0]
    assert any("no order" in note for note in found["notes"])
    moved = files.placement(**{"tokens": 1})
    by_position = run(capsys, "simulate", files.graph, moved, *words)
    assert by_position.document["devices"][1]["num_ops"] == 1


def test_a_placement_over_a_limit_ends_with_code_3_and_says_so_first(
    files: Files, capsys: Capture
) -> None:
    done = run(capsys, "simulate", files.graph, files.placement(), "-d", "1MiB,2GiB")
    assert done.code == 3
    assert done.out.startswith("does not fit: gpu:0 needs ")


def test_compare_has_a_row_per_algorithm_with_ratios(files: Files, capsys: Capture) -> None:
    done = run(capsys, "compare", files.graph, "-d", files.cluster, "--json")
    found = valid(done, "compare")
    rows = {row["algorithm"]: row for row in found["rows"]}
    assert [*rows] == [name for name in baechi.ALGORITHMS if name != "best"]
    assert rows["single"]["ratio_to_single"] == 1
    best = rows[found["best"]]
    assert best["makespan_ns"] == min(row["makespan_ns"] for row in found["rows"])
    assert best["ratio_to_lower_bound"] == best["makespan_ns"] / found["lower_bound_ns"] >= 1
    assert set(best["peak_bytes"]) == set(found["cap_bytes"]) == {"gpu:0", "gpu:1"}
    text = run(capsys, "compare", files.graph, "-d", files.cluster).out
    assert all(heading in text for heading in ("step", "vs bound", "peaks", "fullest device"))


def test_compare_as_csv_has_the_same_figures(files: Files, capsys: Capture) -> None:
    words = ("-d", files.cluster, "-a", "single,round-robin")
    done = run(capsys, "compare", files.graph, *words, "--csv")
    rows = list(csv.DictReader(io.StringIO(done.out)))
    found = run(capsys, "compare", files.graph, *words, "--json").document["rows"]
    assert [row["algorithm"] for row in rows] == ["single", "round-robin"]
    for row, other in zip(rows, found, strict=True):
        assert int(row["makespan_ns"]) == other["makespan_ns"]
        assert int(row["peak_bytes gpu:1"]) == other["peak_bytes"]["gpu:1"]
        assert row["cap_bytes gpu:0"] == str(512 * 2**20)
        assert row["fits"] == "true"


def test_compare_ends_as_plan_does_where_nothing_fits(files: Files, capsys: Capture) -> None:
    graph = files.small(persistent_bytes=1000)
    proved = run(capsys, "compare", graph, "-d", "2x100", "--json")
    assert valid(proved, "compare")["best"] is None
    assert proved.code == 3
    graph = files.small(persistent_bytes=600)
    assert run(capsys, "compare", graph, "-d", "2x1000", "-a", "single").code == 4


def test_a_graph_comes_from_stdin(
    files: Files, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    stdin = io.TextIOWrapper(io.BytesIO(Path(files.graph).read_bytes()))
    monkeypatch.setattr(sys, "stdin", stdin)
    done = run(capsys, "plan", "-", "-d", files.cluster, "-a", "single", "-o", "-")
    assert done.out == Path(files.other).read_text()


@pytest.mark.parametrize("shell", ["bash", "zsh", "tcsh", "fish", "powershell"])
def test_completion_knows_commands_and_options(capsys: Capture, shell: str) -> None:
    script = run(capsys, "completion", shell).out
    assert all(name in script for name in COMMANDS)
    assert "smallest-limit" in script


def test_the_version_is_that_of_the_package(capsys: Capture) -> None:
    assert run(capsys, "--version").out == f"baechi {baechi.__version__}\n"
