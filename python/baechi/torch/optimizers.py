"""Optimizers: how much state one keeps for each parameter, and what its step needs besides.

Every optimizer of PyTorch that works parameter by parameter is measured with a traced step on small
tensors of the meta device: state is a multiple of the parameter's bytes, and the memory of the step
follows from two numbers (`Optimizer.scratch_bytes`). Adafactor keeps rows and columns, and has
formulas of its own.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from baechi.errors import InputError
from baechi.torch.recorder import Recorder
from baechi.torch.work import MathModes, Work

__all__ = ["NAMES", "Optimizer", "make_optimizer", "read_optimizer", "set_implementation"]

_Make = Callable[[Iterable[torch.Tensor], bool], torch.optim.Optimizer]

_BUILT_IN: dict[str, _Make] = {
    "sgd": lambda p, foreach: torch.optim.SGD(p, lr=0.1, foreach=foreach),
    "momentum": lambda p, foreach: torch.optim.SGD(p, lr=0.1, momentum=0.9, foreach=foreach),
    "adam": lambda p, foreach: torch.optim.Adam(p, foreach=foreach),
    "adamw": lambda p, foreach: torch.optim.AdamW(p, foreach=foreach),
    "adagrad": lambda p, foreach: torch.optim.Adagrad(p, foreach=foreach),
    "rmsprop": lambda p, foreach: torch.optim.RMSprop(p, foreach=foreach),
    "adafactor": lambda p, foreach: torch.optim.Adafactor(p, foreach=foreach),
    "adamax": lambda p, foreach: torch.optim.Adamax(p, foreach=foreach),
    "nadam": lambda p, foreach: torch.optim.NAdam(p, foreach=foreach),
}
NAMES = tuple(_BUILT_IN)
_PROBE = 1 << 22  # elements of a parameter of a traced step; a step counter must not matter


@dataclasses.dataclass(frozen=True)
class Optimizer:
    """What an optimizer costs.

    Attributes:
        name: such as "adamw".
        foreach: whether all parameters of a device are updated together.
        state_ratio: bytes of state for each byte of a parameter.
        peak_ratio: bytes that updating a parameter needs for each of its bytes.
        kept_ratio: of those, what stays until the next parameter is being updated.
        names: the parameters that it updates; None for all that need a gradient.
    """

    name: str
    foreach: bool
    state_ratio: float
    peak_ratio: float
    kept_ratio: float
    names: frozenset[str] | None = None

    @property
    def implementation(self) -> str:
        """What PyTorch calls it."""
        return "foreach" if self.foreach else "single-tensor"

    def state_bytes(self, nbytes: int, shape: Sequence[int]) -> int:
        """State that lies on the device of a parameter, in bytes."""
        if self.name == "adafactor":
            return _adafactor_state(nbytes, shape)
        return round(self.state_ratio * nbytes)

    def update_bytes(self, nbytes: int, shape: Sequence[int]) -> tuple[int, int]:
        """What updating a parameter allocates, and what of that stays until the next is updated."""
        if self.name == "adafactor" and not self.foreach:
            peak = 2 * nbytes if len(shape) < 2 else nbytes + _adafactor_state(nbytes, shape)
        else:
            peak = round(self.peak_ratio * nbytes)
        return peak, round(self.kept_ratio * nbytes)

    def scratch_bytes(
        self, parameters: Sequence[tuple[int, int, Sequence[int]]], num_devices: int
    ) -> list[int]:
        """The most that a step allocates on each device, in bytes.

        One parameter after the other is updated, and what is kept of the one before is on its own
        device; or all of a device at once.

        Args:
            parameters: device, bytes and shape of each, in the order of ``model.parameters()``.
            num_devices: how many devices there are.
        """
        most = [0] * num_devices
        last, before = -1, 0
        for device, nbytes, shape in parameters:
            peak, kept = self.update_bytes(nbytes, shape)
            if self.foreach:
                most[device] += peak
            else:
                most[device] = max(most[device], peak + (before if device == last else 0))
            last, before = device, kept
        return most

    def work(self, nbytes: int, dtype: str) -> Work:
        """What updating a parameter computes: it is bound by the bytes that it moves."""
        moved = int(nbytes * (3 + 2 * self.state_ratio))
        kernels = 0 if self.foreach else 4 + 3 * round(self.state_ratio)
        return Work(f"optimizer.{self.name}", "other", 0, moved, dtype, kernels)


def _adafactor_state(nbytes: int, shape: Sequence[int]) -> int:
    if len(shape) < 2 or 0 in shape:
        return nbytes + 4
    return nbytes // shape[-1] + nbytes // shape[-2] + 4


def make_optimizer(
    name: str, parameters: Iterable[torch.Tensor], foreach: bool
) -> torch.optim.Optimizer:
    """One of `NAMES`, with PyTorch's defaults."""
    if name not in _BUILT_IN:
        raise InputError(
            f'"{name}" cannot be made by its name', hint="pass optimizer=, a function that makes it"
        )
    return _BUILT_IN[name](parameters, foreach)


