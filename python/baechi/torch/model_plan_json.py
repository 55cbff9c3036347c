"""Model plans as JSON: sorted, one module per line, the same bytes for the same plan."""

from __future__ import annotations

import dataclasses
import decimal
import json
import os
import warnings
from collections.abc import Mapping
from typing import Any

from baechi.cluster import Cluster
from baechi.errors import InputError
from baechi.formats import strict_json
from baechi.torch.model_plan import Compared, ModelPlan, PlannedDevice
from baechi.torch.model_plan_text import version_note

__all__ = ["FORMAT", "SCHEMA", "read_model_plan", "write_document"]

FORMAT = "baechi-model-plan"
SCHEMA = 1
_TEXTS = ("mode", "objective", "optimizer", "granularity", "level", "autocast")
_CHOICES = {
    "mode": ("training", "inference"),
    "objective": ("fastest", "fewest-devices", "most-headroom"),
    "granularity": ("module", "op"),
    "level": ("op", "module"),
}
_MAPS = ("modules", "ops", "model", "versions")
_LISTS = ("reasons", "inputs", "notes")
_COUNTS = ("step_ns", "copies", "copied_bytes")
_PEAKS = ("confirmed", "module_level_peaks")
_OPTIONAL = {"predicted_for": ""}  # what older versions did not write
_OTHERS = ("format", "schema", "together", "cluster", "devices", "compared", "prices", *_PEAKS)


def write_document(plan: ModelPlan) -> str:
    """The text of a plan file."""
    document: dict[str, Any] = {"format": FORMAT, "schema": SCHEMA}
    document |= {name: getattr(plan, name) for name in (*_TEXTS, *_COUNTS, *_OPTIONAL)}
    document |= {name: dict(getattr(plan, name)) for name in _MAPS}
    document |= {name: list(getattr(plan, name)) for name in _LISTS}
    document["together"] = [
        {"modules": list(paths), "device": device} for paths, device in plan.together
    ]
    document["cluster"] = plan.cluster.to_json_dict()
    document["devices"] = [
        dataclasses.asdict(device) | {"by_class": dict(device.by_class)} for device in plan.devices
    ]
    document["compared"] = [dataclasses.asdict(other) for other in plan.compared]
    document["prices"] = dict(plan.prices)
    document |= {name: list(getattr(plan, name)) for name in _PEAKS}
    return json.dumps(document, indent=1, sort_keys=True, ensure_ascii=False) + "\n"


def read_model_plan(path: str | os.PathLike[str]) -> ModelPlan:
    """Reads what `write_document` wrote; every field is checked."""
    file = os.fspath(path)
    document = _with_floats(strict_json.read(path))
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise InputError(f'{file}: it does not say "format": "{FORMAT}"')
    if document.get("schema") != SCHEMA:
        found = document.get("schema")
        raise InputError(f"{file}: schema {found!r}, this version reads {SCHEMA}")
    document = _OPTIONAL | document
    expected = {*_TEXTS, *_OPTIONAL, *_MAPS, *_LISTS, *_COUNTS, *_OTHERS}
    for name in expected ^ set(document):
        known = "is missing" if name in expected else "is not a field of a model plan"
        raise InputError(f'{file}: "{name}" {known}')
    with strict_json.naming(file):
        plan = _plan(document)
    _check_devices(plan, file)
    note = version_note(plan)
    if note:
        warnings.warn(f"{file}: {note}", stacklevel=3)
    return plan


