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

from baechi.torch.forward_watching import Seen, watch
from baechi.torch.garbage import collected_rarely
from baechi.torch.program import Call
from baechi.torch.random_states import random_states_kept
from baechi.torch.surroundings import surroundings_kept
from baechi.torch.trees import flatten
from baechi.torch.twins import Impostor, twin_of

__all__ = [
    "CHECKPOINT_TAG",
    "Exported",
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


class CannotCopyError(Exception):
    """The model has no twin."""


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
        with (
            surroundings_kept(model) as code,
            _undisturbed(),
            torch.set_grad_enabled(training),
            _autocast(autocast),
        ):
            unbacked = impostor.shapes.ignore_fresh_unbacked_symbols()
            with impostor.mode, _tagging(Seen()), unbacked:
                watch(twin, forward, call, fakes, code, seen)
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


def _autocast(dtype: torch.dtype | None) -> contextlib.AbstractContextManager[Any]:
    # Twins live on the CPU, so that is whose autocast has an effect on them.
    return contextlib.nullcontext() if dtype is None else torch.autocast("cpu", dtype)


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
    with (
        _ONE_AT_A_TIME,
        quiet(),
        random_states_kept(),
        traceless,
        _code_on_demand(),
        collected_rarely(),
    ):
        yield


@contextlib.contextmanager
def _own_branches() -> Iterator[None]:
    """Code that asks whether it is compiled or exported gets the answer that it gets in training.

    Models of transformers take other kernels where it is, with other memory and other gradients
    than the model has.
    """
    with contextlib.ExitStack() as stack:
        for name in ("is_compiling", "is_exporting"):
            # Not a mock of its own: torch asks thousands of times.
            stack.enter_context(mock.patch.object(torch.compiler, name, _never))
        yield


def _never() -> bool:
    return False


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
