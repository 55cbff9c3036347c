"""Flattening: regions without gradients or with autocast, of which export makes graphs."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import torch
from torch._higher_order_ops.wrap import wrap_with_autocast, wrap_with_set_grad_enabled
from torch.fx import GraphModule, Node

__all__ = ["AUTOCAST", "flatten_regions"]

AUTOCAST = "baechi_autocast"
"""In a node's meta: (device type, dtype, number of the outermost region) of autocast, or None."""
_Region = tuple[str, torch.dtype, int]


def flatten_regions(
    graph_module: GraphModule, *, grad_enabled: bool, autocast: torch.dtype | None
) -> None:
    """Puts the nodes of regions in place of the region's call.

    Switching gradients off and on become nodes; under autocast, each node says so in its meta.
    """
    ambient = None if autocast is None else ("cpu", autocast, 0)
    _flatten(graph_module, grad_enabled, ambient, itertools.count(1))


def _flatten(
    graph_module: GraphModule, grad_enabled: bool, autocast: _Region | None, numbers: Iterator[int]
) -> None:
    graph = graph_module.graph
    for node in list(graph.nodes):
        if node.target is wrap_with_set_grad_enabled:
            enabled, body, *values = node.args
            inner = _body(graph_module, body)
            _flatten(inner, bool(enabled), autocast, numbers)
            with graph.inserting_before(node):
                _switch_gradients(graph, node, bool(enabled))
                made = _paste(graph, inner, values)
                _switch_gradients(graph, node, grad_enabled)
            _replace(graph, node, made)
        elif node.target is wrap_with_autocast:
            device_type, dtype, enabled, _, body, *values = node.args
            inner = _body(graph_module, body)
            dtype = dtype or torch.get_autocast_dtype(str(device_type))
            number = next(numbers) if autocast is None else autocast[2]
            region = (str(device_type), dtype, number) if enabled else None
            _flatten(inner, grad_enabled, region, numbers)
            with graph.inserting_before(node):
                made = _paste(graph, inner, values)
            _replace(graph, node, made)
        elif node.op == "call_function":
            node.meta.setdefault(AUTOCAST, autocast)
    for node in list(graph.nodes):
        if node.op == "get_attr" and not node.users:
            graph.erase_node(node)


def _body(graph_module: GraphModule, node: Any) -> GraphModule:
    assert isinstance(node, Node)
    inner = getattr(graph_module, str(node.target))
    assert isinstance(inner, GraphModule)
    return inner


def _switch_gradients(graph: torch.fx.Graph, near: Node, enabled: bool) -> None:
    node = graph.call_function(torch._C._set_grad_enabled, (enabled,))
    node.meta["nn_module_stack"] = near.meta.get("nn_module_stack", {})


def _paste(graph: torch.fx.Graph, inner: GraphModule, values: list[Any]) -> Any:
    made: dict[Node, Any] = {}
    arguments = iter(values)
    for node in inner.graph.nodes:
        if node.op == "placeholder":
            made[node] = next(arguments)
        elif node.op == "output":
            return torch.fx.node.map_arg(node.args[0], made.__getitem__)
        else:
            made[node] = graph.node_copy(node, made.__getitem__)
    raise AssertionError("a graph without an output")


def _replace(graph: torch.fx.Graph, node: Node, made: Any) -> None:
    if isinstance(made, Node):
        node.replace_all_uses_with(made)
    for user in list(node.users):
        assert len(user.args) == 2, f"{user} takes a whole result"  # getitem
        user.replace_all_uses_with(made[user.args[1]])
        graph.erase_node(user)
    graph.erase_node(node)
