"""A key for each way of calling a model: structure, shapes, types, layouts and plain values.

Calls with the same key run the same placed graph. It is read on every call, so it is a nest of
tuples made in one pass, without a look at the signature: another spelling has another key.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from baechi.torch.trees import value_key

__all__ = ["OpaqueError", "call_key"]

_PLAIN = (bool, int, float, complex, str, bytes, torch.dtype, torch.device, enum.Enum)


class OpaqueError(Exception):
    """An argument is an object of a kind that no graph takes; the text names the kind."""


def call_key(args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, ...]:
    """The key of a call.

    Raises:
        OpaqueError: an argument may hold tensors that nobody sees, such as a cache.
    """
    return (
        tuple([_key(value) for value in args]),
        tuple([(name, _key(value)) for name, value in kwargs.items()]),
    )


def _key(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.shape, value.dtype, value.stride(), value.requires_grad
    if value is None:
        return None
    if isinstance(value, _PLAIN):
        return value_key(value)
    if isinstance(value, (tuple, list)):
        return type(value), tuple([_key(item) for item in value])
    if isinstance(value, dict):
        return type(value), tuple([(name, _key(item)) for name, item in value.items()])
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = dataclasses.fields(value)
        return type(value), tuple([_key(getattr(value, field.name)) for field in fields])
    raise OpaqueError(type(value).__name__)
