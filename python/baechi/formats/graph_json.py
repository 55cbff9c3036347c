"""A graph as JSON with one op, tensor and edge per line; docs/formats.md describes it."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from typing import Any, Final

import numpy as np

from baechi.columns import ordinals
from baechi.errors import InputError
from baechi.files import write_atomically
from baechi.formats.strict_json import array, integer, naming, object_with, read, text
from baechi.graph import MEMORY_CLASSES, ROLES, Graph

__all__ = ["FORMAT", "SCHEMA", "graph_from", "read_graph", "write_graph"]

FORMAT: Final = "baechi-graph"
SCHEMA: Final = 1
_TOP: Final = ("allowed_sets", "edges", "group_names", "tensors")
_OP: Final = (
    "allowed_devices",
    "forward_op",
    "group",
    "kind",
    "module",
    "persistent_bytes",
    "role",
    "scratch_bytes",
)


def read_graph(path: str | os.PathLike[str]) -> Graph:
    """The graph in a JSON file.

    Raises:
        InputError: the content is wrong; the message names file, field and op.
        CycleError: the edges make a cycle.
        OSError: the file cannot be read.
    """
    return graph_from(read(path), os.fspath(path))


def write_graph(graph: Graph, path: str | os.PathLike[str]) -> None:
    """Write the graph; the same graph gives the same bytes.

    Raises:
        OSError: the file cannot be written.
    """
    parts = {
        "allowed_sets": _line(graph.allowed_sets),
        "device_kinds": _line(graph.device_kinds),
        "edges": _lines(_edge_rows(graph)),
        "format": _line(FORMAT),
        "group_names": _line(graph.group_names),
        "ops": _lines(_op_rows(graph)),
        "schema": _line(SCHEMA),
        "tensors": _lines(_tensor_rows(graph)),
    }
    body = ",\n".join(f'"{key}": {value}' for key, value in parts.items())
    write_atomically(path, f"{{\n{body}\n}}\n".encode())


def graph_from(document: Any, file: str) -> Graph:
    """The graph in a parsed document.

    Args:
        document: what the JSON file holds.
        file: its name, for messages.

    Raises:
        InputError: the content is wrong; the message names file, field and op.
        CycleError: the edges make a cycle.
    """
    with naming(file):
        top = object_with(document, "the graph", ("format", "schema", "device_kinds", "ops"), _TOP)
        if top["format"] != FORMAT:
            raise InputError(f'field "format" is not "{FORMAT}"')
        if integer(top["schema"], 'field "schema"') != SCHEMA:
            raise InputError(
                f"schema {top['schema']} is unknown; this version reads schema {SCHEMA}"
            )
        return _graph(top)


def _graph(top: dict[str, Any]) -> Graph:
    kinds = _texts(top["device_kinds"], 'field "device_kinds"')
    groups = _texts(top.get("group_names", []), 'field "group_names"')
    sets = [
        tuple(_texts(names, f'set {i} of "allowed_sets"'))
        for i, names in enumerate(array(top.get("allowed_sets", []), 'field "allowed_sets"'))
    ]
    rows = array(top["ops"], 'field "ops"')
    ops = [
        object_with(row, _named("op", i, row, "name"), ("name", "compute_ns"), _OP)
        for i, row in enumerate(rows)
    ]
    names = [text(op["name"], f'"name" of op {i}') for i, op in enumerate(ops)]
    index = {name: i for i, name in enumerate(names)}
    columns = _op_columns(ops, names, index, kinds, groups, sets)
    producers, tensors = _tensor_columns(top.get("tensors", []), index)
    edge_tensors, edge_consumers = _edge_columns(top.get("edges", []), index, producers)
    return Graph.from_arrays(
        op_names=names,
        device_kinds=kinds,
        group_names=groups,
        allowed_sets=sets,
        tensor_producer=producers,
        edge_tensor=edge_tensors,
        edge_consumer=edge_consumers,
        **columns,
        **tensors,
    )


def _op_columns(
    ops: list[dict[str, Any]],
    names: list[str],
    index: dict[str, int],
    kinds: list[str],
    groups: list[str],
    sets: list[tuple[str, ...]],
) -> dict[str, Any]:
    group_index = {name: i for i, name in enumerate(groups)}
    set_index = {devices: i for i, devices in enumerate(sets)}
    rows = []
    for op, name in zip(ops, names, strict=True):
        what = f'of op "{name}"'
        allowed = op.get("allowed_devices")
        row = {
            "compute_ns": _times(op["compute_ns"], what, kinds),
            "group": _lookup(group_index, op.get("group"), f'"group" {what}'),
            "allowed_set": -1,
            "role": _choice(ROLES, op.get("role", "forward"), f'"role" {what}'),
            "forward_op": _lookup(index, op.get("forward_op"), f'"forward_op" {what}'),
            "op_kinds": text(op.get("kind", ""), f'"kind" {what}'),
            "module_paths": text(op.get("module", ""), f'"module" {what}'),
        }
        for field in ("persistent_bytes", "scratch_bytes"):
            row[field] = integer(op.get(field, 0), f'"{field}" {what}')
        if allowed is not None:
            devices = tuple(_texts(allowed, f'"allowed_devices" {what}'))
            if devices not in set_index:
                raise InputError(f'"allowed_devices" {what} is not in "allowed_sets"')
            row["allowed_set"] = set_index[devices]
        rows.append(row)
    fields = ("group", "allowed_set", "role", "forward_op", "op_kinds", "module_paths")
    columns: dict[str, Any] = {
        field: [row[field] for row in rows]
        for field in (*fields, "persistent_bytes", "scratch_bytes")
    }
    times = np.array([row["compute_ns"] for row in rows], np.int64)
    columns["compute_ns"] = times.reshape(len(rows), len(kinds)).T
    return columns


def _tensor_columns(value: Any, index: dict[str, int]) -> tuple[list[int], dict[str, Any]]:
    producers: list[int] = []
    columns: dict[str, Any] = {f"tensor_{f}": [] for f in ("bytes", "transfer_ns", "class")}
    for i, row in enumerate(array(value, 'field "tensors"')):
        where = _named("tensor", i, row, "producer")
        optional = ("bytes", "memory_class", "transfer_ns")
        tensor = object_with(row, where, ("producer",), optional)
        producers.append(_known(index, tensor["producer"], f'"producer" of {where}'))
        columns["tensor_bytes"].append(integer(tensor.get("bytes", 0), f'"bytes" of {where}'))
        transfer = tensor.get("transfer_ns")
        columns["tensor_transfer_ns"].append(
            -1 if transfer is None else integer(transfer, f'"transfer_ns" of {where}')
        )
        name = tensor.get("memory_class", "activation")
        columns["tensor_class"].append(_choice(MEMORY_CLASSES, name, f'"memory_class" of {where}'))
    return producers, columns


def _edge_columns(
    value: Any, index: dict[str, int], producers: list[int]
) -> tuple[list[int], list[int]]:
    outputs: dict[int, list[int]] = {}
    for tensor, producer in enumerate(producers):
        outputs.setdefault(producer, []).append(tensor)
    tensors, consumers = [], []
    for i, row in enumerate(array(value, 'field "edges"')):
        if len(array(row, f"edge {i}")) != 3:
            raise InputError(f"edge {i} is not [producer, output, consumer]")
        source = _known(index, row[0], f"the producer of edge {i}")
        output = integer(row[1], f"the output of edge {i}")
        if output >= len(outputs.get(source, ())):
            raise InputError(f'edge {i}: op "{row[0]}" has no output {output}')
        tensors.append(outputs[source][output])
        consumers.append(_known(index, row[2], f"the consumer of edge {i}"))
    return tensors, consumers


def _times(value: Any, what: str, kinds: list[str]) -> list[int]:
    if not isinstance(value, dict):
        return [integer(value, f'"compute_ns" {what}')] * len(kinds)
    for kind in value:
        if kind not in kinds:
            raise InputError(f'"compute_ns" {what} has the unknown device kind "{kind}"')
    times = (value.get(kind) for kind in kinds)
    return [-1 if ns is None else integer(ns, f'"compute_ns" {what}') for ns in times]


def _named(noun: str, position: int, row: Any, field: str) -> str:
    """What messages call a row: its op's name where it has one, else its position."""
    name = row.get(field) if isinstance(row, dict) else None
    name = name[:100] if isinstance(name, str) else None
    if name is None:
        return f"{noun} {position}"
    return f'{noun} "{name}"' if noun == "op" else f'{noun} {position} of op "{name}"'


