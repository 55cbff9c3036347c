"""The command line as a process: start-up, pipes, signals, and what a terminal gets to see."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pty
import re
import resource
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import baechi
from commands import Files

BAECHI = [sys.executable, "-m", "baechi"]
COLOR = re.compile(r"\x1b\[[0-9;]*m")
LIMIT_S = 60


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return Files(tmp_path_factory.mktemp("terminal"))


@contextlib.contextmanager
def terminal(width: int) -> Iterator[tuple[int, int]]:
    """Both ends of a pseudo-terminal: what a person sees, what a program writes on."""
    seen, written = pty.openpty()
    try:
        fcntl.ioctl(written, termios.TIOCSWINSZ, struct.pack("HHHH", 24, width, 0, 0))
        yield seen, written
    finally:
        os.close(seen)


def everything(seen: int) -> str:
    """What was written until the last writer left."""
    parts = []
    with contextlib.suppress(OSError):  # Linux reports the end of a terminal as an error
        while part := os.read(seen, 65536):
            parts.append(part)
    return b"".join(parts).decode().replace("\r\n", "\n")


def environment(**changes: str) -> dict[str, str]:
    dropped = ("NO_COLOR", "FORCE_COLOR", "COLUMNS", "LINES")
    kept = {name: value for name, value in os.environ.items() if name not in dropped}
    return {**kept, "TERM": "xterm-256color", "PYTHONIOENCODING": "utf-8", **changes}


def watched(width: int, *words: str, **changes: str) -> str:
    """What a command writes to stdout, a terminal of this width."""
    with terminal(width) as (seen, written):
        # A slow machine is shown progress on stderr, which is no part of what is looked at.
        process = subprocess.Popen(
            [*BAECHI, *words], stdout=written, stderr=subprocess.DEVNULL, env=environment(**changes)
        )
        os.close(written)
        shown = everything(seen)
        assert process.wait(LIMIT_S) == 0
    return shown


def test_help_loads_nothing_heavy() -> None:
    program = (
        "import sys; from baechi.cli import main; main(['--help']); main(['plan', '--help']);"
        "print(*sorted({name.split('.')[0] for name in sys.modules}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True, timeout=LIMIT_S
    )
    heavy = {"numpy", "rich", "highspy", "networkx", "torch", "shtab"}
    assert heavy & set(done.stdout.splitlines()[-1].split()) == set()


def cpu_s(*words: str) -> float:
    """CPU seconds of a process, the least of three."""

    def once() -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, *words], check=True, capture_output=True, timeout=LIMIT_S)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime

    return min(once() for _ in range(3))


def test_help_takes_little_more_than_python_itself() -> None:
    assert cpu_s("-m", "baechi", "--help") - cpu_s("-c", "pass") <= 0.15


def test_the_program_is_installed_under_its_name() -> None:
    text = (Path(__file__).parents[1] / "pyproject.toml").read_text()
    assert 'baechi = "baechi.cli:main"' in text
    done = subprocess.run(
        [*BAECHI, "--version"], check=True, capture_output=True, text=True, timeout=LIMIT_S
    )
    assert done.stdout == f"baechi {baechi.__version__}\n"


def test_data_go_to_stdout_and_words_to_stderr(files: Files, tmp_path: Path) -> None:
    path = str(tmp_path / "plan.json")
    done = subprocess.run(
        [*BAECHI, "plan", files.graph, "-d", files.cluster, "-a", "single", "-o", path],
        check=True,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    assert done.stdout == f"{baechi.Plan.load(path)}\n"
    assert done.stderr == f"baechi: the plan is in {path}\n"


def test_a_mistake_has_its_exit_code_and_no_traceback() -> None:
    done = subprocess.run(
        [*BAECHI, "show", "nosuch.json"], capture_output=True, text=True, timeout=LIMIT_S
    )
    assert done.returncode == 2
    assert done.stderr == "baechi: error: nosuch.json: No such file or directory\n"


@pytest.mark.parametrize("form", ["--json", "--path"])
def test_a_reader_that_goes_away_is_no_error(files: Files, form: str) -> None:
    process = subprocess.Popen(
        [*BAECHI, "show", files.plan, "--graph", files.graph, form],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    process.stdout.close()
    assert process.stderr is not None
    assert process.stderr.read() == b""
    process.stderr.close()
    assert process.wait(LIMIT_S) == 141


def test_long_work_shows_its_progress_and_ctrl_c_ends_it(files: Files) -> None:
    words = ["perturb", files.graph, files.plan, "--samples", "1000000", "--remade", "0"]
    with terminal(80) as (seen, written):
        process = subprocess.Popen(
            [*BAECHI, *words], stdout=subprocess.DEVNULL, stderr=written, env=environment()
        )
        os.close(written)
        shown = ""
        while "of 1000000" not in shown:
            shown += os.read(seen, 65536).decode()
        assert "changing costs and links" in shown
        sent = time.monotonic()
        process.send_signal(signal.SIGINT)
        shown = everything(seen)
        assert process.wait(LIMIT_S) == 130
    assert time.monotonic() - sent < 5
    assert shown.endswith("baechi: interrupted\n")
    assert "Traceback" not in shown


def test_nobody_is_told_of_progress_where_nobody_watches(files: Files) -> None:
    words = ["perturb", files.graph, files.plan, "--samples", "2000", "--remade", "0", "--json"]
    done = subprocess.run([*BAECHI, *words], check=True, capture_output=True, timeout=LIMIT_S)
    assert done.stderr == b""


def test_a_terminal_gets_colors_unless_no_color_is_set(files: Files) -> None:
    colored = watched(100, "show", files.plan)
    assert COLOR.search(colored)
    plain = watched(100, "show", files.plan, NO_COLOR="1")
    assert not COLOR.search(plain)
    assert COLOR.sub("", colored).split() == plain.split()


@pytest.mark.parametrize("width", [60, 140])
def test_a_table_is_as_wide_as_the_terminal(files: Files, width: int) -> None:
    shown = COLOR.sub("", watched(width, "show", files.plan))
    widest = max(map(len, shown.splitlines()))
    assert widest <= width
    assert ("activations" in shown) == (width == 140)
    assert ("█" in shown) == (width == 140)


def test_a_terminal_without_unicode_gets_ascii(files: Files) -> None:
    shown = watched(140, "show", files.plan, PYTHONIOENCODING="ascii", NO_COLOR="1")
    assert shown.isascii()
    assert re.search(r"[#.]{10}", shown)


def test_names_that_cannot_be_written_are_escaped(tmp_path: Path) -> None:
    path = tmp_path / "graph.json"
    builder = baechi.GraphBuilder()
    builder.op("naïve", 10, persistent_bytes=7)
    builder.build().save(path)
    shown = []
    for words in (["show", str(path)], ["show", str(path), "--json"]):
        done = subprocess.run(
            [*BAECHI, *words],
            check=True,
            capture_output=True,
            timeout=LIMIT_S,
            env=environment(PYTHONIOENCODING="ascii"),
        )
        shown.append(done.stdout)
    assert b"na\\xefve" in shown[0]
    assert json.loads(shown[1])["longest_ops"] == [{"op": "naïve", "ns": 10}]
