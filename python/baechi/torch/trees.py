"""Trees: the tensors inside the arguments and results of a forward, and the way back."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.utils import _pytree

__all__ = ["Tree", "flatten", "share_memory", "tensors_in", "value_key"]

_PLAIN = (
    type(None), bool, int, float, complex, str, bytes, range, slice, enum.Enum,
    torch.dtype, torch.device, torch.layout, torch.memory_format,
)  # fmt: skip


@dataclasses.dataclass(frozen=True, slots=True)
class _Fields:
    """An object that torch's pytree does not know: its type and its fields."""

    type: type
    names: tuple[str, ...]
    fields: tuple[Tree, ...]


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class _Leaf:
    """A value that is no tensor; equal values of two types are two values."""

    value: Any

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _Leaf):
            return NotImplemented
        return bool(value_key(self.value) == value_key(other.value))

    def __hash__(self) -> int:
        return hash(value_key(self.value))


def value_key(value: Any) -> tuple[Any, ...]:
    """What tells values that are no tensors apart: 1, 1.0 and True; 0.0 and -0.0."""
    if type(value) is float:
        return float, value.hex()
    return type(value), value


@dataclasses.dataclass(frozen=True, slots=True)
class Tree:
    """A structure without its tensors.

    Attributes:
        leaves: for each leaf in order None where a tensor stood, a dataclass, or a value.
        paths: where each tensor stood, such as "past.0".
        opaque: where something stood that may hold tensors out of our sight, and its type.
    """

    spec: _pytree.TreeSpec
    leaves: tuple[_Fields | _Leaf | None, ...]
    paths: tuple[str, ...]
    opaque: tuple[tuple[str, str], ...]

    @property
    def values(self) -> list[Any]:
        """What stood there beside tensors and dataclasses."""
        return [leaf.value for leaf in self.leaves if isinstance(leaf, _Leaf)]

    def rebuild(self, tensors: Sequence[Any]) -> Any:
        """The structure again, with these in place of its tensors."""
        return self._take(iter(tensors))

    def _take(self, tensors: Iterator[Any]) -> Any:
        made: list[Any] = []
        for leaf in self.leaves:
            if leaf is None:
                made.append(next(tensors))
            elif isinstance(leaf, _Fields):
                made.append(_rebuild_fields(leaf, tensors))
            else:
                made.append(leaf.value)
        return _pytree.tree_unflatten(made, self.spec)


def _rebuild_fields(kept: _Fields, tensors: Iterator[Any]) -> Any:
    # Without __init__, which may check or compute: the fields are as forward left them.
    try:
        made: Any = object.__new__(kept.type)
    except TypeError:  # types made in C, such as SimpleNamespace
        made = kept.type.__new__(kept.type)  # type: ignore[call-overload]
    for name, tree in zip(kept.names, kept.fields, strict=True):
        object.__setattr__(made, name, tree._take(tensors))
    return made


def flatten(
    tree: Any, path: str = "", *, into_objects: bool = False
) -> tuple[list[torch.Tensor], Tree]:
    """Takes a structure apart into its tensors and the rest.

    Args:
        tree: lists, dicts and whatever else pytree knows, and dataclasses.
        path: the name of the whole.
        into_objects: looks into other objects too, such as caches that forward returns. They are
            made anew by `Tree.rebuild`, so that is not for arguments, which forward may change.
    """
    tensors: list[torch.Tensor] = []
    leaves: list[_Fields | _Leaf | None] = []
    paths: list[str] = []
    opaque: list[tuple[str, str]] = []
    found, spec = _pytree.tree_flatten_with_path(tree)
    for key_path, leaf in found:
        at = ".".join(filter(None, [path, *(_name_of(key) for key in key_path)]))
        if isinstance(leaf, torch.Tensor):
            tensors.append(leaf)
            paths.append(at)
            leaves.append(None)
        elif names := _fields_of(leaf, into_objects):
            inner = []
            for name in names:
                below = f"{at}.{name}" if at else name
                inside, sub = flatten(getattr(leaf, name), below, into_objects=into_objects)
                tensors += inside
                paths += sub.paths
                opaque += sub.opaque
                inner.append(sub)
            leaves.append(_Fields(type(leaf), names, tuple(inner)))
        else:
            leaves.append(_Leaf(leaf))
            if not (isinstance(leaf, _PLAIN) or (into_objects and hasattr(leaf, "__dict__"))):
                opaque.append((at, type(leaf).__name__))
    return tensors, Tree(spec, tuple(leaves), tuple(paths), tuple(opaque))


def _fields_of(leaf: Any, into_objects: bool) -> tuple[str, ...]:
    if isinstance(leaf, (type, *_PLAIN)):
        return ()
    if dataclasses.is_dataclass(leaf):
        return tuple(f.name for f in dataclasses.fields(leaf) if hasattr(leaf, f.name))
    if into_objects and _holds_tensors(leaf, 4):
        return tuple(vars(leaf))
    return ()


def _holds_tensors(value: Any, depth: int) -> bool:
    """Whether an object is a mere holder: with tensors in reach, and nothing to be called."""
    if isinstance(value, torch.Tensor):
        return True
    if depth == 0 or isinstance(value, (type, torch.nn.Module, *_PLAIN)) or callable(value):
        return False
    inner = value if isinstance(value, list | tuple) else getattr(value, "__dict__", {}).values()
    if isinstance(value, dict):
        inner = value.values()
    return any(_holds_tensors(item, depth - 1) for item in inner)


def _name_of(key: Any) -> str:
    for attribute in ("key", "idx", "name"):
        if hasattr(key, attribute):
            return str(getattr(key, attribute))
    return str(key)


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """The tensors in a nest of lists, tuples, dicts and slices, in order."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from tensors_in(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from tensors_in(item)
    elif type(value) is slice:
        yield from tensors_in((value.start, value.stop, value.step))


def share_memory(value: Any) -> bool:
    """Whether two of the tensors in a nest are one, or views of one memory."""
    storages = [tensor.untyped_storage()._cdata for tensor in tensors_in(value)]
    return len(set(storages)) < len(storages)
