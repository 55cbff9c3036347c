"""Placed graph: a program with every op on the device that a placement gives it.

One graph pass: each value crosses to another device once, before its first use there, and the copy
is dropped after its last use; ops that make tensors from nothing name their device. The weights
stay the model's: each call fetches them from its modules, so replaced parameters, loaded weights
and copies of the model work.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import Graph, GraphModule, Node
from torch.fx._lazy_graph_module import _LazyGraphModule

from baechi.torch.aliases import written_nodes
from baechi.torch.fetching import AttributesOnDevices, compile_fetch
from baechi.torch.node_places import PLACE, is_placed, places_of
from baechi.torch.program import Program, ProgramInput
from baechi.torch.recomputing import recompute_regions
from baechi.torch.streams import cross_copy

__all__ = ["CopyNode", "PlacedProgram", "is_placed", "place_program"]


@dataclasses.dataclass(frozen=True, slots=True)
class CopyNode:
    """A copy that the graph makes in each forward.

    Attributes:
        value: the program's node whose value crosses.
        source: None where the value is a user input, which may be anywhere.
        has_gradient: whether backward brings a gradient of the same size back.
        region: number of the checkpointed region that it is in, and so made again in backward.
    """

    value: str
    source: torch.device | None
    destination: torch.device
    nbytes: int
    has_gradient: bool
    region: int | None


@dataclasses.dataclass(eq=False)
class PlacedProgram:
    """A placed graph, called with the model that owns the weights."""

    program: Program
    graph_module: GraphModule
    copies: tuple[CopyNode, ...]
    _fetch: Callable[[nn.Module], tuple[Tensor, ...]]
    _attributes: AttributesOnDevices
    _literals: tuple[tuple[Tensor, torch.device], ...]
    _users: tuple[int, ...]
    _on_device: tuple[Tensor, ...] | None = None

    def __call__(self, model: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """The model's output for one call of the planned structure."""
        outputs = self.run(model, self.program.bind(args, kwargs))
        return self.program.rebuild(outputs)

    def run(self, model: nn.Module, tensors: Sequence[Tensor]) -> Sequence[Any]:
        """Takes the flat user inputs to the flat outputs, each where it was computed."""
        if self._on_device is None:
            self._on_device = tuple(cross_copy(value, home) for value, home in self._literals)
        given = [tensors[index] for index in self._users]
        is_enabled = torch.is_grad_enabled()
        try:
            outputs: Sequence[Any] = self.graph_module.forward(
                *self._fetch(model), *self._attributes(model), *self._on_device, *given
            )
        except BaseException:
            # It may have happened where the program had switched gradients off.
            torch._C._set_grad_enabled(is_enabled)
            raise
        return outputs


def place_program(
    program: Program,
    device_of: Mapping[str, torch.device],
    home_of: Mapping[str, torch.device],
) -> PlacedProgram:
    """Puts copies between the ops of a program.

    Args:
        program: what `capture` made; it stays as it is.
        device_of: the device of each op, by node name.
        home_of: where each parameter and buffer lies, by the name in the program's inputs.

    Raises:
        InputError: an op or a weight has no device, or ops that must share one do not.
    """
    given = dict(zip(_placeholders(program), program.inputs, strict=True))
    places = places_of(program, given, device_of, home_of)
    placing = _Placing(program, given, places)
    graph = placing.build()
    owned = [node for node, one in given.items() if node.users and _is_fetched(one)]
    attributes = [node for node, one in given.items() if node.users and one.attribute is not None]
    literals = [node for node, one in given.items() if node.users and _is_literal(one)]
    users = [node for node, one in given.items() if node.users and one.kind == "user"]
    weights = [placing.placeholder(node) for node in (*owned, *attributes, *literals)]
    _order_placeholders(graph, [*weights, *map(placing.placeholder, users)])
    graph_module = _LazyGraphModule(program.graph_module, graph)
    copies = placing.copies()
    recompute_regions(graph_module, placing.regions, program.checkpointed, weights)
    graph_module.graph.lint()
    graph_module.recompile()
    return PlacedProgram(
        program,
        graph_module,
        copies,
        compile_fetch([given[node] for node in owned]),
        AttributesOnDevices([given[n] for n in attributes], [places[n] for n in attributes]),
        tuple((_value(given[node]), places[node]) for node in literals),
        tuple(given[node].index for node in users),
    )


def _placeholders(program: Program) -> list[Node]:
    return [node for node in program.graph_module.graph.nodes if node.op == "placeholder"]


def _is_fetched(given: ProgramInput) -> bool:
    return given.kind in ("parameter", "buffer")


def _is_literal(given: ProgramInput) -> bool:
    return given.kind == "constant" and given.attribute is None


def _value(given: ProgramInput) -> Tensor:
    assert given.value is not None
    return given.value


