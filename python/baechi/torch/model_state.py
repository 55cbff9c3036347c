"""What a placed graph takes for granted about a model, checked before each of its runs.

Beside what `guards` look at: the modes and identities of the modules, and the types and devices
of the weights. The lists are made once, because a walk over a model costs more than many ops.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from baechi.torch.guards import compile_guard

__all__ = ["ModelState"]


class ModelState:
    """The state of a model at one time; `difference` says what is not so any more."""

    def __init__(self, model: nn.Module) -> None:
        """Reads the model's state; the hooks that are there now are accepted."""
        self._guard = compile_guard(model)
        self._modules = list(model.modules())
        self._modes = [module.training for module in self._modules]
        self._tables = [module._modules for module in self._modules if module._modules]
        self._children = self._read_children()
        self._weights: list[Mapping[str, Any]] = []
        for module in self._modules:
            self._weights += [table for table in (module._parameters, module._buffers) if table]
        self._kinds = self._read_kinds()

    def difference(self, model: nn.Module) -> str | None:
        """What of the model is not as it was, or None."""
        if self._children != self._read_children():
            return "a module was replaced"
        if self._modes != [module.training for module in self._modules]:
            return "modules are in another mode"
        if self._kinds != self._read_kinds():
            return "a weight has another type or device"
        return self._guard(model)

    def _read_children(self) -> list[nn.Module | None]:
        return [child for table in self._tables for child in table.values()]

    def _read_kinds(self) -> list[Any]:
        weights = [x for table in self._weights for x in table.values() if x is not None]
        # Two flat lists: hundreds of pairs would wake the garbage collector.
        return [*[x.dtype for x in weights], *[x.device for x in weights]]
