"""The copies that one forward pass has made on one thread: one per value and device.

A value is known by the tensor object that holds it and by its version, so that a change in place
makes another copy. Sources are held weakly: a copy goes with its source, which nobody can ask for
any more. It goes sooner where the number of its uses is known from an earlier pass, because a
source that autograd keeps for the backward pass would otherwise keep its copy as well.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence

import torch
from torch import Tensor

from baechi.torch.streams import cross_copy

__all__ = ["TransferCache", "version_of"]

# A copy made without gradients must not serve a use that needs them, hence the last part.
_Key = tuple[int, int, torch.device, bool]


def version_of(value: Tensor) -> int:
    """How often the value was changed in place, or -1 for inference tensors, which do not count."""
    return -1 if value.is_inference() else value._version


class _Copy:
    __slots__ = ("number", "source", "value")

    def __init__(self, source: weakref.ref[Tensor], value: Tensor | None, number: int) -> None:
        self.source = source
        self.value = value
        self.number = number


class TransferCache:
    """Copies by value and device; ``uses`` counts the uses of each, in the order of their making.

    Args:
        use_counts: the ``uses`` of an earlier pass over the same program. A pass that turns out
            to be another one makes more copies or holds some for longer, with the same results.
    """

    def __init__(self, use_counts: Sequence[int] = ()) -> None:
        """Starts empty."""
        self.uses: list[int] = []
        self.num_copies = 0
        self._expected = use_counts
        self._copies: dict[_Key, _Copy] = {}

    def holds(self, value: Tensor, device: torch.device) -> bool:
        """Whether a copy is there without a transfer."""
        found = self._copies.get(_key(value, device))
        return found is not None and found.value is not None and found.source() is value

    def fetch(self, value: Tensor, device: torch.device) -> Tensor:
        """The value on the device, copied at its first use there."""
        key = _key(value, device)
        found = self._copies.get(key)
        if found is None or found.source() is not value:
            # The callback leaves the entry alone if its key has been taken by another tensor.
            source = weakref.ref(value, lambda dead: self._forget(key, dead))
            found = self._copies[key] = _Copy(source, None, len(self.uses))
            self.uses.append(0)
        copy = found.value
        if copy is None:
            copy = cross_copy(value, device)
            self.num_copies += 1
            found.value = copy
        self.uses[found.number] += 1
        if self.uses[found.number] == self._expected_uses(found.number):
            found.value = None
        return copy

    def drop_copies_of(self, storage: int) -> None:
        """Forgets the copies of all views of a storage, which is known by its ``_cdata``."""
        for key, entry in list(self._copies.items()):
            source = entry.source()
            if source is None or source.untyped_storage()._cdata == storage:
                del self._copies[key]

    def originals_of(self, storage: int) -> list[Tensor]:
        """The living originals of the copies whose memory is this storage."""
        originals = []
        for entry in self._copies.values():
            if entry.value is not None and entry.value.untyped_storage()._cdata == storage:
                originals.append(entry.source())
        return [source for source in originals if source is not None]

    def clear(self) -> None:
        """Forgets all copies."""
        self._copies.clear()

    def _expected_uses(self, number: int) -> int:
        return self._expected[number] if number < len(self._expected) else 0

    def _forget(self, key: _Key, dead: weakref.ref[Tensor]) -> None:
        entry = self._copies.get(key)
        if entry is not None and entry.source is dead:
            del self._copies[key]


def _key(value: Tensor, device: torch.device) -> _Key:
    return id(value), version_of(value), device, torch.is_grad_enabled()
