"""The backward half of the memory ledger: autograd's queue, with a copy on each crossing edge."""

from __future__ import annotations

import heapq
from collections import defaultdict

from baechi.torch.memory import ACTIVATIONS, COPIES, GRADIENTS, Moved
from baechi.torch.trace import Edge, Function
from ledger_oracle_forward import Replay

Target = tuple[int, int, int, int]
"""Where gradients meet: function, input number, device, checkpointed region of the copy or -1."""


class Backward:
    """Autograd's backward pass over the functions of a trace, with a copy on each crossing edge.

    On a function's own device its gradients go in; elsewhere the copy's backward takes the sum
    of what arrived there across.
    """

    def __init__(self, replay: Replay) -> None:
        """Counts what each function waits for."""
        self.replay = replay
        trace = replay.trace
        self.functions = trace.functions
        self.device = [
            replay.device_of_step[f.step] if f.parameter < 0 else replay.homes[f.parameter]
            for f in self.functions
        ]
        self.waiting: dict[Target, int] = defaultdict(int)
        self.missing = [0] * len(self.functions)
        self.buffers: dict[Target, int] = {}
        self.nbytes: dict[Target, int] = {}
        self.ready: list[tuple[float, int, Target | None]] = []
        self.region_of: dict[tuple[int, int, int], int] = {}  # (step, function, number)
        self.first_reader = self._first_readers()
        targets: list[set[Target]] = [set() for _ in self.functions]
        for f, function in enumerate(self.functions):
            for edge in function.edges:
                key = self._target(f, edge)
                self.waiting[key] += 1
                targets[edge.function].add(key)
        self.numbers = [1 + max((key[1] for key in keys), default=0) for keys in targets]
        for g, keys in enumerate(targets):
            own = self.device[g]
            local = sum(self.waiting[key] for key in keys if key[2] == own)
            self.missing[g] = local + sum(1 for key in keys if key[2] != own)

    def _first_readers(self) -> dict[Target, float]:
        """The sequence number of the copy whose backward takes a target across."""
        replay = self.replay
        found: dict[Target, float] = {}
        for step, one in enumerate(replay.trace.steps):
            for position, value in enumerate(one.reads):
                gradient = replay.trace.values[value].gradient
                if gradient is not None:
                    _, where, region = replay.place(value, step)
                    self.region_of[step, *gradient] = region
                    key = (*gradient, where, region)
                    found.setdefault(key, one.sequence - 0.5 + position * 1e-3)
        return found

    def _target(self, f: int, edge: Edge) -> Target:
        """Where a function's gradient goes first: to its own device, or to that of the copy."""
        where = self.device[f]
        region = -1
        if where != self.device[edge.function]:
            step = self.functions[f].step
            region = self.region_of.get((step, edge.function, edge.number), -1)
        return (edge.function, edge.number, where, region)

    def run(self) -> None:
        """Runs every function, beginning with the loss."""
        replay, trace = self.replay, self.replay.trace
        seed = trace.seed_function
        where = self.device[seed]
        ones = replay.allocate(where, trace.values[trace.loss].nbytes, ACTIVATIONS)
        replay.holders[ones] = 2  # Tensor.backward keeps it to the end
        self.buffers[seed, 0, where, -1] = ones
        self._push(seed)
        while self.ready:
            _, function, crossing = heapq.heappop(self.ready)
            if crossing is not None:
                self._cross(crossing)
            else:
                self._call(function)
        replay.drop(ones)

    def _push(self, function: int) -> None:
        heapq.heappush(self.ready, (-self.functions[function].sequence, function, None))

    def _call(self, f: int) -> None:
        """Runs a function: takes its gradients, allocates, passes on, forgets what it saved."""
        replay, function, where = self.replay, self.functions[f], self.device[f]
        replay.position = ("function", f)
        replay.order.append(f)
        taken = self._taken(f)
        replay.regions.need(f)
        if function.parameter >= 0:
            self._accumulate(function, where, taken)
            return
        replay.born(function.born, where, function.born_peak, function.name)
        passed: list[tuple[Target, int, int]] = []
        for edge in function.edges:
            source = edge.incoming
            is_taken = source.source == "taken"
            instance = taken[source.at] if is_taken else replay.own[source.at]
            replay.holders[instance] += 1
            passed.append((self._target(f, edge), instance, edge.nbytes))
        for instance in taken.values():
            replay.drop(instance)
        for instance in replay.saved.pop(f, ()):
            replay.drop(instance)
        replay.regions.ran(f)
        for storage in function.born:
            if replay.holders[replay.own[storage]] == 0:
                replay.holders[replay.own[storage]] = 1
                replay.drop(replay.own[storage])
        for key, instance, nbytes in passed:
            self._give(key, instance, nbytes, function.name)
        replay.expire(("function", f))

    def _taken(self, f: int) -> dict[int, int]:
        own = self.device[f]
        return {
            number: self.buffers.pop((f, number, own, -1))
            for number in range(self.numbers[f])
            if (f, number, own, -1) in self.buffers
        }

    def _accumulate(self, function: Function, where: int, taken: dict[int, int]) -> None:
        """A parameter's gradient: kept as it is, or cloned where its layout does not fit."""
        replay = self.replay
        instance = taken[0]
        born = function.born
        if born:
            replay.born(born, where, function.born_peak, "gradient")
            kept = replay.own[born[-1]]
            replay.holders[kept] += 1
            replay.drop(instance)
            instance = kept
        kind, nbytes = replay.kind[instance], replay.nbytes[instance]
        replay.kind[instance] = GRADIENTS
        replay.held[where][kind] -= nbytes
        replay.held[where][GRADIENTS] += nbytes

    def _give(self, key: Target, instance: int, nbytes: int, at: str) -> None:
        """A gradient arrives at a target; the last one there makes it ready."""
        replay, (g, _, where, _) = self.replay, key
        self.nbytes[key] = nbytes
        old = self.buffers.get(key)
        if old is None:
            self.buffers[key] = instance
        elif self.replay.in_place and replay.holders[old] == 1:
            replay.drop(instance)
        else:
            total = replay.allocate(where, nbytes, ACTIVATIONS)
            replay.holders[total] = 1
            replay.mark(where, 0, at)
            replay.drop(old)
            replay.drop(instance)
            self.buffers[key] = total
        if where == self.device[g]:
            self.missing[g] -= 1
            if self.missing[g] == 0:
                self._push(g)
            return
        self.waiting[key] -= 1
        if self.waiting[key] == 0:
            sequence = self.first_reader.get(key, float(self.functions[g].sequence) + 0.5)
            heapq.heappush(self.ready, (-sequence, g, key))

    def _cross(self, key: Target) -> None:
        """The backward of a copy: the sum goes to the device of the function that takes it."""
        replay, (g, number, source, _) = self.replay, key
        where = self.device[g]
        instance = self.buffers.pop(key)
        nbytes = self.nbytes[key]  # a view is copied, not all that it looks at
        copy = replay.allocate(where, nbytes, COPIES)
        replay.holders[copy] = 1
        replay.moved.append(Moved(source, where, nbytes, True, -1))
        replay.mark(where, 0, "gradient copy")
        replay.drop(instance)
        self._give((g, number, where, -1), copy, nbytes, "gradient copy")
