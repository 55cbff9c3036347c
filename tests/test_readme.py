"""The Python blocks of README.md run, in order, as one program."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from baechi import workloads
from baechi.cli import main

README = Path(__file__).parent.parent / "README.md"


def python_blocks() -> list[str]:
    return re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)


def test_the_python_of_the_readme_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for block in python_blocks():
        exec(compile(block, "README.md", "exec"), names)
    printed = capsys.readouterr().out
    shown = [text.split("```")[0] for text in README.read_text().split("```\n\n```\n")[1:3]]
    assert printed.startswith(shown[0]), "README.md shows another plan than its first block prints"
    assert without_losses(shown[1]) in without_losses(printed), "the block of PyTorch differs"


def without_losses(text: str) -> str:
    """Numbers of a model differ in the last digits from processor to processor."""
    return re.sub(r"losses .*", "losses", text)


def test_the_first_block_is_ten_lines() -> None:
    assert len([line for line in python_blocks()[0].splitlines() if line]) == 10


def test_the_readme_shows_what_the_commands_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    workloads.transformer_like(layers=6, seed=0).save("step.json")
    (block,) = re.findall(r"```console\n(.*?)```", README.read_text(), re.DOTALL)
    for shown in block.removeprefix("$ ").split("\n$ "):
        command, *lines = shown.rstrip().splitlines()
        capsys.readouterr()
        main(command.split()[1:])
        printed = capsys.readouterr()
        expected = without_placing_times(printed.out + printed.err)
        assert without_placing_times("\n".join(lines)) == expected


def test_the_readme_shows_what_the_demo_prints() -> None:
    demo = README.parent / "benches" / "demo.py"
    done = subprocess.run(
        [sys.executable, demo], check=True, capture_output=True, text=True, timeout=120
    )
    section = README.read_text().split("## What the demo prints")[1].split("\n## ")[0]
    shown = "".join(re.findall(r"```\n(.*?)```", section, re.DOTALL))
    printed = set(without_placing_times(done.stdout))
    assert [line for line in without_placing_times(shown) if line not in printed] == []


def without_placing_times(text: str) -> list[str]:
    return [re.sub(r" +[0-9.]+ (ns|us|ms|s)$", "", line) for line in text.splitlines()]


def test_links_to_files_lead_somewhere() -> None:
    for document in (README, *README.parent.glob("docs/*.md")):
        for target in re.findall(r"\]\((?!http)([^)#]+)\)", document.read_text()):
            assert (document.parent / target).exists(), f"{document.name} links to {target}"
