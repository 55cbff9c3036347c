"""The exceptions that Baechi raises: one tree, every one carries what is needed to react to it.

Messages are lower-case without a full stop and name the thing and the numbers; what would help
stands on a line of its own (``hint: ...``). The Rust core raises the same classes with indices
where names belong; the calling Python module puts the names in.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

__all__ = [
    "BaechiError",
    "CycleError",
    "InputError",
    "MissingFrameworkError",
    "OutOfMemoryError",
    "PlacementError",
    "PlanMismatchError",
    "SolverError",
]


class BaechiError(Exception):
    """Anything that Baechi raises on purpose; ``hint`` is the way out, or None."""

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        """Joins the message and, on a line of its own, the hint."""
        super().__init__(message if hint is None else f"{message}\nhint: {hint}")
        self.hint = hint

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles text and attributes, whatever the subclass's constructor takes."""
        return _rebuild, (type(self), self.args, self.__dict__.copy())


class InputError(BaechiError, ValueError):
    """What the caller gave cannot be used; the message names it."""


class CycleError(InputError):
    """The graph has a cycle; ``ops`` lists it in order, the first op not repeated at the end."""

    def __init__(self, ops: Sequence[str | int], *, hint: str | None = None) -> None:
        """Names the ops of the cycle; more than ten are cut short in the text only."""
        self.ops = tuple(ops)
        shown = [_quote(op) for op in self.ops[:10]]
        if len(self.ops) > 10:
            shown.append(f"... {len(self.ops) - 10} more ...")
        shown.extend(_quote(op) for op in self.ops[:1])
        super().__init__(f"the graph has a cycle: {' -> '.join(shown)}", hint=hint)


class OutOfMemoryError(BaechiError):
    """An op fits on no device that it may use.

    Attributes:
        op: name (from the core: index) of the op that does not fit.
        device: name (or index) of the device that came closest, None if no one device is meant.
        needed_bytes: bytes that the op needs there.
        free_bytes: bytes that are free there.
        num_placed: ops that had a device when it failed, None where that says nothing.
        proved_infeasible: whether no placement can fit, whatever the algorithm; False: none was
            found.
        holders: (op, bytes) pairs of what was placed on the device, largest first, at most five.
        enough: memory by device name with which a plan was found; empty where none was looked for.
    """

    proved_infeasible: bool = False
    holders: tuple[tuple[str, int], ...] = ()
    enough: Mapping[str, int] = MappingProxyType({})

    def __init__(
        self,
        op: str | int,
        device: str | int | None,
        needed_bytes: int,
        free_bytes: int,
        num_placed: int | None = None,
        *,
        message: str | None = None,
        hint: str | None = "give the devices more memory, add a device, or try another algorithm",
    ) -> None:
        """Writes the message from the numbers, unless one is given."""
        self.op = op
        self.device = device
        self.needed_bytes = needed_bytes
        self.free_bytes = free_bytes
        self.num_placed = num_placed
        super().__init__(self._describe() if message is None else message, hint=hint)

    def smallest_limit(self) -> dict[str, int]:
        """Memory per device, in bytes, with which the same algorithm finds a placement.

        Found by bisection, all devices scaled alike, to one part in a thousand; placing is not
        monotone in memory, so less may do as well. Takes as long as some twenty placements.

        Raises:
            BaechiError: even 64 times the memory is not enough, or the error does not come from
                `place`.
        """
        search = getattr(self, "_search", None)
        if search is None:
            raise BaechiError("this error did not come from baechi.place")
        found: dict[str, int] = search()
        return found

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles text and attributes; the search for a limit stays behind."""
        state = {name: value for name, value in self.__dict__.items() if name != "_search"}
        return _rebuild, (type(self), self.args, state)

    def _describe(self) -> str:
        from baechi.units import format_bytes  # units raises InputError, so it imports this module

        where = "one device" if self.device is None else f"device {_quote(self.device)}"
        holder = "the largest" if self.device is None else "which"
        placed = "" if self.num_placed is None else f" ({self.num_placed} ops placed before it)"
        needed, free = format_bytes(self.needed_bytes), format_bytes(self.free_bytes)
        if needed == free:  # a difference that only exact numbers show
            needed, free = f"{self.needed_bytes} B", f"{self.free_bytes} B"
        return f"op {_quote(self.op)} needs {needed} on {where}, {holder} has {free} free{placed}"


class PlacementError(BaechiError):
    """A placer cannot go on, for a reason other than memory."""


class SolverError(BaechiError):
    """The linear-program solver gave no usable answer."""


class PlanMismatchError(InputError):
    """A plan was made for another graph or cluster; ``differences`` names every difference."""

    def __init__(
        self, message: str, differences: Sequence[str], *, hint: str | None = None
    ) -> None:
        """Lists the differences under the message; more than twenty are cut short there only."""
        self.differences = tuple(differences)
        lines = [message, *(f"  {difference}" for difference in self.differences[:20])]
        if len(self.differences) > 20:
            lines.append(f"  ... {len(self.differences) - 20} more")
        super().__init__("\n".join(lines), hint=hint)


class MissingFrameworkError(BaechiError, ImportError):
    """An optional package is not installed; ``name`` is the package, ``extra`` what installs it."""

    def __init__(self, name: str, extra: str | None = None) -> None:
        """Names the package and the extra of this package that brings it (default: the name)."""
        self.extra = name if extra is None else extra
        super().__init__(f'"{name}" is not installed', hint=f"pip install 'baechi[{self.extra}]'")
        self.name = name


def _quote(thing: str | int) -> str:
    return f'"{thing}"' if isinstance(thing, str) else str(thing)


def _rebuild(cls: type[BaechiError], args: tuple[Any, ...], state: dict[str, Any]) -> BaechiError:
    error = cls.__new__(cls, *args)
    error.args = args
    error.__dict__.update(state)
    return error
