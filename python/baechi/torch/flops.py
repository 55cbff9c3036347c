"""Floating-point operations of ATen ops, from shapes alone; a multiply-add is two.

PyTorch's own formulas (``torch.utils.flop_counter``) are used where they exist and are only read,
so counters of the user see nothing of ours. Ours add what is missing there: grouped and integer
matrix products, recurrent layers, attention that skips what a causal mask hides or shares heads.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import torch
from torch.utils.flop_counter import flop_registry

from baechi.torch.trees import tensors_in

__all__ = ["flops_of", "has_formula", "named_arguments", "op_class", "op_name"]

Named = Mapping[str, Any]
_Formula = Callable[[Named, Any], int]


def flops_of(
    func: torch._ops.OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any], out: Any
) -> int:
    """Counts the operations of one call; 0 for ops that multiply no matrices.

    Args:
        func: the op.
        args: what it is called with; tensors may be on the meta device or fakes.
        kwargs: the same by name.
        out: what it returns.
    """
    formula = _FORMULAS.get(op_name(func))
    if formula is not None:
        return formula(named_arguments(func, args, kwargs), out)
    registered = flop_registry.get(func.overloadpacket)
    return 0 if registered is None else int(registered(*args, **kwargs, out_val=out))


def has_formula(func: torch._ops.OpOverload) -> bool:
    """Whether the op is counted whole, without looking at what it is made of."""
    return op_name(func) in _FORMULAS or func.overloadpacket in flop_registry


def op_name(func: torch._ops.OpOverload) -> str:
    """The op's name without its overload, and without "aten::": "mm", "prims::sin"."""
    return func._schema.name.removeprefix("aten::")


def op_class(func: torch._ops.OpOverload) -> str:
    """Which efficiency of the device table holds: "matmul", "convolution", "attention", ..."""
    name = op_name(func)
    if name in _RECURRENT:
        return "recurrent"
    if "attention" in name:
        return "attention"
    if "conv" in name:
        return "convolution"
    return "matmul" if has_formula(func) else "other"


def named_arguments(
    func: torch._ops.OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> dict[str, Any]:
    """The arguments of a call by name, in the order of the op's schema, defaults included."""
    named = {}
    for position, argument in enumerate(func._schema.arguments):
        if position < len(args):
            named[argument.name] = args[position]
        elif argument.name in kwargs:
            named[argument.name] = kwargs[argument.name]
        elif argument.has_default_value():
            named[argument.name] = argument.default_value
    return named


def _contraction(named: Named, out: Any) -> int:
    """Every output element sums over the last axis of the first operand."""
    first = next(tensors_in(named))
    inner = int(first.shape[-1]) if first.dim() else 1
    return 2 * int(next(tensors_in(out)).numel()) * inner


def _dot(named: Named, _: Any) -> int:
    return 2 * int(named["self"].numel())


def _addmv(named: Named, _: Any) -> int:
    return 2 * int(named["mat"].numel())


def _linear(named: Named, _: Any) -> int:
    inner = max(1, int(named["input"].shape[-1]))
    return 2 * (int(named["input"].numel()) // inner) * int(named["weight"].numel())


def _grouped(named: Named, out: Any) -> int:
    """Groups are slices of whichever axis both operands do not have as a batch axis."""
    left = named["self"] if "self" in named else named["mat_a"]
    right = named["mat2"] if "mat2" in named else named["mat_b"]
    if left.dim() == 2 and right.dim() == 2:  # each group takes its slice of the inner axis
        return 2 * math.prod(map(int, left.shape)) * int(right.shape[-1])
    return 2 * int(next(tensors_in(out)).numel()) * int(left.shape[-1])


def _pairs(num_queries: int, num_keys: int, *, is_causal: bool) -> int:
    """How many (query, key) pairs are multiplied; a kernel skips the blocks that a mask hides."""
    if not is_causal:
        return num_queries * num_keys
    full = min(num_queries, num_keys)
    return full * (full + 1) // 2 + (num_queries - full) * num_keys


def _attention(products_with_keys: int, products_with_values: int) -> _Formula:
    """The forward pass has one product with keys and one with values, the backward five in all."""

    def formula(named: Named, _: Any) -> int:
        query, key, value = named["query"], named["key"], named["value"]
        pairs = _pairs(
            int(query.shape[-2]), int(key.shape[-2]), is_causal=bool(named.get("is_causal"))
        )
        depth = products_with_keys * int(query.shape[-1])
        depth += products_with_values * int(value.shape[-1])
        return 2 * math.prod(map(int, query.shape[:-2])) * pairs * depth

    return formula


def _recurrent(passes: int) -> _Formula:
    """Every row of the input meets every weight matrix once per pass, in every step."""

    def formula(named: Named, _: Any) -> int:
        inputs = named["input"] if "input" in named else named["data"]
        rows = int(inputs.numel()) // max(1, int(inputs.shape[-1]))
        weights = [named[name] for name in _WEIGHT_NAMES if name in named]
        sizes = [int(weight.numel()) for weight in tensors_in(weights) if weight.dim() == 2]
        return 2 * passes * rows * sum(sizes)

    return formula


_WEIGHT_NAMES: Final = ("params", "weight", "weight0", "weight1", "weight2", "w_ih", "w_hh")
_RECURRENT: Final = {
    **dict.fromkeys(("lstm", "gru", "rnn_tanh", "rnn_relu"), 1),
    **dict.fromkeys(("lstm_cell", "gru_cell", "rnn_tanh_cell", "rnn_relu_cell"), 1),
    **dict.fromkeys(("_cudnn_rnn", "miopen_rnn", "mkldnn_rnn_layer", "_lstm_mps"), 1),
    **dict.fromkeys(("_cudnn_rnn_backward", "miopen_rnn_backward", "lstm_mps_backward"), 2),
    "mkldnn_rnn_layer_backward": 2,
}
_FORWARD_ATTENTION: Final = (
    "scaled_dot_product_attention",
    "_scaled_dot_product_attention_math",
    "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_flash_attention_for_cpu",
    "_scaled_dot_product_efficient_attention",
    "_scaled_dot_product_cudnn_attention",
    "_scaled_dot_product_fused_attention_overrideable",
    "_scaled_dot_product_attention_math_for_mps",
)
_FORMULAS: Final[Mapping[str, _Formula]] = {
    "linear": _linear,
    "_grouped_mm": _grouped,
    "_scaled_grouped_mm": _grouped,
    "mv": _contraction,
    "addmv": _addmv,
    "dot": _dot,
    "vdot": _dot,
    "_int_mm": _contraction,
    "_weight_int8pack_mm": _contraction,
    "_weight_int4pack_mm": _contraction,
    "_weight_int4pack_mm_for_cpu": _contraction,
    **dict.fromkeys(_FORWARD_ATTENTION, _attention(1, 1)),
    **{f"{name}_backward": _attention(3, 2) for name in _FORWARD_ATTENTION[2:7]},
    **{name: _recurrent(passes) for name, passes in _RECURRENT.items()},
}
