"""Node places: the device of every node of a program, and whether they may be so."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch.fx import Node

from baechi.errors import InputError
from baechi.torch.program import Program, ProgramInput

__all__ = ["PLACE", "is_placed", "places_of"]

PLACE = "baechi_place"
"""In the meta of a placed graph's nodes: the device of the op or weight."""


def is_placed(node: Node) -> bool:
    """Whether a node has a device: it computes tensors."""
    return node.op == "call_function" and node.target is not torch._C._set_grad_enabled


def places_of(
    program: Program,
    given: Mapping[Node, ProgramInput],
    device_of: Mapping[str, torch.device],
    home_of: Mapping[str, torch.device],
) -> dict[Node, torch.device]:
    """The device of every node that has one; a user input only if the program changes it."""
    places: dict[Node, torch.device] = {}
    for node in program.graph_module.graph.nodes:
        if is_placed(node):
            if node.name not in device_of:
                raise InputError(f'op "{program.keys[node.name]}" has no device')
            places[node] = device_of[node.name]
        elif node in given and given[node].kind in ("parameter", "buffer"):
            if given[node].name not in home_of:
                raise InputError(f'{given[node].kind} "{given[node].name}" has no device')
            places[node] = home_of[given[node].name]
    by_name = {node.name: node for node in program.graph_module.graph.nodes}
    for group in program.colocated:
        members = [by_name[name] for name in group]
        placed = [node for node in members if node in places]
        for node in members:
            if node not in places:
                places[node] = places[placed[0]]
            elif places[node] != places[placed[0]]:
                raise InputError(
                    f'"{_title(program, given, placed[0])}" on {places[placed[0]]} and '
                    f'"{_title(program, given, node)}" on {places[node]} share memory',
                    hint="views, in-place ops and what they change go to one device",
                )
    for node, one in given.items():
        if one.kind == "constant" and node not in places and node.users:
            places[node] = next(places[user] for user in node.users if user in places)
    return places


def _title(program: Program, given: Mapping[Node, ProgramInput], node: Node) -> str:
    return given[node].name if node in given else program.keys[node.name]
