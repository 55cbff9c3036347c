"""Markup: the small pieces of HTML that the sections of a page are made of, all text escaped."""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from baechi.report.colors import (
    CATEGORY_COLORS,
    CATEGORY_LABELS,
    DEVICE_COLORS,
    device_color,
)
from baechi.units import format_bytes

__all__ = [
    "Cell",
    "alert",
    "bar",
    "exact",
    "item",
    "moved",
    "ratio",
    "reasons",
    "small_bar",
    "swatch",
    "table",
]


class Cell(NamedTuple):
    """One cell of a table."""

    text: str
    number: int | float | None = None
    """The exact value, kept beside the text that is shown."""
    is_html: bool = False


def moved(num_bytes: int) -> Cell:
    """Blank without bytes: where transfer times are given outright, tensors may have none."""
    return Cell(format_bytes(num_bytes) if num_bytes else "", num_bytes)


def ratio(time_ns: int, unit_ns: int) -> Cell:
    """How many times as long; blank where there is nothing to compare with."""
    return Cell(f"{time_ns / unit_ns:.2f}x", time_ns / unit_ns) if unit_ns else Cell("")


def exact(cell: Cell) -> str:
    """The exact value of a cell as an attribute."""
    return "" if cell.number is None else f' data-value="{cell.number}"'


def table(
    name: str, head: Sequence[str], rows: Sequence[Sequence[Cell]], keys: Iterable[str]
) -> str:
    """A table whose rows carry keys; a column without a word is left out."""
    full = [at for at in range(len(head)) if any(row[at].text for row in rows)]
    head, rows = [head[at] for at in full], [[row[at] for at in full] for row in rows]
    # A column of numbers has its title above them, at the right.
    is_number = [any(row[at].number is not None for row in rows) for at in range(len(head))]
    titles = "".join(
        f'<th scope="col"{" class=n" if right else ""}>{html.escape(title)}</th>'
        for title, right in zip(head, is_number, strict=True)
    )
    lines = []
    for key, row in zip(keys, rows, strict=True):
        cells = (
            f"<td{exact(cell)}{' class=n' if cell.number is not None else ''}>"
            f"{cell.text if cell.is_html else html.escape(cell.text)}</td>"
            for cell in row
        )
        lines.append(f'<tr data-key="{html.escape(key)}">{"".join(cells)}</tr>')
    body = "".join(lines)
    return (
        f'<div class="scroll"><table id="{name}"><thead><tr>{titles}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def reasons(found: Iterable[tuple[str, str | None]]) -> str:
    """Why some have no plan, as a list; nothing where all have one."""
    items = "".join(item(f"{name}: {error}") for name, error in found if error)
    return f'<ul class="notes">{items}</ul>' if items else ""


def swatch(device: int) -> str:
    """A small square in the color of a device."""
    again = ' class="swatch again"' if device >= len(DEVICE_COLORS) else ' class="swatch"'
    return f'<span{again} style="background-color:{device_color(device)}"></span>'


def bar(made_of: Mapping[str, int], peak: int, cap: int) -> str:
    """The peak by category, as wide as its share of the limit; a mark stands at the limit."""
    full = max(peak, cap, 1)
    plain = f'<i style="width:{100 * peak / full:.3f}%;background:var(--faint)"></i>'
    parts = "" if made_of else plain
    parts += "".join(
        f'<i style="width:{100 * size / full:.3f}%;background:{CATEGORY_COLORS[name]}" '
        f'title="{CATEGORY_LABELS[name]}: {format_bytes(size)}"></i>'
        for name, size in made_of.items()
    )
    words = ", ".join(f"{name} {format_bytes(size)}" for name, size in made_of.items())
    return (
        f'<span class="bar">{parts}<b style="left:{100 * cap / full:.3f}%"></b></span>'
        f'<span class="words">{words}</span>'
    )


def small_bar(name: str, peak: int, cap: int) -> str:
    """The share of one device's limit as an upright bar."""
    title = html.escape(f"{name}: {format_bytes(peak)} of {format_bytes(cap)}")
    height = 100 * min(peak / max(cap, 1), 1)
    over = ' class="over"' if peak > cap else ""
    return f'<span title="{title}"{over}><i style="height:{height:.0f}%"></i></span>'


def item(text: str) -> str:
    """An item of a list."""
    return f"<li>{html.escape(text)}</li>"


def alert(title: str, items: Iterable[str]) -> str:
    """A box that a screen reader reads at once."""
    found = "".join(items)
    return f'<div class="alert" role="alert"><strong>{title}</strong><ul>{found}</ul></div>'
