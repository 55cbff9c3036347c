"""Autocasting: the casts that autocast makes inside ops, as ops of the graph."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, GraphModule, Node
from torch.utils._python_dispatch import TorchDispatchMode

from baechi.torch.flattening import AUTOCAST
from baechi.torch.trees import tensors_in

__all__ = ["make_casts_explicit"]

_aten = torch.ops.aten
_CASTS = {"aten::to", "aten::_to_copy"}


def make_casts_explicit(graph_module: GraphModule) -> None:
    """Puts a cast before each op that autocast would make one in, with the same values.

    Which ops those are is asked of torch, op by op, on the values of the graph.
    """
    graph = graph_module.graph
    casts: dict[tuple[Any, ...], Node] = {}
    answers: dict[tuple[Any, ...], dict[int, torch.dtype]] = {}
    for node in list(graph.nodes):
        if node.op == "call_function" and node.meta.get(AUTOCAST) is not None:
            _cast_inputs(graph, node, casts, answers)


class _CastsOfInputs(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes to what dtype an op under autocast casts the tensors that it is given."""

    def __init__(self, given: list[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.given = given
        self.casts: dict[int, torch.dtype] = {}

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if func is _aten._to_copy.default and (kwargs or {}).get("dtype") is not None:
            for at, tensor in enumerate(self.given):
                if tensor is args[0]:
                    self.casts[at] = (kwargs or {})["dtype"]
        return func(*args, **(kwargs or {}))


def _cast_inputs(
    graph: Graph,
    node: Node,
    casts: dict[tuple[Any, ...], Node],
    answers: dict[tuple[Any, ...], dict[int, torch.dtype]],
) -> None:
    """Makes the casts of autocast nodes of the graph; those of weights are made once, as there."""
    _, _, region = node.meta[AUTOCAST]
    nodes = [n for n in node.all_input_nodes if isinstance(n.meta.get("val"), Tensor)]
    if not any(n.meta["val"].is_floating_point() for n in nodes):
        return
    if not hasattr(node.target, "_schema") or node.target._schema.name in _CASTS:
        return
    for at, to in _casts_of(node, nodes, answers).items():
        source = nodes[at]
        key = (source, to, region)
        is_cached = source.op == "placeholder" and source.meta["val"].requires_grad
        if not is_cached or key not in casts:
            with graph.inserting_before(node):
                casts[key] = graph.call_function(_aten._to_copy.default, (source,), {"dtype": to})
            casts[key].meta = dict(node.meta) | {"val": source.meta["val"].to(to)}
        node.replace_input_with(source, casts[key])


def _casts_of(
    node: Node, nodes: list[Node], answers: dict[tuple[Any, ...], dict[int, torch.dtype]]
) -> dict[int, torch.dtype]:
    """To what type the op casts which of its input nodes; the same op is asked once."""
    device_type, dtype, _ = node.meta[AUTOCAST]
    number = {n: f"%{at}" for at, n in enumerate(nodes)}
    form = torch.fx.node.map_arg(
        (node.args, node.kwargs), lambda n: number.get(n, n.meta.get("val"))
    )
    types = tuple((n.meta["val"].shape, n.meta["val"].dtype) for n in nodes)
    key = (node.target, device_type, dtype, types, repr(form))
    if key not in answers:
        given = {n: n.meta["val"].detach() for n in nodes}
        noticed = _CastsOfInputs(list(given.values()))
        lookup = lambda n: given.get(n, n.meta.get("val"))  # noqa: E731
        args, kwargs = torch.fx.node.map_arg((node.args, node.kwargs), lookup)
        with torch.no_grad(), torch.autocast(device_type, dtype, cache_enabled=False), noticed:
            made = node.target(*args, **kwargs)  # type: ignore[operator]
        shapes = [t.shape for t in tensors_in(node.meta["val"])]
        assert [t.shape for t in tensors_in(made)] == shapes
        answers[key] = noticed.casts
    return answers[key]
