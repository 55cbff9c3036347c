"""A graph as an uncompressed npz file, for a million ops; docs/formats.md describes it."""

from __future__ import annotations

import errno
import io
import itertools
import math
import os
import re
import struct
import zipfile
from collections.abc import Mapping, Sequence
from typing import IO, Any, Final

import numpy as np

from baechi.columns import COLUMNS, Array
from baechi.errors import InputError
from baechi.files import write_atomically
from baechi.formats.strict_json import naming
from baechi.graph import Graph

__all__ = ["MAGIC", "SCHEMA", "read_graph", "write_graph"]

MAGIC: Final = b"PK\x03\x04"
SCHEMA: Final = 1
_TEXTS: Final = ("op_names", "device_kinds", "group_names")
_REPEATED: Final = ("op_kinds", "module_paths")
_MEMBERS: Final[dict[str, tuple[str, int]]] = {
    "schema": ("<i8", 0),
    "allowed_sets": ("<i8", 1),
    **{column.name: (np.dtype(column.dtype).newbyteorder("<").str, 1) for column in COLUMNS},
    "compute_ns": ("<i8", 2),
    **{f"{name}.utf8": ("|u1", 1) for name in (*_TEXTS, *_REPEATED, "allowed_devices")},
    **{f"{name}.ends": ("<i8", 1) for name in (*_TEXTS, *_REPEATED, "allowed_devices")},
    **{f"{name}.codes": ("<i4", 1) for name in _REPEATED},
}
"""Every array of the file: its type and its number of axes."""

_NPY: Final = b"\x93NUMPY\x01\x00"
_HEADER: Final = re.compile(
    rb"\{'descr': '([<|][a-z][0-9])', 'fortran_order': False, "
    rb"'shape': \(((?:[0-9]{1,19}(?:, |,)?){0,2})\), \} *\n"
)
_BROKEN: Final = (
    zipfile.BadZipFile,
    EOFError,
    KeyError,
    NotImplementedError,
    OverflowError,
    RuntimeError,
    ValueError,
    struct.error,
)
"""What zipfile raises for bytes that are not what they claim to be."""


def read_graph(path: str | os.PathLike[str]) -> Graph:
    """The graph in an npz file; nothing in it is executed, and no more is read than is there.

    Raises:
        InputError: the file is cut short, changed or no graph; the message names the array.
        CycleError: the edges make a cycle.
        OSError: the file cannot be read.
    """
    with open(path, "rb") as stream, naming(os.fspath(path)):
        arrays = _arrays(stream)
        if int(arrays["schema"]) != SCHEMA:
            raise InputError(f"schema {arrays['schema']} is unknown; this version reads {SCHEMA}")
        names: dict[str, Any] = {name: _unpacked(arrays, name) for name in _TEXTS}
        for name in _REPEATED:
            table, codes = _unpacked(arrays, name), arrays[f"{name}.codes"]
            if codes.size and not 0 <= codes.min() <= codes.max() < len(table):
                raise InputError(f'"{name}.codes" points at a text that is not there')
            names[name] = tuple(map(table.__getitem__, codes.tolist()))
        devices, ends = _unpacked(arrays, "allowed_devices"), arrays["allowed_sets"].tolist()
        if sorted(ends) != ends or (ends[-1:] or [0]) != [len(devices)] or min(ends, default=0) < 0:
            raise InputError('"allowed_sets" does not divide the devices')
        sets = [devices[a:b] for a, b in itertools.pairwise([0, *ends])]
        columns: dict[str, Any] = {column.name: arrays[column.name] for column in COLUMNS}
        return Graph.from_arrays(allowed_sets=sets, **names, **columns)


