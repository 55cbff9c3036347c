"""Lowering: rewrites after which a program takes the same memory on every type of device.

What stays as it is on one type of device and falls apart on another would make a plan wrong:
dropout keeps a mask of bools in one op everywhere, attention is one op wherever eager PyTorch on
the CPU runs it as one, and nothing names a device. On plain
CPU tensors a lowered program gives the model's values to the last bit.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, GraphModule, Node
from torch.nn import functional as F

__all__ = ["attention", "lower", "needs_gradient"]

_aten = torch.ops.aten
_CHECKS = {
    _aten._assert_tensor_metadata.default,
    _aten._assert_scalar.default,
    _aten._assert_async.msg,
    _aten._assert_async.default,
}
_TO = {
    _aten.to.dtype,
    _aten.to.device,
    _aten.to.dtype_layout,
    _aten.to.other,
    _aten.to.prim_Device,
    _aten.to.prim_dtype,
    _aten.to.prim_other,
    _aten._to_copy.default,
}
_IDENTITY_IN_EVAL = {
    _aten.dropout.default,
    _aten.feature_dropout.default,
    _aten.alpha_dropout.default,
}
_FLASH = 1  # of torch._fused_sdp_choice


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """Scaled dot product attention that takes flash memory on CPU, meta and simulated devices too.

    Real accelerators choose their own kernel. Elsewhere it is the CPU's flash kernel, which eager
    PyTorch chooses for CPU tensors of the same shapes; on meta it would fall apart otherwise.
    """
    if query.device.type not in ("cpu", "meta"):
        return F.scaled_dot_product_attention(
            query, key, value, mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
        )
    if mask is not None and mask.dtype == torch.bool:
        # As torch does it, so that the values are the same.
        added = torch.zeros_like(mask, dtype=query.dtype)
        mask = added.masked_fill_(mask.logical_not(), float("-inf"))
    if enable_gqa and key.shape[-3] != query.shape[-3]:
        key = key.repeat_interleave(query.shape[-3] // key.shape[-3], -3)
        value = value.repeat_interleave(query.shape[-3] // value.shape[-3], -3)
    is_single = query.dim() == 3  # without a batch: torch adds one
    if is_single:
        query, key, value = query.unsqueeze(0), key.unsqueeze(0), value.unsqueeze(0)
        mask = mask.unsqueeze(0) if mask is not None and mask.dim() == 3 else mask
    out: Tensor = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default(
        query, key, value, dropout_p, is_causal, attn_mask=mask, scale=scale
    )[0]
    return out.squeeze(0) if is_single else out


def lower(graph_module: GraphModule) -> None:
    """Rewrites a flattened graph in place."""
    graph = graph_module.graph
    for node in list(graph.nodes):
        if node.op != "call_function":
            continue
        rewrite = _rewrite_of(node)
        if rewrite is not None:
            rewrite(graph, node)
    graph.eliminate_dead_code()
    graph.lint()


def _rewrite_of(node: Node) -> Callable[[Graph, Node], None] | None:
    target = node.target
    if target in _CHECKS:
        return _drop
    if target in _TO:
        return _lower_to
    if target in _IDENTITY_IN_EVAL and not _drops(node):
        return _pass_through
    if target is _aten.dropout.default:
        return _lower_dropout
    if target is _aten.scaled_dot_product_attention.default:
        return _lower_attention
    if target is _aten.lift_fresh_copy.default:
        return _lower_literal
    if target is _aten.detach_.default and not needs_gradient(node.args[0]):
        return _pass_through
    if target is _aten.copy_.default and _is_own_change(node):
        return _drop
    return _lower_device if node.kwargs.get("device") is not None else None


def _is_own_change(node: Node) -> bool:
    """Whether a value is copied onto itself, as export does for ``self.buffer += 1``.

    It would count as another change, which autograd refuses where the value was saved.
    """
    target, source = node.args[:2]
    while isinstance(source, Node) and source is not target:
        schema = getattr(source.target, "_schema", None)
        if schema is None or not schema.arguments or schema.arguments[0].alias_info is None:
            return False
        if not schema.arguments[0].alias_info.is_write:
            return False
        source = source.args[0]
    return source is target


def _drop(graph: Graph, node: Node) -> None:
    graph.erase_node(node)


def _pass_through(graph: Graph, node: Node) -> None:
    source = node.args[0]
    assert isinstance(source, Node)
    node.replace_all_uses_with(source)
    graph.erase_node(node)


def needs_gradient(node: Any) -> bool:
    """Whether a gradient flows to a node; its recorded value has been detached."""
    described = node.meta.get("tensor_meta") if isinstance(node, Node) else None
    return bool(getattr(described, "requires_grad", False))


def _drops(node: Node) -> bool:
    """Whether a dropout does anything."""
    _, probability, training = node.args
    return bool(training) and float(probability) != 0.0  # type: ignore[arg-type]


def _swap(
    graph: Graph, node: Node, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Node:
    with graph.inserting_before(node):
        made = graph.call_function(target, args, kwargs)
    made.meta = dict(node.meta)
    node.replace_all_uses_with(made)
    graph.erase_node(node)
    return made


def _lower_to(graph: Graph, node: Node) -> None:
    """A cast stays a cast; where it only names a device or asks for what is there, it goes."""
    source = node.args[0]
    assert isinstance(source, Node)
    schema = node.target._schema  # type: ignore[union-attr]
    named = dict(zip((argument.name for argument in schema.arguments), node.args, strict=False))
    named |= node.kwargs
    before, after = source.meta["val"], node.meta["val"]
    layout = named.get("memory_format")
    keeps_layout = layout in (None, torch.preserve_format) or before.is_contiguous(
        memory_format=layout
    )
    is_copy = named.get("copy") or node.target is _aten._to_copy.default
    if before.dtype == after.dtype and keeps_layout and not is_copy:
        _pass_through(graph, node)
        return
    kwargs = {} if layout is None else {"memory_format": layout}
    _swap(graph, node, _aten._to_copy.default, (source,), {"dtype": after.dtype, **kwargs})


def _lower_dropout(graph: Graph, node: Node) -> None:
    source, probability, _ = node.args
    with graph.inserting_before(node):
        both = graph.call_function(_aten.native_dropout.default, (source, probability, True))
    both.meta = dict(node.meta)
    value = node.meta["val"]
    both.meta["val"] = (value, torch.empty_like(value, dtype=torch.bool))
    _swap(graph, node, operator.getitem, (both, 0), {})


def _lower_attention(graph: Graph, node: Node) -> None:
    names = [argument.name for argument in node.target._schema.arguments]  # type: ignore[union-attr]
    named = dict(zip(names, node.args, strict=False)) | dict(node.kwargs)
    real = {name: _unwritten(value) for name, value in named.items()}
    # Asked with empty CPU tensors, so the answer is what eager PyTorch does on the CPU.
    with torch.set_grad_enabled(True):
        if torch._fused_sdp_choice(**real) != _FLASH:
            return
    args = tuple(named.pop(name) for name in ("query", "key", "value"))
    named = {"mask" if name == "attn_mask" else name: value for name, value in named.items()}
    _swap(graph, node, attention, args, named)


def _unwritten(value: Any) -> Any:
    if not isinstance(value, Node):
        return value
    like = value.meta["val"]
    made = torch.empty_strided(like.shape, like.stride(), dtype=like.dtype, device="cpu")
    return made.requires_grad_(needs_gradient(value))


def _lower_literal(graph: Graph, node: Node) -> None:
    _swap(graph, node, _aten.clone.default, (node.args[0],), {})


def _lower_device(graph: Graph, node: Node) -> None:
    """No device is named where an operand has one; factories name meta until they are placed."""
    has_operand = any(True for _ in node.all_input_nodes)
    kwargs = dict(node.kwargs)
    if has_operand:
        del kwargs["device"]
    else:
        kwargs["device"] = torch.device("meta")
    node.kwargs = kwargs
