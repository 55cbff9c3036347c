"""Files that hold no graph and no placement: cut short, hostile, or of another schema."""

from __future__ import annotations

import io
import json
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from baechi.errors import CycleError
from baechi.formats import dnn_partitioning, load_graph
from refusals import Refusal, chain, refusal

__all__ = ["REFUSED_FILES"]

DEEP = 100_000
Parts = dict[str, bytes]


def text(name: str, content: str | bytes, *words: str, error: Any = None) -> Refusal:
    """A graph file of that content."""

    def call(folder: Path) -> Any:
        path = folder / "graph.file"
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return load_graph(path)

    named = words if error is CycleError else ("graph.file", *words)
    return refusal(name, call, *named, **({} if error is None else {"error": error}))


def graph(name: str, *words: str, error: Any = None, **changes: Any) -> Refusal:
    """A graph in JSON that would be right but for the changes; None drops a field."""
    document = {
        "format": "baechi-graph",
        "schema": 1,
        "device_kinds": ["gpu"],
        "ops": [{"name": "a", "compute_ns": 5}, {"name": "b", "compute_ns": 5}],
        "tensors": [{"producer": "a", "bytes": 2}],
        "edges": [["a", 0, "b"]],
        **changes,
    }
    kept = {field: value for field, value in document.items() if value is not None}
    return text(name, json.dumps(kept), *words, error=error)


def op(name: str, *words: str, **fields: Any) -> Refusal:
    return graph(name, *words, ops=[{"name": "a", "compute_ns": 5}, {"name": "b", **fields}])


def npz(name: str, change: Callable[[Parts], Any], *words: str) -> Refusal:
    """An npz file whose members were changed; the change may give the bytes of the whole file."""

    def call(folder: Path) -> Any:
        path = folder / "graph.npz"
        chain().save(path)
        with zipfile.ZipFile(path) as archive:
            parts = {info.filename: archive.read(info) for info in archive.infolist()}
        whole = change(parts)
        path.write_bytes(whole if isinstance(whole, bytes) else zipped(parts))
        return load_graph(path)

    return refusal(name, call, "graph.npz", *words)


def zipped(parts: Parts, compression: int = zipfile.ZIP_STORED) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", compression) as archive:
        for name, data in parts.items():
            archive.writestr(name, data)
    return stream.getvalue()


