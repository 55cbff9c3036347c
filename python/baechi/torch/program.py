"""Program: the forward pass of a model as a flat graph that owns no weights."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch

from baechi.errors import InputError
from baechi.torch.trees import Tree, flatten

__all__ = ["Call", "Capture", "CheckpointRegion", "Program", "ProgramInput"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ProgramInput:
    """One value that a program takes.

    Attributes:
        kind: "parameter", "buffer" and "constant" come from the model, "user" from the caller.
        name: the qualified name; of tied parameters the first; of a user input its path, such as
            "past.0"; a literal of the forward's code has a made-up name.
        index: of a user input, its position among what `Program.bind` returns.
        value: of a constant, the tensor.
        attribute: of a constant that a mere attribute of a module holds, the path of the module
            and the keys from its attributes to the tensor; it is read there again at each call.
        ties: of a parameter or buffer, the other names of the same tensor.
    """

    kind: Literal["parameter", "buffer", "constant", "user"]
    name: str
    index: int = -1
    value: torch.Tensor | None = None
    attribute: tuple[str, tuple[Any, ...]] | None = None
    ties: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class CheckpointRegion:
    """Nodes, one after the other, whose activations are recomputed in backward."""

    nodes: tuple[str, ...]
    preserve_rng_state: bool


@dataclasses.dataclass(frozen=True, slots=True)
class Call:
    """How a forward is called: the same call has many spellings."""

    signature: inspect.Signature
    tree: Tree

    @classmethod
    def of(
        cls, signature: inspect.Signature, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Call:
        """The call that these arguments make."""
        return cls(signature, flatten(_arguments(signature, args, kwargs))[1])

    def bind(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[torch.Tensor]:
        """The tensors of another call of the same structure.

        Raises:
            InputError: the structure or a value that is no tensor differs.
        """
        tensors, tree = flatten(_arguments(self.signature, args, kwargs))
        if tree != self.tree:
            raise InputError(
                f"the call passes {_describe(tree)}, the plan was made for {_describe(self.tree)}",
                hint="call the model as planned, or plan this call",
            )
        return tensors

    def arguments(self, tensors: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Positional and keyword arguments, with these in place of the tensors."""
        bound = inspect.BoundArguments(self.signature, self.tree.rebuild(tensors))
        return bound.args, bound.kwargs


def _arguments(
    signature: inspect.Signature, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> dict[str, Any]:
    if not isinstance(args, list | tuple):
        raise InputError(
            f"args is a {type(args).__name__}, not a tuple of the arguments of forward",
            hint="write args=(x,) for one argument, and kwargs=batch for a mapping of names",
        )
    try:
        return dict(signature.bind(*args, **kwargs).arguments)
    except TypeError as error:
        raise InputError(
            f"forward cannot be called like that: {error}", hint=f"it is forward{signature}"
        ) from None


def _describe(tree: Tree) -> str:
    constants = list(map(str, tree.values))
    return (
        f"tensors {', '.join(tree.paths) or 'none'}; other values {', '.join(constants) or 'none'}"
    )


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Program:
    """A model's forward as ATen ops in program order.

    The graph is called with one value for each of `inputs` and returns the flat list of tensors
    that `rebuild` makes the output of. It changes buffers and mutated inputs in place, as the
    model does. Each node's ``meta["val"]`` holds meta tensors.

    Attributes:
        training_flags: `training` of each module, in the order of `Module.modules`.
        autocast: the type under whose ``torch.autocast`` it was captured; its casts are ops.
        module_paths: node name to the dotted path of the innermost module, "" for the model.
        keys: node name to a name that other versions give too, "<module path>:<op>:<n>".
        colocated: nodes, placeholders among them, that must share a device: members of a result,
            and whatever shares memory with a value that is changed in place.
        mutated: names of user inputs that the program changes in place.
    """

    graph_module: torch.fx.GraphModule
    inputs: tuple[ProgramInput, ...]
    call: Call
    out_tree: Tree
    training_flags: tuple[bool, ...]
    grad_enabled: bool
    autocast: torch.dtype | None
    module_paths: Mapping[str, str]
    keys: Mapping[str, str]
    colocated: tuple[tuple[str, ...], ...]
    mutated: tuple[str, ...]
    checkpointed: tuple[CheckpointRegion, ...]

    def bind(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[torch.Tensor]:
        """The flat user inputs of a call."""
        return self.call.bind(args, kwargs)

    def rebuild(self, outputs: Sequence[Any]) -> Any:
        """The model's output from the flat list that the graph returns."""
        return self.out_tree.rebuild(outputs)


@dataclasses.dataclass(frozen=True, eq=False)
class Capture:
    """What came of capturing a model.

    Attributes:
        program: None where the model does not export.
        level: "module" where the graph, if there is one, must not replace the model's own code.
        reasons: why, in plain words, each with a way out.
    """

    program: Program | None
    level: Literal["op", "module"]
    reasons: tuple[str, ...]
