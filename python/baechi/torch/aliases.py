"""Aliases: nodes whose values share memory, and so must share a device."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch.fx import Graph, Node

from baechi.torch.trees import tensors_in

__all__ = ["alias_groups", "changed_inputs", "colocated_nodes"]

_aten = torch.ops.aten
# They change statistics in place, which their schemas do not say: positions of those arguments.
_HIDDEN_CHANGES = {
    _aten.batch_norm.default: (3, 4),
    _aten.instance_norm.default: (3, 4),
}


def colocated_nodes(graph: Graph, free: Iterable[Node] = ()) -> tuple[tuple[str, ...], ...]:
    """Groups of two or more nodes that must share a device, in program order, by name.

    Those are members of a result, and everything that shares memory with a value that some node
    changes in place. Other views may be taken of a copy elsewhere.

    Args:
        graph: its nodes have values in ``meta["val"]`` that share storage as the real ones do.
        free: placeholders that bind nobody: user inputs that nothing changes are copied wherever
            they are used.
    """
    unbound = set(free)
    aliases = _Sets()
    for first, second in _ties(graph, unbound):
        if first not in unbound:
            aliases.merge(first, second)
    changed = {
        aliases.root(used) for node in graph.nodes for used, written in _aliased(node) if written
    }
    bound = _Sets()
    for first, second in _ties(graph, unbound):
        if first not in unbound and (_is_member(second) or aliases.root(first) in changed):
            bound.merge(first, second)
    return bound.groups(graph)


def alias_groups(graph: Graph) -> tuple[tuple[str, ...], ...]:
    """Groups of two or more nodes whose values share memory, in program order, by name."""
    aliases = _Sets()
    for first, second in _ties(graph, set()):
        aliases.merge(first, second)
    return aliases.groups(graph)


class _Sets:
    """Disjoint sets of nodes; the first one stands for its set."""

    def __init__(self) -> None:
        self.parent: dict[Node, Node] = {}

    def root(self, node: Node) -> Node:
        while self.parent.setdefault(node, node) is not node:
            node = self.parent[node]
        return node

    def merge(self, first: Node, second: Node) -> None:
        self.parent[self.root(second)] = self.root(first)

    def groups(self, graph: Graph) -> tuple[tuple[str, ...], ...]:
        found: dict[Node, list[str]] = {}
        for node in graph.nodes:
            if node in self.parent:
                found.setdefault(self.root(node), []).append(node.name)
        return tuple(tuple(group) for group in found.values() if len(group) > 1)


def _is_member(node: Node) -> bool:
    return node.target is operator.getitem


def _ties(graph: Graph, free: set[Node]) -> Iterator[tuple[Node, Node]]:
    owners: dict[int, Node] = {}
    for node in graph.nodes:
        if node.op == "call_function":
            if node.target is operator.getitem:
                yield node.args[0], node
            for used, _ in _aliased(node):
                yield used, node
        if node.op != "output":
            # Also by storage: not every op that may return a view says so.
            for tensor in tensors_in(node.meta.get("val")):
                owner = owners.setdefault(tensor.untyped_storage()._cdata, node)
                if owner is not node and owner not in free:
                    yield owner, node


def _aliased(node: Node) -> Iterator[tuple[Node, bool]]:
    """The arguments that a node's result shares memory with or that it changes; True: changes."""
    for position in _HIDDEN_CHANGES.get(node.target, ()) if node.op == "call_function" else ():  # type: ignore[call-overload]
        used = node.args[position]
        if isinstance(used, Node):
            yield used, True
    schema = getattr(node.target, "_schema", None) if node.op == "call_function" else None
    if schema is None:
        return
    for position, argument in enumerate(schema.arguments):
        if argument.alias_info is None:
            continue
        given = node.args[position] if position < len(node.args) else node.kwargs.get(argument.name)
        for used in _nodes_in(given):
            yield used, bool(argument.alias_info.is_write)


def _nodes_in(value: Any) -> Iterator[Node]:
    if isinstance(value, Node):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _nodes_in(item)


def changed_inputs(graph: Graph, groups: Iterable[tuple[str, ...]]) -> frozenset[str]:
    """Names of placeholders that some node changes in place, directly or through a view."""
    group_of = {name: group for group in groups for name in group}
    changed: set[str] = set()
    for node in graph.nodes:
        if node.op == "call_function":
            for used, is_written in _aliased(node):
                if is_written:
                    changed.update(group_of.get(used.name, (used.name,)))
    return frozenset(
        node.name for node in graph.nodes if node.op == "placeholder" and node.name in changed
    )


def updates_statistics(node: Node) -> bool:
    """Whether what an op changes in place are running statistics, which carry no gradients."""
    return node.target in _HIDDEN_CHANGES


def written_nodes(node: Node) -> list[Node]:
    """The nodes whose values an op changes in place."""
    if node.op != "call_function":
        return []
    return [used for used, is_written in _aliased(node) if is_written]
