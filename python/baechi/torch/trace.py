"""Trace: what one step of a model does, op by op, as PyTorch's allocator and autograd see it.

A trace is taken once, without any placement. `ledger` replays it for a placement, `operator_graph`
makes a `baechi.Graph` of it. Sizes are bytes; ids are positions in the trace's own lists.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from baechi.torch.work import Work

__all__ = ["Edge", "Function", "Incoming", "Saved", "Step", "Storage", "Trace", "Value"]


@dataclasses.dataclass(slots=True)
class Storage:
    """A block of memory; views and aliases share one.

    Attributes:
        nbytes: its size.
        kind: "parameter", "buffer", "constant", "input", or "made" by an op.
        name: of a parameter, buffer, constant or input; else empty.
        requires_grad: a parameter that gets a gradient.
        dtype: such as "float32", of the tensor that it was first seen in.
        shape: of that tensor.
        held_until: something outside the program (a Python local, a recomputed region) keeps it
            to the end of this step (``("step", i)``), autograd function (``("function", f)``),
            the forward pass or the whole step (``("end", 0)``); None: autograd and the program do.
    """

    nbytes: int
    kind: str
    name: str
    requires_grad: bool
    dtype: str
    shape: tuple[int, ...] = ()
    held_until: tuple[str, int] | None = None


@dataclasses.dataclass(slots=True)
class Value:
    """A tensor that steps read: what a transfer moves.

    Attributes:
        storage: where its elements are.
        nbytes: its elements; a view may be smaller than its storage, an expanded one greater.
        step: the step that made it, -1 for parameters, buffers, constants and inputs.
        gradient: (function, input number) that takes its gradient, None without gradient.
    """

    storage: int
    nbytes: int
    step: int
    gradient: tuple[int, int] | None = None


@dataclasses.dataclass(slots=True)
class Saved:
    """A storage that an autograd function keeps for its backward."""

    function: int
    storage: int
    nbytes: int


@dataclasses.dataclass(slots=True)
class Step:
    """One op of the forward pass.

    Attributes:
        key: "<module path>:<op>:<n>", unique.
        path: of the innermost module, such as "encoder.layer.0"; empty at the root.
        kind: the op, such as "aten.linear".
        reads: values, each once, in argument order.
        makes: values that it makes; a view makes a value of a storage that exists.
        born: storages that it allocates and that outlive it.
        born_peak: the most bytes of its own that were alive while it ran, `born` included.
        works: signatures of the calls that it makes; views are left out.
        saved: what autograd keeps from it.
        sequence: autograd's next number when it starts.
        random: whether it draws random numbers.
    """

    key: str
    path: str
    kind: str
    reads: tuple[int, ...]
    makes: list[int]
    born: list[int]
    born_peak: int
    works: list[str]
    saved: list[Saved]
    sequence: int = 0
    random: bool = False


@dataclasses.dataclass(slots=True)
class Incoming:
    """Where a gradient that a function passes on comes from.

    `source` is "made" (`at`: a storage in the function's `born`), "taken" (`at`: the number of the
    gradient that it was given, passed on without a copy) or "other" (`at`: a storage).
    """

    source: str
    at: int


@dataclasses.dataclass(slots=True)
class Edge:
    """A gradient from a function to the one that made its input."""

    function: int
    number: int
    nbytes: int
    incoming: Incoming


@dataclasses.dataclass(slots=True)
class Function:
    """A node of autograd's graph: a part of the backward pass.

    Attributes:
        name: such as "AddmmBackward0".
        step: the step whose backward it is; -1 for the accumulation into a parameter's ``.grad``.
        parameter: for an accumulation, the storage of the parameter; else -1.
        sequence: autograd runs ready functions from the greatest down.
        edges: gradients that it passes on.
        born: storages that it allocates and that outlive it.
        born_peak: the most bytes of its own that were alive while it ran.
        works: as for steps.
    """

    name: str
    step: int
    parameter: int
    sequence: int
    edges: list[Edge]
    born: list[int]
    born_peak: int
    works: list[str]


@dataclasses.dataclass(slots=True)
class Trace:
    """One step of a model, see the module's text.

    Attributes:
        storages, values, steps, functions: see there; steps in program order.
        weights: value of each parameter, buffer, constant and user input.
        outputs: values that the model returns; the caller holds them to the end of the step.
        loss: the value that backward starts from, -1 in inference.
        seed_function: the function that backward starts with, -1 in inference.
        colocated: steps that must share a device.
        regions: steps of each checkpointed region, one after the other.
        training: whether backward and gradients belong to the step.
        works: what a call of each signature does.
        ties: qualified name of a parameter or buffer to all its names.
        source: "export", "eager" or "real step": how it was captured.
        left_out: hooks that could not be run, with the reasons.
    """

    storages: list[Storage]
    values: list[Value]
    steps: list[Step]
    functions: list[Function]
    weights: list[int]
    outputs: list[int]
    loss: int
    seed_function: int
    colocated: list[tuple[int, ...]]
    regions: list[tuple[int, ...]]
    training: bool
    source: str
    works: Mapping[str, Work]
    ties: Mapping[str, tuple[str, ...]]
    left_out: tuple[str, ...] = ()
