"""The tensors among a call's arguments: finding and moving them, and which one it changes."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum, auto
from typing import Any

import torch
from torch import Tensor

from baechi.torch.transfer_cache import TransferCache, version_of
from baechi.torch.trees import tensors_in

__all__ = [
    "Mixed",
    "Moves",
    "changed_operand",
    "common_device",
    "operand_on_host",
]

# Positions of operands that have to be on the host, whatever the device of the others.
_ON_HOST = {"_pack_padded_sequence": 1, "_pad_packed_sequence": 1, "tensor_split": 1}
_RECURRENT = frozenset(("lstm", "gru", "rnn_tanh", "rnn_relu"))
_NOT_IN_PLACE = frozenset(("__index__", "__int__", "__invert__", "__iter__"))


class Mixed(Enum):
    """What there is in place of a common device."""

    MIXED = auto()


def common_device(
    values: Iterable[Any], device: torch.device | Mixed | None
) -> torch.device | Mixed | None:
    """The one device of the tensors and of ``device``, None without any, else ``MIXED``."""
    for value in values:
        if isinstance(value, Tensor):
            found = value.device
            if device is None:
                device = found
            elif found != device:
                return Mixed.MIXED
        elif isinstance(value, (list, tuple)) and value:
            device = common_device(value, device)
    return device


class Moves:
    """Moves tensors to a device; ``made`` has (original, copy, version of the copy) of each."""

    def __init__(self, cache: TransferCache, device: torch.device) -> None:
        """Starts without moves."""
        self._cache = cache
        self.device = device
        self.made: list[tuple[Tensor, Tensor, int]] = []

    def tensor(self, value: Tensor) -> Tensor:
        """The tensor on the device."""
        if value.device == self.device:
            return value
        copy = self._cache.fetch(value, self.device)
        self.made.append((value, copy, version_of(copy)))
        return copy

    def within(self, value: Any) -> Any:
        """The same nest of lists, tuples, dicts and slices with its tensors on the device."""
        if isinstance(value, Tensor):
            return self.tensor(value)
        if isinstance(value, tuple):
            return rebuilt(value, [self.within(item) for item in value])
        if type(value) is list:
            return [self.within(item) for item in value]
        if type(value) is dict:
            return {key: self.within(item) for key, item in value.items()}
        if type(value) is slice:
            return slice(*(self.within(x) for x in (value.start, value.stop, value.step)))
        return value


def rebuilt(value: tuple[Any, ...], items: list[Any]) -> tuple[Any, ...]:
    """A tuple like the value with other items, or the value itself where none is other."""
    if all(new is old for new, old in zip(items, value, strict=True)):
        return value
    kind: Any = type(value)
    made: tuple[Any, ...] = kind(*items) if hasattr(value, "_fields") else kind(items)
    return made


def operand_on_host(name: str, args: tuple[Any, ...]) -> int | None:
    """The position of an operand that has to be on the host: lengths and batch sizes."""
    position = _ON_HOST.get(name)
    # Of the two overloads of a recurrent layer, the packed one has batch sizes, which are integers.
    if position is None and name in _RECURRENT:
        position = 1
    if position is None or len(args) <= position or not isinstance(args[position], Tensor):
        return None
    return None if args[position].is_floating_point() else position


def changed_operand(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor | None:
    """The operand that the call changes in place, by the call's name and arguments."""
    out = kwargs.get("out")
    if out is not None:
        return next(tensors_in(out), None)
    first = args[0] if args else None
    is_method = name.endswith("_") and not name.endswith("__")
    is_operator = name == "__setitem__" or (name.startswith("__i") and name not in _NOT_IN_PLACE)
    if isinstance(first, Tensor) and (is_method or is_operator or kwargs.get("inplace")):
        return first
    return None
