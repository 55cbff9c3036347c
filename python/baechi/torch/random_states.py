"""Random states: kept while a model is run to be seen, and whether its forward works on them.

A graph draws the random numbers that forward draws from PyTorch's default generators, in the same
order. What it cannot hold is everything else: seeding, other generators, Python's and NumPy's.
"""

from __future__ import annotations

import contextlib
import random
import sys
from collections.abc import Iterator
from typing import Any
from unittest import mock

import torch
import torch.cuda.random
import torch.random
from torch.utils._python_dispatch import _disable_current_modes

__all__ = ["random_states_kept", "random_uses"]


@contextlib.contextmanager
def random_states_kept() -> Iterator[None]:
    """The states of the host's generators afterwards are those before: torch, Python, NumPy."""
    of_python, of_numpy = random.getstate(), _numpy_state()
    try:
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        random.setstate(of_python)
        if of_numpy is not None:
            sys.modules["numpy"].random.set_state(of_numpy)


@contextlib.contextmanager
def random_uses(uses: list[str]) -> Iterator[None]:
    """Notes what a block does to random states beside drawing numbers on fake tensors.

    Fake tensors draw nothing, so any change of a state is one that a graph would not make.
    """
    seen = _SeenGenerator(torch.default_generator, uses)
    cuda: Any = torch.cuda.random
    call_cuda = cuda._lazy_call

    def called(callback: Any, **options: Any) -> None:
        uses.append("a random state of CUDA")
        call_cuda(callback, **options)

    of_python, of_numpy = random.getstate(), _numpy_state()
    of_torch = _torch_state()
    with (
        mock.patch.object(torch.random, "default_generator", seen),
        mock.patch.object(torch, "default_generator", seen),
        mock.patch.object(cuda, "_lazy_call", called),
    ):
        yield
    if of_torch != _torch_state():
        uses.append("the random state of torch")
    if random.getstate() != of_python:
        uses.append("random numbers of Python")
    if _words(of_numpy) != _words(_numpy_state()):
        uses.append("random numbers of NumPy")


class _SeenGenerator:
    """The default generator, with a note of each use by name."""

    def __init__(self, generator: torch.Generator, uses: list[str]) -> None:
        self._generator, self._uses = generator, uses

    def __getattr__(self, name: str) -> Any:
        self._uses.append(f"the random state of torch ({name})")
        return getattr(self._generator, name)


def _torch_state() -> bytes:
    with _disable_current_modes():
        return torch.default_generator.get_state().numpy().tobytes()


def _numpy_state() -> Any:
    # Whoever has not imported NumPy draws nothing from it.
    numpy = sys.modules.get("numpy")
    return None if numpy is None else numpy.random.get_state()


def _words(state: Any) -> Any:
    return state and (state[0], state[1].tobytes(), *state[2:])
