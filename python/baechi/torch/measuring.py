"""Measuring what ops take on the device at hand: time, as medians after a warm-up, and scratch.

Two ways give the same kind of costs: ``measure_costs`` watches the steps of a model, and
``measure_calls`` runs calls one by one, with made-up operands, as graphs captured without weights
have them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from baechi.errors import InputError
from baechi.torch.costs import Costs, DeviceCosts
from baechi.torch.machine import accelerators, fingerprint, host, software
from baechi.torch.memory_counters import counter_of
from baechi.torch.signatures import Call, signature_of
from baechi.torch.trees import tensors_in

__all__ = ["measure_calls", "measure_costs"]

_WARM_UPS = 1


def measure_costs(
    model: torch.nn.Module,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    training: bool,
    loss: Callable[[Any], torch.Tensor] | None = None,
    repeats: int = 5,
) -> Costs:
    """Times every op of a model's step, forward and, for training, backward.

    Where the device counts its memory (`memory_counters`), the scratch of each call is found, too:
    what it held at most beside what it was given and what it returned. The model runs where it is.
    Its buffers and gradients and the random state are put back.

    Args:
        model: with real weights, all on one device.
        args: inputs by position.
        kwargs: inputs by name.
        training: whether the backward pass is measured too.
        loss: makes a scalar of the output; by default the output itself, its ``loss``, or the sum
            of what is in it.
        repeats: steps that are timed, after one that is not.

    Returns:
        The median time per signature, over all equal calls, and their greatest scratch.

    Raises:
        InputError: weights on the meta device or on several devices, or no repeats.
    """
    device = _device_of(model)
    _check_repeats(repeats)
    samples = _Samples()
    with _as_it_was(model), torch.set_grad_enabled(training):
        for step in range(_WARM_UPS + repeats):
            timer = _Timer(device)
            with timer:
                output = model(*args, **(kwargs or {}))
                if training:
                    _loss_of(output, loss).backward()  # type: ignore[no-untyped-call]
            model.zero_grad(set_to_none=True)
            if step >= _WARM_UPS:
                timer.add_to(samples)
    return _costs(device, samples)


def measure_calls(
    calls: Iterable[Call], device: str | torch.device = "cpu", *, repeats: int = 5
) -> Costs:
    """Measures one call of each signature with operands made up on the device.

    What cannot be run so, such as ops that need particular values, is left out and keeps its
    analytic price.

    Args:
        calls: ops with their arguments (``baechi.torch.signatures``); only shapes and types count.
        device: where to run.
        repeats: timed calls of each, after one that is not.

    Raises:
        InputError: no repeats, or the device is not there.
    """
    place = torch.device(device)
    _check_repeats(repeats)
    samples = _Samples()
    with torch.no_grad(), torch.random.fork_rng(_random_devices(place)):
        for func, args, kwargs, _ in calls:
            signature = signature_of(func, args, kwargs)
            if signature in samples.times:
                continue
            try:
                real_args, real_kwargs = _made_up((tuple(args), dict(kwargs)), place)
                func(*real_args, **real_kwargs)
                timer = _Timer(place)
                for _ in range(repeats):
                    timer.time(signature, func, real_args, real_kwargs)
            except (RuntimeError, NotImplementedError, IndexError, ValueError, TypeError):
                continue
            timer.add_to(samples)
    return _costs(place, samples)


@dataclasses.dataclass
class _Samples:
    """What was measured of each signature: times of all calls, and the greatest scratch."""

    times: dict[str, list[int]] = dataclasses.field(default_factory=dict)
    scratch: dict[str, int] = dataclasses.field(default_factory=dict)


class _Timer(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Times every op that reaches the device; what the mode itself costs is outside the clock."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._has_events = device.type != "cpu"
        self._device = device
        # Several threads share an op's work: then only the wall clock knows how long it takes.
        self._clock = time.thread_time_ns if torch.get_num_threads() == 1 else time.perf_counter_ns
        self._memory = counter_of(device)
        self._scratch: dict[str, int] = {}
        self._times: list[tuple[str, int]] = []
        self._events: list[tuple[str, torch.Event, torch.Event]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self.time(signature_of(func, args, kwargs or {}), func, args, kwargs or {})

    def time(self, signature: str, func: Any, args: Any, kwargs: Any) -> Any:
        """Runs one call and notes how long it took and what it held beside its results."""
        memory = self._memory
        if memory is None:
            return self._timed(signature, func, args, kwargs)
        memory.reset_peak()
        out = self._timed(signature, func, args, kwargs)
        scratch = memory.peak_bytes() - memory.held_bytes()
        self._scratch[signature] = max(scratch, self._scratch.get(signature, 0))
        return out

    def _timed(self, signature: str, func: Any, args: Any, kwargs: Any) -> Any:
        if self._has_events:
            start = torch.Event(self._device, enable_timing=True)
            end = torch.Event(self._device, enable_timing=True)
            stream = torch.accelerator.current_stream(
                self._device
            )  # its device need not be current
            start.record(stream)
            out = func(*args, **kwargs)
            end.record(stream)
            self._events.append((signature, start, end))
            return out
        before = self._clock()
        out = func(*args, **kwargs)
        self._times.append((signature, self._clock() - before))
        return out

    def add_to(self, samples: _Samples) -> None:
        """Waits for the device and adds what was measured."""
        if self._events:
            torch.accelerator.synchronize(self._device)
        for signature, start, end in self._events:
            time_ns = round(start.elapsed_time(end) * 10**6)
            samples.times.setdefault(signature, []).append(time_ns)
        for signature, time_ns in self._times:
            samples.times.setdefault(signature, []).append(time_ns)
        for signature, scratch in self._scratch.items():
            samples.scratch[signature] = max(scratch, samples.scratch.get(signature, 0))


def _costs(device: torch.device, samples: _Samples) -> Costs:
    if device.type == "cpu":
        found = host()
        clock = "thread time" if torch.get_num_threads() == 1 else "wall clock"
    else:
        index = 0 if device.index is None else device.index
        found, clock = accelerators()[index], "events"
    times = {signature: round(statistics.median(ns)) for signature, ns in samples.times.items()}
    scratch = {signature: nbytes for signature, nbytes in samples.scratch.items() if nbytes > 0}
    measured = DeviceCosts(
        name=found.title,
        kind=found.kind,
        clock=clock,
        software=software(found.device),
        times_ns=MappingProxyType(dict(sorted(times.items()))),
        device_type="" if counter_of(device) is None else device.type,
        scratch_bytes=MappingProxyType(dict(sorted(scratch.items()))),
    )
    return Costs(MappingProxyType({fingerprint(found): measured}))


def _made_up(values: Any, device: torch.device) -> Any:
    """Random numbers, and zeros for integers, which are indices as a rule."""

    def real(value: Any) -> Any:
        if isinstance(value, torch.device):
            return device
        if not isinstance(value, torch.Tensor):
            return value
        shape, strides = tuple(map(int, value.shape)), tuple(map(int, value.stride()))
        made = torch.empty_strided(shape, strides, dtype=value.dtype, device=device)
        is_number = value.dtype.is_floating_point or value.dtype.is_complex
        if not is_number or value.dtype.itemsize == 1 or 0 in strides:
            return made.zero_() if 0 not in strides else torch.zeros_like(made)
        return made.normal_()

    return tree_map(real, values)


def _device_of(model: torch.nn.Module) -> torch.device:
    tensors = [*model.parameters(), *model.buffers()]
    devices = sorted({str(tensor.device) for tensor in tensors})
    if len(devices) > 1 or devices == ["meta"]:
        raise InputError(
            f"the weights are on {', '.join(devices)}",
            hint="measure a model with real weights on one device",
        )
    return tensors[0].device if tensors else torch.device("cpu")


def _check_repeats(repeats: int) -> None:
    if repeats < 1:
        raise InputError(f"{repeats} repeats give no median", hint="5 is a good number")


def _random_devices(device: torch.device) -> list[int]:
    return [] if device.type != "cuda" else [0 if device.index is None else device.index]


@contextlib.contextmanager
def _as_it_was(model: torch.nn.Module) -> Iterator[None]:
    """Puts buffers, gradients and the random state back."""
    buffers = [(buffer, buffer.detach().clone()) for buffer in model.buffers()]
    gradients = [(parameter, parameter.grad) for parameter in model.parameters()]
    with torch.random.fork_rng(_random_devices(_device_of(model))):
        for parameter, _ in gradients:
            parameter.grad = None
        try:
            yield
        finally:
            with torch.no_grad():
                for buffer, value in buffers:
                    buffer.copy_(value)
            for parameter, gradient in gradients:
                parameter.grad = gradient


def _loss_of(output: Any, loss: Callable[[Any], torch.Tensor] | None) -> torch.Tensor:
    if loss is not None:
        return loss(output)
    found = output if isinstance(output, torch.Tensor) else getattr(output, "loss", None)
    if isinstance(found, torch.Tensor):
        return found if found.dim() == 0 else found.sum()
    numbers = [t for t in tensors_in(output) if t.is_floating_point() and t.requires_grad]
    return torch.stack([number.sum() for number in numbers]).sum()
