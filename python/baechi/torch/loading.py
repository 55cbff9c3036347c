"""Loading weights from safetensors files straight onto their devices.

Each tensor is read alone, cast where the model has another type, and put on its device: neither
the host nor a device ever holds more than its share and one tensor in passing. A model on meta
gets its memory here. Tied weights are loaded once and stay tied.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from baechi.errors import InputError
from baechi.torch.parameters import (
    named_weights,
    replace_tied,
    same_layout,
    ties,
    without_weak_references,
)

__all__ = ["WeightsMismatchError", "load_weights"]

_Tied = Sequence[tuple[str, Tensor]]


class WeightsMismatchError(InputError):
    """A file does not hold the weights of the model; nothing was loaded.

    Attributes:
        missing: weights of the model that no file holds.
        unexpected: tensors of the file that the model does not have.
        misshaped: (name, shape in the model, shape in the file).
    """

    def __init__(
        self,
        missing: Sequence[str],
        unexpected: Sequence[str],
        misshaped: Sequence[tuple[str, tuple[int, ...], tuple[int, ...]]],
    ) -> None:
        """Names all of them; more than twenty are cut short in the text only."""
        self.missing = tuple(missing)
        self.unexpected = tuple(unexpected)
        self.misshaped = tuple(misshaped)
        lines = [f'"{name}" is missing' for name in missing]
        lines += [f'"{name}" is not in the model' for name in unexpected]
        for name, model, file in misshaped:
            lines.append(f'"{name}" has shape {list(model)} in the model, {list(file)} in the file')
        more = [f"... {len(lines) - 20} more"] if len(lines) > 20 else []
        hint = "strict=False ignores tensors that the model does not have" if unexpected else None
        text = "\n  ".join(["the file does not hold the model's weights", *lines[:20], *more])
        super().__init__(text, hint=hint)


def load_weights(
    model: nn.Module,
    device_of: Mapping[str, torch.device],
    path: str | Path,
    *,
    buffers: Mapping[str, Tensor] | None = None,
    strict: bool = True,
) -> None:
    """Gives the model's weights the values of a file, each on its device.

    Args:
        model: its parameters and buffers keep their identity and may be on meta.
        device_of: the device of every parameter and buffer, by name.
        path: a safetensors file, or the index file (json) of several.
        buffers: values of buffers that no file holds, by name; needed for those of a model on
            meta, unless the model has a function of its own to compute them.
        strict: whether a tensor in the file that the model does not have is an error.

    Raises:
        WeightsMismatchError: tensors are missing, unexpected or of another shape.
        InputError: a file cannot be read, a weight has no device, a buffer has no value.
    """
    files = _files_of(Path(path))
    given = dict(buffers or {})
    groups = ties(model)
    temporary = _without_persistence(model)
    _check(groups, files, given, temporary, device_of, strict=strict)
    computed = _computed_buffers(model, [x for x in temporary if x not in given])
    _refuse_meta_attributes(model)
    opened: dict[Path, Any] = {}
    with without_weak_references(model):
        for group in groups:
            values = [
                _value_of(weight, _names_of(weight, group), files, given, computed, opened)
                for weight in _unique(group)
            ]
            replace_tied(group, values, device_of[group[0][0]])


def _names_of(weight: Tensor, group: _Tied) -> list[str]:
    """Its names, and those of other tensors that are the same view of the same memory."""
    return [name for name, tied in group if same_layout(tied, weight)]


def _unique(group: _Tied) -> list[Tensor]:
    return list({id(weight): weight for _, weight in group}.values())


def _value_of(
    weight: Tensor,
    names: Sequence[str],
    files: Mapping[str, Path],
    given: Mapping[str, Tensor],
    computed: Mapping[str, Tensor],
    opened: dict[Path, Any],
) -> Tensor | None:
    """The new value of a weight; None if it keeps its own or that of what it is tied to."""
    for name in names:
        if name in files:
            path = files[name]
            if path not in opened:
                opened[path] = safe_open(path, framework="pt", device="cpu")
            value: Tensor = opened[path].get_tensor(name)
            return value.to(weight.dtype)
    for source in (given, computed):
        for name in names:
            if name in source:
                return source[name].to(weight.dtype)
    return None if weight.is_meta else weight.detach()


def _files_of(path: Path) -> dict[str, Path]:
    """The file that holds each tensor."""
    try:
        if path.suffix == ".json":
            index = json.loads(path.read_text(encoding="utf-8"))["weight_map"]
            files = {name: path.parent / file for name, file in index.items()}
        else:
            files = dict.fromkeys(_names_in(path), path)
        for file in set(files.values()):
            absent = {x for x, of in files.items() if of == file}.difference(_names_in(file))
            if absent:
                raise InputError(f'"{file}" does not hold "{min(absent)}", as its index says')
    except (OSError, ValueError, KeyError, AttributeError, SafetensorError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(
            f'"{path}" cannot be read: {error}',
            hint="a safetensors file, or the .safetensors.index.json of several",
        ) from error
    return files


def _names_in(path: Path) -> list[str]:
    with safe_open(path, framework="pt") as file:
        return list(file.keys())


def _without_persistence(model: nn.Module) -> list[str]:
    names = []
    for path, module in model.named_modules(remove_duplicate=False):
        kept_out = sorted(module._non_persistent_buffers_set)
        present = [name for name in kept_out if module._buffers.get(name) is not None]
        names += [f"{path}.{name}" if path else name for name in present]
    return names


def _check(
    groups: Sequence[_Tied],
    files: Mapping[str, Path],
    given: Mapping[str, Tensor],
    temporary: Sequence[str],
    device_of: Mapping[str, torch.device],
    *,
    strict: bool,
) -> None:
    """Raises if anything does not fit, before anything is loaded."""
    missing: list[str] = []
    shapes: dict[str, tuple[int, ...]] = {}
    for group in groups:
        shapes.update((name, tuple(weight.shape)) for name, weight in group)
        if group[0][0] not in device_of:
            raise InputError(f'weight "{group[0][0]}" has no device')
        for weight in _unique(group):
            names = _names_of(weight, group)
            if not any(x in files or x in given or x in temporary for x in names):
                missing.append(names[0])
    unexpected = sorted(name for name in files if name not in shapes) if strict else []
    misshaped = []
    for file in sorted(set(files.values())):
        with safe_open(file, framework="pt") as opened:
            for name in [name for name in opened.keys() if name in shapes]:  # noqa: SIM118
                found = tuple(opened.get_slice(name).get_shape())
                if found != shapes[name]:
                    misshaped.append((name, shapes[name], found))
    if missing or unexpected or misshaped:
        raise WeightsMismatchError(missing, unexpected, misshaped)


def _computed_buffers(model: nn.Module, names: Sequence[str]) -> dict[str, Tensor]:
    """Values for the buffers on meta that no file holds, by the model's own function.

    Models of the transformers package have one per model (`_init_weights`). It is asked about
    modules without parameters only, and believed where it has written every number.
    """
    weights = dict(named_weights(model))
    needed = [name for name in names if weights[name].is_meta]
    initialize: Callable[[nn.Module], None] | None = getattr(model, "_init_weights", None)
    values: dict[str, Tensor] = {}
    for path in sorted({name.rpartition(".")[0] for name in needed}):
        module = model.get_submodule(path)
        if initialize is None or next(module.parameters(), None) is not None:
            continue
        own = module._buffers
        try:
            module._buffers = {
                name: None if old is None else _unwritten(old) for name, old in own.items()
            }
            with torch.no_grad():
                initialize(module)
            for name, value in module._buffers.items():
                if value is not None and not bool(value.isnan().any()):
                    values[f"{path}.{name}" if path else name] = value
        finally:
            module._buffers = own
    lacking = [name for name in needed if name not in values]
    if lacking:
        raise InputError(
            f'buffer "{lacking[0]}" is on meta and in no file ({len(lacking)} such buffers)',
            hint="pass its value, buffers={name: tensor}, from the same model made on the host",
        )
    return values


def _unwritten(buffer: Tensor) -> Tensor:
    if buffer.is_floating_point() or buffer.is_complex():
        return torch.full(buffer.shape, torch.nan, dtype=buffer.dtype)
    return torch.full(buffer.shape, torch.nan)  # of a type that shows what was not written


def _refuse_meta_attributes(model: nn.Module) -> None:
    for path, module in model.named_modules():
        for name, value in vars(module).items():
            if isinstance(value, Tensor) and value.device == torch.device("meta"):
                raise InputError(
                    f'attribute "{name}" of module "{path}" is a tensor on meta, and no buffer',
                    hint="make it a buffer, or set it before loading",
                )
