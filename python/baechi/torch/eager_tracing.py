"""Eager tracing: one step of a model's own code, written down op by op as a `Trace`.

For models that torch.export does not take, and for placements at module level, where the model's
own code runs: its locals live longer than a graph's values. The code runs on a twin on the meta
device; where it reads numbers, on a copy with the real weights.
"""

from __future__ import annotations

import bisect
import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from baechi.errors import InputError
from baechi.torch.autograd import ACCUMULATION, Keeper, run_backward
from baechi.torch.eager_recorder import EagerRecorder
from baechi.torch.fingerprints import ties_of
from baechi.torch.holding import hold
from baechi.torch.losses import LossArgument, loss_value
from baechi.torch.random_states import random_states_kept
from baechi.torch.stand_ins import CPU_KERNELS, Kernels, StandIns
from baechi.torch.surroundings import surroundings_kept
from baechi.torch.trace import Trace
from baechi.torch.trees import flatten
from baechi.torch.twins import hooks_left_out, twin_of, twin_of_call
from baechi.torch.work import MathModes

__all__ = ["trace_eager"]


def trace_eager(
    model: torch.nn.Module,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    *,
    training: bool,
    loss: LossArgument = None,
    autocast: torch.dtype | None = None,
    kernels: Kernels = CPU_KERNELS,
) -> Trace:
    """Traces a model's own code; the model, its buffers and the random state stay as they are.

    Args:
        model: weights may be on meta unless its code reads numbers.
        args: positional arguments of forward.
        kwargs: keyword arguments of forward.
        training: also trace backward, from the loss.
        loss: as in `planning.plan`.
        autocast: as under ``torch.autocast`` with this type.
        kernels: what ops come apart into; in a step with the real weights it is the CPU's.

    Raises:
        InputError: the code reads numbers and the weights are on meta; it fails; or there is no
            loss with a gradient.
    """
    with random_states_kept():
        return _traced(model, args, kwargs, training, loss, autocast, kernels)


def _traced(
    model: torch.nn.Module,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    training: bool,
    loss: LossArgument,
    autocast: torch.dtype | None,
    kernels: Kernels,
) -> Trace:
    """Traces on meta or, where that fails and there are numbers, in one real step."""
    modes, ties = MathModes.of_this_process(autocast), ties_of(model)
    stand_ins = StandIns(kernels)
    try:
        run = _Run(twin_of(model, stand_ins, "tolerant"), modes, training, stand_ins)
        with surroundings_kept(model):
            return run.trace(args, kwargs, stand_ins, loss, autocast, ties)
    except Exception as error:  # whatever forward and the loss may raise without numbers
        weights = (*model.parameters(), *model.buffers())
        if any(weight.is_meta for weight in weights):
            if isinstance(error, InputError):
                raise
            raise InputError(
                f"forward fails without numbers: {_text(error)}",
                hint="if it runs with numbers, plan it with real weights and inputs, on any device",
            ) from error
    try:
        stand_in = twin_of(model, None, "tolerant").cpu()
    except Exception as error:  # whatever an attribute's __deepcopy__ may raise
        raise InputError(
            f"the model cannot be copied: {_text(error)}",
            hint="give what cannot be copied a __deepcopy__",
        ) from error
    try:
        run = _Run(stand_in, modes, training, None)
        with surroundings_kept(model):
            return run.trace(args, kwargs, _on_cpu, loss, autocast, ties)
    except InputError:
        raise
    except Exception as error:  # whatever forward may raise
        under = f" under autocast to {autocast}" if autocast else ""
        way_out = "; it may pass without autocast, or with casts of its own" if autocast else ""
        raise InputError(
            f"the model fails in a step on the CPU{under}: {_text(error)}",
            hint=f"call the model so on the CPU, outside of baechi, to see where{way_out}",
        ) from error


