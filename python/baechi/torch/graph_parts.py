"""Graph parts: the stretches of a placed graph between copies, each a graph on one device.

A part is what a device is given between one copy and the next that it sends or receives, so that
no copy leaves later than in the whole graph. Each device is given its ops in the order that they
had there, and ops that draw random numbers keep theirs over all devices.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

from baechi.torch.aliases import written_nodes
from baechi.torch.node_places import PLACE
from baechi.torch.outlining import outline
from baechi.torch.recomputing import Recomputed
from baechi.torch.streams import cross_copy

__all__ = ["compile_parts", "parts_of"]


def compile_parts(
    graph_module: GraphModule, compiled: Callable[[Callable[..., Any]], Callable[..., Any]]
) -> None:
    """Compiles the parts of a placed graph, and regions on one device that it computes again.

    A part of a single op stays as it is: there is nothing in it to fuse. So do regions on several
    devices: what is computed again cannot be compiled in pieces.

    Args:
        graph_module: changed in place.
        compiled: takes a part to what is called in its place.
    """
    for node in graph_module.graph.nodes:
        if isinstance(node.target, Recomputed) and _is_on_one_device(node.target.part.graph):
            node.target = compiled(node.target)
    for nodes in parts_of(graph_module.graph):
        if sum(node.target is not operator.getitem for node in nodes) > 1:
            outline(graph_module, nodes, lambda part, reads: compiled(part))
    graph_module.graph.lint()
    graph_module.recompile()


def parts_of(graph: Graph) -> list[list[Node]]:
    """The nodes of each part, in the order of the graph; parts in the order of their last nodes."""
    cut = _Cut()
    for node in graph.nodes:
        if node.op == "call_function":
            cut.take(node)
    cut.close_all()
    return cut.closed


class _Cut:
    """The parts that are whole, and for each device the one that may go on."""

    def __init__(self) -> None:
        self.closed: list[list[Node]] = []
        self._open: dict[torch.device, list[Node]] = {}
        self._drew: torch.device | None = None

    def take(self, node: Node) -> None:
        """Puts the next node of the graph into a part, or ends parts before it."""
        if node.target is cross_copy:
            value, destination = node.args
            self._copy(value, destination)
        elif node.target is operator.getitem and _is_outside(node.args[0]):
            return
        elif _is_outside(node):  # regions, write-backs, gradients switched on or off
            self.close_all()
        else:
            self._compute(node, node.meta[PLACE])

    def _compute(self, node: Node, device: torch.device) -> None:
        if torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ()):
            if self._drew not in (None, device):
                self._close(self._drew)
            self._drew = device
        self._open.setdefault(device, []).append(node)

    def _copy(self, value: Any, destination: Any) -> None:
        if value.op == "placeholder":  # it is there from the start, unless a part changes it
            for device, nodes in list(self._open.items()):
                if any(map(written_nodes, nodes)):
                    self._close(device)
        else:
            self._close(value.meta.get(PLACE))
            self._close(destination)

    def _close(self, device: torch.device | None) -> None:
        if device in self._open:
            self.closed.append(self._open.pop(device))

    def close_all(self) -> None:
        """Ends all parts."""
        for device in list(self._open):
            self._close(device)


def _is_outside(node: Any) -> bool:
    return node.op == "call_function" and PLACE not in node.meta


def _is_on_one_device(graph: Graph) -> bool:
    nodes = [node for node in graph.nodes if node.op == "call_function"]
    return len({node.meta.get(PLACE) for node in nodes}) == 1  # copies have no place
