"""The device of every op of a program, from devices of modules: the rule of plans, ahead of time.

It is what `flat_trace.lay_out` does with a trace, without one, so that applying needs none.

An op of a module without children, and one that reads a weight of its own module, runs on the
module's device. An op of a module with children that reads another's weight runs where that is.
Any other op is glue: it runs where all that is in its module runs; or, if that is on several
devices, where most bytes of its operands are, copies that earlier ops needed included, most
operands and then the first one deciding a tie; or, if it reads nothing that has a device, where
its result is first read. What shares memory shares a device.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.fx import Node

from baechi.torch.module_homes import device_at
from baechi.torch.modules import prefixes
from baechi.torch.parameters import ties
from baechi.torch.program import Program

__all__ = ["ModulePlacement"]


@dataclass(frozen=True)
class ModulePlacement:
    """Where modules go, by path; and ops that go elsewhere than the rule says, by key."""

    modules: Mapping[str, torch.device]
    ops: Mapping[str, torch.device] = field(default_factory=dict)

    def device_of(self, path: str) -> torch.device:
        """The device of a module: that of the longest dotted prefix of its path."""
        return device_at(path, self.modules)

    def place(
        self, model: nn.Module, program: Program
    ) -> tuple[dict[str, torch.device], dict[str, torch.device]]:
        """Devices of the program's ops by node name, and of its weights by name."""
        rule = _Rule(self, model, program)
        rule.place_units()
        rule.place_glue()
        rule.place_by_readers()
        return {node.name: rule.places[node] for node in rule.ops}, rule.homes


class _Rule:
    """The state of one application of the rule."""

    def __init__(self, placement: ModulePlacement, model: nn.Module, program: Program) -> None:
        self.placement, self.program = placement, program
        nodes = list(program.graph_module.graph.nodes)
        self.ops = [node for node in nodes if node.name in program.keys and _has_device(node)]
        self.places: dict[Node, torch.device] = {}
        self.homes: dict[str, torch.device] = {}
        names = {name: [other for other, _ in group] for group in ties(model) for name, _ in group}
        self.parents = {path for path, x in model.named_modules() if next(x.children(), None)}
        paths: dict[nn.Module, list[str]] = {}
        for path, module in model.named_modules(remove_duplicate=False):
            paths.setdefault(module, []).append(path)
        self.paths_of = {path: known for known in paths.values() for path in known}
        self.owners: dict[Node, list[str]] = {}
        placeholders = [node for node in nodes if node.op == "placeholder"]
        for node, given in zip(placeholders, program.inputs, strict=True):
            if given.kind in ("parameter", "buffer"):
                tied = names.get(given.name, [given.name])
                self.owners[node] = [name.rpartition(".")[0] for name in tied]
                self.homes[given.name] = self.places[node] = self.placement.device_of(
                    self.owners[node][0]
                )
        for node in self.ops:  # a view of a weight is that weight
            first = node.all_input_nodes[0] if node.all_input_nodes else None
            if first in self.owners and getattr(node.target, "is_view", False):
                self.owners[node] = self.owners[first]
        by_name = {node.name: node for node in nodes}
        self.groups = [[by_name[name] for name in group] for group in program.colocated]
        self.group_of = {node: group for group in self.groups for node in group}

    def place_units(self) -> None:
        """Exceptions, ops of units, and all that shares memory with weights or with those."""
        exceptions = self.placement.ops
        for node in self.ops:
            key = self.program.keys[node.name]
            unit = self._unit(node)
            if key in exceptions:
                self.places[node] = exceptions[key]
            elif unit is not None:
                self.places[node] = self.placement.device_of(unit)
        for group in self.groups:
            known = sorted(
                (node for node in group if node in self.places), key=lambda x: x.op != "placeholder"
            )
            if known:  # weights first: they are at home
                self.places.update(dict.fromkeys(group, self.places[known[0]]))

    def _devices_inside(self) -> dict[str, set[torch.device]]:
        """Devices of the units in every module."""
        units = {unit for node in self.ops if (unit := self._unit(node)) is not None}
        units |= {owners[0] for node, owners in self.owners.items() if node.op == "placeholder"}
        inside: dict[str, set[torch.device]] = {}
        for path in units:
            for other in self.paths_of[path]:
                for prefix in prefixes(other):
                    inside.setdefault(prefix, set()).add(self.placement.device_of(path))
        return inside

    def _unit(self, node: Node) -> str | None:
        path = self.program.module_paths[node.name]
        read = [used for used in node.all_input_nodes if used in self.owners]
        if path not in self.parents or any(path in self.owners[used] for used in read):
            return path
        direct = [self.owners[used] for used in read if used.op == "placeholder"]
        return direct[0][0] if direct else None

    def place_glue(self) -> None:
        """Ops that read something with a device, in program order."""
        inside = self._devices_inside()
        copied: set[tuple[Node, torch.device]] = set()
        for node in self.ops:
            reads = node.all_input_nodes
            if node not in self.places:
                here = inside.get(self.program.module_paths[node.name], set())
                held = {self.places[used]: (0, 0) for used in reads if used in self.places}
                for used in reads:
                    for device, (nbytes, count) in held.items():
                        if self.places.get(used) == device or (used, device) in copied:
                            held[device] = nbytes + _bytes_of(used), count + 1
                if len(here) == 1:
                    self._settle(node, *here)
                elif held:
                    self._settle(node, max(held, key=held.__getitem__))
            if node in self.places:
                at = self.places[node]
                known = (used for used in reads if used in self.places or used.op == "placeholder")
                copied.update((used, at) for used in known if self.places.get(used) != at)

    def place_by_readers(self) -> None:
        """The others, last ones first: with their first reader, or else with the next op."""
        following = next((self.places[x] for x in self.ops if x in self.places), None)
        if following is None:
            following = self.placement.device_of("")
        order = {node: number for number, node in enumerate(self.ops)}
        for node in reversed(self.ops):
            if node not in self.places:
                readers = [user for user in node.users if user in order]
                first = min(readers, key=order.__getitem__, default=None)
                self._settle(node, following if first is None else self.places[first])
            following = self.places[node]

    def _settle(self, node: Node, device: torch.device) -> None:
        self.places.update(dict.fromkeys(self.group_of.get(node, ()), device))
        self.places[node] = device


def _has_device(node: Node) -> bool:
    target: Callable[..., object] | str = node.target
    return node.op == "call_function" and target is not torch._C._set_grad_enabled


def _bytes_of(node: Node) -> int:
    value = node.meta.get("val")
    return value.numel() * value.element_size() if isinstance(value, Tensor) else 0
