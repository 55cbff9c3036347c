"""Attributes: what modules, and the objects and containers that they hold, are made of.

Read twice, this tells what has changed in between: what forward did, or what somebody did between
two calls. Reading is bounded, in depth by what was met before, and in width by two numbers here.
"""

from __future__ import annotations

import argparse
import contextlib
import enum
import pickle
import sys
import types
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from baechi.torch.computed_weights import computed_names

__all__ = [
    "Reading",
    "comes_from_user",
    "differences",
    "is_users",
    "read_module",
    "state_of",
]

_PLAIN = (bool, int, float, complex, str, bytes, type(None))
MOST_ITEMS = 1000  # of a container; of larger ones the length counts alone
MOST_LEVELS = 32  # of containers and objects in each other
MOST_VALUES = 20_000  # of a model; what comes after them is not looked into
_CONTAINERS = (dict, list, tuple, set, frozenset, deque)
# The tables of every module, and its mode, which are compared elsewhere.
_TABLES = frozenset(vars(nn.Module()))
_NAMESPACES = (types.SimpleNamespace, argparse.Namespace)
_BY_VALUE = (torch.dtype, torch.device, enum.Enum)
_NOT_USERS = ("torch", "numpy", "baechi", "builtins")
# Generators and iterators, whose state is in no attribute.
_WITH_STATE = ("random", "itertools", "numpy")


@dataclass
class Reading:
    """What was read.

    Attributes:
        names: attributes of objects other than modules that are looked at.
        values: by a name such as "block.cache.k"; of containers and objects their kind.
        slots: where single values stand: a mapping, the key, and the value.
        cells: variables of closures, and their values.
        held: containers with what was in them.
        lengths: larger containers with their lengths.
        kinds: types of the objects that were looked into.
        owner: the class of the module that is being read.
        functions: functions that were met, and the class of the module that holds them.
        arrays: small arrays of NumPy with their values.
    """

    names: Collection[str]
    values: dict[str, Any] = field(default_factory=dict)
    slots: list[tuple[Mapping[Any, Any], Any, Any]] = field(default_factory=list)
    cells: list[tuple[types.CellType, Any]] = field(default_factory=list)
    held: list[tuple[Any, Any]] = field(default_factory=list)
    lengths: list[tuple[Any, int]] = field(default_factory=list)
    kinds: dict[type, None] = field(default_factory=dict)
    functions: list[tuple[Any, type | None]] = field(default_factory=list)
    arrays: list[tuple[Any, Any]] = field(default_factory=list)
    owner: type | None = None
    _depth: int = 0
    _met: dict[int, Any] = field(default_factory=dict)

    def add(self, label: str, owner: Mapping[Any, Any], key: Any, value: Any) -> None:
        """Reads one value that stands in a mapping."""
        self.slots.append((owner, key, value))
        self.look(label, value)

    def look(self, label: str, value: Any) -> None:
        """Reads a value and what it holds."""
        self.values[label] = value
        if type(value) in _PLAIN or isinstance(value, (*_BY_VALUE, Tensor, nn.Module, type)):
            return
        if id(value) in self._met or len(self.values) > MOST_VALUES or self._depth > MOST_LEVELS:
            self.values[label] = type(value)
            return
        self._met[id(value)] = value  # kept, so that the id stays its own
        self._depth += 1
        self._look_inside(label, value)
        self._depth -= 1

    def _look_inside(self, label: str, value: Any) -> None:
        if isinstance(value, _CONTAINERS):
            self._look_into(label, value)
            if is_users(type(value)):
                self._look_at_attributes(label, value)
        elif callable(value) and not is_users(type(value)):
            self.functions.append((value, self.owner))
            if isinstance(value, types.MethodType):
                self.look(f"{label}.__self__", value.__self__)
        elif _root_of(type(value)) in _WITH_STATE:
            self.values[label] = state_of(value)
            if hasattr(value, "tobytes"):
                self.arrays.append((value, self.values[label]))
        elif is_users(type(value)) or isinstance(value, _NAMESPACES):
            self.values[label] = type(value)
            self._look_at_attributes(label, value)

    def _look_into(self, label: str, value: Any) -> None:
        self.values[label] = type(value), len(value)
        if len(value) > MOST_ITEMS:
            self.lengths.append((value, len(value)))
            return
        if isinstance(value, dict):
            items: Any = dict.items(value)
            self.held.append((value, dict(items)))
        elif isinstance(value, (set, frozenset)):
            self.held.append((value, frozenset(value)))
            self.values[label] = frozenset(value)
            return
        else:
            if not isinstance(value, tuple):
                self.held.append((value, value.copy()))
            items = enumerate(value)
        for number, (key, item) in enumerate(items):
            shown = key if isinstance(key, (str, int)) else number
            self.look(f"{label}.{shown}", item)

    def _look_at_attributes(self, label: str, value: Any) -> None:
        self.kinds[type(value)] = None
        for table in _tables_of(value):
            for name, item in list(table.items()):
                if name in self.names:
                    self.add(f"{label}.{name}", table, name, item)


