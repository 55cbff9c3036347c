"""Outlining: nodes of a graph become one call of a graph of their own."""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Sequence
from typing import Any

from torch.fx import Graph, GraphModule, Node

__all__ = ["outline"]


def outline(
    graph_module: GraphModule,
    nodes: Sequence[Node],
    make: Callable[[GraphModule, Sequence[Node]], Callable[..., Any]],
    *,
    first: Collection[Node] = (),
) -> None:
    """Puts one call in the place of the last of some nodes; the caller recompiles.

    Args:
        graph_module: changed in place.
        nodes: in the order of the graph; nobody else may need what they give before the last one.
        make: takes their graph, and what it reads from outside, to what is called.
        first: of what is read, those that come before the others.
    """
    graph = graph_module.graph
    inside, ahead = set(nodes), set(first)
    found = dict.fromkeys(n for node in nodes for n in node.all_input_nodes if n not in inside)
    reads = sorted(found, key=lambda node: node not in ahead)
    gives = [node for node in nodes if any(user not in inside for user in node.users)]
    part = Graph()
    made = {node: part.placeholder(node.name) for node in reads}
    for node in nodes:
        made[node] = part.node_copy(node, made.__getitem__)
    part.output(tuple(made[node] for node in gives))
    target = make(GraphModule(graph_module, part), reads)
    with graph.inserting_after(nodes[-1]):
        call = graph.call_function(target, tuple(reads))
    with graph.inserting_before(call.next):
        for position, node in enumerate(gives):
            out = graph.call_function(operator.getitem, (call, position))
            out.meta = dict(node.meta)
            node.replace_all_uses_with(out, delete_user_cb=lambda user: user not in inside)
    for node in reversed(nodes):
        graph.erase_node(node)
