"""Simulated devices: several addressable ones in host memory, with real numbers and real limits.

>>> import torch
>>> with simulated(2) as devices:
...     x = torch.ones(4, device=resolve("simdev:1"))
...     y = (2 * x).to(resolve("simdev:0"))
...     to_host(y).sum().item(), devices.current_bytes(0), devices.peak_bytes(1)
(8.0, 16, 32)
>>> [(t.source, t.destination, t.nbytes) for t in devices.transfers]
[(1, 0, 16), (0, -1, 16)]
"""

from __future__ import annotations

import gc
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any
from unittest import mock

import torch
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
)
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

import baechi.torch.simdev_special  # noqa: F401  (declares special ops)
from baechi.errors import InputError
from baechi.torch.modes import without_modes
from baechi.torch.simdev_autocast import autocasting
from baechi.torch.simdev_books import HOST, Books, OpContext, Phase, Transfer, name_of_index
from baechi.torch.simdev_lowering import lowered
from baechi.torch.simdev_ops import FromValues, Simulation, SimulationMode
from baechi.torch.simdev_tensor import NoValuesError, SimTensor, sim_index
from baechi.units import parse_bytes

__all__ = [
    "HOST",
    "NoValuesError",
    "OpContext",
    "SimulatedDevices",
    "Transfer",
    "is_dry",
    "is_simulated",
    "name_of",
    "outside",
    "resolve",
    "simulated",
    "to_host",
]

_NAME = re.compile(r"simdev:(0|[1-9][0-9]{0,2})")


class SimulatedDevices:
    """The devices of one `simulated` block: what they hold, what they copied, their clocks."""

    def __init__(self, simulation: Simulation) -> None:
        """Reads the books of a simulation; made by `simulated`."""
        self._simulation = simulation
        self._books = simulation.books

    def __len__(self) -> int:
        """The number of devices."""
        return len(self._books.caps)

    @property
    def caps(self) -> tuple[int | None, ...]:
        """Bytes that each device may hold, None without a limit."""
        return self._books.caps

    @property
    def dry(self) -> bool:
        """Whether tensors have bytes and no values."""
        return self._simulation.dry

    def current_bytes(self, device: int) -> int:
        """Bytes that living tensors hold on a device; garbage is collected first."""
        gc.collect()
        return self._books.current_bytes[device]

    def peak_bytes(self, device: int) -> int:
        """The most bytes that a device held since the start or `reset_peaks`."""
        return self._books.peak_bytes[device]

    def reset_peaks(self) -> None:
        """Lets peaks begin again at what is held now; garbage is collected first."""
        gc.collect()
        self._books.reset_peaks()

    def take_peaks(self) -> tuple[int, ...]:
        """Peaks of all devices; they begin again at what is held now, garbage included."""
        peaks = tuple(self._books.peak_bytes)
        self._books.reset_peaks()
        return peaks

    @property
    def transfers(self) -> list[Transfer]:
        """Copies between devices, and from and to the host (-1), in the order of the program."""
        return list(self._books.transfers)

    def clear_transfers(self) -> None:
        """Empties the log of transfers."""
        self._books.transfers.clear()

    def clock_ns(self, device: int) -> int:
        """When a device ends the last op that it was given, by the prices of `simulated`."""
        return self._books.clock_ns[device]

    @contextmanager
    def phase(self, phase: Phase) -> Iterator[None]:
        """Names what the program does in this block; without it, only modules are "forward"."""
        phases = self._simulation.phases
        depth = len(phases)
        phases.append(phase)
        try:
            yield
        finally:
            del phases[depth:]


