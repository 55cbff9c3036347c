"""Kernels on tensors without numbers: what they give is found once for operands of one form.

Layers of a model repeat each other, and PyTorch works out in Python what many kernels give. Of
calls with operands of the same shapes, strides and types and with the same other arguments only the
first one runs; later ones get new tensors like its results.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import torch

from baechi.torch.trees import tensors_in

__all__ = ["MetaKernels", "form_of"]

_PLAIN = frozenset({torch.Tensor, torch.nn.Parameter})
_CONSTANTS = frozenset(
    {int, str, type(None), torch.dtype, torch.layout, torch.device, torch.memory_format}
)
_NUMBERS = frozenset({bool, float})  # True and 1.0 are equal to 1, and kernels tell them apart
_BY_VALUES = frozenset({torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape})


class MetaKernels:
    """Runs ops below autograd; of those on plain meta tensors one of each form.

    >>> kernels = MetaKernels()
    >>> x = torch.empty(2, 3, device="meta")
    >>> for _ in range(2):
    ...     y = kernels(torch.ops.aten.add.Tensor, (x, torch.empty(3, device="meta")), {})
    >>> tuple(y.shape), y.untyped_storage().nbytes(), kernels.num_forms
    ((2, 3), 24, 1)
    """

    def __init__(self) -> None:
        """Has seen no call yet."""
        self._repeats: dict[Any, Callable[[Sequence[Any]], Any] | None] = {}

    @property
    def num_forms(self) -> int:
        """How many forms of calls have run."""
        return len(self._repeats)

    def __call__(
        self, func: torch._ops.OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Any:
        """What the op gives; views are taken every time, as they share memory."""
        effect = _effect_of(func)
        key = None if effect == "other" else form_of(func, args, kwargs)
        if key is None:
            return func(*args, **kwargs)
        if key not in self._repeats:
            result = func(*args, **kwargs)
            is_same = effect == "makes" or key == form_of(func, args, kwargs)
            repeat = _repeating(effect, args, kwargs, result) if is_same else None
            self._repeats[key] = repeat
            return result
        repeat = self._repeats[key]
        return func(*args, **kwargs) if repeat is None else repeat(args)


@functools.cache
def _effect_of(func: torch._ops.OpOverload) -> Literal["makes", "changes", "other"]:
    """Whether an op makes new tensors, or changes its first argument (and returns it, if any)."""
    arguments, returns = func._schema.arguments, func._schema.returns
    if _BY_VALUES.intersection(func.tags) or any(argument.is_out for argument in arguments):
        return "other"
    shares = [argument.alias_info is not None for argument in arguments]
    if not any(shares):
        return "makes"
    written = [a.alias_info is not None and a.alias_info.is_write for a in (*arguments, *returns)]
    is_only_first = written[0] and not any(shares[1:]) and len(returns) <= 1
    return "changes" if is_only_first and all(written[len(arguments) :]) else "other"


def form_of(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """What tells one form of a call from another; None where there is more than form to it."""
    try:
        named = tuple((name, _part_of(value)) for name, value in kwargs.items()) if kwargs else ()
        return func, tuple([_part_of(value) for value in args]), named
    except LookupError:
        return None


def _part_of(value: Any) -> Any:
    kind = type(value)
    if kind in _PLAIN:
        if not value.is_meta or value.layout is not torch.strided or value.is_complex():
            raise LookupError
        return value.shape, value.stride(), value.dtype, value.requires_grad
    if kind in _CONSTANTS:
        return value
    if kind in _NUMBERS:
        return kind, value
    if kind is list or kind is tuple:
        return tuple([_part_of(item) for item in value])
    raise LookupError


def _repeating(
    effect: str, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any
) -> Callable[[Sequence[Any]], Any] | None:
    """What gives the result again, None if nothing but the op does."""
    if effect == "changes":
        return _nothing if result is None else _first
    storages = [t.untyped_storage()._cdata for t in tensors_in((args, list(kwargs.values())))]
    try:
        return _like(result, set(storages))
    except LookupError:
        return None


def _nothing(_args: Sequence[Any]) -> None:
    return None


def _first(args: Sequence[Any]) -> Any:
    return args[0]


def _like(value: Any, taken: set[int]) -> Callable[[Sequence[Any]], Any]:
    """Makes what is like a value; `taken` are storages that it must not share."""
    if value is None:
        return _nothing
    if isinstance(value, list | tuple):
        kind, makers = type(value), [_like(item, taken) for item in value]
        return lambda args: kind([make(args) for make in makers])
    if type(value) is not torch.Tensor:
        raise LookupError
    shape, strides, _, _ = _part_of(value)
    dtype = value.dtype
    made = torch.empty_strided(shape, strides, dtype=dtype, device="meta")
    storage = value.untyped_storage()
    if storage._cdata in taken or storage.nbytes() != made.untyped_storage().nbytes():
        raise LookupError
    taken.add(storage._cdata)
    return lambda _args: torch.empty_strided(shape, strides, dtype=dtype, device="meta")
