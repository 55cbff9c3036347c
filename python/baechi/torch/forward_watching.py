"""Forward watching: a run of a model's forward on fake tensors, and what a graph of it could lose.

Nothing here knows torch.export: the model's own code runs, and is looked at from all sides.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.overrides import TorchFunctionMode

from baechi.torch.attributes import Reading, differences
from baechi.torch.code_reading import Code, read_state
from baechi.torch.parameters import named_weights
from baechi.torch.program import Call
from baechi.torch.random_states import random_uses
from baechi.torch.trees import Tree, flatten

__all__ = ["Seen", "autograd_nodes", "leaves_of", "watch"]

_GRADIENT_HOOKS = (
    "register_hook",
    "register_post_accumulate_grad_hook",
    "register_multi_grad_hook",
)


@dataclasses.dataclass(slots=True)
class Seen:
    """What was noticed while forward ran."""

    out_tree: Tree | None = None
    functions: list[str] = dataclasses.field(default_factory=list)
    """Names of the autograd functions behind the outputs, with repetitions."""
    leaves: frozenset[int] = frozenset()
    """Ids of the tensors that gradients of the outputs reach."""
    custom: list[str] = dataclasses.field(default_factory=list)
    """Autograd functions written in Python."""
    tensor_hooks: list[str] = dataclasses.field(default_factory=list)
    random: list[str] = dataclasses.field(default_factory=list)
    """What happened to random states beside draws on tensors."""
    changed_arguments: bool = False
    changed_attributes: list[str] = dataclasses.field(default_factory=list)
    reshaped: list[str] = dataclasses.field(default_factory=list)
    """Names of parameters and buffers of another shape or type afterwards."""
    remade: list[str] = dataclasses.field(default_factory=list)
    """Modules, parameters and buffers that are new, gone, or others than before."""
    caught: bool = False
    """Whether an op failed and forward went on."""
    outside: frozenset[int] = frozenset()
    """Ids of the tensors that stand in globals, closures and the like."""
    checkpoints: list[bool] = dataclasses.field(default_factory=list)
    """For each checkpointed region whether it preserves the random state."""
    reentrant: bool = False
    selective: bool = False


def watch(
    twin: nn.Module,
    forward: Callable[..., Any],
    call: Call,
    fakes: tuple[torch.Tensor, ...],
    code: Code,
    seen: Seen,
) -> None:
    """Runs forward as it is and notes what a graph could lose.

    Args:
        twin: the model.
        forward: its forward.
        call: how it is called.
        fakes: with these tensors.
        code: what its code mentions.
        seen: takes the notes.
    """
    args, kwargs = call.arguments(fakes)
    given, structure = flatten([args, kwargs])
    attributes, parts, forms = read_state(twin, code), _parts(twin), _forms(twin)
    seen.outside = frozenset(
        id(value)
        for value in attributes.values.values()
        if isinstance(value, torch.Tensor) and not isinstance(value, FakeTensor)
    )
    with _Watch(seen), random_uses(seen.random):
        output = forward(*args, **kwargs)
    left, structure_after = flatten([args, kwargs])
    if structure != structure_after or any(a is not b for a, b in zip(given, left, strict=True)):
        seen.changed_arguments = True
    after = _forms(twin)
    seen.reshaped = [name for name in forms if forms[name] != after.get(name)]
    seen.remade = _remade(parts, _parts(twin))
    seen.changed_attributes = _changed(attributes, read_state(twin, code))
    if seen.changed_attributes and _are_outside(seen.changed_attributes, code):
        # What the first call alone sets up, such as a function that is looked for once, may go.
        attributes = read_state(twin, code)
        again, keywords = call.arguments(fakes)
        forward(*again, **keywords)
        seen.changed_attributes = _changed(attributes, read_state(twin, code))
    nodes = list(autograd_nodes(flatten(output, into_objects=True)[0]))
    seen.functions = [node.name() for node in nodes]
    seen.leaves = leaves_of(nodes)
    seen.custom = [
        type(node).__name__.removesuffix("Backward")
        for node in nodes
        if isinstance(node, torch.autograd.function.BackwardCFunction)
    ]


def _changed(before: Reading, after: Reading) -> list[str]:
    return list(differences(before, after, same_tensors=True))


def _are_outside(names: list[str], code: Code) -> bool:
    """Whether all of these are globals and the like, of no module."""
    outside = Reading(code.names)
    code.read(outside)
    return outside.values.keys() >= set(names)


def _forms(model: nn.Module) -> dict[str, tuple[torch.Size, torch.dtype]]:
    return {name: (weight.shape, weight.dtype) for name, weight in named_weights(model)}


def _parts(model: nn.Module) -> dict[str, Any]:
    """Modules and parameters, and the names of buffers, which a graph can give other tensors."""
    parts: dict[str, Any] = dict(model.named_modules(remove_duplicate=False))
    parts |= dict.fromkeys((name for name, _ in model.named_buffers(remove_duplicate=False)), None)
    for name, parameter in model.named_parameters(remove_duplicate=False):
        parts |= {name: parameter, f"{name}.requires_grad": parameter.requires_grad}
    return parts


def _remade(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    missing = object()
    names = {**before, **after}
    return [name for name in names if before.get(name, missing) is not after.get(name, missing)]


class _Watch(TorchFunctionMode):
    """Notices tensor hooks, generators and errors, which an exported graph loses."""

    def __init__(self, seen: Seen) -> None:
        super().__init__()
        self.seen = seen

    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        name = getattr(func, "__name__", "")
        if name in _GRADIENT_HOOKS:
            self.seen.tensor_hooks.append(name)
        if kwargs and kwargs.get("generator") is not None:
            self.seen.random.append(f"a generator of its own ({name})")
            kwargs = {**kwargs, "generator": None}  # fake tensors draw nothing from it
        try:
            return func(*args, **(kwargs or {}))
        except Exception:
            self.seen.caught = True
            raise


def autograd_nodes(outputs: list[torch.Tensor]) -> Iterator[Any]:
    """Every autograd function that the outputs depend on, once."""
    waiting = [tensor.grad_fn for tensor in outputs if tensor.grad_fn is not None]
    met = set(waiting)
    while waiting:
        node = waiting.pop()
        yield node
        for source, _ in node.next_functions:
            if source is not None and source not in met:
                met.add(source)
                waiting.append(source)


def leaves_of(nodes: list[Any]) -> frozenset[int]:
    """Ids of the tensors whose gradients some of the functions add up."""
    return frozenset(id(node.variable) for node in nodes if hasattr(node, "variable"))
