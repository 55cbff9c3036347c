"""What a placed graph takes for granted about a model, checked before each of its runs.

A graph holds the plain attributes of all modules as they were (`training` among them), the
modules themselves, the types and devices of their weights, and that no submodule has hooks of the
user's. The lists are made once, because a walk over a model costs more than many ops.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any

from torch import nn

__all__ = ["Guard"]

_HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")
_PLAIN = (bool, int, float, str, type(None))


class Guard:
    """The state of a model at one time; `holds` says whether it is still so."""

    def __init__(self, model: nn.Module) -> None:
        """Reads the model's state; the hooks that are there now are accepted."""
        modules = list(model.modules())
        self._attributes = [_reader(vars(module)) for module in modules]
        self._values = self._read_attributes()
        self._tables = [module._modules for module in modules if module._modules]
        self._children = self._read_children()
        self._weights: list[Mapping[str, Any]] = []
        for module in modules:
            self._weights += [table for table in (module._parameters, module._buffers) if table]
        self._kinds = self._read_kinds()
        self._hooks = [getattr(module, kind) for module in modules[1:] for kind in _HOOKS]
        self._num_hooks = sum(map(len, self._hooks))

    def holds(self) -> bool:
        """Whether the model is as it was."""
        return (
            self._values == self._read_attributes()
            and self._num_hooks == sum(map(len, self._hooks))
            and self._children == self._read_children()
            and self._kinds == self._read_kinds()
        )

    def _read_attributes(self) -> list[Any]:
        try:
            return [getter(table) for getter, table in self._attributes]
        except KeyError:  # an attribute was deleted
            return []

    def _read_children(self) -> list[nn.Module | None]:
        return [child for table in self._tables for child in table.values()]

    def _read_kinds(self) -> list[Any]:
        weights = [x for table in self._weights for x in table.values() if x is not None]
        # Two flat lists: hundreds of pairs would wake the garbage collector.
        return [*[x.dtype for x in weights], *[x.device for x in weights]]


def _reader(table: dict[str, Any]) -> tuple[Callable[[Any], Any], dict[str, Any]]:
    names = [name for name, value in table.items() if isinstance(value, _PLAIN)]
    return operator.itemgetter(*names), table  # there is at least `training`
