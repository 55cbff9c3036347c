"""Packing: the arrays and texts of a page as one compressed block that its script unpacks."""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["Packer", "as_script_json"]

# The script's typed arrays by the letter that it is told.
_TYPES = {"f8": "<f8", "i4": "<i4", "u1": "u1"}


class Packer:
    """Collects columns by name; the index says where each lies in the block."""

    def __init__(self) -> None:
        """Nothing yet."""
        self._parts: list[bytes] = []
        self._length = 0
        self.index: dict[str, list[Any]] = {}

    def numbers(self, name: str, values: npt.ArrayLike, kind: str) -> None:
        """Adds a column of "f8" (whole numbers are exact up to 2**53), "i4" or "u1"."""
        column = np.ascontiguousarray(values).astype(_TYPES[kind], copy=False)
        self._add(name, kind, column.size, column.tobytes())

    def texts(self, name: str, values: Sequence[str]) -> None:
        """Adds a list of texts."""
        data = json.dumps(list(values), separators=(",", ":")).encode()
        self._add(name, "text", len(data), data)

    def block(self) -> str:
        """Everything, deflated, in base64; the same columns always give the same text."""
        return base64.b64encode(zlib.compress(b"".join(self._parts), 6)).decode()

    def _add(self, name: str, kind: str, count: int, data: bytes) -> None:
        self.index[name] = [kind, self._length, count]
        padded = data + bytes(-len(data) % 8)  # a typed array must begin at a multiple of 8
        self._parts.append(padded)
        self._length += len(padded)


def as_script_json(value: object) -> str:
    """JSON that may stand inside a script element, whatever the texts in it are."""
    text = json.dumps(value, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
