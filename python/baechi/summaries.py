"""Summaries: what is said of a plan or schedule, above all one line per device."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from baechi.tables import WIDTH, Column, as_table, fitted, hanging, plain_text, width_of
from baechi.units import format_bytes, format_bytes_short

if TYPE_CHECKING:
    from rich.console import RenderableType

__all__ = ["HEADINGS", "DeviceLine", "Summary", "bar", "device_columns"]

HEADINGS = {
    "persistent": "persistent",
    "weight": "weights",
    "buffer": "buffers",
    "gradient": "gradients",
    "optimizer": "optimizer",
    "activation": "activations",
    "other": "other",
    "scratch": "scratch",
    "copy": "copies",
}
"""What makes up a peak (`baechi.holdings.CATEGORIES`) as headings, in the order of the columns."""

_SHORT = {"persistent": "persist", "gradient": "grads", "optimizer": "optim", "activation": "acts"}
# Where not even short words fit, the last of these are summed up first.
_TELLING = ("persistent", "weight", "activation", "copy", "optimizer", "gradient", "scratch")
_BAR = 10
_INDENT = 2
_MOST_DEFICITS = 4


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
    """Warnings, a headline, one line per device, and what else a reader must know."""

    headline: str
    devices: tuple[DeviceLine, ...]
    remarks: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    """What makes all of it worth less."""

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
        """For a console of rich: warnings, deficits, then headline, table, remarks and notes.

        Args:
            width: of the terminal, in characters.
            blocks: draw the bars with block characters instead of ASCII.
        """
        table = as_table(device_columns(self.devices, width - _INDENT, blocks=blocks), _INDENT)
        return [
            *(hanging(text, width, "bold red") for text in (*self.warnings, *self.deficits)),
            hanging(self.headline, width, "bold"),
            table,
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

    Everything that makes up the peaks has a column of its own, but what is 0 on all devices. For
    that, first the bars, ops and peaks' places are left out, then units and headings are shortened;
    only if that is not enough the least telling columns become one.

    Args:
        devices: the lines.
        width: of the table, in characters.
        blocks: draw the bars with block characters instead of ASCII.
    """
    for wording in _wordings(
        {name for line in devices for name, size in line.held.items() if size}
    ):
        needed = _needed_columns(devices, wording)
        if width_of(needed) <= width:
            break
    device, *others, peak = needed
    styles = [_style(line) for line in devices]
    ops = Column(heading="ops", cells=[str(line.num_ops) for line in devices], importance=70)
    bars = [bar(line.peak_bytes / max(line.cap_bytes, 1), blocks=blocks) for line in devices]
    full = Column(heading="", cells=bars, importance=60, is_text=True, styles=styles)
    columns = [device, ops, *others, dataclasses.replace(peak, styles=styles), full]
    if any(line.peak_op for line in devices):
        at_op = [f'"{line.peak_op}"' if line.peak_op else "" for line in devices]
        columns.append(Column(heading="peak at", cells=at_op, importance=10, is_text=True))
    return fitted(columns, width)


class _Wording(NamedTuple):
    """Which categories have a column, what stands above them, and how sizes are written."""

    headings: Mapping[str, str]
    is_all: bool
    size: Callable[[int], str]


def _wordings(used: set[str]) -> Iterator[_Wording]:
    """The ways to write a table, the best first and the narrowest last."""
    headings = {name: heading for name, heading in HEADINGS.items() if name in used}
    short = {name: _SHORT.get(name, heading) for name, heading in headings.items()}
    yield _Wording(headings, True, format_bytes)
    yield _Wording(headings, True, format_bytes_short)
    yield _Wording(short, True, format_bytes_short)
    by_rank = sorted(short, key=lambda name: (*_TELLING, name).index(name))
    for num_shown in range(len(short) - 1, 0, -1):
        shown = by_rank[:num_shown]
        some = {name: heading for name, heading in short.items() if name in shown}
        yield _Wording(some, False, format_bytes_short)
    yield _Wording({}, True, format_bytes)


def _needed_columns(devices: Sequence[DeviceLine], wording: _Wording) -> list[Column]:
    """Name, busy share, what makes up the peak, and the peak: what every width should have."""
    headings, is_all, size = wording
    columns = [
        Column(heading="device", cells=[x.name for x in devices], importance=99, is_text=True),
        Column(heading="busy", cells=[f"{line.busy:.0%}" for line in devices], importance=80),
    ]
    for name, heading in headings.items():
        cells = [size(line.held.get(name, 0)) if line.held else "" for line in devices]
        columns.append(Column(heading=heading, cells=cells, importance=75))
    if not is_all:
        shown = [sum(line.held.get(name, 0) for name in headings) for line in devices]
        rests = [line.peak_bytes - at for line, at in zip(devices, shown, strict=True)]
        cells = [size(r) if x.held else "" for x, r in zip(devices, rests, strict=True)]
        columns.append(Column(heading="rest", cells=cells, importance=75))
    peaks = [f"{size(line.peak_bytes)} / {size(line.cap_bytes)}" for line in devices]
    columns.append(Column(heading="peak / cap", cells=peaks, importance=90))
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


def _style(line: DeviceLine) -> str:
    if line.peak_bytes > line.cap_bytes:
        return "bold red"
    return "yellow" if 10 * line.peak_bytes > 9 * line.cap_bytes else "green"


def _exact(num_bytes: int) -> str:
    return f"{num_bytes} B" if num_bytes < 10_240 else format_bytes(num_bytes)
