"""JSON that is exactly what it says: no repeated keys, no NaN, decimals without rounding."""

from __future__ import annotations

import contextlib
import decimal
import json
import os
import re
from collections.abc import Callable, Collection, Iterator
from typing import Any, NoReturn

from baechi.errors import CycleError, InputError

__all__ = ["array", "integer", "naming", "object_with", "parse", "plain", "read", "text"]

_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
LARGEST = 2**62
"""Quantities in files stay below this."""


def read(path: str | os.PathLike[str]) -> Any:
    """The document in a file; numbers with a fraction or an exponent are `Decimal`.

    Raises:
        InputError: not JSON in UTF-8, a key twice in one object, NaN or infinity, or nested deeper
            than Python can follow.
        OSError: the file cannot be read.
    """
    file = os.fspath(path)
    with open(file, "rb") as stream:
        data = stream.read()
    try:
        return parse(data.decode("utf-8-sig"), _decimal)
    except UnicodeDecodeError as error:
        raise InputError(f"{file}: not JSON in UTF-8: {error}") from None
    except ValueError as error:
        raise InputError(f"{file}: {error}") from None


def parse(content: str, parse_float: Callable[[str], Any] = float) -> Any:
    """The document in a text.

    Args:
        content: the text.
        parse_float: reads the digits of a number with a fraction or an exponent.

    Raises:
        InputError: as in `read`, without the file.
        ValueError: not JSON.
    """
    try:
        document = json.loads(
            content,
            object_pairs_hook=_object,
            parse_float=parse_float,
            parse_constant=_constant,
        )
    except RecursionError:
        raise InputError("nested too deeply") from None
    if _SURROGATE.search(content):
        _check_texts(document)
    return document


def plain(value: Any) -> Any:
    """A value that was read, with floats in place of decimals."""
    if isinstance(value, dict):
        return {name: plain(member) for name, member in value.items()}
    if isinstance(value, list):
        return [plain(member) for member in value]
    return float(value) if isinstance(value, decimal.Decimal) else value


@contextlib.contextmanager
def naming(file: str) -> Iterator[None]:
    """Put the file's name in front of an input error; a cycle keeps its own words."""
    try:
        yield
    except CycleError:
        raise
    except InputError as error:
        raise InputError(f"{file}: {error}") from error


def object_with(
    value: Any, where: str, required: Collection[str], optional: Collection[str] = ()
) -> dict[str, Any]:
    """The value as an object that has the required fields and no unknown ones.

    Raises:
        InputError: it is not; `where` names it.
    """
    if not isinstance(value, dict):
        raise InputError(f"{where} is not an object")
    for field in required:
        if field not in value:
            raise InputError(f'{where} has no field "{field}"')
    for field in value:
        if field not in required and field not in optional:
            raise InputError(f'{where} has an unknown field "{field}"')
    return value


def array(value: Any, where: str) -> list[Any]:
    """The value as an array.

    Raises:
        InputError: it is not.
    """
    if not isinstance(value, list):
        raise InputError(f"{where} is not an array")
    return value


def text(value: Any, where: str) -> str:
    """The value as a text.

    Raises:
        InputError: it is not.
    """
    if not isinstance(value, str):
        raise InputError(f"{where} is {_shown(value)}, not a text")
    return value


def integer(value: Any, where: str) -> int:
    """The value as an integer from 0 to 2^62 - 1.

    Raises:
        InputError: it is not; 1.0 and true are not either.
    """
    if type(value) is not int or not 0 <= value < LARGEST:
        raise InputError(f"{where} is {_shown(value)}, not an integer from 0 to 2^62 - 1")
    return value


def _check_texts(document: Any) -> None:
    """Refuses half of a surrogate pair, which JSON can escape and UTF-8 cannot hold."""
    left = [document]
    while left:
        value = left.pop()
        if isinstance(value, dict):
            left += [*value, *value.values()]
        elif isinstance(value, list):
            left += value
        elif isinstance(value, str) and value.encode(errors="replace").decode() != value:
            raise InputError(f"the text {value[:40]!r} cannot be written as UTF-8")


def _shown(value: Any) -> str:
    if isinstance(value, dict | list):
        return "an object" if isinstance(value, dict) else "an array"
    if isinstance(value, int) and abs(value) >= LARGEST:
        return "a number that is too large"
    return str(value) if isinstance(value, decimal.Decimal) else repr(value)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) < len(pairs):
        keys = [key for key, _ in pairs]
        again = next(key for i, key in enumerate(keys) if key in keys[:i])
        raise InputError(f'the key "{again}" is there twice in one object')
    return result


def _decimal(digits: str) -> decimal.Decimal:
    try:
        return decimal.Decimal(digits)
    except decimal.DecimalException:
        raise InputError(f"{digits[:40]} is out of range") from None


def _constant(name: str) -> NoReturn:
    raise InputError(f"{name} is not a number")
