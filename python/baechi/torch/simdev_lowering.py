"""How composite ops come apart on simulated devices: into the kernels that the CPU would run.

Torch takes a composite op apart by the type of the device, and "meta" is neither a CPU nor a GPU.
These functions stand in for its choice while a simulation is on, above autograd.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from baechi.torch.simdev_rnn import ON_META, RECURRENT
from baechi.torch.simdev_tensor import SimTensor

__all__ = ["LOWERINGS", "lowered"]

aten = torch.ops.aten
_FLASH_ATTENTION = 1  # of at::SDPBackend


def dropout(input: torch.Tensor, p: float, train: bool) -> torch.Tensor:
    """As on a GPU: one op with a mask of bools. Draws are those of the CPU."""
    if not train or p == 0 or p == 1 or input.numel() == 0:
        return aten.dropout.default.decompose(input, p, train)  # type: ignore[no-any-return]
    return aten.native_dropout(input, p, True)[0]  # type: ignore[no-any-return]


def weight_norm(v: torch.Tensor, g: torch.Tensor, dim: int = 0) -> torch.Tensor:
    """One op, as on CPUs and GPUs, where the norm is over all dimensions but an outer one."""
    if dim not in (0, v.dim() - 1):
        return aten._weight_norm.default.decompose(v, g, dim)  # type: ignore[no-any-return]
    return aten._weight_norm_interface(v.contiguous(), g.contiguous(), dim)[0]  # type: ignore[no-any-return]


def scaled_dot_product_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """The flash kernel where the CPU would take it, else matrix products and a softmax."""
    with _disable_current_modes():  # a trace is not to see what is asked here
        choice = torch._fused_sdp_choice(
            _on_cpu(query),
            _on_cpu(key),
            _on_cpu(value),
            None if attn_mask is None else _on_cpu(attn_mask),
            dropout_p,
            is_causal,
            scale=scale,
            enable_gqa=enable_gqa,
        )
    if choice != _FLASH_ATTENTION:
        return aten.scaled_dot_product_attention.default.decompose(  # type: ignore[no-any-return]
            query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
        )
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        attn_mask = torch.zeros_like(attn_mask, dtype=query.dtype).masked_fill_(
            attn_mask.logical_not(), float("-inf")
        )
    is_single = query.dim() == 3  # without a batch: torch adds one
    if is_single:
        query, key, value = query.unsqueeze(0), key.unsqueeze(0), value.unsqueeze(0)
        if attn_mask is not None and attn_mask.dim() == 3:
            attn_mask = attn_mask.unsqueeze(0)
    out: torch.Tensor = aten._scaled_dot_product_flash_attention_for_cpu(
        query, key, value, dropout_p, is_causal, attn_mask=attn_mask, scale=scale
    )[0]
    return out.squeeze(0) if is_single else out


def mish_backward(grad_output: SimTensor, self: SimTensor) -> torch.Tensor:
    """The kernel of CPUs and GPUs; torch has none for meta, and would take the op apart."""
    op = aten.mish_backward.default
    return grad_output._simulation.run(op, (grad_output, self), {})  # type: ignore[no-any-return]


LOWERINGS: dict[Any, Callable[..., Any]] = {
    aten.dropout.default: dropout,
    aten._weight_norm.default: weight_norm,
    aten.mish_backward.default: mish_backward,
    **RECURRENT,
    aten.scaled_dot_product_attention.default: scaled_dot_product_attention,
}


_OF_PLAIN = (
    aten.dropout.default,
    aten._weight_norm.default,
    aten.scaled_dot_product_attention.default,
    *RECURRENT,
)


@contextmanager
def lowered(*, plain: bool = False) -> Iterator[None]:
    """Lets composite ops of simulated tensors come apart as here; other meta tensors are spared.

    Args:
        plain: the main ones of plain meta tensors, too: a trace sees what a simulation will.
    """
    library = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]
    try:
        for op, function in LOWERINGS.items():
            kernel = _for_simulated(op, function, plain=plain and op in _OF_PLAIN)
            library.impl(op, kernel, "AutogradMeta")  # type: ignore[no-untyped-call]
        for op, function in ON_META.items():
            library.impl(op, function, "Meta")  # type: ignore[no-untyped-call]
        yield
    finally:
        library._destroy()  # type: ignore[no-untyped-call]


def _for_simulated(op: Any, function: Callable[..., Any], *, plain: bool) -> Callable[..., Any]:
    @functools.wraps(function)
    def kernel(first: Any, *args: Any, **kwargs: Any) -> Any:
        if plain or isinstance(first, SimTensor):
            return function(first, *args, **kwargs)
        return op.decompose(first, *args, **kwargs)

    return kernel


def _on_cpu(tensor: torch.Tensor) -> torch.Tensor:
    """A CPU tensor of the same shape; memory that nobody touches takes none."""
    inner = tensor._inner if isinstance(tensor, SimTensor) else tensor
    if inner.is_meta:
        inner = torch.empty_strided(inner.size(), inner.stride(), dtype=inner.dtype, device="cpu")
    return inner.detach().requires_grad_(tensor.requires_grad)
