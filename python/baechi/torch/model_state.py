"""What a placed graph takes for granted about a model, checked before each of its runs.

Beside what `guards` look at: the modes and identities of the modules, and the types and devices
of the weights. The lists are made once, because a walk over a model costs more than many ops.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from baechi.torch.guards import Guard

__all__ = ["ModelState"]


class ModelState:
    """The state of a model at one time; `difference` says what is not so any more."""

    def __init__(self, model: nn.Module) -> None:
        """Reads the model's state; the hooks that are there now are accepted."""
        self._guard = Guard(model)
        self._modules = list(model.modules())
        self._modes = [module.training for module in self._modules]
        self._tables = [module._modules for module in self._modules if module._modules]
        # Most are empty, and a look at all of their lengths would take longer.
        self._empty = [
            table
            for module in self._modules
            for table in (module._modules, module._parameters, module._buffers)
            if not table
        ]
        self._children = self._read_children()
        self._holders: list[Mapping[str, Any]] = []
        for module in self._modules:
            self._holders += [table for table in (module._parameters, module._buffers) if table]
        self._weights = self._read_weights()
        self._kinds, self._shapes = _kinds(self._weights), _shapes(self._weights)
        self._ties = _ties(self._weights)

    def difference(self) -> str | None:
        """What of the model is not as it was, or None."""
        if self._children != self._read_children():
            return "a module was replaced"
        if any(self._empty):
            return "a module or a weight was added"
        if self._modes != [module.training for module in self._modules]:
            return "modules are in another mode"
        weights = self._read_weights()
        if self._kinds != _kinds(weights):
            return "a weight has another type or device, or was frozen or unfrozen"
        if not all(map(operator.is_, self._weights, weights)):
            if self._shapes != _shapes(weights):
                return "a weight has another shape"
            if self._ties != _ties(weights):
                return "weights are tied in another way"
            self._weights = weights
        return self._guard.difference()

    def _read_children(self) -> list[nn.Module | None]:
        return [child for table in self._tables for child in table.values()]

    def _read_weights(self) -> list[Tensor]:
        return [x for table in self._holders for x in table.values() if x is not None]


def _kinds(weights: list[Tensor]) -> list[Any]:
    # Flat lists: hundreds of tuples would wake the garbage collector.
    return [*map(_DTYPE, weights), *map(_DEVICE, weights), *map(_IS_TRAINED, weights)]


def _shapes(weights: list[Tensor]) -> list[torch.Size]:
    return [weight.shape for weight in weights]


def _ties(weights: list[Tensor]) -> list[int]:
    """For each weight the first place where it stands."""
    first: dict[int, int] = {}
    return [first.setdefault(id(weight), at) for at, weight in enumerate(weights)]


_DTYPE, _DEVICE = operator.attrgetter("dtype"), operator.attrgetter("device")
_IS_TRAINED = operator.attrgetter("requires_grad")
