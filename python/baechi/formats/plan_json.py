"""Plans as JSON: sorted, one op per line, the same bytes for the same plan (docs/formats.md)."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from baechi.cluster import Cluster
from baechi.errors import InputError
from baechi.formats import strict_json
from baechi.plans import Candidate, Device, Plan, Provenance, Wait

__all__ = ["FORMAT", "SCHEMA", "read_plan", "write_document"]

FORMAT = "baechi-plan"
MODEL_FORMAT = "baechi-model-plan"
SCHEMA = 1
FIELDS = (
    *("format", "schema", "graph", "provenance", "algorithm", "candidates", "devices"),
    *("placement", "launch_order", "decided_ns", "waits", "transfer_order", "held"),
    *("executor", "retention", "makespan_ns", "num_transfers", "transferred_bytes"),
)
PROVENANCE = ("graph_fingerprint", "cluster", "algorithm", "options", "rules", "versions", "notes")


def write_document(plan: Plan) -> str:
    """The text of a plan file."""
    made = plan.provenance
    names = plan.op_names
    made_up = plan.held.items()
    decided = zip(names, plan.decided_ns.tolist(), strict=False)
    parts: dict[str, str] = {
        "algorithm": _dump(plan.algorithm),
        "candidates": _rows(_dump(dataclasses.asdict(row)) for row in plan.candidates),
        "decided_ns": _members(decided),
        "devices": _rows(_dump(dataclasses.asdict(device)) for device in plan.devices),
        "executor": _dump(plan.executor),
        "format": _dump(FORMAT),
        "graph": _members((name, made.graph_digests[name]) for name in names),
        "held": _members((name, dict(held)) for name, held in made_up),
        "launch_order": _rows(map(_dump, plan.launch_order)),
        "makespan_ns": _dump(plan.makespan_ns),
        "num_transfers": _dump(plan.num_transfers),
        "placement": _members(sorted(plan.placement.items())),
        "provenance": _dump(
            {
                "algorithm": made.algorithm,
                "cluster": made.cluster.to_json_dict(),
                "graph_fingerprint": made.graph_fingerprint,
                "notes": made.notes,
                "options": dict(made.options),
                "rules": made.rules,
                "versions": dict(made.versions),
            },
            indent=1,
        ),
        "retention": _dump(plan.retention),
        "schema": _dump(SCHEMA),
        "transfer_order": _members(
            (name, plan.transfer_order[name]) for name in plan.transfer_order
        ),
        "transferred_bytes": _dump(plan.transferred_bytes),
        "waits": _rows(_dump([wait.what, wait.waits_for]) for wait in plan.waits),
    }
    return "{\n" + ",\n".join(f"{_dump(name)}: {parts[name]}" for name in sorted(parts)) + "\n}\n"


def read_plan(path: str | os.PathLike[str]) -> Plan | None:
    """The plan in a file; None for the plan of a model, which is another format.

    Raises:
        InputError: not a plan of this schema; the message names the file and the field.
        OSError: the file cannot be read.
    """
    file = os.fspath(path)
    document = strict_json.read(file)
    if isinstance(document, dict) and document.get("format") == MODEL_FORMAT:
        return None
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise InputError(
            f'{file}: not a plan file: "format" is neither "{FORMAT}" nor "{MODEL_FORMAT}"'
        )
    if document.get("schema") != SCHEMA:
        raise InputError(
            f"{file}: schema {document.get('schema')!r} is unknown",
            hint=f"this version reads schema {SCHEMA}",
        )
    with strict_json.naming(file):
        return _plan(strict_json.object_with(document, "the plan", FIELDS))


def _plan(document: dict[str, Any]) -> Plan:
    read = _Reader(document)
    devices = tuple(_record(Device, row, "devices") for row in read.array("devices"))
    digests = read.members("graph", str)
    names = tuple(digests)
    device_index = {device.name: at for at, device in enumerate(devices)}
    placement = read.members("placement", str)
    if set(placement) != set(names):
        odd = sorted(set(placement) ^ set(names))[0]
        raise InputError(f'placement: op "{odd}" is missing here or in "graph"')
    for name, home in placement.items():
        if home not in device_index:
            raise InputError(
                f'placement: op "{name}" is on "{home}", which is no device of the plan',
                hint=f"the devices are {', '.join(device_index)}",
            )
    launch = read.array("launch_order")
    if not all(isinstance(name, str) for name in launch) or sorted(launch) != sorted(names):
        raise InputError("launch_order: not every op exactly once")
    rank = {name: at for at, name in enumerate(launch)}
    decided = read.members("decided_ns", int)
    if decided and set(decided) != set(names):
        raise InputError("decided_ns: not every op exactly once")
    provenance = _provenance(read.value("provenance", dict), digests)
    if provenance.cluster.names != tuple(device_index):
        raise InputError("devices: others than those of the cluster in provenance")
    return Plan(
        op_names=names,
        device=_column([device_index[placement[name]] for name in names], np.int32),
        order=_column([rank[name] for name in names], np.int32),
        devices=devices,
        makespan_ns=read.value("makespan_ns", int),
        transferred_bytes=read.value("transferred_bytes", int),
        num_transfers=read.value("num_transfers", int),
        waits=tuple(_wait(row) for row in read.array("waits")),
        decided_ns=_column([decided[name] for name in names] if decided else [], np.int64),
        algorithm=read.value("algorithm", str),
        executor=read.value("executor", str),
        retention=read.value("retention", str),
        candidates=tuple(_record(Candidate, row, "candidates") for row in read.array("candidates")),
        provenance=provenance,
        transfer_order={
            channel: tuple(_transfer(row, "transfer_order") for row in rows)
            for channel, rows in read.members("transfer_order", list).items()
        },
        held={
            name: {
                category: _typed(size, int, f"held: {name}: {category}")
                for category, size in held.items()
            }
            for name, held in read.members("held", dict).items()
        },
    )


def _provenance(row: Any, digests: Mapping[str, str]) -> Provenance:
    made = _Reader(strict_json.object_with(row, "provenance", PROVENANCE), "provenance: ")
    notes = made.array("notes")
    if not all(isinstance(note, str) for note in notes):
        raise InputError("provenance: notes: not all of them are texts")
    with strict_json.naming("provenance: cluster"):
        cluster = Cluster.from_json_dict(strict_json.plain(made.value("cluster", dict)))
    return Provenance(
        made_for=made.value("graph_fingerprint", str),
        graph_digests=digests,
        cluster=cluster,
        algorithm=made.value("algorithm", str),
        options=strict_json.plain(made.value("options", dict)),
        rules=made.value("rules", str),
        versions=made.members("versions", str),
        notes=tuple(notes),
    )


class _Reader:
    """The fields of an object with their types."""

    def __init__(self, document: Mapping[str, Any], where: str = "") -> None:
        self._document = document
        self._where = where

    def value(self, field: str, kind: type[Any]) -> Any:
        return _typed(self._document[field], kind, f"{self._where}{field}")

    def array(self, field: str) -> list[Any]:
        found: list[Any] = self.value(field, list)
        return found

    def members(self, field: str, kind: type[Any]) -> dict[str, Any]:
        found: dict[str, Any] = self.value(field, dict)
        for name, value in found.items():
            _typed(value, kind, f'{self._where}{field}: "{name}"')
        return found


def _typed(value: Any, kind: type[Any], where: str) -> Any:
    if kind is int:
        return strict_json.integer(value, where)
    if type(value) is not kind:
        raise InputError(f"{where}: expected {kind.__name__}, found {type(value).__name__}")
    return value


def _record(kind: type[Any], row: Any, where: str) -> Any:
    fields = {field.name: str(field.type) for field in dataclasses.fields(kind)}
    values = strict_json.object_with(row, where, list(fields))
    for name, value in values.items():
        if value is not None or "None" not in fields[name]:
            _typed(value, str if "str" in fields[name] else int, f"{where}: {name}")
    return kind(**values)


def _wait(row: Any) -> Wait:
    if not isinstance(row, list) or len(row) != 2:
        raise InputError(f"waits: {row!r} is not a pair")
    what, waits_for = (side if isinstance(side, str) else _transfer(side, "waits") for side in row)
    return Wait(what, waits_for)


def _transfer(row: Any, where: str) -> tuple[str, str]:
    if not isinstance(row, list) or len(row) != 2 or not all(isinstance(x, str) for x in row):
        raise InputError(f"{where}: {row!r} is not a transfer [tensor, destination]")
    return row[0], row[1]


def _column(values: list[int], kind: type[Any]) -> Any:
    column = np.array(values, kind)
    column.setflags(write=False)
    return column


def _dump(value: Any, indent: int | None = None) -> str:
    return json.dumps(value, sort_keys=True, indent=indent, ensure_ascii=False, allow_nan=False)


def _rows(rows: Iterable[str]) -> str:
    text = ",\n ".join(rows)
    return f"[\n {text}\n]" if text else "[]"


def _members(members: Iterable[tuple[str, Any]]) -> str:
    text = ",\n ".join(f"{_dump(name)}: {_dump(value)}" for name, value in members)
    return f"{{\n {text}\n}}" if text else "{}"