def npy(descr: str, shape: str, data: bytes = b"", order: str = "False") -> bytes:
    header = f"{{'descr': '{descr}', 'fortran_order': {order}, 'shape': {shape}, }}".encode()
    header += b" " * (-(len(header) + 11) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + data


def member(name: str, array: str, data: bytes, *words: str) -> Refusal:
    return npz(name, lambda parts: parts.update({f"{array}.npy": data}), *words)


def misplaced_zip(parts: Parts) -> bytes:
    """The end says that the directory starts later than it does: arrays lie at negative places."""
    whole = bytearray(zipped(parts))
    at = whole.rindex(b"PK\x05\x06") + 16
    whole[at : at + 4] = struct.pack("<I", struct.unpack_from("<I", whole, at)[0] + 1_000)
    return bytes(whole)


def bent_zip(parts: Parts) -> bytes:
    """The directory says that the first array is 4 GiB long."""
    whole = bytearray(zipped(parts))
    at = whole.index(b"PK\x01\x02")
    whole[at + 20 : at + 28] = b"\xfe\xff\xff\xff" * 2
    return bytes(whole)


def workload(name: str, document: Any, *words: str, error: Any = None) -> Refusal:
    """A dnn-partitioning file."""
    return text(name, json.dumps({"nodes": [], "edges": [], **document}), *words, error=error)


def node(name: str, *words: str, **fields: Any) -> Refusal:
    return workload(name, {"nodes": [{"id": 3, "fpgaLatency": 1, **fields}]}, *words)


def expert(name: str, document: Any, *words: str) -> Refusal:
    def call(folder: Path) -> Any:
        source, path = folder / "workload.json", folder / "expert.json"
        source.write_text(json.dumps({"nodes": [{"id": 3, "fpgaLatency": 1}], "edges": []}))
        path.write_text(json.dumps(document))
        return dnn_partitioning.read_placement(path, load_graph(source))

    return refusal(name, call, "expert.json", *words)


REFUSED_FILES = [
    text("an empty graph file", "", "line 1"),
    text("a file of zeros", bytes(64)),
    text("a picture", b"\x89PNG\r\n\x1a\n" + bytes(64), "UTF-8"),
    text("JSON of another sort", '{"hello": 1}', "not a graph file"),
    text("JSON cut short", '{"format": "baechi-graph", "schema": 1, "ops": [', "line 1"),
    text("deep arrays", "[" * DEEP + "]" * DEEP, "nested too deeply"),
    text("deep objects", '{"a":' * DEEP + "1" + "}" * DEEP, "nested too deeply"),
    text("a key twice", '{"ops": [], "ops": []}', 'key "ops" is there twice'),
    text("a NaN in JSON", '{"format": NaN}', "NaN is not a number"),
    text("an infinity in JSON", '{"format": -Infinity}', "-Infinity is not a number"),
    text("an exponent without end", '{"format": 1e999999999999999999999}', "1e99999", "range"),
    text("five thousand digits", '{"format": ' + "9" * 5_000 + "}", "digits"),
    text(
        "a lone surrogate",
        '{"format": "baechi-graph", "schema": 1, "device_kinds": ["\\ud800"], "ops": []}',
        "\\ud800",
    ),
    graph("another graph schema", "schema 2 is unknown", schema=2),
    graph("a schema that is true", '"schema" is True', schema=True),
    graph("no ops in a graph file", 'no field "ops"', ops=None),
    graph("an unknown field", '"colour"', colour="red"),
    graph("ops that are an object", '"ops" is not an array', ops={}),
    graph("an op that is a number", "op 0", ops=[7]),
    graph("edges of two", "edge 0", edges=[["a", "b"]]),
    graph("an edge of an unknown output", 'op "a" has no output 9', edges=[["a", 9, "b"]]),
    graph("an edge to a number", "edge 0", "7", edges=[["a", 0, 7]]),
    graph("a tensor of nobody", '"producer" of tensor 0', '"z"', tensors=[{"producer": "z"}]),
    graph(
        "a cycle in a file",
        '"a" -> "b"',
        error=CycleError,
        tensors=[{"producer": "a"}, {"producer": "b"}],
        edges=[["a", 0, "b"], ["b", 0, "a"]],
    ),
    op("a fraction for a time in JSON", '"compute_ns" of op "b" is 1.5', compute_ns=1.5),
    op("a huge time in JSON", '"compute_ns" of op "b"', "too large", compute_ns=2**70),
    op(
        "a negative size in JSON",
        '"persistent_bytes" of op "b" is -1',
        compute_ns=1,
        persistent_bytes=-1,
    ),
    op("a list for a time", '"compute_ns" of op "b"', "array", compute_ns=[1]),
    op("an unknown group in JSON", '"group" of op "b"', '"g"', compute_ns=1, group="g"),
    op(
        "an unknown set in JSON", '"allowed_devices" of op "b"', compute_ns=1, allowed_devices=["x"]
    ),
    op(
        "an unknown forward op",
        '"forward_op" of op "b"',
        '"z"',
        compute_ns=1,
        role="backward",
        forward_op="z",
    ),
    npz("an npz cut short", lambda parts: zipped(parts)[:-40], "not a complete npz file"),
    npz("an npz of its first bytes", lambda parts: zipped(parts)[:100], "not a complete npz file"),
    npz(
        "an npz with other bytes in the middle",
        lambda parts: zipped(parts).replace(b"op1", b"op\xff"),
        "CRC",
    ),
    npz("a compressed npz", lambda parts: zipped(parts, zipfile.ZIP_DEFLATED), "compressed"),
    npz("an array missing", lambda parts: parts.pop("edge_tensor.npy") and None, "edge_tensor"),
    npz("an array too many", lambda parts: parts.update({"evil.npy": b""}), "evil"),
    npz("a size that lies", bent_zip),
    npz("a directory behind itself", misplaced_zip, "in front of its start"),
    npz("a zip of nothing", lambda parts: b"PK\x03\x04" + bytes(20), "not a complete npz file"),
    member("an array of pickles", "group", npy("|O", "(3,)", b"cos\nsystem\n"), '"group"'),
    member(
        "a header that asks for 2^63 ops",
        "group",
        npy("<i4", "(9223372036854775807,)"),
        '"group"',
        "9223372036854775807",
    ),
    member(
        "a header that asks for 2^40 ops",
        "group",
        npy("<i4", "(1099511627776,)"),
        '"group"',
        "1099511627776",
    ),
    member("a negative shape", "group", npy("<i4", "(-3,)", bytes(12)), '"group"'),
    member("Fortran order", "compute_ns", npy("<i8", "(1, 3)", bytes(24), "True"), '"compute_ns"'),
    member(
        "big-endian numbers",
        "persistent_bytes",
        npy(">i8", "(3,)", bytes(24)),
        '"persistent_bytes"',
    ),
    member("a header of code", "group", npy("<i4", "(__import__('os').abort(),)"), '"group"'),
    member("a header longer than the file", "group", b"\x93NUMPY\x01\x00\xff\xff{", '"group"'),
    member("an npy of version 3", "group", b"\x93NUMPY\x03\x00" + bytes(80), '"group"'),
    member("an array of nothing", "schema", b"", '"schema"'),
    member("another npz schema", "schema", npy("<i8", "()", struct.pack("<q", 7)), "schema 7"),
    member(
        "ends that go back",
        "op_names.ends",
        npy("<i8", "(3,)", struct.pack("<3q", 8, 4, 12)),
        "op_names",
    ),
    member(
        "ends beyond the texts",
        "op_names.ends",
        npy("<i8", "(3,)", struct.pack("<3q", 4, 8, 2**62)),
        "op_names",
    ),
    member(
        "texts that are not UTF-8",
        "op_names.utf8",
        npy("|u1", "(12,)", b"op0\0op1\0\xff\xff2\0"),
        "op_names",
    ),
    member(
        "codes of no text",
        "op_kinds.codes",
        npy("<i4", "(3,)", struct.pack("<3i", 0, 0, 9)),
        "op_kinds",
    ),
    member(
        "sets that divide nothing",
        "allowed_sets",
        npy("<i8", "(1,)", struct.pack("<q", 5)),
        "allowed_sets",
    ),
    member(
        "a time of -9 in npz",
        "compute_ns",
        npy("<i8", "(1, 3)", struct.pack("<3q", 1, -9, 1)),
        "compute_ns[0, 1] is -9",
    ),
    node("a negative latency in a workload", '"fpgaLatency"', "node 3", fpgaLatency=-1),
    node("a latency of 1e400 ms", '"fpgaLatency"', "node 3", fpgaLatency=10**400),
    node("a latency of text", '"fpgaLatency"', "'5'", fpgaLatency="5"),
    node("a support of 2", '"supportedOnFpga"', "2", supportedOnFpga=2),
    node("a color that is a list", '"colorClass"', colorClass=[]),
    node("an id that is a fraction", "id", id=1.5),
    node("an op for neither", '"node3"', fpgaLatency=None),
    workload("a node twice", {"nodes": [{"id": 1, "cpuLatency": 1}] * 2}, "id 1"),
    workload("nodes that are an object", {"nodes": {}}, '"nodes"'),
    workload("an edge to nobody", {"edges": [{"sourceId": 1, "destId": 2}]}, "edge 0", "1"),
    workload("a million devices", {"maxFPGAs": 10**6}, '"maxFPGAs"', "1000000"),
    expert("a placement of an unknown node", {"fpgas": [{"nodes": [4]}]}, "4"),
    expert(
        "a node placed twice", {"fpgas": [{"nodes": [3]}], "cpus": [{"nodes": [3]}]}, "3", "twice"
    ),
    expert("a node not placed", {}, "1 nodes", "3"),
]