def _texts(value: Any, where: str) -> list[str]:
    return [text(item, f"an entry of {where}") for item in array(value, where)]


def _known(index: dict[str, int], value: Any, where: str) -> int:
    name = text(value, where)
    if name not in index:
        raise InputError(f'{where} is "{name}", which is not there')
    return index[name]


def _lookup(index: dict[str, int], value: Any, where: str) -> int:
    return -1 if value is None else _known(index, value, where)


def _choice(choices: tuple[str, ...], value: Any, where: str) -> int:
    if text(value, where) not in choices:
        raise InputError(f'{where} is "{value}", not one of {", ".join(choices)}')
    return choices.index(value)


def _op_rows(graph: Graph) -> Iterable[dict[str, Any]]:
    times = graph.compute_ns.T.tolist()
    for i, name in enumerate(graph.op_names):
        group, allowed, forward = graph.group[i], graph.allowed_set[i], graph.forward_op[i]
        row = {
            "kind": graph.op_kinds[i],
            "module": graph.module_paths[i],
            "persistent_bytes": int(graph.persistent_bytes[i]),
            "scratch_bytes": int(graph.scratch_bytes[i]),
            "group": graph.group_names[group] if group >= 0 else None,
            "allowed_devices": graph.allowed_sets[allowed] if allowed >= 0 else None,
            "role": ROLES[graph.role[i]] if graph.role[i] else None,
            "forward_op": graph.op_names[forward] if forward >= 0 else None,
        }
        runs = {k: ns for k, ns in zip(graph.device_kinds, times[i], strict=True) if ns >= 0}
        kept = {field: value for field, value in row.items() if value}  # the rest are defaults
        yield {"name": name, "compute_ns": runs, **kept}