def _plan(document: Mapping[str, Any]) -> ModelPlan:
    fields: dict[str, Any] = {}
    for name in _TEXTS:
        fields[name] = _is(document[name], str, name)
        if name in _CHOICES and fields[name] not in _CHOICES[name]:
            known = ", ".join(_CHOICES[name])
            raise InputError(f'"{name}" is "{fields[name]}"', hint=f"choose from {known}")
    for name in _OPTIONAL:
        fields[name] = _is(document[name], str, name)
    for name in _COUNTS:
        fields[name] = _count(document[name], name)
    for name in _MAPS:
        fields[name] = _texts(document[name], name)
    for name in _LISTS:
        fields[name] = tuple(_is(one, str, name) for one in _is(document[name], list, name))
    groups = _is(document["together"], list, "together")
    fields["together"] = tuple(
        (
            tuple(_is(p, str, "together") for p in _is(_get(g, "modules"), list, "together")),
            _is(_get(g, "device"), str, "together"),
        )
        for g in groups
    )
    fields["cluster"] = Cluster.from_json_dict(
        strict_json.plain(_is(document["cluster"], dict, "cluster"))
    )
    fields["devices"] = tuple(map(_device, _is(document["devices"], list, "devices")))
    fields["compared"] = tuple(map(_compared, _is(document["compared"], list, "compared")))
    prices = _is(document["prices"], dict, "prices")
    fields["prices"] = {key: _count(value, "prices") for key, value in prices.items()}
    for name in _PEAKS:
        fields[name] = tuple(_count(peak, name) for peak in _is(document[name], list, name))
    return ModelPlan(**fields)


def _device(row: Any) -> PlannedDevice:
    names = [field.name for field in dataclasses.fields(PlannedDevice)]
    if not isinstance(row, dict) or sorted(row) != sorted(names):
        raise InputError(f'"devices" has an entry without exactly {", ".join(names)}')
    by_class = _is(row["by_class"], dict, "by_class")
    return PlannedDevice(
        name=_is(row["name"], str, "name"),
        cap_bytes=_count(row["cap_bytes"], "cap_bytes"),
        peak_bytes=_count(row["peak_bytes"], "peak_bytes"),
        peak_at=_is(row["peak_at"], str, "peak_at"),
        by_class={key: _count(value, "by_class") for key, value in by_class.items()},
        busy_ns=_count(row["busy_ns"], "busy_ns"),
        num_ops=_count(row["num_ops"], "num_ops"),
    )


def _compared(row: Any) -> Compared:
    if not isinstance(row, dict) or sorted(row) != ["missing_bytes", "name", "step_ns"]:
        raise InputError('"compared" has an entry without exactly missing_bytes, name, step_ns')
    return Compared(
        name=_is(row["name"], str, "name"),
        step_ns=_count(row["step_ns"], "step_ns"),
        missing_bytes=_count(row["missing_bytes"], "missing_bytes"),
    )


def _check_devices(plan: ModelPlan, file: str) -> None:
    if tuple(device.name for device in plan.devices) != plan.cluster.names:
        raise InputError(f'{file}: "devices" and "cluster" do not name the same devices')
    for name in _PEAKS:
        peaks = getattr(plan, name)
        if peaks and len(peaks) != len(plan.devices):
            count = f"{len(peaks)} peaks for {len(plan.devices)} devices"
            raise InputError(f'{file}: "{name}" has {count}')
    known = set(plan.cluster.names)
    for name, entries in (("modules", plan.modules), ("ops", plan.ops)):
        for path, device in entries.items():
            if device not in known:
                raise InputError(
                    f'{file}: {name} puts "{path}" on "{device}", which the plan does not have',
                    hint=f"choose from {', '.join(plan.cluster.names)}",
                )
    plan.placement  # noqa: B018 - raises where modules that must share a device do not


def _get(row: Any, name: str) -> Any:
    if not isinstance(row, dict) or name not in row:
        raise InputError(f'"together" has an entry without "{name}"')
    return row[name]


def _with_floats(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _with_floats(member) for name, member in value.items()}
    if isinstance(value, list):
        return [_with_floats(member) for member in value]
    return float(value) if isinstance(value, decimal.Decimal) else value


def _is(value: Any, kind: type, name: str) -> Any:
    if not isinstance(value, kind):
        raise InputError(f'"{name}" has {value!r}, not a {kind.__name__}')
    return value


def _count(value: Any, name: str) -> int:
    if type(value) is not int or not 0 <= value < strict_json.LARGEST:
        raise InputError(f'"{name}" is {value!r}, not a whole number from 0')
    return value


def _texts(value: Any, name: str) -> dict[str, str]:
    table = _is(value, dict, name)
    return {key: _is(text, str, f"{name}.{key}") for key, text in table.items()}
