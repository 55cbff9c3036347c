"""Compiling parts of a placed model with torch.compile, each of which may also run as it is.

Parts are compiled whole: what the compiler cannot do it says before a part has run, so that the
part runs as it is instead. The reason is logged once and kept.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

from baechi.errors import InputError

__all__ = [
    "CompileArgument",
    "CompiledPart",
    "Compiling",
    "is_compiling_part",
    "outside",
    "read_compile",
]

CompileArgument = bool | Mapping[str, Any]
_LOGGER = logging.getLogger("baechi")


class _Thread(threading.local):
    in_part = False


_THREAD = _Thread()


def is_compiling_part() -> bool:
    """Whether what is compiled on this thread is a part of a placed model, all on one device."""
    return _THREAD.in_part


# The compiler calls it while it reads a part, and takes the answer for a constant.
is_compiling_part._dynamo_marked_constant = True  # type: ignore[attr-defined]


def outside(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, to be called where a user's torch.compile is reading: it is not compiled."""
    uncompiled: Callable[..., Any] = torch.compiler.disable(  # type: ignore[no-untyped-call]
        function, reason="a plan is applied"
    )
    return uncompiled


class Compiling:
    """How the parts of one model are compiled, and what came of it.

    Attributes:
        num_parts: parts that are compiled, or will be when they run first.
        reasons: why others run as they are, with their numbers.
    """

    def __init__(self, options: Mapping[str, Any], *, refused: str = "") -> None:
        """Takes options of torch.compile, and, if so, why nothing can be compiled."""
        self.options, self.refused = dict(options), refused
        self._start()

    def _start(self) -> None:
        self.num_parts = 0
        self.reasons: Counter[str] = Counter()

    def __getstate__(self) -> dict[str, Any]:
        """The options; a copy of a model compiles its own parts."""
        return {"options": self.options, "refused": self.refused}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """A copy starts without parts."""
        self.__dict__.update(state)
        self._start()

    def is_possible(self) -> bool:
        """Whether anything can be compiled; keeps the reason if not."""
        if self.refused:
            self.note(self.refused)
        return not self.refused

    def part(
        self, function: Callable[..., Any], refused: Callable[[], None] | None = None
    ) -> Callable[..., Any]:
        """The function compiled; `refused` is called before it first runs as it is."""
        self.num_parts += 1
        return CompiledPart(self, function, refused)

    def note(self, reason: str) -> None:
        """Keeps why a part runs as it is."""
        if reason not in self.reasons:
            _LOGGER.warning("parts run without torch.compile: %s", reason)
        self.reasons[reason] += 1


class CompiledPart:
    """A function that is compiled when it first runs, or goes on as it is if that fails."""

    def __init__(
        self,
        compiling: Compiling,
        function: Callable[..., Any],
        refused: Callable[[], None] | None,
    ) -> None:
        """Compiles nothing yet."""
        self.__name__ = "compiled"
        self._refused = refused
        self._compiling, self._plain = compiling, function
        self._compiled: Callable[..., Any] | None = torch.compile(
            function, fullgraph=True, **compiling.options
        )

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the function."""
        compiled = self._compiled
        if compiled is None:
            return self._plain(*args, **kwargs)
        from torch._dynamo.exc import FailOnRecompileLimitHit, TorchDynamoException

        try:
            with _in_part():
                return compiled(*args, **kwargs)
        except (TorchDynamoException, FailOnRecompileLimitHit) as error:
            self._compiled = None
            self._compiling.num_parts -= 1
            self._compiling.note(f"{type(error).__name__}: {_first_lines(error)}")
            if self._refused is not None:
                self._refused()
        return self._plain(*args, **kwargs)


@contextmanager
def _in_part() -> Iterator[None]:
    before, _THREAD.in_part = _THREAD.in_part, True
    try:
        yield
    finally:
        _THREAD.in_part = before


def read_compile(compile: CompileArgument, *, refused: str = "") -> Compiling | None:
    """What `ModelPlan.apply` does with its argument; None where nothing is to be compiled.

    Raises:
        InputError: torch.compile does not take these options.
    """
    if isinstance(compile, bool):
        return Compiling({}, refused=refused) if compile else None
    if not isinstance(compile, Mapping):
        raise InputError(
            f"compile is a {type(compile).__name__}",
            hint='True, or the arguments of torch.compile: {"backend": "inductor"}',
        )
    if "fullgraph" in compile:
        raise InputError(
            'compile has "fullgraph"', hint="leave it out: parts are compiled whole or not at all"
        )
    try:
        torch.compile(_nothing, **compile)
    except (TypeError, RuntimeError) as error:
        raise InputError(f"torch.compile refuses {dict(compile)}: {_first_lines(error)}") from error
    return Compiling(compile, refused=refused)


def _first_lines(error: Exception) -> str:
    return " ".join(str(error).split("\n")[:2]).strip()


def _nothing() -> None:
    """What options are tried on; it is never called."""
