"""Tables: what is said of a plan or schedule in a terminal, fitted to its width."""

from __future__ import annotations

import dataclasses
import io
import textwrap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from baechi.units import format_bytes

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table
    from rich.text import Text

__all__ = [
    "WIDTH",
    "Column",
    "DeviceLine",
    "Summary",
    "as_table",
    "bar",
    "fitted",
    "hanging",
    "plain_text",
]

WIDTH = 100
"""Columns of text that is not written to a terminal."""

_BAR = 10
_GAP = 2
# Headings of what makes up a peak (`baechi.holdings.CATEGORIES`), in the order of the columns.
_HEADINGS = {
    "persistent": "persistent",
    "weight": "weights",
    "buffer": "buffers",
    "gradient": "gradients",
    "optimizer": "optimizer",
    "activation": "activations",
    "other": "other",
    "copy": "copies",
    "scratch": "scratch",
}
# Where the terminal is narrow, the last of these are summed up first.
_TELLING = ("persistent", "weight", "activation", "copy", "optimizer", "gradient", "scratch")
_MOST_DEFICITS = 4


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


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class DeviceLine:
    """What is shown of one device."""

    name: str
    num_ops: int
    busy: float
    """Share of the step in which it computes."""
    peak_bytes: int
    cap_bytes: int
    peak_op: str | None = None
    held: Mapping[str, int] = dataclasses.field(default_factory=dict)
    """What makes up the peak: bytes by category, or nothing where that is not known."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Summary:
    """What does not fit, a headline, one line per device, and what else a reader must know."""

    headline: str
    devices: tuple[DeviceLine, ...]
    remarks: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def deficits(self) -> tuple[str, ...]:
        """A sentence for every device whose peak exceeds its cap; of many for the worst three."""
        over = [line for line in self.devices if line.peak_bytes > line.cap_bytes]
        over.sort(key=lambda line: line.cap_bytes - line.peak_bytes)
        shown = over if len(over) <= _MOST_DEFICITS else over[: _MOST_DEFICITS - 1]
        texts = [
            f"does not fit: {line.name} needs {_exact(line.peak_bytes - line.cap_bytes)} more than "
            f"its {format_bytes(line.cap_bytes)}"
            for line in shown
        ]
        if rest := over[len(shown) :]:
            missing = sum(line.peak_bytes - line.cap_bytes for line in rest)
            texts.append(f"so do {len(rest)} other devices, {_exact(missing)} in all")
        return tuple(texts)

    def renderables(self, width: int, *, blocks: bool = False) -> list[RenderableType]:
        """For a console of rich: the deficits first, then headline, table, remarks and notes.

        Args:
            width: of the terminal, in characters.
            blocks: draw the bars with block characters instead of ASCII.
        """
        return [
            *(hanging(text, width, "bold red") for text in self.deficits),
            hanging(self.headline, width, "bold"),
            as_table(device_columns(self.devices, width - _GAP, blocks=blocks), indent=_GAP),
            *(hanging(f"  {text}", width) for text in self.remarks),
            *(hanging(f"  note: {note}", width, "dim") for note in self.notes),
        ]

    def __str__(self) -> str:
        """The same words without color, for a width of `WIDTH`."""
        return plain_text(self.renderables(WIDTH))


def device_columns(
    devices: Sequence[DeviceLine], width: int = WIDTH, *, blocks: bool = False
) -> list[Column]:
    """The columns of a table with one line per device.

    What makes up the peaks has as many columns as there is room for, and one for the rest of it.

    Args:
        devices: the lines.
        width: of the table, in characters.
        blocks: draw the bars with block characters instead of ASCII.
    """
    styles = [_style(line) for line in devices]
    peaks = [
        f"{format_bytes(line.peak_bytes)} / {format_bytes(line.cap_bytes)}" for line in devices
    ]
    bars = [bar(line.peak_bytes / max(line.cap_bytes, 1), blocks=blocks) for line in devices]
    left = [
        Column(heading="device", cells=[x.name for x in devices], importance=99, is_text=True),
        Column(heading="ops", cells=[str(line.num_ops) for line in devices], importance=70),
        Column(heading="busy", cells=[f"{line.busy:.0%}" for line in devices], importance=80),
    ]
    right = [
        Column(heading="peak / cap", cells=peaks, importance=90, styles=styles),
        Column(heading="", cells=bars, importance=60, is_text=True, styles=styles),
    ]
    used = {name for line in devices for name, size in line.held.items() if size}
    by_rank = [name for name in _TELLING if name in used]
    by_rank += [name for name in _HEADINGS if name in used - {*by_rank}]
    for num_shown in range(len(by_rank), 0, -1):
        shown = by_rank[:num_shown]
        columns = [*left, *_held_columns(devices, shown, is_all=shown == by_rank), *right]
        if _width(columns) <= width:
            break
    else:
        columns = fitted([*left, *right], width)
    if any(line.peak_op is not None for line in devices):
        at_op = ["" if line.peak_op is None else f'"{line.peak_op}"' for line in devices]
        last = Column(heading="peak at", cells=at_op, importance=10, is_text=True)
        columns = fitted([*columns, last], max(width, _width(columns)))
    return columns


def _held_columns(
    devices: Sequence[DeviceLine], shown: Sequence[str], *, is_all: bool
) -> list[Column]:
    sums = [sum(line.held.get(name, 0) for name in shown) for line in devices]
    rest = [line.peak_bytes - at for line, at in zip(devices, sums, strict=True)]
    columns = [
        Column(
            heading=heading,
            importance=40,
            cells=[format_bytes(line.held.get(name, 0)) if line.held else "" for line in devices],
        )
        for name, heading in _HEADINGS.items()
        if name in shown
    ]
    if not is_all:
        cells = [
            format_bytes(size) if line.held else ""
            for line, size in zip(devices, rest, strict=True)
        ]
        columns.append(Column(heading="rest", cells=cells, importance=40))
    return columns


def bar(share: float, *, blocks: bool = False) -> str:
    """A share as a bar; above 1 it is full and ends with an exclamation mark.

    >>> bar(0.52), bar(1.0), bar(1.2)
    ('#####.....', '##########', '#########!')
    """
    if share > 1:
        return ("█" if blocks else "#") * (_BAR - 1) + "!"
    if not blocks:
        return ("#" * round(share * _BAR)).ljust(_BAR, ".")
    eighths = round(share * _BAR * 8)
    part = " ▏▎▍▌▋▊▉"[eighths % 8].strip()
    return ("█" * (eighths // 8) + part).ljust(_BAR, "░")


def fitted(columns: Sequence[Column], width: int) -> list[Column]:
    """The columns that fit a width, the most important first; at least the most important."""
    by_rank = sorted(range(len(columns)), key=lambda at: -columns[at].importance)
    kept = set(by_rank[:1])
    for at in by_rank[1:]:
        if _width([columns[k] for k in (*kept, at)]) <= width:
            kept.add(at)
    return [columns[at] for at in sorted(kept)]


def _width(columns: Sequence[Column]) -> int:
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


def _style(line: DeviceLine) -> str:
    if line.peak_bytes > line.cap_bytes:
        return "bold red"
    return "yellow" if 10 * line.peak_bytes > 9 * line.cap_bytes else "green"


def _exact(num_bytes: int) -> str:
    return f"{num_bytes} B" if num_bytes < 10_240 else format_bytes(num_bytes)