def _tensor_rows(graph: Graph) -> Iterable[dict[str, Any]]:
    default = MEMORY_CLASSES.index("activation")
    for i, producer in enumerate(graph.tensor_producer.tolist()):
        row: dict[str, Any] = {"producer": graph.op_names[producer]}
        if graph.tensor_bytes[i]:
            row["bytes"] = int(graph.tensor_bytes[i])
        if graph.tensor_transfer_ns[i] >= 0:
            row["transfer_ns"] = int(graph.tensor_transfer_ns[i])
        if graph.tensor_class[i] != default:
            row["memory_class"] = MEMORY_CLASSES[graph.tensor_class[i]]
        yield row


def _edge_rows(graph: Graph) -> Iterable[tuple[str, int, str]]:
    names = graph.op_names
    outputs = ordinals(graph.tensor_producer, np.zeros_like(graph.tensor_class))
    for tensor, consumer in zip(
        graph.edge_tensor.tolist(), graph.edge_consumer.tolist(), strict=True
    ):
        yield names[graph.tensor_producer[tensor]], int(outputs[tensor]), names[consumer]


def _lines(rows: Iterable[Any]) -> str:
    body = ",\n".join(map(_line, rows))
    return f"[\n{body}\n]" if body else "[]"


def _line(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, sort_keys=True)
