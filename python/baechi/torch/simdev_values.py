"""Small integers and bools keep their values in a dry rehearsal: masks, token ids, lengths.

Programs branch on them (``if mask.all():``) long before any weight matters. A value is kept beside
the meta tensor as long as every op on the way to it had only such values to work with.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from baechi.torch.simdev_tensor import SimTensor

if TYPE_CHECKING:
    from baechi.torch.simdev_calls import Call
    from baechi.torch.simdev_ops import Simulation

__all__ = ["computed", "forget", "keep", "meta_indices", "remember", "value_of"]

_MOST_ELEMENTS = 2**18


def value_of(tensor: torch.Tensor) -> torch.Tensor | None:
    """The CPU tensor with the values of this one, None where they are not known."""
    if not isinstance(tensor, SimTensor):
        return None if tensor.is_meta else tensor
    value = tensor._value
    if value is None or tensor._simulation.books.is_stale(tensor._inner):
        return None
    return value


def remember(tensor: SimTensor, value: torch.Tensor | None) -> None:
    """Keeps a value, if it is one of few integers."""
    if value is not None and _is_small_integer(value):
        tensor._value = value


def forget(tensor: SimTensor) -> None:
    """Marks the values of a tensor and of all its views as unknown."""
    tensor._simulation.books.mark_stale(tensor._inner)


def keep(
    func: Any, args: Any, kwargs: dict[str, Any], call: Call, result: Any, written: str
) -> None:
    """Repeats an op on known values; where some are not known, what it writes is forgotten.

    Args:
        func: the op.
        args: its arguments.
        kwargs: its arguments by name.
        call: the same, taken apart.
        result: what it gave.
        written: "none", "first" or "all" of its tensors.
    """
    outputs = result if isinstance(result, list | tuple) else [result]
    outputs = [tensor for tensor in outputs if isinstance(tensor, SimTensor)]
    values = None
    if all(_is_small_integer(tensor._inner) for tensor in [*call.seen, *outputs]):
        values = computed(func, args, kwargs)
    if values is None:
        for tensor in call.seen[: {"none": 0, "first": 1, "all": None}[written]]:
            forget(tensor)
    elif written == "none":
        found = values if isinstance(values, list | tuple) else [values]
        tensors = (value for value in found if isinstance(value, torch.Tensor))
        for tensor, value in zip(outputs, tensors, strict=True):
            tensor._value = value


def computed(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """What an op gives on the values of its operands; None if one of them is not known."""
    if torch.Tag.nondeterministic_seeded in func.tags:
        return None
    try:
        plain = _values_in(args)
        named = {name: _values_in([value])[0] for name, value in kwargs.items()}
    except LookupError:
        return None
    if named.get("device") is not None:
        named["device"] = "cpu"
    return func(*plain, **named)


def meta_indices(simulation: Simulation, indices: Any) -> list[Any]:
    """Indices whose number is known: a mask with values becomes the places where it is true."""
    found: list[Any] = []
    for index in indices:
        value = None if index is None else value_of(index)
        if value is None or value.dtype != torch.bool:
            found.append(index)
        else:
            inners = (places.to("meta") for places in value.nonzero(as_tuple=True))
            found.extend(SimTensor(inner, index._index, simulation) for inner in inners)
    return found


def _values_in(values: Any) -> list[Any]:
    found: list[Any] = []
    for value in values:
        if isinstance(value, torch.Tensor):
            known = value_of(value)
            if known is None:
                raise LookupError
            found.append(known)
        elif isinstance(value, list | tuple):
            found.append(_values_in(value))
        else:
            found.append(value)
    return found


def _is_small_integer(tensor: torch.Tensor) -> bool:
    is_number = tensor.dtype.is_floating_point or tensor.dtype.is_complex
    return not is_number and tensor.numel() <= _MOST_ELEMENTS
