"""What `baechi diff` shows of two plans, whether they are of graphs or of models."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from baechi.cli.output import Outcome
from baechi.units import format_bytes, format_ns

if TYPE_CHECKING:
    from rich.console import RenderableType

    from baechi.tables import Column

__all__ = ["Differences", "paired_devices"]

_FIELDS = ("num_ops", "peak_bytes", "cap_bytes", "busy_ns")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Differences:
    """Two plans side by side.

    Attributes:
        document: all of it, for programs; "devices" is what `paired_devices` makes.
        step_ns: the predicted step before and after.
        what: the plural of what a plan places.
        moved: a text for each that has moved.
        sides: in what else the two differ as a whole.
        others: a text for each further difference.
    """

    document: dict[str, Any]
    step_ns: tuple[int, int]
    what: str
    moved: Sequence[str]
    sides: str
    others: Sequence[str]

    def outcome(self, top: int) -> Outcome:
        """For programs and for people, who see so many of what has moved."""
        document = self.document
        return Outcome(document=lambda: document, shown=lambda width, _: self._shown(width, top))

    def _shown(self, width: int, top: int) -> list[RenderableType]:
        from baechi.tables import as_table, fitted, hanging

        if self.document["equal"]:
            return [hanging("the plans are equal", width)]
        (first, then), moved = self.step_ns, len(self.moved)
        ratio = f" ({then / first - 1:+.1%})" if first else ""
        head = f"step {format_ns(first)} -> {format_ns(then)}{ratio}, {moved} {self.what} moved"
        more = [f"... {moved - top} more {self.what} moved"] if moved > top else []
        listed = (*self.moved[:top], *more, *self.others)
        return [
            hanging(head, width, "bold"),
            hanging(f"  {self.sides}", width),
            as_table(fitted(_columns(self.document["devices"]), width - 2), indent=2),
            *(hanging(f"  {text}", width) for text in listed),
        ]


def paired_devices(before: Sequence[Any], after: Sequence[Any]) -> list[dict[str, Any]]:
    """Predictions by device in two plans, side by side; None where a plan lacks the device."""
    sides = [{device.name: device for device in devices} for devices in (before, after)]
    return [
        {
            "name": name,
            **{
                f"{field}_{when}": getattr(side[name], field) if name in side else None
                for field in _FIELDS
                for when, side in zip(("before", "after"), sides, strict=True)
            },
        }
        for name in dict.fromkeys((*sides[0], *sides[1]))
    ]


def _columns(rows: list[dict[str, Any]]) -> list[Column]:
    """Ops, peak, cap and busy time of each device, before and after."""
    from baechi.tables import Column

    def pair(field: str, text_of: Callable[[int], str]) -> list[str]:
        return [_pair(row[f"{field}_before"], row[f"{field}_after"], text_of) for row in rows]

    return [
        Column(heading="device", cells=[row["name"] for row in rows], importance=99, is_text=True),
        Column(heading="ops", cells=pair("num_ops", str), importance=70),
        Column(heading="peak", cells=pair("peak_bytes", format_bytes), importance=90),
        Column(heading="cap", cells=pair("cap_bytes", format_bytes), importance=60),
        Column(heading="busy", cells=pair("busy_ns", format_ns), importance=50),
    ]


def _pair(before: int | None, after: int | None, text_of: Callable[[int], str]) -> str:
    one, other = ("none" if side is None else text_of(side) for side in (before, after))
    return one if one == other else f"{one} -> {other}"
