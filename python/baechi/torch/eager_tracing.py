"""Eager tracing: one step of a model's own code, written down op by op as a `Trace`.

For models that torch.export does not take, and for placements at module level, where the model's
own code runs: its locals live longer than a graph's values. The code runs on a twin on the meta
device; where it reads numbers, on a copy with the real weights.
"""

from __future__ import annotations

import bisect
import contextlib
import copy
import functools
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.utils.weak import WeakIdKeyDictionary

from baechi.errors import InputError
from baechi.torch.autograd import ACCUMULATION, Keeper, run_backward
from baechi.torch.fingerprints import ties_of
from baechi.torch.holding import hold
from baechi.torch.losses import LossArgument, loss_value
from baechi.torch.recorder import Recorder
from baechi.torch.stand_ins import CPU_KERNELS, Kernels, StandIns
from baechi.torch.trace import Step, Trace, Value
from baechi.torch.trees import flatten, tensors_in
from baechi.torch.twins import twin_of
from baechi.torch.work import MathModes

__all__ = ["trace_eager"]

_NOT_OPS = ("aten.detach.default", "prim.device.default")


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
    modes = MathModes.of_this_process(autocast)
    stand_ins = StandIns(kernels)
    twin = twin_of(model, stand_ins)
    try:
        tensors, rest = flatten((tuple(args), dict(kwargs)))
        call = rest.rebuild([stand_ins(tensor) for tensor in tensors])
        run = _Run(twin, modes, training, stand_ins)
        return run.trace(call, loss, autocast, ties_of(model))
    except InputError:
        raise
    except (RuntimeError, ValueError, NotImplementedError, TypeError, IndexError) as error:
        weights = (*model.parameters(), *model.buffers())
        if any(weight.is_meta for weight in weights):
            raise InputError(
                f"forward cannot run without numbers: {_first_line(error)}",
                hint="plan it with real weights and inputs, on any device",
            ) from error
    with torch.random.fork_rng(devices=[]):
        stand_in = copy.deepcopy(model).cpu()
        inputs = _tree_on_cpu((tuple(args), dict(kwargs)))
        run = _Run(stand_in, modes, training, None)
        return run.trace(inputs, loss, autocast, ties_of(model))


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def _tree_on_cpu(tree: Any) -> Any:
    tensors, rest = flatten(tree)
    return rest.rebuild([tensor.detach().cpu().clone() for tensor in tensors])


