"""A call that must fail, the error that it must be, and the words in it."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from baechi.builder import GraphBuilder
from baechi.errors import BaechiError, InputError
from baechi.graph import Graph

__all__ = ["Refusal", "chain", "refusal", "table"]


class Refusal(NamedTuple):
    """One row: the call gets an empty folder."""

    name: str
    call: Callable[[Path], Any]
    error: type[BaechiError]
    words: tuple[str, ...]


def refusal(
    name: str, call: Callable[[Path], Any], *words: str, error: type[BaechiError] = InputError
) -> Refusal:
    """A row; the words are texts that the message must hold, the culprit and its numbers."""
    assert words, name
    return Refusal(name, call, error, words)


def table(*parts: list[Refusal]) -> list[Refusal]:
    """All rows, each under a name of its own."""
    rows = [row for part in parts for row in part]
    names = [re.sub(r"\W+", "-", row.name) for row in rows]
    assert len(set(names)) == len(names)
    return rows


def chain(num_ops: int = 3, **op: Any) -> Graph:
    """op0 -> op1 -> ..., 5 ns and 2 bytes each."""
    builder = GraphBuilder()
    for at in range(num_ops):
        builder.op(f"op{at}", 5, **op)
        if at:
            builder.connect(f"op{at - 1}", f"op{at}", 2)
    return builder.build()
