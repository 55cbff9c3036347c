"""The books of simulated devices: bytes held and their peaks, transfers, and virtual clocks."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch

from baechi.units import format_bytes

__all__ = ["HOST", "Books", "OpContext", "Phase", "Transfer", "name_of_index"]

HOST = -1
Phase = Literal["forward", "backward", "optimizer", "other"]


@dataclass(frozen=True, slots=True)
class Transfer:
    """One copy from a device to another one; -1 is the host."""

    source: int
    destination: int
    nbytes: int
    phase: Phase


@dataclass(frozen=True, slots=True)
class OpContext:
    """An op that has just run on a device, as the function that prices ops sees it.

    ``args``, ``kwargs`` and ``outputs`` hold plain tensors in place of the simulated ones: on the
    CPU, or in a dry rehearsal on meta. Views are not priced: they take no time.
    """

    op: Any
    device: int
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    outputs: Any
    phase: Phase


class _Charge:
    """One storage: where it is charged, its bytes, and when the op that writes it has ended."""

    __slots__ = ("device", "nbytes", "ready_ns", "stale", "storage")

    def __init__(self, device: int, nbytes: int, storage: weakref.ref[Any]) -> None:
        self.device = device
        self.nbytes = nbytes
        self.ready_ns = 0
        self.stale = False  # values that were kept in a dry rehearsal have changed
        self.storage = storage  # keeps the callback that runs when the storage dies


class Books:
    """Bytes, transfers and clocks of all devices of one simulation.

    A storage is charged when it is first seen and released when it dies, whatever the number of
    tensors that look at it. Clocks are those of asynchronous devices that are given their ops in
    program order: an op starts when the device has ended its ops before, when its inputs are
    ready and when the host has got so far; a transfer starts when its source is ready and the
    link is free, and occupies neither device.
    """

    def __init__(
        self,
        caps: Sequence[int | None],
        cost_ns: Callable[[OpContext], int] | None,
        link_ns: Callable[[int, int, int], int] | None,
    ) -> None:
        """Begins with empty devices, one per cap (None: no limit)."""
        self.caps = tuple(caps)
        self.current_bytes = [0] * len(self.caps)
        self.peak_bytes = [0] * len(self.caps)
        self.transfers: list[Transfer] = []
        self.clock_ns = [0] * len(self.caps)
        self.host_ns = 0
        self.has_clocks = cost_ns is not None or link_ns is not None
        self._cost_ns = cost_ns
        self._link_ns = link_ns
        self._link_free_ns: dict[tuple[int, int], int] = {}
        self._charges: dict[int, _Charge] = {}

    def hold(self, device: int, tensors: Iterable[torch.Tensor], what: str) -> None:
        """Charges the storages of these tensors that are new or have grown.

        Raises:
            torch.OutOfMemoryError: they do not fit under the cap; then nothing is charged.
        """
        fresh: dict[int, tuple[Any, int]] = {}
        asked = 0
        for tensor in tensors:
            storage = tensor.untyped_storage()
            key, nbytes = storage._cdata, storage.nbytes()
            charge = self._charges.get(key)
            more = nbytes - (0 if charge is None else charge.nbytes)
            if key not in fresh and (charge is None or more):
                fresh[key] = (storage, more)
                asked += more
        if not fresh:
            return
        self._refuse_over_cap(device, asked, what)
        for key, (storage, more) in fresh.items():
            charge = self._charges.get(key)
            if charge is None:
                self._charges[key] = _Charge(device, more, self._until_death(storage, key))
            else:
                charge.nbytes += more
        self.current_bytes[device] += asked
        self.peak_bytes[device] = max(self.peak_bytes[device], self.current_bytes[device])

    def reset_peaks(self) -> None:
        """Lets every peak begin again at what is held now."""
        self.peak_bytes = list(self.current_bytes)

    def compute(self, context: OpContext, read: Iterable[Any], written: Iterable[Any]) -> None:
        """Advances the clock of the op's device; what it wrote is ready when the op has ended."""
        charges = self._charges
        start_ns = max(self.clock_ns[context.device], self.host_ns)
        for tensor in read:
            charge = charges.get(tensor.untyped_storage()._cdata)
            if charge is not None and charge.ready_ns > start_ns:
                start_ns = charge.ready_ns
        end_ns = start_ns + (0 if self._cost_ns is None else self._cost_ns(context))
        self.clock_ns[context.device] = end_ns
        for tensor in written:
            charge = charges.get(tensor.untyped_storage()._cdata)
            if charge is not None:
                charge.ready_ns = end_ns

    def transfer(
        self, moved: Transfer, source: torch.Tensor | None, destination: torch.Tensor | None
    ) -> None:
        """Logs a copy, and lets its destination be ready when the link has carried it."""
        self.transfers.append(moved)
        if not self.has_clocks:
            return
        link = (moved.source, moved.destination)
        charge = self._charge_of(source)
        ready_ns = self.host_ns if charge is None else max(charge.ready_ns, self.host_ns)
        start_ns = max(ready_ns, self._link_free_ns.get(link, 0))
        end_ns = start_ns
        if self._link_ns is not None:
            end_ns += self._link_ns(moved.source, moved.destination, moved.nbytes)
        self._link_free_ns[link] = end_ns
        if moved.destination == HOST:
            self.host_ns = max(self.host_ns, end_ns)
            return
        charge = self._charge_of(destination)
        if charge is not None:
            charge.ready_ns = max(charge.ready_ns, end_ns)

    def mark_stale(self, tensor: torch.Tensor) -> None:
        """Notes that kept values of this tensor's storage are no longer right."""
        charge = self._charge_of(tensor)
        if charge is not None:
            charge.stale = True

    def is_stale(self, tensor: torch.Tensor) -> bool:
        """Whether kept values of this tensor's storage are no longer right."""
        charge = self._charge_of(tensor)
        return charge is not None and charge.stale

    def wait_for(self, tensor: torch.Tensor) -> None:
        """Lets the host wait until this tensor is ready: it reads a value of it."""
        charge = self._charge_of(tensor)
        if charge is not None:
            self.host_ns = max(self.host_ns, charge.ready_ns)

    def _charge_of(self, tensor: torch.Tensor | None) -> _Charge | None:
        return None if tensor is None else self._charges.get(tensor.untyped_storage()._cdata)

    def _until_death(self, storage: Any, key: int) -> weakref.ref[Any]:
        books = weakref.ref(self)

        def release(_: object) -> None:
            owner = books()
            if owner is not None:
                charge = owner._charges.pop(key)
                owner.current_bytes[charge.device] -= charge.nbytes

        return weakref.ref(storage, release)

    def _refuse_over_cap(self, device: int, asked: int, what: str) -> None:
        cap, used = self.caps[device], self.current_bytes[device]
        if cap is None or used + asked <= cap:
            return
        raise torch.OutOfMemoryError(
            f"{name_of_index(device)} out of memory in {what}. Tried to allocate "
            f"{format_bytes(asked)} ({asked} bytes): {format_bytes(used)} ({used} bytes) are in "
            f"use of a cap of {format_bytes(cap)} ({cap} bytes)"
        )


def name_of_index(index: int) -> str:
    """The name of a device for a reader: "simdev:1", or "cpu" for the host."""
    return "cpu" if index == HOST else f"simdev:{index}"
