"""The forward half of the memory ledger: instances of storages, and who holds them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

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
    Place,
)
from baechi.torch.trace import Trace
from ledger_oracle_regions import Regions

_KIND_CLASS = {"parameter": WEIGHTS, "buffer": BUFFERS, "constant": BUFFERS}


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
        self.copies: dict[Place, int] = {}
        self.saved: dict[int, list[int]] = defaultdict(list)  # function -> instances
        self.moved: list[Moved] = []
        self.order: list[int] = []
        self.deaths: dict[int, tuple[str, int]] = {}
        self.position: tuple[str, int] = ("step", -1)
        self.follows = trace.source != "export"
        self.followers: dict[int, list[int]] = defaultdict(list)  # source -> cached copies
        self.until: dict[tuple[str, int], list[int]] = defaultdict(list)
        self.regions = Regions(self)
        self.regional: dict[tuple[int, int], Place] = {}  # (step, value) that a region copies
        self.dies: dict[int, list[Place]] = defaultdict(list)
        for place, step in self._last_uses().items():
            self.dies[step].append(place)

    def home(self, value: int) -> int:
        """The device on which a value is made or kept."""
        one = self.trace.values[value]
        if one.step >= 0:
            return self.device_of_step[one.step]
        return self.homes.get(one.storage, HOST)

    def _last_uses(self) -> dict[Place, int]:
        """The last step that reads each value at each place; a copy reads it at home."""
        trace = self.trace
        last: dict[Place, int] = {}
        copied: set[Place] = set()
        for at, step in enumerate(trace.steps):
            where = self.device_of_step[at]
            for value in step.makes:
                last[value, where, -1] = at
            for value in step.reads:
                home = self.home(value)
                place = (value, where, -1)
                region = self.regions.of_step.get(at, -1)
                if region >= 0 and where != home and place not in copied:
                    place = self.regional[at, value] = (value, where, region)
                if where != home and place not in copied:
                    copied.add(place)
                    last[value, home, -1] = at
                last[place] = at
        end = len(trace.steps)
        for value in trace.outputs:
            last[value, self.home(value), -1] = end
        return last

    def place(self, value: int, at: int) -> Place:
        """Where a step finds a value: at home, in a copy, or in the copy of its region."""
        return self.regional.get((at, value), (value, self.device_of_step[at], -1))

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
        for copy in self.followers.pop(instance, ()):
            self.drop(copy)

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

    def instance_at(self, place: Place) -> int:
        """The instance of a value at a place."""
        value = place[0]
        copy = self.copies.get(place)
        if copy is not None:
            return copy
        made = self.made.get(value)
        return self.own[self.trace.values[value].storage] if made is None else made

    def forward(self, at: int) -> None:
        """Copies what the step reads, runs it, and drops what was used for the last time."""
        self.position = ("step", at)
        self.regions.enter(at)
        self.copy_reads(at, backward=False)
        self.compute(at, keeps=at not in self.regions.of_step)
        self.drop_used(at, self.dies.get(at, ()))
        self.expire(("step", at))
        self.regions.leave(at)

    def copy_reads(self, at: int, *, backward: bool) -> None:
        """Copies what a step reads and does not find on its device."""
        step, where = self.trace.steps[at], self.device_of_step[at]
        for value in step.reads:
            place = self.place(value, at)
            if self.home(value) != where and place not in self.copies:
                nbytes = self.trace.values[value].nbytes
                copy = self.allocate(where, nbytes, COPIES)
                self.holders[copy] += 1
                self.copies[place] = copy
                if self.follows:
                    self._follow(copy, value)
                self.moved.append(Moved(self.home(value), where, nbytes, backward, value))
                self.mark(where, 0, step.key)

    def _follow(self, copy: int, value: int) -> None:
        """The cache of placed modules keeps a copy as long as its source lives."""
        self.holders[copy] += 1
        source = (
            HOST if self.home(value) == HOST else self.instance_at((value, self.home(value), -1))
        )
        self.followers[source].append(copy)

    def compute(self, at: int, *, keeps: bool) -> None:
        """Allocates what a step makes; `keeps`: autograd holds what it saves."""
        trace, step = self.trace, self.trace.steps[at]
        self.born(step.born, self.device_of_step[at], step.born_peak, step.key)
        read = self.read(at)
        for value in step.makes:  # a view of a copy is of the copy
            storage = trace.values[value].storage
            instance = read[storage] if storage in read else self.own[storage]
            self.made[value] = instance
            self.holders[instance] += 1
        for saved in step.saved if keeps else ():
            storage = saved.storage
            self.save(saved.function, read[storage] if storage in read else self.own[storage])

    def read(self, at: int) -> dict[int, int]:
        """The instance of each storage that a step reads."""
        return {
            self.trace.values[v].storage: self.instance_at(self.place(v, at))
            for v in self.trace.steps[at].reads
        }

    def save(self, function: int, instance: int) -> None:
        """An autograd function holds an instance until it has run."""
        self.holders[instance] += 1
        self.saved[function].append(instance)

    def drop_used(self, at: int, places: Iterable[Place]) -> None:
        """Drops values after a step, and what the step made that nobody ever held."""
        for place in places:
            if self.trace.values[place[0]].step >= 0 or place in self.copies:
                self.drop(self.instance_at(place))
        for storage in self.trace.steps[at].born:
            if self.holders[self.own[storage]] == 0:
                self.holders[self.own[storage]] = 1
                self.drop(self.own[storage])

    def expire(self, position: tuple[str, int]) -> None:
        """Drops what was held up to here from outside."""
        for instance in self.until.pop(position, ()):
            self.drop(instance)

    def end_forward(self) -> None:
        """Locals of the forward pass go, and cached copies; outputs stay with the caller."""
        self.position = ("end", 0)
        for source in list(self.followers):
            for copy in self.followers.pop(source, ()):
                self.drop(copy)
        self.expire(("end", 0))

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
