"""`--trace`: the trace of a schedule, which several commands write."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from baechi.cli.output import progress

if TYPE_CHECKING:
    from baechi.schedules import Schedule

__all__ = ["add_trace", "write"]


def add_trace(parser: argparse.ArgumentParser) -> None:
    """Where the trace goes."""
    parser.add_argument(
        "--trace", metavar="FILE", help="write a trace for Perfetto or chrome://tracing"
    )


def write(path: str | None, schedule: Schedule) -> tuple[str, ...]:
    """Writes the trace where one is asked for, and says so."""
    if path is None:
        return ()
    from baechi.report import write_trace

    with progress("writing the trace"):
        write_trace(path, schedule)
    return (f"the trace is in {path}",)
