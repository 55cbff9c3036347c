"""The Python blocks of README.md run, in order, as one program."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from baechi import workloads
from baechi.cli import main

README = Path(__file__).parent.parent / "README.md"


def python_blocks() -> list[str]:
    return re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)


def outputs_by_block() -> dict[str, str]:
    """What README.md shows right below a block, by the block."""
    return dict(
        re.findall(r"```python\n([^`]*)```\n\n```\n(.*?)```", README.read_text(), re.DOTALL)
    )


def test_the_python_of_the_readme_runs_and_prints_what_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    names: dict[str, object] = {}
    shown = outputs_by_block()
    assert len(shown) == 4
    for block in python_blocks():
        exec(compile(block, "README.md", "exec"), names)
        printed = capsys.readouterr().out
        if block in shown:
            assert without_losses(printed) == without_losses(shown[block])


def without_losses(text: str) -> str:
    """Losses differ in the last digits from processor to processor."""
    return re.sub(r"\b[0-9]\.[0-9]{4,}", "loss", text)


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


@pytest.mark.parametrize(
    ("demo", "section"),
    [
        ("demo.py", "## What the demo prints"),
        ("demo_graphs.py", "### What `make demo-graphs` prints"),
    ],
)
def test_the_readme_shows_what_the_demos_print(demo: str, section: str) -> None:
    path = README.parent / "benches" / demo
    done = subprocess.run(
        [sys.executable, path], check=True, capture_output=True, text=True, timeout=300
    )
    text = README.read_text().split(f"\n{section}\n")[1].split("\n## ")[0]
    shown = without_losses("".join(re.findall(r"```\n(.*?)```", text, re.DOTALL)))
    printed = set(without_placing_times(without_losses(done.stdout)))
    assert [line for line in without_placing_times(shown) if line not in printed] == []
    assert done.stderr == ""


def without_placing_times(text: str) -> list[str]:
    return [re.sub(r" +[0-9.]+ (ns|us|ms|s)$", "", line) for line in text.splitlines()]


def test_links_to_files_lead_somewhere() -> None:
    for document in (README, *README.parent.glob("docs/*.md")):
        for target in re.findall(r"\]\((?!http)([^)#]+)\)", document.read_text()):
            assert (document.parent / target).exists(), f"{document.name} links to {target}"