@contextmanager
def simulated(
    devices: int | Sequence[int | str | None],
    *,
    dry: bool = False,
    cost_ns: Callable[[OpContext], int] | None = None,
    link_ns: Callable[[int, int, int], int] | None = None,
) -> Iterator[SimulatedDevices]:
    """Makes devices "simdev:0", "simdev:1", ... in host memory, for the length of a block.

    Numbers are those of the CPU, to the last bit; operands on two devices, and more bytes than a
    cap allows, are errors as on real devices. Tensors may be read after the block.

    Args:
        devices: how many, or the cap of each one: bytes, text such as "24GiB", None for no cap.
        dry: tensors have shapes, bytes and devices but no values, so that models may be larger
            than the memory of the host.
        cost_ns: the time of an op, for the clocks; views are not asked for.
        link_ns: the time of a transfer: source, destination (-1: the host) and bytes.

    Yields:
        The devices, with their bytes, transfers and clocks.

    Raises:
        InputError: no device, or a simulation inside another one.
    """
    caps = [None] * devices if isinstance(devices, int) else list(devices)
    if not caps:
        raise InputError("a simulation without a device", hint="give a number from 1, or caps")
    if _is_under_way():
        raise InputError("a simulation inside another one", hint="leave the first block before")
    books = Books([c if c is None else parse_bytes(c) for c in caps], cost_ns, link_ns)
    names = tuple(torch.device("meta", index) for index in range(len(caps)))
    simulation = Simulation(books, dry, names)
    with ExitStack() as stack:
        stack.enter_context(lowered())
        stack.enter_context(autocasting())
        stack.enter_context(_random_state_forked())
        stack.enter_context(FromValues())
        stack.enter_context(_phases_marked(simulation.phases))
        stack.enter_context(simulation.mode())
        yield SimulatedDevices(simulation)


@contextmanager
def _random_state_forked() -> Iterator[None]:
    """Checkpoints put the random state back after they have computed a region again.

    For the device type "meta", which has no random numbers elsewhere, PyTorch does not.
    """
    of_torch = torch.random.fork_rng

    def fork_rng(*args: Any, **options: Any) -> Any:
        if options.get("device_type") == "meta":
            options |= {"devices": [], "device_type": "cuda"}  # the host's state alone
        return of_torch(*args, **options)

    with mock.patch.object(torch.random, "fork_rng", fork_rng):
        yield


@contextmanager
def outside() -> Iterator[None]:
    """Leaves the simulation that is under way, if there is one, for one of the block's own."""
    with without_modes() if _is_under_way() else nullcontext():
        yield


def _is_under_way() -> bool:
    return any(isinstance(mode, SimulationMode) for mode in _get_current_dispatch_mode_stack())


def resolve(device: str | torch.device) -> torch.device:
    """The torch device of a name: "simdev:1" is a simulated one, others are as torch reads them.

    >>> resolve("simdev:1"), resolve("cpu")
    (device(type='meta', index=1), device(type='cpu'))
    """
    if isinstance(device, str):
        found = _NAME.fullmatch(device)
        if found:
            return torch.device("meta", int(found[1]))
        if device.startswith("simdev"):
            raise InputError(f'no device "{device}"', hint='write "simdev:0", "simdev:1", ...')
    return torch.device(device)


def name_of(device: torch.device) -> str:
    """The name of a torch device, the inverse of `resolve`.

    >>> name_of(torch.device("meta", 1)), name_of(torch.device("cpu"))
    ('simdev:1', 'cpu')
    """
    index = sim_index(device)
    return str(device) if index is None else name_of_index(index)


def is_simulated(tensor: torch.Tensor) -> bool:
    """Whether a tensor is on a simulated device."""
    return isinstance(tensor, SimTensor)


def is_dry(tensor: torch.Tensor) -> bool:
    """Whether a tensor has no values: on meta, or on a simulated device of a dry rehearsal."""
    return tensor._inner.is_meta if isinstance(tensor, SimTensor) else tensor.is_meta


def to_host(tensor: torch.Tensor) -> torch.Tensor:
    """A plain CPU tensor with the same values, part of the graph; in a dry rehearsal on meta."""
    return tensor.cpu() if isinstance(tensor, SimTensor) else tensor


@contextmanager
def _phases_marked(phases: list[Phase]) -> Iterator[None]:
    """Notices calls of modules and steps of optimizers, whoever makes them."""

    def enter(phase: Phase) -> Callable[..., None]:
        def note(*_: Any) -> None:
            phases.append(phase)

        return note

    def leave(*_: Any) -> None:
        if len(phases) > 1:
            phases.pop()

    handles = [
        register_module_forward_pre_hook(enter("forward")),
        register_module_forward_hook(leave, always_call=True),
        register_optimizer_step_pre_hook(enter("optimizer")),
        register_optimizer_step_post_hook(leave),
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
