"""Models of the table whose blocks are checkpointed."""

from typing import Any

from torch import nn
from torch.utils.checkpoint import checkpoint

from torch_models import BY_NAME, Sample


class Checkpointed(nn.Module):
    """A block whose activations are computed again in backward."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return checkpoint(self.inner, *args, use_reentrant=False, **kwargs)


def build(name: str) -> Sample:
    """A model of the table; members of its lists and sequences with weights are checkpointed."""
    sample = BY_NAME[name].build()
    lists = [m for m in sample.model.modules() if isinstance(m, nn.ModuleList | nn.Sequential)]
    inside = {id(x) for m in lists for child in m for x in child.modules() if x is not child}
    for found in lists:
        for at, child in enumerate(found):
            if id(child) not in inside and next(child.parameters(), None) is not None:
                found[at] = Checkpointed(child)
    return sample
