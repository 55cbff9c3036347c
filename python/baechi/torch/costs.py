"""Costs: measured times and scratch of ops by device and signature, in a file that plans reuse."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self

from baechi.errors import InputError
from baechi.files import write_atomically
from baechi.formats import strict_json

__all__ = ["Costs", "DeviceCosts"]

_FORMAT = "baechi costs"
_SCHEMA = 1
_FIELDS = {"name": str, "kind": str, "clock": str, "software": str, "times_ns": dict}
_OPTIONAL = {"device_type": str, "scratch_bytes": dict}  # files before there was scratch lack them


@dataclasses.dataclass(frozen=True, slots=True)
class DeviceCosts:
    """What was measured on one device.

    Attributes:
        name: what the driver calls it.
        kind: its row in the device table.
        clock: how it was measured, e.g. "events" or "thread time".
        software: versions and settings that times depend on.
        times_ns: signature (``baechi.torch.signatures``) to the median in nanoseconds.
        device_type: such as "cuda", where scratch was measured; else empty.
        scratch_bytes: signature to the most bytes that the call held beside what it was given and
            what it returned, where there were any.
    """

    name: str
    kind: str
    clock: str
    software: str
    times_ns: Mapping[str, int]
    device_type: str = ""
    scratch_bytes: Mapping[str, int] = dataclasses.field(
        default_factory=lambda: MappingProxyType({})
    )


@dataclasses.dataclass(frozen=True, slots=True)
class Costs:
    """Measured times by the fingerprint of the device (docs/pricing.md); need not be complete."""

    devices: Mapping[str, DeviceCosts]

    def for_kind(self, kind: str) -> dict[str, int]:
        """Times by signature for devices of a kind; of several devices the first fingerprint's."""
        found: dict[str, int] = {}
        for device in self._of_kind(kind):
            found |= device.times_ns
        return found

    def scratch_for(self, kind: str) -> tuple[str, dict[str, int]]:
        """The type of devices of a kind, such as "cuda", and scratch by signature.

        Of several devices the greater scratch counts. Empty where none was measured.
        """
        device_type, found = "", dict[str, int]()
        for device in self._of_kind(kind):
            device_type = device.device_type or device_type
            for signature, nbytes in device.scratch_bytes.items():
                found[signature] = max(nbytes, found.get(signature, 0))
        return device_type, found

    def _of_kind(self, kind: str) -> list[DeviceCosts]:
        """The last fingerprint's first."""
        ordered = sorted(self.devices.items(), reverse=True)
        return [device for _, device in ordered if device.kind == kind]

    def merged(self, newer: Costs) -> Costs:
        """Both together; where both have a time, the newer one's."""
        devices = dict(self.devices)
        for fingerprint, device in newer.devices.items():
            known = devices.get(fingerprint)
            devices[fingerprint] = device if known is None else _joined(known, device)
        return Costs(MappingProxyType(devices))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes sorted JSON in one step; OSError where it cannot."""
        devices = {fingerprint: _row(device) for fingerprint, device in self.devices.items()}
        document = {"format": _FORMAT, "schema": _SCHEMA, "devices": devices}
        text = json.dumps(document, indent=1, sort_keys=True, ensure_ascii=False)
        write_atomically(path, f"{text}\n".encode())

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Reads a file that ``save`` wrote.

        Raises:
            InputError: it is no costs file; the message names the file and the entry.
            OSError: it cannot be read.
        """
        try:
            return cls(MappingProxyType(_read(strict_json.parse(Path(path).read_text("utf-8")))))
        except ValueError as error:  # the decoder's errors and InputError are ValueErrors
            raise InputError(f'costs file "{os.fspath(path)}": {error}') from None


def _joined(older: DeviceCosts, newer: DeviceCosts) -> DeviceCosts:
    """What both measured on the same device; what the newer one measured replaces the older's."""
    if not newer.device_type:
        newer = dataclasses.replace(
            newer, device_type=older.device_type, scratch_bytes=older.scratch_bytes
        )
    else:
        kept = {s: b for s, b in older.scratch_bytes.items() if s not in newer.times_ns}
        newer = dataclasses.replace(
            newer, scratch_bytes=MappingProxyType({**kept, **newer.scratch_bytes})
        )
    times = MappingProxyType({**older.times_ns, **newer.times_ns})
    return dataclasses.replace(newer, times_ns=times)


def _row(device: DeviceCosts) -> dict[str, Any]:
    row = {field: getattr(device, field) for field in _FIELDS}
    row["times_ns"] = dict(device.times_ns)
    if device.device_type:
        row |= {"device_type": device.device_type, "scratch_bytes": dict(device.scratch_bytes)}
    return row


def _read(document: Any) -> dict[str, DeviceCosts]:
    if not isinstance(document, dict) or document.get("format") != _FORMAT:
        raise InputError(f'it does not say "format": "{_FORMAT}"')
    if document.get("schema") != _SCHEMA:
        raise InputError(f"schema {document.get('schema')!r}, this version reads {_SCHEMA}")
    devices = document.get("devices")
    if not isinstance(devices, dict):
        raise InputError("devices is not a table")
    return {fingerprint: _read_device(fingerprint, row) for fingerprint, row in devices.items()}


def _read_device(fingerprint: str, row: Any) -> DeviceCosts:
    where = f"devices.{fingerprint}"
    if not isinstance(row, dict) or set(row).difference(_OPTIONAL) != set(_FIELDS):
        raise InputError(f"{where} does not have the entries {', '.join(_FIELDS)}")
    for field, kind in (_FIELDS | _OPTIONAL).items():
        if field in row and not isinstance(row[field], kind):
            raise InputError(f"{where}.{field} is {row[field]!r}")
    columns = {}
    for field, hint in (("times_ns", "times are whole ns"), ("scratch_bytes", "whole bytes")):
        columns[field] = MappingProxyType(row.get(field, {}))
        for signature, number in columns[field].items():
            if type(number) is not int or not 0 <= number < 2**62:
                raise InputError(f'{where}.{field}["{signature}"] is {number!r}', hint=hint)
    return DeviceCosts(**{**row, **columns})
