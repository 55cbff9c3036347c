"""Exporting: torch.export on the twin of a model, watched for what a graph cannot hold."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import logging
import threading
import warnings
from collections.abc import Iterator
from typing import Any
from unittest import mock

import torch
import torch._guards
import torch.fx.traceback
import torch.utils.checkpoint
from torch import nn
from torch.fx import GraphModule
from torch.fx.traceback import preserve_node_meta
from torch.overrides import TorchFunctionMode

from baechi.torch.garbage import collected_rarely
from baechi.torch.guards import changed_attributes, plain_attributes
from baechi.torch.parameters import named_weights
from baechi.torch.program import Call
from baechi.torch.trees import Tree, flatten
from baechi.torch.twins import Impostor, twin_of

__all__ = [
    "CHECKPOINT_TAG",
    "Exported",
    "Seen",
    "autograd_nodes",
    "export_twin",
    "quiet",
    "signature_of",
]

CHECKPOINT_TAG = "baechi_checkpoint"
# torch's checkpoint functions are replaced while a model is exported.
_ONE_AT_A_TIME = threading.RLock()
_LOGGERS = (
    "torch.fx.experimental.symbolic_shapes",
    "torch.export",
    "torch._export",
    "torch._dynamo",
    "torch._subclasses.fake_tensor",
)
_GRADIENT_HOOKS = (
    "register_hook",
    "register_post_accumulate_grad_hook",
    "register_multi_grad_hook",
)


class CannotCopyError(Exception):
    """The model has no twin."""


@dataclasses.dataclass(slots=True)
class Seen:
    """What was noticed while forward ran."""

    out_tree: Tree | None = None
    functions: list[str] = dataclasses.field(default_factory=list)
    """Names of the autograd functions behind the outputs, with repetitions."""
    custom: list[str] = dataclasses.field(default_factory=list)
    """Autograd functions written in Python."""
    tensor_hooks: list[str] = dataclasses.field(default_factory=list)
    changed_arguments: bool = False
    changed_attributes: list[str] = dataclasses.field(default_factory=list)
    reshaped: list[str] = dataclasses.field(default_factory=list)
    """Names of parameters and buffers of another shape or type afterwards."""
    checkpoints: list[bool] = dataclasses.field(default_factory=list)
    """For each checkpointed region whether it preserves the random state."""
    reentrant: bool = False
    selective: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class Exported:
    """The exported program, or why there is none, and what was seen on the way."""

    program: torch.export.ExportedProgram | None
    twin: nn.Module
    impostor: Impostor
    seen: Seen
    error: Exception | None = None


def export_twin(
    model: nn.Module,
    call: Call,
    tensors: list[torch.Tensor],
    *,
    training: bool,
    autocast: torch.dtype | None,
) -> Exported:
    """Exports a twin of the model for one call; the model and the random state stay as they are."""
    impostor = Impostor()
    seen = Seen()
    try:
        twin = twin_of(model, impostor)
    except Exception as error:  # whatever an attribute's __deepcopy__ may raise
        return Exported(None, model, impostor, seen, CannotCopyError(str(error)))
    if training != twin.training:
        twin.train(training)
    forward = twin.forward
    fakes = tuple(impostor(tensor) for tensor in tensors)

    def flat(*leaves: torch.Tensor) -> tuple[Any, ...]:
        args, kwargs = call.arguments(leaves)
        made, seen.out_tree = flatten(forward(*args, **kwargs), into_objects=True)
        return tuple(made)

    twin.forward = flat
    try:
        with _undisturbed(), torch.set_grad_enabled(training), _autocast(autocast):
            with impostor.mode, _tagging(Seen()):
                attributes, shapes = plain_attributes(twin), _shapes(twin)
                with impostor.shapes.ignore_fresh_unbacked_symbols():
                    _watch(forward, call, fakes, seen)
                seen.changed_attributes = changed_attributes(attributes, twin)
                after = _shapes(twin)
                seen.reshaped = [name for name in shapes if shapes[name] != after.get(name)]
            # In a context of the twin's mode, torch.export makes no mode of its own.
            context = torch._guards.TracingContext(impostor.mode)
            tracing = torch._guards.tracing(context)
            with _tagging(seen), preserve_node_meta(), tracing, _own_branches():
                exported = torch.export.export(twin, fakes, strict=False)
    except Exception as error:  # whatever a user's forward or torch.export may raise
        return Exported(None, twin, impostor, seen, error)
    finally:
        del twin.forward
    return Exported(exported, twin, impostor, seen)


def _shapes(model: nn.Module) -> dict[str, tuple[torch.Size, torch.dtype]]:
    return {name: (weight.shape, weight.dtype) for name, weight in named_weights(model)}


def _watch(forward: Any, call: Call, fakes: tuple[torch.Tensor, ...], seen: Seen) -> None:
    """Runs forward as it is and notes what a graph could lose."""
    args, kwargs = call.arguments(fakes)
    before, structure = flatten([args, kwargs])
    with _Watch(seen):
        output = forward(*args, **kwargs)
    after, structure_after = flatten([args, kwargs])
    if structure != structure_after or any(a is not b for a, b in zip(before, after, strict=True)):
        seen.changed_arguments = True
    for node in autograd_nodes(flatten(output, into_objects=True)[0]):
        seen.functions.append(node.name())
        if isinstance(node, torch.autograd.function.BackwardCFunction):
            seen.custom.append(type(node).__name__.removesuffix("Backward"))


def _autocast(dtype: torch.dtype | None) -> contextlib.AbstractContextManager[Any]:
    # Twins live on the CPU, so that is whose autocast has an effect on them.
    return contextlib.nullcontext() if dtype is None else torch.autocast("cpu", dtype)


class _Watch(TorchFunctionMode):
    """Notices tensor hooks, which an exported graph loses."""

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
        return func(*args, **(kwargs or {}))


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


@contextlib.contextmanager
def _tagging(seen: Seen) -> Iterator[None]:
    """Nodes of a checkpointed region carry its number; reentrant checkpoints are noticed."""

    def tagged(function: Any, args: Any, kwargs: Any, **options: Any) -> Iterator[None]:
        default = torch.utils.checkpoint.noop_context_fn
        seen.selective |= options.get("context_fn", default) is not default
        if CHECKPOINT_TAG in torch.fx.traceback.current_meta.get("custom", {}):
            yield  # inside another one, which recomputes all of it
            return
        seen.checkpoints.append(options.get("preserve_rng_state", True))
        with torch.fx.traceback.annotate({CHECKPOINT_TAG: len(seen.checkpoints) - 1}):
            yield

    class Reentrant:
        @staticmethod
        def apply(function: Any, preserve_rng_state: bool, *args: Any) -> Any:
            seen.reentrant = True
            return function(*args)

    module = torch.utils.checkpoint
    with (
        mock.patch.object(module, "_checkpoint_without_reentrant_generator_impl", tagged),
        mock.patch.object(module, "CheckpointFunction", Reentrant),
    ):
        yield


@contextlib.contextmanager
def _undisturbed() -> Iterator[None]:
    # Stack traces of every op are a third of the time, and nobody reads them.
    traceless = mock.patch.object(torch.fx.config, "do_not_emit_stack_traces", True)
    generator = torch.random.fork_rng(devices=[])
    with _ONE_AT_A_TIME, quiet(), generator, traceless, _code_on_demand(), collected_rarely():
        yield


@contextlib.contextmanager
def _own_branches() -> Iterator[None]:
    """Code that asks whether it is compiled or exported gets the answer that it gets in training.

    Models of transformers take other kernels where it is, with other memory and other gradients
    than the model has.
    """
    with contextlib.ExitStack() as stack:
        for name in ("is_compiling", "is_exporting"):
            stack.enter_context(mock.patch.object(torch.compiler, name, return_value=False))
        yield


@contextlib.contextmanager
def _code_on_demand() -> Iterator[None]:
    """Python code of a graph is made when the graph is called, not by every pass that changes it.

    A quarter of the time of an export goes into code that nobody runs.
    """
    make_code, this_thread = GraphModule.recompile, threading.get_ident()

    def recompile(graph_module: GraphModule) -> Any:
        if threading.get_ident() != this_thread:
            return make_code(graph_module)

        def forward(called: GraphModule, *args: Any, **kwargs: Any) -> Any:
            make_code(called)
            return called.forward(*args, **kwargs)

        type(graph_module).forward = forward  # each has a class of its own
        return None

    with mock.patch.object(GraphModule, "recompile", recompile):
        yield


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """What torch says to people who export is not said to people who plan."""
    loggers = [logging.getLogger(name) for name in _LOGGERS]
    levels = [logger.level for logger in loggers]
    try:
        for logger in loggers:
            logger.setLevel(logging.CRITICAL)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def signature_of(model: nn.Module) -> inspect.Signature:
    """The signature of forward, without self."""
    return inspect.signature(model.forward)
