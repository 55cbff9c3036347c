"""Sizes, times and rates as text: reading "24GiB", "10 us", "12GB/s" and writing them back.

Everything inside Baechi is integer bytes, integer nanoseconds and integer bytes per second. Sizes
are read as accelerate reads them: GiB, MiB, KiB are powers of 2, GB, MB, KB powers of 10, upper and
lower case alike, but a lower-case "b" at the end of a power of 10 means bits.
"""

from __future__ import annotations

import operator
import re
from fractions import Fraction
from typing import SupportsIndex

from baechi.errors import InputError

__all__ = [
    "counted",
    "format_bytes",
    "format_bytes_short",
    "format_ns",
    "parse_bandwidth",
    "parse_bytes",
    "parse_ns",
]

_BINARY = {"KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}
_DECIMAL = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_NS = {"": 1, "ns": 1, "us": 10**3, "µs": 10**3, "ms": 10**6, "s": 10**9}
_QUANTITY = re.compile(
    r"\s*((?:[0-9]{1,30}\.?[0-9]{0,30}|\.[0-9]{1,30})(?:[eE][+-]?[0-9]{1,2})?)\s*([a-zA-Zµ]*)\s*",
    re.ASCII,
)
# Above any device and any step, and low enough that the sum of two stays inside 64 bits.
_LIMIT = 2**62

_SIZE_HINT = 'write bytes, or a unit as in "24GiB", "80GB" or "512MB"'
_TIME_HINT = 'write nanoseconds, or a unit (ns, us, ms, s) as in "10us" or "3.2 ms"'
_RATE_HINT = 'write bytes per second, or a unit as in "12GB/s", "100Gb/s" or "100Gbps"'


def parse_bytes(size: SupportsIndex | float | str) -> int:
    """Reads a size in bytes.

    Args:
        size: bytes as a whole number (12e9 is one), or text such as "24GiB", "1.5 GiB", "80GB",
            "512MB" or "200Mb" (bits). Parts of a byte are cut off.

    Returns:
        Bytes, at least 0.

    Raises:
        InputError: not a size, negative, or 2**62 bytes and more.

    >>> parse_bytes("1.5 GiB"), parse_bytes("80GB"), parse_bytes("200Mb"), parse_bytes(12e9)
    (1610612736, 80000000000, 25000000, 12000000000)
    """
    if not isinstance(size, str):
        return _whole(size, "a size", _SIZE_HINT)
    return _checked(_bytes(size, size, "a size", _SIZE_HINT), size, "a size", _SIZE_HINT)


def parse_ns(time: SupportsIndex | float | str) -> int:
    """Reads a time in nanoseconds.

    Args:
        time: nanoseconds as a whole number, or text such as "10us", "3.2 ms", "1s" or "250 ns".

    Returns:
        Nanoseconds, at least 0.

    Raises:
        InputError: not a time, negative, not a whole number of nanoseconds, or 2**62 and more.

    >>> parse_ns("3.2 ms"), parse_ns("10us"), parse_ns(7)
    (3200000, 10000, 7)
    """
    if not isinstance(time, str):
        return _whole(time, "a time", _TIME_HINT)
    match = _QUANTITY.fullmatch(time)
    if match is None or match[2].lower() not in _NS:
        raise _error(time, "a time", _TIME_HINT)
    time_ns = Fraction(match[1]) * _NS[match[2].lower()]
    if time_ns.denominator != 1:
        raise _error(time, "a whole number of nanoseconds", "round it to nanoseconds")
    return _checked(int(time_ns), time, "a time", _TIME_HINT)


def parse_bandwidth(rate: SupportsIndex | float | str) -> int:
    """Reads a rate in bytes per second; 0 stands for infinitely fast.

    Args:
        rate: bytes per second as a whole number, or text such as "12GB/s", "100Gb/s" (bits) or
            "100Gbps" (bits).

    Returns:
        Bytes per second, at least 0.

    Raises:
        InputError: not a rate, negative, positive but below 1 byte/s, or 2**62 and more.

    >>> parse_bandwidth("12GB/s"), parse_bandwidth("100Gb/s"), parse_bandwidth(25e9)
    (12000000000, 12500000000, 25000000000)
    """
    if not isinstance(rate, str):
        return _whole(rate, "a rate", _RATE_HINT)
    per_second = rate.strip()
    for ending in ("/s", "ps"):
        size = per_second.removesuffix(ending)
        if size != per_second:
            break
    else:
        if not per_second.isdecimal():
            raise _error(rate, "a rate", _RATE_HINT)
    bytes_per_s = _bytes(size, rate, "a rate", _RATE_HINT)
    if bytes_per_s == 0 and any(digit in size for digit in "123456789"):
        raise _error(rate, "a rate of at least 1 byte/s", "0 stands for infinitely fast")
    return _checked(bytes_per_s, rate, "a rate", _RATE_HINT)


def format_bytes(num_bytes: int) -> str:
    """Writes bytes in the largest binary unit that leaves at least 1, one digit after the point.

    >>> format_bytes(512), format_bytes(8 * 2**30), format_bytes(9_770_000_000)
    ('512 B', '8 GiB', '9.1 GiB')
    """
    return _format(
        num_bytes, (("B", 1), ("KiB", 2**10), ("MiB", 2**20), ("GiB", 2**30), ("TiB", 2**40))
    )


def format_bytes_short(num_bytes: int) -> str:
    """The same in fewer characters, as Kubernetes writes it: for tables with many columns.

    >>> format_bytes_short(512), format_bytes_short(8 * 2**30), format_bytes_short(9_770_000_000)
    ('512', '8Gi', '9.1Gi')
    """
    return format_bytes(num_bytes).replace(" ", "").removesuffix("B")


def counted(count: int, one: str, many: str) -> str:
    """So many things.

    >>> counted(0, "copy", "copies"), counted(1, "copy", "copies")
    ('no copies', '1 copy')
    """
    return f"{count or 'no'} {one if count == 1 else many}"


def format_ns(time_ns: int) -> str:
    """Writes nanoseconds in the largest unit that leaves at least 1, one digit after the point.

    >>> format_ns(999), format_ns(10_000), format_ns(3_249_000)
    ('999 ns', '10 us', '3.2 ms')
    """
    return _format(time_ns, (("ns", 1), ("us", 10**3), ("ms", 10**6), ("s", 10**9)))


def _format(amount: int, units: tuple[tuple[str, int], ...]) -> str:
    """One digit after the point, none where the amount is whole in that unit."""
    larger = [unit for _, unit in units[1:]]
    for (name, unit), next_unit in zip(units, [*larger, None], strict=True):
        # Tenths are rounded half up in integers, so 1023.97 KiB becomes 1.0 MiB, not 1024.0 KiB.
        tenths = (20 * abs(amount) + unit) // (2 * unit)
        if next_unit is None or tenths * unit < 10 * next_unit:
            sign = "-" if amount < 0 else ""
            whole = f"{abs(amount) // unit}" if amount % unit == 0 else f"{tenths / 10:.1f}"
            return f"{sign}{whole} {name}"
    raise AssertionError("the last unit takes every amount")


def _bytes(text: str, shown: str, what: str, hint: str) -> int:
    match = _QUANTITY.fullmatch(text)
    if match is None:
        raise _error(shown, what, hint)
    number, unit = match[1], match[2]
    is_bits = unit.endswith("b") and unit.upper() in _DECIMAL
    factor = _DECIMAL.get(unit.upper()) or _BINARY.get(unit.upper())
    if factor is None:
        raise _error(shown, what, hint)
    # Accelerate multiplies in floats and cuts; whole numbers stay exact above 2**53 here.
    num_bytes = int(number) * factor if number.isdecimal() else int(float(number) * factor)
    return num_bytes // 8 if is_bits else num_bytes


def _whole(value: SupportsIndex | float, what: str, hint: str) -> int:
    if isinstance(value, float) and value.is_integer():
        return _checked(int(value), value, what, hint)
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise _error(value, what, hint)
    return _checked(operator.index(value), value, what, hint)


def _checked(amount: int, shown: object, what: str, hint: str) -> int:
    if amount < 0:
        raise _error(shown, f"{what}: it is negative", hint)
    if amount >= _LIMIT:
        raise _error(shown, f"{what} below 2**62", hint)
    return amount


def _error(shown: object, what: str, hint: str) -> InputError:
    return InputError(f"{shown!r} is not {what}", hint=hint)