class _Placing:
    """Builds the placed graph: which node stands for which, and which copies are good."""

    def __init__(
        self,
        program: Program,
        given: Mapping[Node, ProgramInput],
        places: Mapping[Node, torch.device],
    ) -> None:
        self.program, self.given, self.places = program, given, places
        self.graph = Graph()
        self.made: dict[Node, Node] = {}
        self._copies: dict[Node, CopyNode] = {}
        self.regions: dict[Node, int] = {}  # of the new graph's nodes
        self._good: dict[tuple[Node, torch.device], Node] = {}
        self._region: int | None = None
        self._region_of = {
            name: number
            for number, region in enumerate(program.checkpointed)
            for name in region.nodes
        }
        self._changed = {
            node.name
            for node, one in given.items()
            if one.kind == "user" and one.name in program.mutated
        }
        # The node that turned gradients off, while they are, and the program's nodes made since.
        self._gradients_off: Node | None = None
        self._made_without: set[Node] = set()
        self._given_in: dict[Node, Node] = {}  # changed user inputs, before they are copied
        self._group_of = {name: group for group in program.colocated for name in group}

    def build(self) -> Graph:
        """The new graph."""
        for node in self.program.graph_module.graph.nodes:
            if node.op == "output":
                self._give_back()
            self._enter_region(self._region_of.get(node.name))
            device = self.places.get(node)
            made = self.graph.node_copy(node, functools.partial(self._at, device=device))
            self.made[node] = self._in_region(made)
            if node.target is torch._C._set_grad_enabled:
                self._gradients_off = None if node.args[0] else self._gradients_off or made
            elif self._gradients_off is not None:
                self._made_without.add(node)
            if device is not None:
                made.meta[PLACE] = device
            if "device" in made.kwargs:
                made.kwargs = {**made.kwargs, "device": device}
            if node.name in self._changed:
                # The only copy of it in the graph, which the ops that change it work on.
                self._given_in[node] = made
                self.made[node] = self._copy(node, made, self.places[node])
            self._forget_copies(written_nodes(node))
        return self.graph

    def _in_region(self, made: Node) -> Node:
        if self._region is not None:
            self.regions[made] = self._region
        return made

    def placeholder(self, node: Node) -> Node:
        """The new graph's placeholder for one of the program's."""
        return self._given_in.get(node, self.made[node])

    def _enter_region(self, region: int | None) -> None:
        if region == self._region:
            return
        if self._region is not None:
            # What is made in a region is made again in backward: nobody outside counts on it.
            inside = {key for key, copy in self._good.items() if copy in self.regions}
            self._good = {key: copy for key, copy in self._good.items() if key not in inside}
        self._region = region

    def _at(self, node: Node, device: torch.device | None) -> Node:
        """What an op on the device reads for a node of the program."""
        made = self.made[node]
        source = self.places.get(node)
        value = node.meta["val"]
        if device is None or source == device or not isinstance(value, Tensor):
            return made
        key = (node, device)
        if key not in self._good:
            self._good[key] = self._copy(node, made, device)
        return self._good[key]

    def _copy(self, node: Node, made: Node, device: torch.device) -> Node:
        value: Tensor = node.meta["val"]
        source = self.places.get(node) if node.name not in self._changed else None
        nbytes = value.numel() * value.element_size()
        with self._before_gradients_end(node):
            copy = self.graph.call_function(cross_copy, (made, device))
        copy.meta = {"val": value}
        self._copies[copy] = CopyNode(node.name, source, device, nbytes, False, self._region)
        return self._in_region(copy)

    def _before_gradients_end(self, node: Node) -> AbstractContextManager[None]:
        """Where a copy is made: while its value has gradients, as later readers may need them."""
        off = self._gradients_off
        if off is None or node in self._made_without or self.regions.get(off) != self._region:
            return contextlib.nullcontext()
        return self.graph.inserting_before(off)

    def copies(self) -> tuple[CopyNode, ...]:
        """The copies, in order; asked when the graph is whole."""
        with_gradient = _with_gradient(self.graph)
        return tuple(
            dataclasses.replace(copy, has_gradient=node in with_gradient)
            for node, copy in self._copies.items()
        )

    def _forget_copies(self, written: Sequence[Node]) -> None:
        """Copies of a value that was changed in place are old."""
        names = {name for node in written for name in self._group_of.get(node.name, (node.name,))}
        if names:
            self._good = {key: copy for key, copy in self._good.items() if key[0].name not in names}

    def _give_back(self) -> None:
        """User inputs that were changed on a device are changed where the user has them."""
        for node, raw in self._given_in.items():
            self.graph.call_function(write_back, (raw, self.made[node]))


def _with_gradient(graph: Graph) -> set[Node]:
    """The nodes from which a gradient-carrying path leads to an output."""
    met: set[Node] = set()
    for node in reversed(graph.nodes):
        if node.op == "output":
            met.update(node.all_input_nodes)
        elif node in met:
            value = node.meta.get("val")
            if isinstance(value, Tensor) and not value.requires_grad:
                met.discard(node)
            else:
                met.update(node.all_input_nodes)
    return met


def write_back(given: Tensor, changed: Tensor) -> None:
    """Changes what the caller passed as its copy on a device was changed."""
    if given is not changed:
        with torch.no_grad():
            given.copy_(changed)


torch.fx.node.has_side_effect(write_back)


def _order_placeholders(graph: Graph, wanted: Sequence[Node]) -> None:
    """The graph takes these values, in this order, and no others."""
    for node in [node for node in graph.nodes if node.op == "placeholder"]:
        if node not in wanted:
            graph.erase_node(node)
    for node in reversed(wanted):
        next(iter(graph.nodes)).prepend(node)