def read_module(reading: Reading, path: str, module: nn.Module) -> None:
    """Reads a module's own attributes, without weights and modules."""
    table, computed = vars(module), computed_names(module)
    reading.owner = type(module)
    for name, value in list(table.items()):
        if name not in _TABLES and name not in computed:
            reading.add(f"{path}.{name}" if path else name, table, name, value)


def differences(before: Reading, after: Reading, *, same_tensors: bool) -> Iterator[str]:
    """Names of what has another value than before, is new or is gone.

    Args:
        before: what was read first.
        after: what was read later.
        same_tensors: whether another tensor is another value, also where it has the same form.
    """
    for name in {**before.values, **after.values}:
        one, other = before.values.get(name, _MISSING), after.values.get(name, _MISSING)
        if one is not other and not _is_same(one, other, same_tensors):
            yield name


_MISSING = object()


def _is_same(one: Any, other: Any, same_tensors: bool) -> bool:
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return not same_tensors and _form(one) == _form(other)
    if type(one) is not type(other):
        return False
    if isinstance(one, (tuple, frozenset, *_PLAIN, *_BY_VALUE)):
        return bool(one == other) or (one != one and other != other)
    return False


def _form(value: Tensor) -> tuple[Any, ...]:
    return value.shape, value.dtype, value.stride(), value.requires_grad


def is_users(kind: Any) -> bool:
    """Whether a type is neither of Python's library nor of torch, NumPy or ours."""
    return comes_from_user(_root_of(kind))


def _root_of(kind: Any) -> str:
    return str(getattr(kind, "__module__", None) or "builtins").partition(".")[0]


def comes_from_user(module: str) -> bool:
    """Whether a module of Python is neither of its library nor of torch, NumPy or ours."""
    root = module.partition(".")[0]
    return root not in sys.stdlib_module_names and root not in _NOT_USERS


def state_of(value: Any) -> Any:
    """What tells the states of a generator, an iterator or a small array apart."""
    nbytes = getattr(value, "nbytes", 0)
    if nbytes > MOST_ITEMS * 8:
        return value
    with contextlib.suppress(Exception):  # whatever a type's __reduce__ may raise
        return type(value), pickle.dumps(value)
    return value


def _tables_of(value: Any) -> Iterator[Mapping[str, Any]]:
    found = getattr(value, "__dict__", None)
    if isinstance(found, dict):
        yield found
    names = [name for kind in type(value).__mro__ for name in _slots_of(kind)]
    if names:
        yield _View({name: partial(getattr, value, name) for name in names if hasattr(value, name)})


def _slots_of(kind: type) -> Iterator[str]:
    for name, found in vars(kind).items():
        if isinstance(found, types.MemberDescriptorType):
            yield name


class _View(Mapping[str, Any]):
    """What is read by calls, as a mapping."""

    def __init__(self, reads: Mapping[str, Callable[[], Any]]) -> None:
        """Has a call for each key."""
        self._reads = reads

    def __getitem__(self, key: str) -> Any:
        """The value now."""
        return self._reads[key]()

    def __iter__(self) -> Iterator[str]:
        """The keys."""
        return iter(self._reads)

    def __len__(self) -> int:
        """How many there are."""
        return len(self._reads)
