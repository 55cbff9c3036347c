"""What commands write: data to stdout, words to stderr, progress where somebody watches."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import shutil
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

__all__ = ["SCHEMA", "Outcome", "console", "deliver", "progress", "say", "write_json"]

SCHEMA = 1
"""Of what `--json` writes (docs/command-line.schema.json)."""

_PATIENCE_S = 1.0


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """What a command found, in the two forms that it can be shown in."""

    document: Callable[[], Mapping[str, Any]] | None = None
    """For `--json`, without `schema` and `command`."""
    shown: Callable[[int, bool], Sequence[RenderableType]] | None = None
    """For people: what to show, by the width and whether block characters can be shown."""
    raw: str | None = None
    """Text that is written as it is, with or without `--json`."""
    words: tuple[str, ...] = ()
    """Sentences for stderr."""
    code: int = 0


def deliver(outcome: Outcome, arguments: argparse.Namespace) -> None:
    """Writes an outcome."""
    if outcome.raw is not None:
        sys.stdout.write(outcome.raw)
    elif getattr(arguments, "json", False) and outcome.document is not None:
        write_json(arguments.command, outcome.document())
    elif outcome.shown is not None:
        _show(outcome.shown)
    sys.stdout.flush()
    for words in outcome.words:
        say(words)


def _show(shown: Callable[[int, bool], Sequence[RenderableType]]) -> None:
    if not sys.stdout.isatty():
        from baechi.tables import WIDTH, plain_text

        sys.stdout.write(plain_text(shown(WIDTH, False)) + "\n")
        return
    to = console(sys.stdout)
    for thing in shown(to.width, has_blocks(sys.stdout)):
        to.print(thing, highlight=False, markup=False, emoji=False)


def write_json(command: str, document: Mapping[str, Any]) -> None:
    """One JSON document on stdout."""
    whole = {"schema": SCHEMA, "command": command, **document}
    json.dump(whole, sys.stdout, indent=1, ensure_ascii=not has_blocks(sys.stdout), allow_nan=False)
    sys.stdout.write("\n")


def say(words: str) -> None:
    """Sentences to the person at the terminal, or lines to a log."""
    from baechi.tables import printable

    lines = [printable(line) for line in f"baechi: {words}".splitlines()]
    if sys.stderr.isatty():
        width = shutil.get_terminal_size().columns
        lines = [textwrap.fill(line, width, subsequent_indent="    ") for line in lines]
    sys.stderr.write("\n".join(lines) + "\n")
    sys.stderr.flush()


def console(stream: TextIO) -> Console:
    """A console of rich for a terminal: color only on a terminal, and not where NO_COLOR is set."""
    from rich.console import Console

    plain = not stream.isatty() or bool(os.environ.get("NO_COLOR"))
    return Console(
        file=stream, force_terminal=stream.isatty(), color_system=None if plain else "auto"
    )


def has_blocks(stream: TextIO) -> bool:
    """Whether block characters can be written there."""
    try:
        "█░▏".encode(stream.encoding or "ascii")
    except (LookupError, UnicodeEncodeError):
        return False
    return True


@contextlib.contextmanager
def progress(text: str) -> Iterator[Callable[[str], None]]:
    """Shows on stderr what takes more than a second, if stderr is a terminal.

    Yields:
        A function that takes how far it is, such as "12 of 100".
    """
    state = [""]
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    done = threading.Event()
    watcher = threading.Thread(target=_watch, args=(text, state, done), daemon=True)
    watcher.start()
    try:
        yield lambda how_far: state.__setitem__(0, how_far)
    finally:
        done.set()
        watcher.join()


def _watch(text: str, state: list[str], done: threading.Event) -> None:
    """Keeps one line up to date until the work is done, then takes it away."""
    if done.wait(_PATIENCE_S):
        return
    from rich.status import Status

    with Status(text, console=console(sys.stderr)) as status:
        tenths = 10
        while not done.wait(0.1):
            tenths += 1
            how_far = f", {state[0]}" if state[0] else ""
            status.update(f"{text}{how_far} ({tenths // 10} s)")
