"""Modules as units of placement: which steps and weights belong together.

A unit is a module with its own weights and the ops that it calls itself. An op that a module with
children calls, and that reads none of the module's own weights, is glue: it belongs to no unit. If
all units in its module are on one device it runs there, else where most bytes of its operands are,
copies made before included. That rule is the same for the placed graph (ahead of time) and for
placed modules (`glue`, while they run), so both make about the same copies.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence

import torch

from baechi.torch.trace import Trace

__all__ = [
    "Layout",
    "Units",
    "find_units",
    "parents_of",
    "prefixes",
    "unseen_modules",
    "with_other_names",
]


@dataclasses.dataclass(frozen=True)
class Units:
    """What may be placed on its own.

    Attributes:
        names: module paths; the name of a unit whose modules must stay together is the first's.
        members: every module path of each unit.
        of_step: unit of each step, -1 for glue.
        of_storage: unit of each parameter, buffer and constant by storage.
        tied_glue: for glue that must be where another step is (it changes its result in place):
            step to step.
        inside: units in each module that has glue, by its path.
    """

    names: tuple[str, ...]
    members: tuple[tuple[str, ...], ...]
    of_step: tuple[int, ...]
    of_storage: Mapping[int, int]
    tied_glue: Mapping[int, int]
    inside: Mapping[str, tuple[int, ...]]

    @property
    def of_path(self) -> dict[str, int]:
        """Module path to unit."""
        return {path: at for at, paths in enumerate(self.members) for path in paths}


@dataclasses.dataclass(frozen=True)
class Layout:
    """A placement of everything: device index by step and by weight storage."""

    device_of_step: tuple[int, ...]
    home_of_storage: Mapping[int, int]


class _Union:
    """Sets that merge; the smallest member stands for its set."""

    def __init__(self, size: int) -> None:
        self.parent = list(range(size))

    def find(self, at: int) -> int:
        while self.parent[at] != at:
            self.parent[at] = self.parent[self.parent[at]]
            at = self.parent[at]
        return at

    def merge(self, a: int, b: int) -> None:
        a, b = self.find(a), self.find(b)
        self.parent[max(a, b)] = min(a, b)


def owner_of(name: str) -> str:
    """The module that holds a parameter or buffer of this qualified name."""
    return name.rpartition(".")[0]


def find_units(trace: Trace, parents: frozenset[str]) -> Units:
    """The units of a trace.

    Args:
        trace: one step of the model.
        parents: paths of modules that have children with a name of their own.
    """
    owned = {  # storage -> module paths under which it is known
        at: tuple(owner_of(name) for name in trace.ties.get(storage.name, (storage.name,)))
        for at, storage in enumerate(trace.storages)
        if storage.kind in ("parameter", "buffer")
    }
    paths: dict[str, int] = {}
    at_step: list[int] = []
    foreign: list[tuple[str, str]] = []
    owners = {path for names in owned.values() for path in names}
    for step in trace.steps:
        read = [v for v in step.reads if trace.values[v].storage in owned]
        own = any(step.path in owned[trace.values[v].storage] for v in read)
        # A view of another module's weight is a value like any other.
        direct = [owned[trace.values[v].storage] for v in read if trace.values[v].step < 0]
        if own or step.path not in parents:
            at_step.append(paths.setdefault(step.path, len(paths)))
            foreign.extend((step.path, names[0]) for names in direct if step.path not in names)
        elif direct:  # a weight of a child that the parent uses itself, as attention does
            at_step.append(paths.setdefault(direct[0][0], len(paths)))
            if step.path in owners:
                foreign.append((step.path, direct[0][0]))
        else:
            at_step.append(-1)
    for names in owned.values():
        paths.setdefault(names[0], len(paths))
    union = _Union(len(paths))
    for one, other in foreign:
        union.merge(paths[one], paths[other])
    tied = _colocate(trace, at_step, union)
    return _number(trace, paths, at_step, owned, union, tied)


def unseen_modules(trace: Trace, units: Units) -> list[str]:
    """Modules with weights of which the traced call used nothing; they have a home all the same."""
    read = {trace.values[v].storage for step in trace.steps for v in step.reads}
    used = {unit for storage, unit in units.of_storage.items() if storage in read}
    used |= set(units.of_step)
    return [name for unit, name in enumerate(units.names) if unit not in used]


def _colocate(trace: Trace, at_step: Sequence[int], union: _Union) -> dict[int, int]:
    """Merges units that must share a device; glue that must join a step is returned."""
    tied: dict[int, int] = {}
    for group in trace.colocated:
        anchors = [step for step in group if at_step[step] >= 0]
        anchor = anchors[0] if anchors else group[0]
        for step in group:
            if at_step[step] < 0 and step != anchor:
                tied[step] = anchor
            elif at_step[step] >= 0 and at_step[anchor] >= 0:
                union.merge(at_step[anchor], at_step[step])
    return tied


def _number(
    trace: Trace,
    paths: Mapping[str, int],
    at_step: Sequence[int],
    owned: Mapping[int, tuple[str, ...]],
    union: _Union,
    tied: Mapping[int, int],
) -> Units:
    numbers: dict[int, int] = {}
    members: list[list[str]] = []
    for path, at in paths.items():
        root = union.find(at)
        if root not in numbers:
            numbers[root] = len(members)
            members.append([])
        members[numbers[root]].append(path)

    def unit(at: int) -> int:
        return numbers[union.find(at)] if at >= 0 else -1

    of_storage = {storage: unit(paths[names[0]]) for storage, names in owned.items()}
    glue = dict.fromkeys(step.path for step, at in zip(trace.steps, at_step, strict=True) if at < 0)
    return Units(
        tuple(group[0] for group in members),
        tuple(tuple(group) for group in members),
        tuple(unit(at) for at in at_step),
        of_storage,
        dict(tied),
        _inside(glue, members),
    )


def _inside(paths: Iterable[str], members: Sequence[Sequence[str]]) -> dict[str, tuple[int, ...]]:
    """Units in each module: those with a module at its path or below."""
    above: dict[str, dict[int, None]] = {path: {} for path in paths}
    for unit, group in enumerate(members):
        for path in group:
            for prefix in prefixes(path):
                if prefix in above:
                    above[prefix][unit] = None
    return {path: tuple(found) for path, found in above.items()}


def prefixes(path: str) -> Iterator[str]:
    """The path of a module and of all that it is in, up to the root's, which is empty."""
    while path:
        yield path
        path = path.rpartition(".")[0]
    yield path


def parents_of(model: torch.nn.Module) -> frozenset[str]:
    """Paths of the modules that have children."""
    return frozenset(
        name for name, module in model.named_modules() if next(module.children(), None) is not None
    )


def with_other_names(units: Units, model: torch.nn.Module) -> Units:
    """Units that know their modules also by the other paths at which a model has them."""
    members = [list(paths) for paths in units.members]
    of_path = units.of_path
    first: dict[int, str] = {}
    for path, module in model.named_modules(remove_duplicate=False):
        known = first.setdefault(id(module), path)
        if known != path and known in of_path and path not in of_path:
            members[of_path[known]].append(path)
    return dataclasses.replace(
        units, members=tuple(map(tuple, members)), inside=_inside(units.inside, members)
    )
