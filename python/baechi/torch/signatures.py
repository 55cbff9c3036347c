"""Signatures: what tells the price of one call from that of another, as one line of text.

Two calls with the same signature run the same op on operands of the same shapes, types and strides
with the same other arguments, so they cost the same on one device. Devices do not count, so that a
graph that was captured on the meta device finds the times that were measured on a real one.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import torch

__all__ = ["Call", "signature_of"]

Call = tuple[torch._ops.OpOverload, Sequence[Any], Mapping[str, Any], Any]
"""An op, its arguments by position and by name, and what it returned."""


def signature_of(
    func: torch._ops.OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> str:
    """Writes a call down without values and devices.

    >>> add = torch.ops.aten.add.Tensor
    >>> signature_of(add, (torch.ones(2, 3), torch.ones(3)), {"alpha": 2})
    'aten.add.Tensor(float32[2,3], float32[3], alpha=2)'

    Strides stand behind the shape where a tensor is not contiguous:

    >>> signature_of(torch.ops.aten.relu.default, (torch.ones(2, 3).t(),), {})
    'aten.relu.default(float32[3,2;1,3])'
    """
    parts = [_text(value) for value in args]
    parts += [f"{name}={_text(kwargs[name])}" for name in sorted(kwargs) if name != "device"]
    return f"{func}({', '.join(parts)})"


def _text(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return _tensor_text(value)
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_text, value))}]"
    if isinstance(value, torch.device):
        return "device"
    if isinstance(value, torch.SymInt):
        return str(int(value))
    if isinstance(value, torch.dtype):
        return _dtype_text(value)
    return repr(value) if isinstance(value, bool | int | float | str | None) else str(value)


def _tensor_text(tensor: torch.Tensor) -> str:
    shape = ",".join(str(int(size)) for size in tensor.shape)
    strides = ""
    if tensor.layout is not torch.strided:
        strides = f";{tensor.layout}"
    elif not tensor.is_contiguous():
        strides = ";" + ",".join(str(int(stride)) for stride in tensor.stride())
    return f"{_dtype_text(tensor.dtype)}[{shape}{strides}]"


@functools.cache
def _dtype_text(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