def write_graph(graph: Graph, path: str | os.PathLike[str]) -> None:
    """Write the graph; the same graph gives the same bytes.

    Raises:
        OSError: the file cannot be written.
    """
    arrays: dict[str, Array] = {"schema": np.array(SCHEMA, "<i8")}
    for name in _TEXTS:
        arrays |= _packed(name, getattr(graph, name))
    for name in _REPEATED:
        texts = getattr(graph, name)
        table = {text: code for code, text in enumerate(dict.fromkeys(texts))}
        arrays |= _packed(name, tuple(table))
        codes = map(table.__getitem__, texts)
        arrays[f"{name}.codes"] = np.fromiter(codes, "<i4", len(texts))
    arrays |= _packed("allowed_devices", tuple(itertools.chain.from_iterable(graph.allowed_sets)))
    arrays["allowed_sets"] = np.cumsum([len(names) for names in graph.allowed_sets], dtype="i8")
    arrays |= {column.name: getattr(graph, column.name) for column in COLUMNS}
    little = {k: v.astype(v.dtype.newbyteorder("<"), copy=False) for k, v in arrays.items()}
    stream = io.BytesIO()
    try:
        np.savez(stream, **little)  # type: ignore[arg-type]
    except ValueError as error:
        # Ctrl-C may leave a member open, on which closing the archive then fails.
        if isinstance(error.__context__, KeyboardInterrupt):
            raise error.__context__ from None
        raise
    write_atomically(path, stream.getvalue())


def _arrays(stream: IO[bytes]) -> dict[str, Array]:
    try:
        size = os.fstat(stream.fileno()).st_size
        with zipfile.ZipFile(stream) as archive:
            found = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
            if len(found) != len(archive.infolist()) or found.keys() != _MEMBERS.keys():
                odd = sorted(found.keys() ^ _MEMBERS.keys())
                raise InputError(f"not the arrays of a graph: {', '.join(odd[:5]) or 'repeated'}")
            for name, info in found.items():
                if info.compress_type != zipfile.ZIP_STORED or info.file_size > size:
                    raise InputError(f'"{name}" is compressed or larger than the file')
            return {name: _array(name, archive.read(info)) for name, info in found.items()}
    except InputError:
        raise
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        raise InputError("not a complete npz file: it points in front of its start") from error
    except _BROKEN as error:
        raise InputError(f"not a complete npz file: {error}") from error


def _array(name: str, data: bytes) -> Array:
    """The array in the bytes of one npy member, without a copy; its header is checked first."""
    start = len(_NPY) + 2 + int.from_bytes(data[len(_NPY) : len(_NPY) + 2], "little")
    header = _HEADER.fullmatch(data, len(_NPY) + 2, start) if data.startswith(_NPY) else None
    if header is None:
        raise InputError(f'"{name}" is not an npy array of version 1.0 in C order')
    found, shape = header[1].decode(), tuple(map(int, re.findall(rb"[0-9]+", header[2])))
    wanted, axes = _MEMBERS[name]
    if found != wanted or len(shape) != axes:
        raise InputError(f'"{name}" is {found} with {len(shape)} axes, not {wanted} with {axes}')
    dtype = np.dtype(wanted)
    if math.prod(shape) * dtype.itemsize != len(data) - start:
        raise InputError(f'"{name}" has not the bytes that its shape {shape} asks for')
    return np.frombuffer(data, dtype, offset=start).reshape(shape)


def _packed(name: str, texts: Sequence[str]) -> dict[str, Array]:
    """The texts in UTF-8, a zero byte after each, and where each ends (its zero included)."""
    blob = "".join(f"{text}\0" for text in texts).encode()
    lengths = map(len, texts) if blob.isascii() else (len(text.encode()) for text in texts)
    ends = np.cumsum(np.fromiter(lengths, "<i8", len(texts)) + 1)
    return {f"{name}.utf8": np.frombuffer(blob, np.uint8), f"{name}.ends": ends}


def _unpacked(arrays: Mapping[str, Array], name: str) -> Sequence[str]:
    blob, ends = arrays[f"{name}.utf8"], arrays[f"{name}.ends"]
    data = blob.data
    zeros = np.flatnonzero(blob == 0)
    try:
        if np.array_equal(zeros + 1, ends) and ends[-1:].sum() == len(data):
            return str(data, "utf-8").split("\0")[:-1]
        starts = np.concatenate([[0], ends[:-1]]) if len(ends) else ends
        if (ends <= starts).any() or ends[-1:].sum() != len(data) or blob[ends - 1].any():
            raise InputError(f'"{name}.ends" does not divide "{name}.utf8"')
        spans = zip(starts.tolist(), ends.tolist(), strict=True)
        return [str(data[start : end - 1], "utf-8") for start, end in spans]
    except UnicodeDecodeError as error:
        raise InputError(f'"{name}.utf8" is not UTF-8: {error}') from None
