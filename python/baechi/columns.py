"""The columns of a graph: their types, and how values become columns."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Sequence, Sized
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from baechi.errors import InputError

ROLES: Final = ("forward", "backward", "update")
MEMORY_CLASSES: Final = (
    "weight",
    "buffer",
    "gradient",
    "optimizer",
    "activation",
    "other",
    "control",
)
CONTROL: Final = MEMORY_CLASSES.index("control")

Array = npt.NDArray[Any]
MOST: Final = 2**31 - 1
MOST_UNNAMED: Final = 2**20
_COUNTED: Final = {"ops": "persistent_bytes", "tensors": "tensor_producer", "edges": "edge_tensor"}


class Column(NamedTuple):
    """One column: its name, its type, what it has one value for, its least value, its default."""

    name: str
    dtype: type[np.integer[Any]]
    axes: tuple[str, ...]
    least: int
    default: int


COLUMNS: Final = (
    Column("compute_ns", np.int64, ("kinds", "ops"), -1, 0),
    Column("persistent_bytes", np.int64, ("ops",), 0, 0),
    Column("scratch_bytes", np.int64, ("ops",), 0, 0),
    Column("group", np.int32, ("ops",), -1, -1),
    Column("allowed_set", np.int32, ("ops",), -1, -1),
    Column("role", np.uint8, ("ops",), 0, 0),
    Column("forward_op", np.int32, ("ops",), -1, -1),
    Column("tensor_producer", np.int32, ("tensors",), 0, 0),
    Column("tensor_bytes", np.int64, ("tensors",), 0, 0),
    Column("tensor_transfer_ns", np.int64, ("tensors",), -1, -1),
    Column("tensor_class", np.uint8, ("tensors",), 0, MEMORY_CLASSES.index("activation")),
    Column("edge_tensor", np.int32, ("edges",), 0, 0),
    Column("edge_consumer", np.int32, ("edges",), 0, 0),
)


class Names(NamedTuple):
    """The texts of a graph: one per op, kind and group, and the sets of devices."""

    op_names: tuple[str, ...]
    op_kinds: tuple[str, ...]
    module_paths: tuple[str, ...]
    device_kinds: tuple[str, ...]
    group_names: tuple[str, ...]
    allowed_sets: tuple[tuple[str, ...], ...]


def as_array(name: str, values: npt.ArrayLike) -> Array:
    """The values as an array of whatever type they have.

    Raises:
        InputError: they make no array.
    """
    try:
        return np.asarray(values)
    except (ValueError, TypeError, OverflowError) as error:
        raise InputError(f"{name} is not an array of integers: {error}") from error


def exact_column(column: Column, given: Array | None, counts: Mapping[str, int]) -> Array:
    """A read-only copy of the values in the column's type and shape, or its default.

    Args:
        column: the column.
        given: integers, or floats without a fraction; None: the default everywhere.
        counts: the length of every axis.

    Raises:
        InputError: a value is no integer, out of range, or the shape is wrong.
    """
    shape = tuple(counts[axis] for axis in column.axes)
    if given is None:
        return read_only(np.full(shape, column.default, column.dtype))
    if given.shape != shape:
        wanted = f"{shape}: one value per {' and '.join(axis[:-1] for axis in column.axes)}"
        raise InputError(f"{column.name} has shape {given.shape}, not {wanted}")
    if given.size == 0:
        return read_only(np.empty(shape, column.dtype))
    if given.dtype.kind not in "iubf":
        raise InputError(f"{column.name} has type {given.dtype}, not integers of 64 bits")
    if given.dtype.kind == "f":
        wrong = ~(np.isfinite(given) & (given == np.floor(given)))
        if wrong.any():
            value = given[wrong].flat[0]
            raise InputError(f"{column.name} holds {value}, which is not an integer")
    most = int(np.iinfo(column.dtype).max)
    low, high = int(given.min()), int(given.max())
    if low < column.least or high > most:
        value = low if low < column.least else high
        place = ", ".join(str(int(i)) for i in np.argwhere(given == value)[0])
        allowed = f"{column.least} to {most}"
        raise InputError(f"{column.name}[{place}] is {value}, not in {allowed}")
    if given.dtype == column.dtype and given.flags.c_contiguous and _is_immutable(given):
        return given
    return read_only(np.array(given, dtype=column.dtype, order="C", copy=True))


def read_only(array: Array) -> Array:
    """A view of `array` that nobody can make writable again."""
    array.flags.writeable = False
    return array.view()


def texts(what: str, values: Sequence[str], *, unique: bool = False) -> tuple[str, ...]:
    """The texts as a tuple of plain strings.

    Args:
        what: the noun for messages, such as "op name".
        values: the texts.
        unique: refuse empty and repeated ones.

    Raises:
        InputError: one is not text, cannot be written as UTF-8, is empty or repeated.
    """
    if isinstance(values, str):
        raise InputError(f"{what}s must be a sequence of texts, not one text")
    if not isinstance(values, Iterable):
        raise InputError(f"{what}s must be a sequence of texts, not {values!r}")
    result = tuple(values)
    if not set(map(type, result)) <= {str}:
        for i, value in enumerate(result):
            if not isinstance(value, str):
                raise InputError(f"{what} {i} is {value!r}, not a text")
        result = tuple(str(value) for value in result)
    joined = "".join(result)
    if not (joined.isascii() or _is_utf8(joined)):
        bad = next(value for value in result if not _is_utf8(value))
        raise InputError(f"{what} {bad!r} cannot be written as UTF-8")
    if unique and "" in result:
        raise InputError(f"{what} {result.index('')} is empty")
    if unique and (again := _repeated(result)) is not None:
        raise InputError(f'{what} "{again}" is there twice')
    return result


def _repeated(values: tuple[str, ...]) -> str | None:
    """A text that is there twice; hashes first, since a set of a million texts takes longer."""
    hashes = np.sort(np.fromiter(map(hash, values), np.int64, len(values)))
    seen: set[str] = set()
    if (hashes[1:] == hashes[:-1]).any():
        for value in values:
            if value in seen:
                return value
            seen.add(value)
    return None


def _is_immutable(array: Array) -> bool:
    """Whether the values lie in a bytes object, as those read from a file do."""
    base: object = array
    while isinstance(base, np.ndarray):
        base = base.base
    return isinstance(base, bytes) and bool(array.flags.aligned)


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def count_axes(given: Mapping[str, Any], num_ops: int | None, num_kinds: int) -> dict[str, int]:
    """The length of every axis; the first of `num_ops`, names and compute times counts the ops.

    Raises:
        InputError: more ops, tensors or edges than 32 bits count.
    """
    counts = {"kinds": num_kinds}
    for axis, column in _COUNTED.items():
        counts[axis] = np.size(given[column]) if column in given else 0
    if num_ops is not None:
        if isinstance(num_ops, bool) or not hasattr(num_ops, "__index__"):
            raise InputError(f"num_ops is {num_ops!r}, not a number of ops")
        counts["ops"] = operator.index(num_ops)
    elif "op_names" in given:
        if not isinstance(given["op_names"], Sized):
            raise InputError(f"op_names is {given['op_names']!r}, not a sequence of texts")
        counts["ops"] = len(given["op_names"])
    elif np.ndim(given.get("compute_ns", 0)):
        counts["ops"] = np.shape(given["compute_ns"])[-1]
    for axis, count in counts.items():
        if not 0 <= count < MOST:
            raise InputError(f"a graph of {count} {axis}; there may be 0 to 2^31 - 2 of them")
    return counts


def read_names(given: Mapping[str, Any], ops: int, kinds: tuple[str, ...], group: Array) -> Names:
    """The names of a graph, with their defaults.

    Raises:
        InputError: a wrong number of texts, or texts that must be distinct and are not.
    """

    def per_op(field: str) -> tuple[str, ...]:
        result = texts(field[:-1].replace("_", " "), given[field], unique=field == "op_names")
        if len(result) != ops:
            raise InputError(f"{field} has {len(result)} texts, not {ops}: one per op")
        return result

    groups = given.get("group_names")
    if groups is None:
        if (most := int(group.max(initial=-1))) >= max(ops, MOST_UNNAMED):
            raise InputError(f"group {most} of {ops} ops has no name", hint="number groups from 0")
        groups = [f"group{i}" for i in range(int(group.max(initial=-1)) + 1)]
    if not isinstance(given["allowed_sets"], Iterable):
        raise InputError(f"allowed_sets is {given['allowed_sets']!r}, not a sequence of sets")
    sets = tuple(texts("allowed device", names, unique=True) for names in given["allowed_sets"])
    if () in sets or len(set(sets)) != len(sets):
        raise InputError("allowed_sets must be distinct and not empty")
    return Names(
        per_op("op_names") if "op_names" in given else tuple(f"op{i}" for i in range(ops)),
        per_op("op_kinds") if "op_kinds" in given else ("",) * ops,
        per_op("module_paths") if "module_paths" in given else ("",) * ops,
        kinds,
        texts("group name", groups, unique=True),
        sets,
    )


def ordinals(producer: Array, tensor_class: Array) -> Array:
    """[tensors]: how many data tensors of the same producer come before each."""
    order = np.argsort(producer, kind="stable")
    data = (tensor_class[order] != CONTROL).astype(np.int64)
    before = np.cumsum(data) - data
    first = np.searchsorted(producer[order], producer[order])
    result = np.empty(len(order), np.int64)
    result[order] = before - before[first]
    return result


def dense(group: Array) -> Array:
    """[ops]: the groups that have an op numbered from 0 in the same order; -1 for no group."""
    used, result = np.unique(group, return_inverse=True)
    return (result - int(len(used) > 0 and used[0] < 0)).astype(np.int32)


def core_columns(graph: object) -> dict[str, Array]:
    """The columns in the order in which the core takes them; groups without ops are left out."""
    columns = {column.name: getattr(graph, column.name) for column in COLUMNS}
    return columns | {"group": dense(columns["group"])}
