"""Costs: measured times of ops by device and signature, in a file that later plans reuse."""

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


@dataclasses.dataclass(frozen=True, slots=True)
class DeviceCosts:
    """Times that were measured on one device.

    Attributes:
        name: what the driver calls it.
        kind: its row in the device table.
        clock: how it was measured, e.g. "events" or "thread time".
        software: versions and settings that times depend on.
        times_ns: signature (``baechi.torch.signatures``) to the median in nanoseconds.
    """

    name: str
    kind: str
    clock: str
    software: str
    times_ns: Mapping[str, int]


@dataclasses.dataclass(frozen=True, slots=True)
class Costs:
    """Measured times by the fingerprint of the device (docs/pricing.md); need not be complete."""

    devices: Mapping[str, DeviceCosts]

    def for_kind(self, kind: str) -> dict[str, int]:
        """Times by signature for devices of a kind; of several devices the first fingerprint's."""
        found: dict[str, int] = {}
        for _, device in sorted(self.devices.items(), reverse=True):
            if device.kind == kind:
                found |= device.times_ns
        return found

    def merged(self, newer: Costs) -> Costs:
        """Both together; where both have a time, the newer one's."""
        devices = dict(self.devices)
        for fingerprint, device in newer.devices.items():
            known = devices[fingerprint].times_ns if fingerprint in devices else {}
            devices[fingerprint] = dataclasses.replace(
                device, times_ns=MappingProxyType({**known, **device.times_ns})
            )
        return Costs(MappingProxyType(devices))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes sorted JSON in one step; OSError where it cannot."""
        devices = {
            fingerprint: {field: getattr(device, field) for field in _FIELDS}
            | {"times_ns": dict(device.times_ns)}
            for fingerprint, device in self.devices.items()
        }
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
    if not isinstance(row, dict) or set(row) != set(_FIELDS):
        raise InputError(f"{where} does not have the entries {', '.join(_FIELDS)}")
    for field, kind in _FIELDS.items():
        if not isinstance(row[field], kind):
            raise InputError(f"{where}.{field} is {row[field]!r}")
    for signature, time_ns in row["times_ns"].items():
        if type(time_ns) is not int or not 0 <= time_ns < 2**62:
            raise InputError(
                f'{where}.times_ns["{signature}"] is {time_ns!r}', hint="times are whole ns"
            )
    return DeviceCosts(**{**row, "times_ns": MappingProxyType(row["times_ns"])})
