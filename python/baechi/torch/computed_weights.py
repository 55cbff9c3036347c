"""Computed weights: attributes that older functions of torch make of weights before each forward.

The attribute of the last forward, or of the call that began it, holds a graph of autograd, and
with it the weights, which then cannot be moved. The next forward replaces it, so it may be let go.
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn.utils.prune import BasePruningMethod
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm

__all__ = ["computed_names", "let_go_of_graphs"]


def let_go_of_graphs(model: nn.Module) -> None:
    """Leaves the values of computed weights, without what they were computed from."""
    for module in model.modules():
        for name in computed_names(module):
            value = vars(module).get(name)
            if isinstance(value, Tensor):
                vars(module)[name] = value.detach()


def computed_names(module: nn.Module) -> list[str]:
    """The attributes of a module that its hooks compute."""
    names = map(_computed_by, module._forward_pre_hooks.values())
    return [name for name in names if name is not None]


def _computed_by(hook: object) -> str | None:
    if isinstance(hook, WeightNorm | SpectralNorm):
        return hook.name
    if isinstance(hook, BasePruningMethod):
        name: str = hook._tensor_name
        return name
    return None
