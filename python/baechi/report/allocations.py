"""Allocations: the memory of a PyTorch model by device, as its ledger found it."""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import TYPE_CHECKING

from baechi.report.markup import Cell, alert, bar, item, swatch, table
from baechi.units import format_bytes

if TYPE_CHECKING:
    from baechi.summaries import DeviceLine

__all__ = ["allocation_deficits", "allocation_table"]


def allocation_deficits(allocated: Sequence[DeviceLine]) -> str:
    """What does not fit, by how much; nothing where all fits."""
    found = [
        f"{line.name} needs {format_bytes(line.peak_bytes)} and has "
        f"{format_bytes(line.cap_bytes)}: {format_bytes(line.peak_bytes - line.cap_bytes)} too "
        f'much, reached by "{line.peak_op}"'
        for line in allocated
        if line.peak_bytes > line.cap_bytes
    ]
    return alert("Does not fit", map(item, found)) if found else ""


def allocation_table(allocated: Sequence[DeviceLine]) -> str:
    """One row per device: ops, busy share, peak against its cap and what it is made of."""
    rows = []
    for at, line in enumerate(allocated):
        peak, cap = line.peak_bytes, line.cap_bytes
        room = format_bytes(cap - peak) if peak <= cap else f"{format_bytes(peak - cap)} over"
        made_of = {name: size for name, size in line.held.items() if size}
        rows.append(
            [
                Cell(swatch(at) + html.escape(line.name), None, True),
                Cell(f"{line.num_ops:,}", line.num_ops),
                Cell(f"{line.busy:.0%}", line.busy),
                Cell(format_bytes(peak), peak),
                Cell(format_bytes(cap), cap),
                Cell(room, cap - peak),
                Cell(bar(made_of, peak, cap), None, True),
                Cell(line.peak_op or ""),
            ]
        )
    head = ["device", "forward ops", "busy", "peak", "limit", "room", "what the peak is"]
    return table("devices", [*head, "reached by"], rows, [line.name for line in allocated])
