"""Random traces: aliases, sums in place, storages held from outside, checkpointed regions, glue."""

import random
from collections.abc import Sequence

from baechi.torch.autograd import ACCUMULATION
from baechi.torch.modules import Units
from baechi.torch.trace import Edge, Function, Incoming, Saved, Step, Storage, Trace, Value


class _Maker:
    """A trace while it grows; every choice is the generator's."""

    def __init__(self, rng: random.Random, training: bool) -> None:
        self.rng = rng
        self.training = training
        self.storages: list[Storage] = []
        self.values: list[Value] = []
        self.steps: list[Step] = []
        self.functions: list[Function] = []
        self.sequence = 0
        self.saved_storages: list[int] = []

    def storage(self, kind: str) -> int:
        nbytes = self.rng.choice((0, 1, 4, 4, 16, 64, 100))
        self.storages.append(Storage(nbytes, kind, kind, kind == "parameter", "float32"))
        return len(self.storages) - 1

    def value(self, storage: int, step: int) -> int:
        whole = self.storages[storage].nbytes
        self.values.append(Value(storage, self.rng.choice((whole, whole, whole // 2)), step))
        return len(self.values) - 1

    def weights(self) -> None:
        for _ in range(self.rng.randint(1, 5)):
            kind = self.rng.choice(("parameter", "parameter", "buffer", "constant", "input"))
            at = self.storage(kind)
            value = self.value(at, -1)
            if kind == "parameter" and self.training and self.rng.random() < 0.8:
                born = [self.storage("made")] if self.rng.random() < 0.3 else []
                peak = self.rng.choice((0, 200))
                self.functions.append(
                    Function("AccumulateGrad", -1, at, ACCUMULATION, [], born, peak, [])
                )
                self.values[value].gradient = (len(self.functions) - 1, 0)

    def step(self, at: int) -> None:
        rng = self.rng
        count = min(len(self.values), rng.randint(0, 4))
        reads = tuple(rng.sample(range(max(0, len(self.values) - 12), len(self.values)), count))
        born = [self.storage("made") for _ in range(rng.choice((0, 1, 1, 2)))]
        parts = born + [self.values[v].storage for v in reads]
        makes = [self.value(s, at) for s in parts if rng.random() < 0.6]
        path = rng.choice(("", "a", "b"))
        step = Step(f"op:{at}", path, "op", reads, makes, born, rng.choice((0, 50, 300)), [], [])
        step.sequence = self.sequence
        self.steps.append(step)
        if not self.training:
            return
        for _ in range(rng.choice((0, 1, 1, 2))):
            self.function(at, step, parts)

    def function(self, at: int, step: Step, parts: Sequence[int]) -> None:
        rng = self.rng
        born = [self.storage("made") for _ in range(rng.choice((0, 1, 2)))]
        found = Function(f"F{at}", at, -1, self.sequence, [], born, rng.choice((0, 90)), [])
        self.sequence += 1
        own = len(self.functions)
        for value in step.reads:
            gradient = self.values[value].gradient
            if gradient is not None and rng.random() < 0.8:
                nbytes = self.values[value].nbytes
                found.edges.append(Edge(*gradient, nbytes, Incoming("other", 0)))
        self.functions.append(found)
        for storage in parts:
            if rng.random() < 0.5:
                step.saved.append(Saved(own, storage, self.storages[storage].nbytes))
                self.saved_storages.append(storage)
        for number, value in enumerate(step.makes):
            if rng.random() < 0.7:
                self.values[value].gradient = (own, number)

    def sources(self, seed: int) -> None:
        """Where gradients come from; later functions first, so that what comes in is known."""
        known = [at for at, one in enumerate(self.storages) if one.kind in ("parameter", "input")]
        known += self.saved_storages
        arriving: dict[int, set[int]] = {seed: {0}}
        for at in reversed(range(len(self.functions))):
            function = self.functions[at]
            choices = [("made", s) for s in function.born] + [("other", s) for s in known[:5]]
            choices += [("taken", number) for number in sorted(arriving.get(at, ()))] * 2
            for edge in function.edges:
                arriving.setdefault(edge.function, set()).add(edge.number)
            if not choices:
                function.edges.clear()
            for edge in function.edges:
                edge.incoming = Incoming(*self.rng.choice(choices))

    def hold(self) -> None:
        """Storages that something outside holds, up to any moment."""
        moments = [("step", at) for at in range(len(self.steps))]
        moments += [("end", 0)] * 2 + [("function", at) for at in range(len(self.functions))]
        for storage in self.storages:
            if storage.kind == "made" and self.rng.random() < 0.15:
                storage.held_until = self.rng.choice(moments)


def random_trace(rng: random.Random) -> Trace:
    training = rng.random() < 0.75
    maker = _Maker(rng, training)
    maker.weights()
    for at in range(rng.randint(1, 14)):
        maker.step(at)
    last = [at for at, one in enumerate(maker.functions) if one.parameter < 0]
    training = bool(last)
    seed = last[-1] if training else -1
    if training:
        maker.sources(seed)
    maker.hold()
    regions = []
    first = 0
    while rng.random() < 0.5 and first < len(maker.steps):
        length = rng.randint(1, 5)
        regions.append(tuple(range(first, min(len(maker.steps), first + length))))
        first += length + rng.randint(0, 2)
    return Trace(
        storages=maker.storages,
        values=maker.values,
        steps=maker.steps,
        functions=maker.functions,
        weights=[],
        outputs=rng.sample(range(len(maker.values)), min(2, len(maker.values))),
        loss=len(maker.values) - 1 if training else -1,
        seed_function=seed,
        colocated=[],
        regions=regions,
        training=training,
        source=rng.choice(("export", "export", "eager")),
        works={},
        ties={},
    )


def random_homes(rng: random.Random, trace: Trace, num_devices: int) -> dict[int, int]:
    return {
        at: rng.randrange(num_devices)
        for at, one in enumerate(trace.storages)
        if one.kind not in ("made", "input")
    }


def random_units(rng: random.Random, trace: Trace) -> Units:
    count = rng.randint(1, 6)
    of_step = tuple(rng.randrange(-1, count) for _ in trace.steps)
    names = tuple(str(at) for at in range(count))
    inside = {
        path: tuple(rng.sample(range(count), rng.randint(0, min(count, 3))))
        for path in {step.path for step in trace.steps}
    }
    return Units(
        names,
        tuple((name,) for name in names),
        of_step,
        {
            at: rng.randrange(count)
            for at, one in enumerate(trace.storages)
            if one.kind in ("parameter", "buffer")
        },
        {
            at: rng.randrange(len(of_step))
            for at, unit in enumerate(of_step)
            if unit < 0 and rng.random() < 0.3
        },
        inside,
    )
