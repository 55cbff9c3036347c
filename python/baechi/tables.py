"""Tables: columns and paragraphs for a terminal, fitted to its width."""

from __future__ import annotations

import dataclasses
import io
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table
    from rich.text import Text

__all__ = [
    "WIDTH",
    "Column",
    "as_table",
    "fitted",
    "hanging",
    "plain_text",
    "printable",
    "width_of",
]

WIDTH = 100
"""Columns of text that is not written to a terminal."""

_GAP = 2


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Column:
    """One column of a table."""

    heading: str
    cells: Sequence[str]
    importance: int = 0
    """Where the terminal is narrow, the least important columns are left out first."""
    is_text: bool = False
    """Text stands at the left, numbers at the right."""
    styles: Sequence[str] = ()
    """A style of rich for every cell, or none at all."""

    @property
    def width(self) -> int:
        """Of the widest cell, in characters of a terminal."""
        from rich.cells import cell_len

        return max(map(cell_len, (self.heading, *self.cells)))

    def __post_init__(self) -> None:
        """Escapes what is in cells but must not be written on a terminal."""
        object.__setattr__(self, "cells", [printable(cell) for cell in self.cells])


def fitted(columns: Sequence[Column], width: int) -> list[Column]:
    """The columns that fit a width, the most important first; at least the most important."""
    by_rank = sorted(range(len(columns)), key=lambda at: -columns[at].importance)
    kept = set(by_rank[:1])
    for at in by_rank[1:]:
        if width_of([columns[k] for k in (*kept, at)]) <= width:
            kept.add(at)
    return [columns[at] for at in sorted(kept)]


def width_of(columns: Sequence[Column]) -> int:
    """Of a table without indent, in characters."""
    return sum(column.width + _GAP for column in columns) - _GAP


def as_table(columns: Sequence[Column], indent: int = 0) -> Table:
    """A table of rich without lines."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, padding=(0, _GAP, 0, 0), pad_edge=False, header_style="dim")
    if indent:
        table.add_column("", width=0)
    for column in columns:
        side = "left" if column.is_text else "right"
        table.add_column(column.heading, justify=side, no_wrap=True, overflow="ellipsis")  # type: ignore[arg-type]
    for at in range(len(columns[0].cells) if columns else 0):
        cells = [
            Text(column.cells[at], column.styles[at] if column.styles else "") for column in columns
        ]
        table.add_row(*([""] if indent else []), *cells)
    return table


def hanging(text: str, width: int, style: str = "") -> Text:
    """A paragraph whose further lines are indented by four more than its first."""
    from rich.text import Text

    indent = " " * (len(text) - len(text.lstrip()) + 4)
    lines = textwrap.fill(printable(text), width, subsequent_indent=indent, break_on_hyphens=False)
    return Text(lines, style)


def printable(text: str) -> str:
    r"""The text with everything escaped that could move a cursor or break a line.

    >>> printable("a" + chr(27) + "[2J")
    'a\\x1b[2J'
    """
    if text.isprintable():
        return text
    escaped = (
        char if char.isprintable() else char.encode("unicode_escape").decode() for char in text
    )
    return "".join(escaped)


def plain_text(renderables: Sequence[RenderableType], width: int = WIDTH) -> str:
    """What rich would show, as text without color, and without spaces at the ends of lines."""
    from rich.console import Console

    stream = io.StringIO()
    console = Console(file=stream, width=width, color_system=None, force_terminal=False)
    for renderable in renderables:
        console.print(renderable, highlight=False, markup=False, emoji=False)
    return "\n".join(line.rstrip() for line in stream.getvalue().splitlines())
