"""The static memory ledger: what each device holds while a trace runs under a placement.

The ledger replays the trace in program order, as the host issues the ops: PyTorch allocates when an
op is issued. Nothing is run. A value that is read on another device is copied there once, before
its first reader, and dropped after its last; what autograd saves stays for its backward; gradients
of a value are added up per device and cross once (docs/memory.md).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from baechi.torch.memory import (
    ACTIVATIONS,
    BUFFERS,
    CLASSES,
    COPIES,
    HOST,
    OPTIMIZER,
    SCRATCH,
    WEIGHTS,
    DeviceMemory,
    Memory,
    Moved,
)
from baechi.torch.trace import Trace

__all__ = ["Replay", "replay"]
_KIND_CLASS = {"parameter": WEIGHTS, "buffer": BUFFERS, "constant": BUFFERS}


def replay(
    trace: Trace,
    device_of_step: Sequence[int],
    home_of_storage: Mapping[int, int],
    num_devices: int,
    *,
    optimizer_bytes: Mapping[int, int] | None = None,
    optimizer_scratch: Sequence[int] | None = None,
    accumulate_in_place: bool = False,
) -> Memory:
    """Replays a trace under a placement.

    Args:
        trace: what runs.
        device_of_step: device index of each step.
        home_of_storage: device index of each parameter, buffer and constant, by storage.
        num_devices: how many devices there are.
        optimizer_bytes: optimizer state of each parameter, by storage.
        optimizer_scratch: bytes that the optimizer's step needs besides, by device.
        accumulate_in_place: gradients of one value are added into the first where nothing else
            holds it, as autograd does on plain devices; under a dispatch mode it never does.
    """
    run = Replay(trace, device_of_step, home_of_storage, num_devices, accumulate_in_place)
    run.charge_persistent(optimizer_bytes or {})
    for step in range(len(trace.steps)):
        run.forward(step)
    run.end_forward()
    if trace.training:
        run.backward()
        run.optimize(optimizer_scratch or [0] * num_devices)
    return run.result()


class Replay:
    """The state of one replay; an instance is a block of memory on a device, counted by holders."""

    def __init__(
        self,
        trace: Trace,
        device_of_step: Sequence[int],
        home_of_storage: Mapping[int, int],
        num_devices: int,
        accumulate_in_place: bool,
    ) -> None:
        """Finds the last use of every value on every device."""
        self.trace = trace
        self.device_of_step = device_of_step
        self.homes = home_of_storage
        self.in_place = accumulate_in_place
        self.held = [[0] * len(CLASSES) for _ in range(num_devices)]
        self.total = [0] * num_devices
        self.peak = [0] * num_devices
        self.peak_at = [""] * num_devices
        self.peak_held = [tuple(row) for row in self.held]
        self.device: list[int] = []  # by instance
        self.nbytes: list[int] = []
        self.kind: list[int] = []
        self.holders: list[int] = []
        self.storage: list[int] = []  # the storage whose own instance it is, -1 for copies and sums
        self.own: dict[int, int] = {}  # storage -> its instance on its own device
        self.made: dict[int, int] = {}  # value -> its instance where it was made
        self.copies: dict[tuple[int, int], int] = {}  # (value, device) -> instance
        self.saved: dict[int, list[int]] = defaultdict(list)  # function -> instances
        self.moved: list[Moved] = []
        self.order: list[int] = []
        self.deaths: dict[int, tuple[str, int]] = {}
        self.position: tuple[str, int] = ("step", -1)
        self.until: dict[tuple[str, int], list[int]] = defaultdict(list)
        self.last = self._last_uses()
        self.dies: dict[int, list[tuple[int, int]]] = defaultdict(list)
        for (value, where), step in self.last.items():
            self.dies[step].append((value, where))

    def home(self, value: int) -> int:
        """The device on which a value is made or kept."""
        one = self.trace.values[value]
        if one.step >= 0:
            return self.device_of_step[one.step]
        return self.homes.get(one.storage, HOST)

    def _last_uses(self) -> dict[tuple[int, int], int]:
        """(value, device) -> the last step there that reads it; a copy reads it at home."""
        trace = self.trace
        last: dict[tuple[int, int], int] = {}
        copied: set[tuple[int, int]] = set()
        for at, step in enumerate(trace.steps):
            where = self.device_of_step[at]
            for value in step.makes:
                last[value, where] = at
            for value in step.reads:
                home = self.home(value)
                last[value, where] = at
                if where != home and (value, where) not in copied:
                    copied.add((value, where))
                    last[value, home] = at
        end = len(trace.steps)
        for value in trace.outputs:
            last[value, self.home(value)] = end
        return last

    def allocate(self, where: int, nbytes: int, kind: int, storage: int = -1) -> int:
        """A new instance, which nobody holds yet."""
        self.device.append(where)
        self.nbytes.append(nbytes)
        self.kind.append(kind)
        self.holders.append(0)
        self.storage.append(storage)
        if where >= 0:
            self.held[where][kind] += nbytes
            self.total[where] += nbytes
        return len(self.device) - 1

    def drop(self, instance: int) -> None:
        """One holder less; the last one frees it."""
        self.holders[instance] -= 1
        if self.holders[instance] > 0:
            return
        where, nbytes = self.device[instance], self.nbytes[instance]
        if where >= 0:
            self.held[where][self.kind[instance]] -= nbytes
            self.total[where] -= nbytes
        storage = self.storage[instance]
        if storage >= 0:
            self.deaths[storage] = self.position

    def mark(self, where: int, extra: int, at: str) -> None:
        """Notes a peak of what is held and `extra` bytes of scratch."""
        if where >= 0 and self.total[where] + extra > self.peak[where]:
            self.peak[where] = self.total[where] + extra
            self.peak_at[where] = at
            held = list(self.held[where])
            held[SCRATCH] += extra
            self.peak_held[where] = tuple(held)

    def charge_persistent(self, optimizer_bytes: Mapping[int, int]) -> None:
        """Weights, buffers and optimizer state, which are there before the step."""
        for at, storage in enumerate(self.trace.storages):
            kind = _KIND_CLASS.get(storage.kind)
            if kind is None:
                if storage.kind == "input":
                    self._own(at, HOST, COPIES)
                continue
            where = self.homes[at]
            self._own(at, where, kind)
            if at in optimizer_bytes:
                self.allocate(where, optimizer_bytes[at], OPTIMIZER)
        for where in range(len(self.total)):
            self.mark(where, 0, "weights")

    def _own(self, storage: int, where: int, kind: int) -> int:
        """A new instance of a storage on its own device; whoever keeps it for good holds it."""
        instance = self.allocate(where, self.trace.storages[storage].nbytes, kind, storage)
        self.own[storage] = instance
        if kind != ACTIVATIONS:
            self.holders[instance] += 1
        until = self.trace.storages[storage].held_until
        if kind == ACTIVATIONS and until is not None:
            self.holders[instance] += 1
            self.until[until].append(instance)
        return instance

    def born(self, born: Sequence[int], where: int, born_peak: int, at: str) -> None:
        """Allocates what an op makes, at its own peak."""
        self.mark(where, born_peak, at)
        for storage in born:
            self._own(storage, where, ACTIVATIONS)

    def _here(self, value: int, where: int) -> int:
        """The instance of a value on a device."""
        copy = self.copies.get((value, where))
        if copy is not None:
            return copy
        made = self.made.get(value)
        return self.own[self.trace.values[value].storage] if made is None else made

    def forward(self, at: int) -> None:
        """Copies what the step reads, runs it, and drops what was used for the last time."""
        trace, step, where = self.trace, self.trace.steps[at], self.device_of_step[at]
        self.position = ("step", at)
        for value in step.reads:
            home = self.home(value)
            if home != where and (value, where) not in self.copies:
                nbytes = trace.values[value].nbytes
                copy = self.allocate(where, nbytes, COPIES)
                self.holders[copy] += 1
                self.copies[value, where] = copy
                self.moved.append(Moved(home, where, nbytes, False, value))
                self.mark(where, 0, step.key)
        self.born(step.born, where, step.born_peak, step.key)
        read = {trace.values[v].storage: self._here(v, where) for v in step.reads}
        for value in step.makes:  # a view of a copy is of the copy
            storage = trace.values[value].storage
            instance = read[storage] if storage in read else self.own[storage]
            self.made[value] = instance
            self.holders[instance] += 1
        for saved in step.saved:
            storage = saved.storage
            instance = read[storage] if storage in read else self.own[storage]
            self.holders[instance] += 1
            self.saved[saved.function].append(instance)
        for value, place in self.dies.get(at, ()):
            if trace.values[value].step >= 0 or (value, place) in self.copies:
                self.drop(self._here(value, place))
        self.expire(("step", at))
        for storage in step.born:
            if self.holders[self.own[storage]] == 0:
                self.holders[self.own[storage]] = 1
                self.drop(self.own[storage])

    def expire(self, position: tuple[str, int]) -> None:
        """Drops what was held up to here from outside."""
        for instance in self.until.pop(position, ()):
            self.drop(instance)

    def end_forward(self) -> None:
        """Locals of the forward pass go; outputs stay with the caller."""
        self.position = ("end", 0)
        self.expire(("end", 0))

    def backward(self) -> None:
        """Runs autograd's queue: ready functions by sequence number, the greatest first."""
        from baechi.torch.ledger_backward import Backward

        Backward(self).run()

    def optimize(self, scratch: Sequence[int]) -> None:
        """The optimizer's step, all gradients being there."""
        for where, nbytes in enumerate(scratch):
            self.mark(where, nbytes, "optimizer")

    def result(self) -> Memory:
        """What was found."""
        devices = tuple(
            DeviceMemory(peak, at, dict(zip(CLASSES, held, strict=True)))
            for peak, at, held in zip(self.peak, self.peak_at, self.peak_held, strict=True)
        )
        return Memory(devices, tuple(self.moved), tuple(self.order), self.deaths)
