"""Autocasting: the casts that autocast makes inside ops, as ops of the graph."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
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


def make_casts_explicit(graph_module: GraphModule) -> tuple[str, ...]:
    """Puts a cast before each op that autocast would make one in, with the same values.

    Which ops those are is asked of torch, op by op, on the values of the graph.

    Returns:
        The names of ops that fall apart into others with casts between these, such as recurrent
        layers: to cast their inputs is not all that autocast does.
    """
    graph = graph_module.graph
    casts: dict[tuple[Any, ...], Node] = {}
    answers: dict[tuple[Any, ...], _Answer] = {}
    inside: dict[str, None] = {}
    for node in list(graph.nodes):
        if node.op == "call_function" and node.meta.get(AUTOCAST) is not None:
            answer = _cast_inputs(graph, node, casts, answers)
            if answer is not None and not answer.is_all:
                inside[str(node.target).split(".")[1]] = None
    return tuple(inside)


@dataclasses.dataclass(frozen=True)
class _Answer:
    """To what types an op casts its inputs, by their number, and whether that is all it casts."""

    casts: Mapping[int, torch.dtype]
    is_all: bool


class _CastsOfInputs(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes to what dtype an op under autocast casts the tensors that it is given."""

    def __init__(self, given: list[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.given = given
        self.casts: dict[int, torch.dtype] = {}
        self.is_casting = False
        self.kernels: list[tuple[Any, ...]] = []  # those that ran, and types of their operands

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if func is _aten._to_copy.default and (kwargs or {}).get("dtype") is not None:
            self.is_casting = True
            for at, tensor in enumerate(self.given):
                if tensor is args[0]:
                    self.casts[at] = (kwargs or {})["dtype"]
        elif func is not torch.ops.prim.device.default:
            self.kernels.append((func, *(t.dtype for t in tensors_in((args, kwargs or {})))))
        return func(*args, **(kwargs or {}))


def _cast_inputs(
    graph: Graph,
    node: Node,
    casts: dict[tuple[Any, ...], Node],
    answers: dict[tuple[Any, ...], _Answer],
) -> _Answer | None:
    """Makes the casts of autocast nodes of the graph; those of weights are made once, as there."""
    _, _, region = node.meta[AUTOCAST]
    nodes = [n for n in node.all_input_nodes if isinstance(n.meta.get("val"), Tensor)]
    if not any(n.meta["val"].is_floating_point() for n in nodes):
        return None
    if not hasattr(node.target, "_schema") or node.target._schema.name in _CASTS:
        return None
    answer = _casts_of(node, nodes, answers)
    for at, to in answer.casts.items():
        source = nodes[at]
        key = (source, to, region)
        is_cached = source.op == "placeholder" and source.meta["val"].requires_grad
        if not is_cached or key not in casts:
            with graph.inserting_before(node):
                casts[key] = graph.call_function(_aten._to_copy.default, (source,), {"dtype": to})
            casts[key].meta = dict(node.meta) | {"val": source.meta["val"].to(to)}
        node.replace_input_with(source, casts[key])
    return answer


def _casts_of(node: Node, nodes: list[Node], answers: dict[tuple[Any, ...], _Answer]) -> _Answer:
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
        with torch.autocast(device_type, dtype, cache_enabled=False):
            noticed = _noticed(node, given)
        cast = {n: t.to(noticed.casts.get(at)) for at, (n, t) in enumerate(given.items())}
        try:
            with torch.autocast(device_type, enabled=False):
                is_all = not noticed.is_casting or _noticed(node, cast).kernels == noticed.kernels
        except RuntimeError:  # types do not fit without the casts inside
            is_all = False
        answers[key] = _Answer(noticed.casts, is_all)
    return answers[key]


def _noticed(node: Node, given: Mapping[Node, Tensor]) -> _CastsOfInputs:
    """Runs an op on these values of its input nodes."""
    noticed = _CastsOfInputs(list(given.values()))
    lookup = lambda n: given.get(n, n.meta.get("val"))  # noqa: E731
    args, kwargs = torch.fx.node.map_arg((node.args, node.kwargs), lookup)
    with torch.no_grad(), noticed:
        made = node.target(*args, **kwargs)  # type: ignore[operator]
    shapes = [t.shape for t in tensors_in(node.meta["val"])]
    assert [t.shape for t in tensors_in(made)] == shapes
    return noticed