def read_optimizer(optimizer: Any, model: torch.nn.Module, foreach: bool) -> Optimizer:
    """Reads the `optimizer` argument of a plan.

    Args:
        optimizer: a name of `NAMES`, an optimizer of the model's parameters, or a function that
            makes one of a list of parameters.
        model: whose parameters they are.
        foreach: which implementation PyTorch would choose on the plan's devices.

    Raises:
        InputError: no such name, not an optimizer, or one whose step cannot be traced.
    """
    if isinstance(optimizer, torch.optim.Optimizer):
        return _measured(optimizer, model, foreach)
    if callable(optimizer):
        return _of_maker(optimizer, foreach)
    name = optimizer.lower() if isinstance(optimizer, str) else ""
    if name not in _BUILT_IN:
        raise InputError(
            f"no optimizer {optimizer!r}",
            hint="pass a torch.optim.Optimizer, a function that makes one of parameters, or one of "
            + ", ".join(NAMES),
        )
    return _of_name(name, foreach)


@functools.cache
def _of_name(name: str, foreach: bool) -> Optimizer:
    if name == "adafactor":
        return Optimizer(name, foreach, 0.0, 1.0, 1.0)
    make = _BUILT_IN[name]
    return Optimizer(name, foreach, *_ratios(lambda p: make(p, foreach)))


def _measured(optimizer: torch.optim.Optimizer, model: torch.nn.Module, foreach: bool) -> Optimizer:
    group = optimizer.param_groups[0]
    accepted = inspect.signature(type(optimizer)).parameters
    options = {key: value for key, value in group.items() if key in accepted and key != "params"}
    chosen = options.get("foreach")
    foreach = foreach if chosen is None else bool(chosen)
    if "foreach" in options:
        options["foreach"] = foreach
    if options.get("fused"):
        options["fused"] = False
    known = {id(p): name for name, p in model.named_parameters()}
    updated = [p for g in optimizer.param_groups for p in g["params"]]
    names = frozenset(known[id(p)] for p in updated if id(p) in known)
    if not names:
        raise InputError(
            "the optimizer holds no parameter of the model",
            hint="make it of model.parameters()",
        )
    name = type(optimizer).__name__.lower()
    if name == "adafactor":
        return Optimizer(name, foreach, 0.0, 1.0, 1.0, names)
    kind = type(optimizer)
    ratios = _traceable(lambda p: kind(p, **options), kind.__name__)
    return Optimizer(name, foreach, *ratios, names)


def _of_maker(maker: Callable[..., Any], foreach: bool) -> Optimizer:
    """An optimizer that a function makes, of all parameters that need a gradient."""
    try:
        probe: Any = maker([torch.nn.Parameter(torch.empty(1, device="meta"))])
    except Exception as error:  # whatever a user's function may raise
        raise InputError(
            f"optimizer= fails for a list of one parameter: {type(error).__name__}: {error}",
            hint="pass an optimizer of the model's parameters",
        ) from error
    if not isinstance(probe, torch.optim.Optimizer):
        raise InputError(
            f"optimizer= made {type(probe).__name__}, not a torch.optim.Optimizer",
            hint="pass a function that makes one of a list of parameters",
        )
    chosen = probe.param_groups[0].get("foreach")
    foreach = foreach if chosen is None else bool(chosen)
    name = type(probe).__name__.lower()
    if name == "adafactor":
        return Optimizer(name, foreach, 0.0, 1.0, 1.0)

    def make(parameters: list[torch.Tensor]) -> torch.optim.Optimizer:
        made: torch.optim.Optimizer = maker(parameters)
        set_implementation(made, foreach)
        return made

    return Optimizer(name, foreach, *_traceable(make, type(probe).__name__))


def set_implementation(optimizer: torch.optim.Optimizer, foreach: bool) -> None:
    """Decides between foreach and single-tensor where the optimizer leaves it to the devices.

    A fused step needs a kernel of the device; what it allocates is the foreach step's at most.
    """
    for group in optimizer.param_groups:
        if group.get("fused"):
            group["fused"] = False
        if "foreach" in group and group["foreach"] is None:
            group["foreach"] = foreach


def _traceable(
    make: Callable[[list[torch.Tensor]], torch.optim.Optimizer], name: str
) -> tuple[float, float, float]:
    try:
        return _ratios(make)
    except (RuntimeError, TypeError, NotImplementedError) as error:
        raise InputError(
            f"a step of {name} cannot be traced: {error}",
            hint=f"plan with the nearest of {', '.join(NAMES)}",
        ) from None


def _ratios(
    make: Callable[[list[torch.Tensor]], torch.optim.Optimizer],
) -> tuple[float, float, float]:
    """State, peak and what is kept, for each byte of a parameter, from traced steps on meta."""
    one, state = _traced(make, 1)
    two, _ = _traced(make, 2)
    nbytes = 4 * _PROBE
    return round(state / nbytes, 3), round(one / nbytes, 3), round(max(0, two - one) / nbytes, 3)


def _traced(
    make: Callable[[list[torch.Tensor]], torch.optim.Optimizer], count: int
) -> tuple[int, int]:
    parameters: list[torch.Tensor] = [
        torch.nn.Parameter(torch.empty(_PROBE, device="meta")) for _ in range(count)
    ]
    optimizer = make(parameters)
    for parameter in parameters:
        parameter.grad = torch.empty_like(parameter)
    optimizer.step()  # makes the state
    recorder = Recorder(MathModes())
    state = 0
    for parameter in parameters:
        recorder.storage_of(parameter, "parameter")
        recorder.storage_of(parameter.grad, "parameter")  # type: ignore[arg-type]
        for tensor in optimizer.state[parameter].values():
            if isinstance(tensor, torch.Tensor) and tensor.device.type == "meta":
                recorder.storage_of(tensor, "parameter")
                state += tensor.untyped_storage().nbytes()
    owner = recorder.begins(0)
    with recorder:
        optimizer.step()
    return owner.peak, state // count
