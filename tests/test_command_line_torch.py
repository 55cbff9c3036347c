"""The commands for models of PyTorch: plan --torch, rehearse, and show, diff, convert of plans."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import baechi
import torch_factories as factories
from baechi.torch import ModelPlan
from commands import Done, run, valid

Capture = pytest.CaptureFixture[str]
DEVICES = ("--devices", "96KiB,64KiB")
SUPPORT = Path(__file__).parent / "support"


def plan(capsys: Capture, factory: str, *words: str) -> Done:
    return run(capsys, "plan", "--torch", f"torch_factories:{factory}", *words)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ModelPlan]:
    """A plan in a file."""
    made = factories.as_dict()
    found = baechi.plan(
        made["model"], made["args"], devices=DEVICES[1], loss=made["loss"], confirm=False
    )
    path = str(tmp_path_factory.mktemp("plans") / "plan.json")
    found.save(path)
    return path, found


def test_a_model_is_planned_as_a_program_would(
    saved: tuple[str, ModelPlan], capsys: Capture, tmp_path: Path
) -> None:
    path = str(tmp_path / "plan.json")
    done = plan(capsys, "as_dict", *DEVICES, "--no-confirm", "-o", path)
    assert (done.code, done.out) == (0, f"{saved[1]}\n")
    assert done.err.splitlines() == ["building", f"baechi: the plan is in {path}"]
    assert Path(path).read_bytes() == Path(saved[0]).read_bytes()


def test_a_new_process_imports_from_the_current_directory(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text((SUPPORT / "torch_factories.py").read_text())
    words = [sys.executable, "-m", "baechi", "plan", "--torch", "mine:alone", "-d", "2x1MiB"]
    done = subprocess.run(
        [*words, "--json"],
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert json.loads(done.stdout)["fits"] is True


def test_plan_as_json_tells_what_was_predicted(capsys: Capture) -> None:
    done = plan(capsys, "on_meta", *DEVICES, "--json", "--optimizer", "sgd", "--pin", "head=cuda:1")
    found = valid(done, "plan")
    assert done.code == 0
    assert (found["optimizer"], found["inputs"]) == ("sgd (foreach)", ["x: float32[32,16]"])
    assert [device["name"] for device in found["devices"]] == ["cuda:0", "cuda:1"]
    assert set(found["rehearsed_bytes"]) == {"cuda:0", "cuda:1"}


def test_options_are_those_of_the_api(capsys: Capture, tmp_path: Path) -> None:
    words = ["--mode", "inference", "--objective", "fewest-devices", "--granularity", "op"]
    words += ["--autocast", "bfloat16", "--link", "1us,100GB/s", "--channels", "serial"]
    words += ["--report", str(tmp_path / "plan.html"), "--trace", str(tmp_path / "trace.json")]
    done = plan(capsys, "as_tuple", *DEVICES, *words, "-o", "-")
    assert done.code == 0
    (tmp_path / "plan.json").write_text(done.out)
    found = ModelPlan.load(tmp_path / "plan.json")
    assert (found.mode, found.objective, found.granularity) == (
        "inference",
        "fewest-devices",
        "op",
    )
    assert (found.autocast, found.cluster.channels) == ("bfloat16", "serial")
    assert int(found.cluster.bytes_per_s[0, 1]) == 100 * 10**9
    assert "<html" in (tmp_path / "plan.html").read_text()
    assert "traceEvents" in (tmp_path / "trace.json").read_text()


@pytest.mark.parametrize("factory", ["as_tuple", "by_keyword", "alone", "Ready.model"])
def test_a_factory_may_return_less_than_everything(factory: str, capsys: Capture) -> None:
    words = ("-d", "1GiB", "--mode", "inference", "--no-confirm", "--json")
    assert valid(plan(capsys, factory, *words), "plan")["fits"] is True


def test_a_model_can_be_planned_for_its_own_code(capsys: Capture) -> None:
    words = ("-d", "1GiB", "--level", "module", "--no-confirm", "--json")
    found = valid(plan(capsys, "as_dict", *words), "plan")
    assert (found["level"], found["reasons"]) == ("module", ["module level was asked for"])


def test_an_optimizer_comes_from_the_factory_or_from_the_option(capsys: Capture) -> None:
    words = ("-d", "1GiB", "--no-confirm", "--json")
    by_factory = plan(capsys, "with_optimizer", *words).document
    by_option = plan(capsys, "with_optimizer", *words, "--optimizer", "adam").document
    assert by_factory["optimizer"] == "sgd (foreach)"
    assert by_option["optimizer"] == "adam (foreach)"


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("torch_factories:failing", "failing failed: ValueError: invalid literal for int()"),
        ("torch_factories:leaving", "leaving failed: SystemExit: no weights here"),
        ("torch_factories:number", "number returned a int"),
        ("torch_factories:strange", "strange returned a dict with inputs"),
        ("torch_factories:one_tensor", "one_tensor: args is a Tensor, not a tuple"),
        ("torch_factories:nowhere", 'module "torch_factories" has no "nowhere"'),
        ("no_such_module.at_all:f", 'there is no module "no_such_module"'),
        ("torch_factories", '--torch "torch_factories" is not module:factory'),
        ("torch_factories:as_tuple", "the model returns no loss, but output float32[32,4]"),
    ],
)
def test_mistakes_of_factories_end_with_code_2(spec: str, message: str, capsys: Capture) -> None:
    done = run(capsys, "plan", "--torch", spec, "-d", "1GiB", "--json")
    assert done.code == 2
    assert message in valid(done, "failure")["error"]["message"]
    assert "Traceback" not in done.err


def test_an_error_in_a_factory_names_the_users_line(capsys: Capture) -> None:
    source = (SUPPORT / "torch_factories.py").read_text().splitlines()
    number = 1 + next(at for at, line in enumerate(source) if 'int("three")' in line)
    done = plan(capsys, "failing", "-d", "1GiB")
    assert f"torch_factories.py, line {number}, in failing)" in done.err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "name a graph file or a model of PyTorch, and not both"),
        (["graph.json", "--torch", "a:b"], "name a graph file or a model of PyTorch, and not both"),
        (["--torch", "a:b", "--algorithm", "m-etf"], "--algorithm is an option of graphs"),
        (["graph.json", "--mode", "inference"], "--mode is an option of models: say --torch"),
        (["graph.json", "--no-confirm"], "--no-confirm is an option of models: say --torch"),
    ],
)
def test_options_of_graphs_and_models_do_not_mix(
    words: list[str], message: str, capsys: Capture
) -> None:
    done = run(capsys, "plan", *words, "-d", "1GiB")
    assert done.code == 2
    assert message in done.err


def test_a_pin_without_a_device_is_refused(capsys: Capture) -> None:
    done = plan(capsys, "as_dict", *DEVICES, "--pin", "head")
    assert (done.code, "is not path=device" in done.err) == (2, True)


def test_what_is_proved_not_to_fit_ends_with_code_3_and_what_is_not_found_with_4(
    capsys: Capture,
) -> None:
    done = plan(capsys, "as_dict", "-d", "2x20KiB", "--json")
    error = valid(done, "failure")["error"]
    assert (done.code, error["proved_infeasible"]) == (3, True)
    assert "gradients and optimizer state take" in error["message"]
    done = plan(capsys, "as_dict", "-d", "2x70KiB", "--json")
    error = valid(done, "failure")["error"]
    assert (done.code, error["proved_infeasible"]) == (4, False)
    made = factories.as_dict()
    enough = baechi.plan(
        made["model"], made["args"], devices=error["found_limit_bytes"], loss=made["loss"]
    )
    assert enough.is_within_limits


def test_show_tells_where_modules_are(saved: tuple[str, ModelPlan], capsys: Capture) -> None:
    path, found = saved
    shown = run(capsys, "show", path, "--top", "1").out
    assert shown.startswith(str(found))
    assert "inputs x: float32[32,16]" in shown
    document = valid(run(capsys, "show", path, "--json"), "show")
    assert document["modules"] == dict(found.placement)
    assert document["kind"] == "model plan"


def test_diff_names_the_modules_that_moved(
    saved: tuple[str, ModelPlan], capsys: Capture, tmp_path: Path
) -> None:
    path, before = saved
    home = before.device_of("head")
    other = next(name for name in before.cluster.names if name != home)
    document = json.loads(Path(path).read_text())
    document["modules"]["head"] = other
    document["ops"]["body.1:relu:0"] = home
    moved = tmp_path / "moved.json"
    moved.write_text(json.dumps(document))
    found = valid(run(capsys, "diff", path, str(moved), "--json"), "diff")
    assert found["moved"] == [{"module": "head", "before": home, "after": other}]
    assert [row["op"] for row in found["ops_moved"]] == ["body.1:relu:0"]
    shown = run(capsys, "diff", path, str(moved)).out
    assert f"head: {home} -> {other}" in shown
    assert "the second plan had modules moved by hand" in shown
    assert run(capsys, "diff", path, path).out == "the plans are equal\n"
    told = valid(run(capsys, "show", str(moved), "--json"), "show")
    assert (told["edited"], told["fits"]) == (True, None)
    assert "(before the edit" in rehearse(capsys, str(moved)).out


def test_a_plan_of_a_graph_and_one_of_a_model_cannot_be_compared(
    saved: tuple[str, ModelPlan], capsys: Capture, tmp_path: Path
) -> None:
    graph = baechi.workloads.transformer_like(layers=1, seed=0)
    baechi.place(graph, "1GiB", "single").save(tmp_path / "plan.json")
    done = run(capsys, "diff", saved[0], str(tmp_path / "plan.json"))
    assert (done.code, "the other that of a model" in done.err) == (2, True)
    graph.save(tmp_path / "graph.json")
    done = run(capsys, "simulate", str(tmp_path / "graph.json"), saved[0])
    assert (done.code, "is the plan of a model" in done.err) == (2, True)
    assert "--report FILE draws it" in run(capsys, "report", saved[0], saved[0]).err


def test_convert_writes_the_device_map(
    saved: tuple[str, ModelPlan], capsys: Capture, tmp_path: Path
) -> None:
    target = tmp_path / "map.json"
    done = run(capsys, "convert", saved[0], str(target), "--placement", "--json")
    assert valid(done, "convert")["kind"] == "model plan"
    assert json.loads(target.read_text()) == saved[1].device_map


def rehearse(capsys: Capture, path: str, *words: str) -> Done:
    return run(capsys, "rehearse", path, "--torch", "torch_factories:as_dict", *words)


def test_a_rehearsal_measures_what_was_planned(
    saved: tuple[str, ModelPlan], capsys: Capture
) -> None:
    done = rehearse(capsys, saved[0], "--json")
    found = valid(done, "rehearse")["rehearsal"]
    assert (done.code, found["dry"], found["losses"]) == (0, True, [])
    assert found["copies"] == saved[1].copies
    for row in found["devices"]:
        assert row["planned_bytes"] == saved[1].peak_bytes[row["name"]]
        assert 0 < row["peak_bytes"] <= row["cap_bytes"]


def test_a_rehearsal_with_numbers_shows_the_losses(
    saved: tuple[str, ModelPlan], capsys: Capture
) -> None:
    made = factories.as_dict()
    alone = factories.squares(made["model"](*made["args"])).item()
    done = rehearse(capsys, saved[0], "--numbers", "--steps", "3", "--level", "module", "--json")
    losses = valid(done, "rehearse")["rehearsal"]["losses"]
    assert len(losses) == 3
    assert losses[0] == alone
    text = rehearse(capsys, saved[0], "--numbers", "--steps", "1").out
    assert "losses" in text
    assert "planned" in text


def test_a_full_device_ends_a_rehearsal_with_code_3(
    saved: tuple[str, ModelPlan], capsys: Capture, tmp_path: Path
) -> None:
    document = json.loads(Path(saved[0]).read_text())
    document["devices"][1]["cap_bytes"] = document["devices"][1]["peak_bytes"] // 2
    (tmp_path / "small.json").write_text(json.dumps(document))
    done = rehearse(capsys, str(tmp_path / "small.json"), "--json")
    found = valid(done, "rehearse")
    assert (done.code, found["fits"], found["rehearsal"]) == (3, False, None)
    assert found["error"].startswith("cuda:1 out of memory in ")


def test_a_rehearsal_needs_the_plan_of_this_model(
    saved: tuple[str, ModelPlan], capsys: Capture, tmp_path: Path
) -> None:
    done = run(capsys, "rehearse", saved[0], "--torch", "torch_factories:alone")
    assert (done.code, "another model" in done.err) == (2, True)
    done = run(capsys, "rehearse", "2x1GiB", "--torch", "torch_factories:as_dict")
    assert (done.code, "not the plan of a model" in done.err) == (2, True)
    assert rehearse(capsys, saved[0], "--steps", "0").code == 2


def test_errors_of_forward_name_the_users_line(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(self: object, x: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("wrong on purpose")

    monkeypatch.setattr(factories.Classifier, "forward", broken)
    done = plan(capsys, "as_dict", "-d", "1GiB")
    assert done.code == 2
    assert "wrong on purpose" in done.err
