"""Surroundings: what forward may change outside of its model, kept while a copy is run to be seen.

A copy of a model has attributes of its own, but globals, class attributes and caches are shared:
without this, tensors without numbers would stay in a cache that the model reads later.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Iterator
from typing import Any

from torch import nn

from baechi.torch.attributes import Reading
from baechi.torch.code_reading import Code, content_of, read_state

__all__ = ["surroundings_kept"]


@contextlib.contextmanager
def surroundings_kept(model: nn.Module) -> Iterator[Code]:
    """What the model's code mentions is afterwards as before; gives the code that was read."""
    code = Code(model)
    read_state(model, code)  # objects lead to more code
    before = Reading(code.names)
    code.read(before)
    sizes = [cache.cache_info().currsize for cache in code.caches]
    try:
        yield code
    finally:
        _put_back(code, before)
        for cache, size in zip(code.caches, sizes, strict=False):
            if cache.cache_info().currsize != size:
                cache.cache_clear()


def _put_back(code: Code, before: Reading) -> None:
    for owner, key, value in before.slots:
        if key not in owner or owner[key] is not value:
            code.put(owner, key, value)
    for cell, value in before.cells:
        if content_of(cell) is not value:
            cell.cell_contents = value
    for owner, key in code.absent(before):
        code.remove(owner, key)
    for held, content in before.held:
        _refill(held, content)


_MISSING = object()


def _refill(held: Any, content: Any) -> None:
    """Gives a container what it held; one that holds it still is not touched."""
    if isinstance(held, dict):
        # As a mere dict: a subclass may do something else with its items.
        for key in [key for key in dict.keys(held) if key not in content]:
            dict.__delitem__(held, key)
        for key, value in content.items():
            if dict.get(held, key, _MISSING) is not value:
                dict.__setitem__(held, key, value)
    elif isinstance(held, set):
        held &= content
        held |= content
    elif isinstance(held, (list, deque)) and list(map(id, held)) != list(map(id, content)):
        held.clear()
        held.extend(content)
