"""Errors as words, as JSON and as an exit code."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

from baechi.cli.output import progress, say, write_json
from baechi.errors import (
    BaechiError,
    InputError,
    MissingFrameworkError,
    OutOfMemoryError,
    PlacementError,
)
from baechi.units import format_bytes

__all__ = ["FAULT", "INFEASIBLE", "NOT_FOUND", "WRONG", "explain"]

FAULT, WRONG, INFEASIBLE, NOT_FOUND = 1, 2, 3, 4


def explain(error: Exception, arguments: argparse.Namespace) -> int:
    """Says what went wrong and what would help; returns the exit code."""
    message, hint = _words(error)
    limit: Mapping[str, int] | None = getattr(error, "enough", None) or None
    if isinstance(error, OutOfMemoryError) and getattr(arguments, "smallest_limit", False):
        limit, hint = _smallest_limit(error)
    say(f"error: {message}")
    if hint:
        say(f"hint: {hint}")
    if getattr(arguments, "json", False):
        write_json(arguments.command, {"error": _document(error, message, hint, limit)})
    return _code(error)


def _code(error: Exception) -> int:
    if isinstance(error, OutOfMemoryError):
        return INFEASIBLE if error.proved_infeasible else NOT_FOUND
    if isinstance(error, PlacementError):
        return NOT_FOUND
    return WRONG if isinstance(error, InputError | MissingFrameworkError | OSError) else FAULT


def _words(error: Exception) -> tuple[str, str | None]:
    if isinstance(error, BaechiError):
        message = str(error).split("\nhint: ")[0]
        if isinstance(error, OutOfMemoryError):
            missing = error.needed_bytes - error.free_bytes
            if not error.proved_infeasible:
                message = f"{format_bytes(missing)} missing: {message}" if missing > 0 else message
                if error.hint and not hasattr(error, "_search"):  # not from baechi.place
                    return message, error.hint
                way = "--smallest-limit finds memory that is enough"
                return message, f"nothing was found, though something may exist; {way}"
        return message, error.hint
    if isinstance(error, OSError):
        where = f"{error.filename}: " if error.filename else ""
        return f"{where}{error.strerror or error}", None
    hint = "this is a fault of ours; --debug shows where it happened"
    return f"{type(error).__name__}: {error}", hint


def _smallest_limit(error: OutOfMemoryError) -> tuple[Mapping[str, int] | None, str]:
    try:
        with progress("looking for memory that is enough"):
            limit = error.smallest_limit()
    except BaechiError as failure:
        return None, str(failure)
    shown = ",".join(f"{name} {format_bytes(size)}" for name, size in limit.items())
    return limit, f"a placement was found with {shown.replace(',', ', ')}"


def _document(
    error: Exception, message: str, hint: str | None, limit: Mapping[str, int] | None
) -> dict[str, Any]:
    document: dict[str, Any] = {
        "type": type(error).__name__,
        "message": message,
        "hint": hint,
        "exit_code": _code(error),
    }
    if isinstance(error, OutOfMemoryError):
        document |= {
            "op": error.op,
            "device": error.device,
            "needed_bytes": error.needed_bytes,
            "free_bytes": error.free_bytes,
            "proved_infeasible": error.proved_infeasible,
            "holders": [{"op": op, "bytes": size} for op, size in error.holders],
            "found_limit_bytes": None if limit is None else dict(limit),
        }
    return document