class _EagerRecorder(Recorder):
    """Makes a step of every op that forward dispatches."""

    def __init__(self, modes: MathModes, kernels: Kernels) -> None:
        super().__init__(modes, kernels.scratch_bytes)
        self.steps: list[Step] = []
        self.ends: list[int] = []  # autograd's next number when a step is dispatched
        self.values: list[Value] = []
        self.sources: list[tuple[int, int] | int | None] = []
        self.known: WeakIdKeyDictionary = WeakIdKeyDictionary()  # type: ignore[no-untyped-call]
        self.path: list[str] = [""]
        self.counts: Counter[tuple[str, str]] = Counter()
        self.is_forward = False
        self.made_on: dict[int, list[int]] = defaultdict(list)  # storage -> steps
        self.written: set[int] = set()

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Runs an op as a step of its own."""
        kwargs = kwargs or {}
        if self.silent or not self.is_forward or str(func) in _NOT_OPS:
            return super().__torch_dispatch__(func, types, args, kwargs)
        at = len(self.steps)
        reads = dict.fromkeys(self.value_of(t) for t in tensors_in((args, list(kwargs.values()))))
        self.ends.append(torch.autograd._get_sequence_nr())  # type: ignore[attr-defined]
        owner = self.begins(at)
        out = super().__torch_dispatch__(func, types, args, kwargs)
        self.owner = None
        name = func._schema.name.rpartition("::")[2]
        path = self.path[-1]
        key, kind = f"{path}:{name}:{self.counts[path, name]}", str(func).removesuffix(".default")
        self.counts[path, name] += 1
        step = Step(key, path, kind, tuple(reads), [], owner.born, owner.peak, owner.works, [])
        step.sequence, step.random = self.ends[-1], self.random
        self.steps.append(step)
        written = [
            a.alias_info is not None and a.alias_info.is_write for a in func._schema.arguments
        ]
        for argument, is_written in zip(args, written, strict=False):
            if is_written:
                self.written.update(self.storage_of(t) for t in tensors_in(argument))
        for number, tensor in enumerate(tensors_in(out)):
            source = (self.ends[-1] - 1, number) if torch.is_grad_enabled() else None
            step.makes.append(self.add_value(tensor, at, source))
            self.made_on[self.values[step.makes[-1]].storage].append(at)
        return out

    def value_of(self, tensor: torch.Tensor) -> int:
        """The value of a tensor; one that was never seen comes from outside."""
        found = self.known.get(tensor)  # type: ignore[no-untyped-call]
        if found is None:
            return self.add_value(tensor, -1, None, kind="constant", name="")
        value: int = found
        if tensor.grad_fn is not None:
            self.sources[value] = (tensor.grad_fn._sequence_nr(), tensor.output_nr)
        return value

    def add_value(
        self,
        tensor: torch.Tensor,
        step: int,
        source: tuple[int, int] | int | None,
        kind: str = "made",
        name: str = "",
    ) -> int:
        """A new value; `source` is where its gradient goes."""
        storage = self.storage_of(tensor, kind, name)
        self.values.append(Value(storage, tensor.numel() * tensor.element_size(), step))
        if step < 0:
            source = storage if tensor.requires_grad and tensor.is_leaf else None
        self.sources.append(source)
        self.known[tensor] = len(self.values) - 1
        return len(self.values) - 1


class _Run:
    """One run of a stand-in."""

    def __init__(
        self, model: torch.nn.Module, modes: MathModes, training: bool, stand_ins: StandIns | None
    ):
        self.model, self.training, self.stand_ins = model, training, stand_ins
        self.kernels = CPU_KERNELS if stand_ins is None else stand_ins.kernels
        self.casts = False
        self.recorder = _EagerRecorder(modes, self.kernels)
        self.keeper = Keeper(self.recorder)

    def trace(
        self,
        call: tuple[tuple[Any, ...], dict[str, Any]],
        loss: LossArgument,
        autocast: torch.dtype | None,
        ties: Mapping[str, tuple[str, ...]],
    ) -> Trace:
        """Runs forward and backward."""
        args, kwargs = call
        recorder, keeper = self.recorder, self.keeper
        held = self._weights()
        roots, _ = flatten((tuple(args), dict(kwargs)))
        held += [recorder.add_value(t, -1, None, "input", "") for t in roots]
        hooks = [hook for pair in self.model.named_modules() for hook in self._watch(*pair)]
        grad = torch.enable_grad() if self.training else torch.no_grad()
        kind, self.casts = self.kernels.device_type, autocast is not None
        casts = torch.autocast(kind, autocast) if autocast else contextlib.nullcontext()
        saved = torch.autograd.graph.saved_tensors_hooks(keeper.pack, keeper.unpack)
        with grad, self._running(), recorder, saved:
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
        )
        _link(recorder, trace)
        recorder.position = ("step end", 0)
        hold(trace, recorder.deaths)
        del output, roots
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


def _link(recorder: _EagerRecorder, trace: Trace) -> None:
    by_sequence = {
        f.sequence: at for at, f in enumerate(trace.functions) if f.sequence != ACCUMULATION
    }
    by_parameter = {f.parameter: at for at, f in enumerate(trace.functions) if f.parameter >= 0}
    for value, source in zip(trace.values, recorder.sources, strict=True):
        if isinstance(source, tuple) and source[0] in by_sequence:
            value.gradient = (by_sequence[source[0]], source[1])
        elif isinstance(source, int) and source in by_parameter:
            value.gradient = (by_parameter[source], 0)
