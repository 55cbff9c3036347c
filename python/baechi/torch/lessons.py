"""Lessons: what one pass over a placed model shows to the passes after it.

Code makes new values (zeros, positions, masks) beside whatever tensor it asks for a device, but a
plan puts them, and all that is made of them alone, where they are first read. And it hands whole
tensors to modules that ask only for their type: a plan does not copy what nobody reads. Both are
seen in a first pass and hold from the second one on. Of values, only those made of nothing are
concerned, which have no gradient: what runs on given operands runs where it did. Of modules, only
those without weights: others may run kernels that torch does not know, which read unseen.
"""

from __future__ import annotations

import sys
import weakref
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

__all__ = ["CallKey", "Lessons", "Notes", "asks_only", "read_by"]

CallKey = tuple[str, str, int]
"""A call within a pass: the path of its module, its name, and how many there were before."""

# Calls that do not read what the operands hold; "__get__" does where it answers a tensor.
_ASKING = frozenset(
    (
        *("size", "dim", "ndimension", "numel", "nelement", "element_size", "get_device"),
        *("is_floating_point", "is_complex", "is_inference", "is_same_size", "result_type"),
        *("__len__", "__get__", "__hash__", "__repr__", "__format__"),
    )
)
# Calls that ask the operands after the first one for their type or shape.
_LIKE_ANOTHER = frozenset(("type_as", "expand_as", "view_as", "reshape_as"))


def asks_only(name: str, result: object) -> bool:
    """Whether a call has not read what its operands hold."""
    return name in _ASKING and not isinstance(result, Tensor)


def read_by(name: str, args: tuple[object, ...]) -> tuple[object, ...]:
    """Those arguments of a call that it may read."""
    return args[:1] if name in _LIKE_ANOTHER else args


@dataclass(frozen=True)
class Lessons:
    """What an earlier pass over the same program showed.

    Attributes:
        use_counts: uses of each copy, in the order of their making.
        factories: where the values of a call that makes one of nothing are first read.
        unread: numbers of the moved arguments that a module without weights does not read, by its
            path and how often it was entered before.
    """

    use_counts: Sequence[int] = ()
    factories: Mapping[CallKey, torch.device] = field(default_factory=dict)
    unread: Mapping[tuple[str, int], frozenset[int]] = field(default_factory=dict)

    @property
    def has_moved_values(self) -> bool:
        """Whether later passes make other copies than the one that showed this."""
        return bool(self.factories or self.unread)


class _Loose:
    """A value made of nothing, or of such values alone; ``first`` is what reads it first."""

    __slots__ = ("first", "key", "made_on", "value")

    def __init__(self, value: Tensor, key: CallKey | None) -> None:
        self.value = weakref.ref(value)
        self.key = key
        self.made_on = value.device
        self.first: torch.device | _Loose | None = None


class Notes:
    """What is seen in one pass of one thread.

    Args:
        lessons: of an earlier pass; what they have is not learned again.
        learns: whether this pass is to teach.
    """

    def __init__(self, lessons: Lessons, *, learns: bool) -> None:
        """Starts empty; ``paused`` is above 0 in regions that will be computed again."""
        self.lessons = lessons
        self.learns = learns
        self.paused = 0
        self._compiled = _num_compiled()
        self.loose: dict[int, _Loose] = {}
        self._calls: Counter[tuple[str, str]] = Counter()
        self._entries: Counter[str] = Counter()
        self._made: list[_Loose] = []
        self._unread: dict[tuple[str, int], frozenset[int]] = {}

    def factory(self, path: str, name: str) -> tuple[CallKey | None, torch.device | None]:
        """The key of a call that makes a value of nothing, and where it has to make it."""
        if self.paused:
            return None, None
        key = path, name, self._calls[path, name]
        self._calls[path, name] += 1
        return key, self.lessons.factories.get(key)

    def entry(self, path: str) -> tuple[tuple[str, int] | None, frozenset[int]]:
        """The key of a module's entry, and which of its arguments need not be moved."""
        if self.paused:
            return None, frozenset()
        key = path, self._entries[path]
        self._entries[path] += 1
        return key, self.lessons.unread.get(key, frozenset())

    def is_loose(self, value: Tensor) -> bool:
        """Whether a value was made of nothing, or of such values alone."""
        return self._loose_of(value) is not None

    def settle(self, value: Tensor) -> None:
        """A value that something else was written into belongs where it is."""
        self.loose.pop(id(value), None)

    def _loose_of(self, value: Tensor) -> _Loose | None:
        found = self.loose.get(id(value))
        return found if found is not None and found.value() is value else None

    def made(self, values: Iterable[Tensor], key: CallKey | None) -> None:
        """Values that a call made of nothing."""
        for value in values:
            if not value.requires_grad:
                self.loose[id(value)] = one = _Loose(value, key)
                self._made.append(one)

    def derived(self, values: Iterable[Tensor], operands: Iterable[Tensor]) -> None:
        """Values that a call made of loose ones alone, and which of them it therefore reads."""
        before = [one for value in operands if (one := self._loose_of(value)) is not None]
        at = len(self._made)
        self.made((value for value in values if not self.is_loose(value)), None)
        for one in before if len(self._made) > at else ():
            one.first = one.first or self._made[at]

    def read(self, values: Iterable[Tensor], device: torch.device) -> None:
        """Values that something read on a device of its own."""
        for value in values:
            one = self._loose_of(value)
            if one is not None and one.first is None:
                one.first = device

    def entered(self, key: tuple[str, int], unread: frozenset[int]) -> None:
        """What of its arguments a module has not read."""
        if unread:
            self._unread[key] = unread

    def taught(self) -> Lessons:
        """What the next pass may know, but for the uses of copies."""
        if not self.learns:
            return self.lessons
        factories = {}
        for one in self._made:
            first: torch.device | _Loose | None = one
            while isinstance(first, _Loose):
                first = first.first
            if one.key is not None and first is not None and first != one.made_on:
                factories[one.key] = first
        # Compiled code reads its operands unseen; it is compiled in the pass that first runs it.
        is_seen = self._compiled == _num_compiled()
        return Lessons(factories=factories, unread=dict(self._unread) if is_seen else {})


def _num_compiled() -> int:
    """How many graphs torch.compile has made in this process."""
    compiler = sys.modules.get("torch._dynamo.utils")
    return 0 if compiler is None else int(compiler.counters["stats"]["unique_graphs"])
