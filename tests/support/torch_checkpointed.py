"""Models of the table whose blocks are checkpointed."""

from typing import Any

from torch import nn
from torch.utils.checkpoint import checkpoint

from torch_models import BY_NAME, Sample


def recompute(block: nn.Module) -> None:
    """Makes a block compute its activations again in backward; its class says so by its name."""
    kind = type(block)

    def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        return checkpoint(kind.forward, self, *args, use_reentrant=False, **kwargs)

    block.__class__ = type(f"Checkpointed{kind.__name__}", (kind,), {"forward": forward})


def build(name: str) -> Sample:
    """A model of the table; members of its lists and sequences with weights are checkpointed."""
    sample = BY_NAME[name].build()
    lists = [m for m in sample.model.modules() if isinstance(m, nn.ModuleList | nn.Sequential)]
    inside = {id(x) for m in lists for child in m for x in child.modules() if x is not child}
    for child in (child for found in lists for child in found):
        is_callable = not isinstance(child, nn.ModuleList)
        if id(child) not in inside and is_callable and next(child.parameters(), None) is not None:
            recompute(child)
    return sample