def _text(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def _on_cpu(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().cpu().clone()


class _Run:
    """One run of a stand-in."""

    def __init__(
        self, model: torch.nn.Module, modes: MathModes, training: bool, stand_ins: StandIns | None
    ):
        self.model, self.training, self.stand_ins = model, training, stand_ins
        self.kernels = CPU_KERNELS if stand_ins is None else stand_ins.kernels
        self.casts = False
        self.recorder = EagerRecorder(modes, self.kernels)
        self.keeper = Keeper(self.recorder)

    def trace(
        self,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        convert: Callable[[torch.Tensor], torch.Tensor],
        loss: LossArgument,
        autocast: torch.dtype | None,
        ties: Mapping[str, tuple[str, ...]],
    ) -> Trace:
        """Runs forward and backward on what `convert` makes of the inputs."""
        recorder, keeper = self.recorder, self.keeper
        held = self._weights()
        roots: list[torch.Tensor] = []

        def taken(tensor: torch.Tensor) -> torch.Tensor:
            roots.append(convert(tensor))
            return roots[-1]

        args, kwargs = twin_of_call(args, kwargs, taken)
        held += [recorder.add_value(t, -1, None, "input", "") for t in roots]
        hooks = [hook for pair in self.model.named_modules() for hook in self._watch(*pair)]
        grad = torch.enable_grad() if self.training else torch.no_grad()
        kind, self.casts = self.kernels.device_type, autocast is not None
        casts = torch.autocast(kind, autocast) if autocast else contextlib.nullcontext()
        with grad, self._running(), recorder, keeper.watching():
            recorder.is_forward = True
            with casts:
                output = self.model(*args, **kwargs)
            scalar = loss_value(output, loss) if self.training else None
            recorder.is_forward = False
            recorder.position = ("end", 0)
        for hook in hooks:
            hook.remove()
        outputs = [recorder.value_of(tensor) for tensor in flatten(output)[0]]
        functions = []
        if self.training:
            if scalar is None or scalar.grad_fn is None:
                raise InputError(
                    "the loss has no gradient: no parameter that needs one leads to it",
                    hint='plan with mode="inference", or unfreeze a parameter',
                )
            with self._running():
                step_of = functools.partial(bisect.bisect, recorder.ends)
                functions = run_backward(recorder, keeper, scalar, recorder.steps, step_of)
        loss_at = recorder.value_of(scalar) if scalar is not None else -1
        del scalar
        trace = Trace(
            recorder.storages,
            recorder.values,
            recorder.steps,
            functions,
            held,
            outputs,
            loss_at,
            0 if self.training else -1,
            self._colocated(),
            [],
            self.training,
            "real step" if self.stand_ins is None else "eager",
            recorder.works,
            ties,
            tuple(hooks_left_out(self.model)),
        )
        _link(recorder, trace)
        recorder.position = ("step end", 0)
        hold(trace, recorder.deaths)
        roots.clear()
        del output
        return trace

    def _running(self) -> contextlib.AbstractContextManager[None]:
        if self.stand_ins is None:
            return contextlib.nullcontext()
        return self.stand_ins.running(casts=self.casts)

    def _weights(self) -> list[int]:
        """Values of parameters and buffers, by the first of their names."""
        recorder = self.recorder
        held = [
            recorder.add_value(p, -1, None, "parameter", name)
            for name, p in self.model.named_parameters()
        ]
        return held + [
            recorder.add_value(b, -1, None, "buffer", name)
            for name, b in self.model.named_buffers()
        ]

    def _watch(self, path: str, module: torch.nn.Module) -> Iterator[Any]:
        """Keeps the recorder's path that of the innermost module."""
        stack = self.recorder.path

        def enter(*_: Any) -> None:
            stack.append(path)

        def leave(*_: Any) -> None:
            stack.pop()

        yield module.register_forward_pre_hook(enter, prepend=True)
        yield module.register_forward_hook(leave, always_call=True)

    def _colocated(self) -> list[tuple[int, ...]]:
        """Steps that make values of a storage that some op changes in place."""
        recorder = self.recorder
        groups = [
            tuple(dict.fromkeys(recorder.made_on[storage]))
            for storage in sorted(recorder.written)
            if recorder.storages[storage].kind == "made"
        ]
        return [group for group in groups if len(group) > 1]


def _link(recorder: EagerRecorder, trace: Trace) -> None:
    by_sequence = {
        f.sequence: at for at, f in enumerate(trace.functions) if f.sequence != ACCUMULATION
    }
    by_parameter = {f.parameter: at for at, f in enumerate(trace.functions) if f.parameter >= 0}
    for value, source in zip(trace.values, recorder.sources, strict=True):
        if isinstance(source, tuple) and source[0] in by_sequence:
            value.gradient = (by_sequence[source[0]], source[1])
        elif isinstance(source, int) and source in by_parameter:
            value.gradient = (by_parameter[source], 0)
