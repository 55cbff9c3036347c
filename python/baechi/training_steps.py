"""Training steps that look like known models: forward ops, mirrored backward, updates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from baechi.builder import GraphBuilder
from baechi.errors import InputError
from baechi.graph import Graph

__all__ = ["TrainingStep", "inception_like", "rnn_like", "transformer_like"]

MEDIAN_NS: Final = 245_000
MEDIAN_BYTES: Final = 440_000
_SPREAD: Final = 1.0  # standard deviation of the logarithm

Integers = npt.NDArray[np.int64]


def inception_like(blocks: int = 11, *, seed: int) -> Graph:
    """Blocks of four branches of three convolutions and a concatenation, as a training step.

    Every convolution is a variable, a read, conv, bn and relu; variable, read and update share a
    group. 11 blocks have about 1,200 ops.

    Args:
        blocks: at least 1.
        seed: of all that is drawn.

    Raises:
        InputError: fewer blocks than 1.
    """
    at_least("blocks", blocks, 1)
    step = TrainingStep(seed)
    join = step.op("input", "input", [])
    for b in range(blocks):
        ends = []
        for branch in range(4):
            last = join
            for layer in range(3):
                path = f"block{b}/branch{branch}/conv{layer}"
                read = step.variable(path)
                last = step.op(f"{path}/conv", "conv", [last, read], weights=path)
                last = step.op(f"{path}/bn", "bn", [last], share=0.2)
                last = step.op(f"{path}/relu", "relu", [last], share=0.1)
            ends.append(last)
        join = step.op(f"block{b}/concat", "concat", ends, share=0.2)
    return step.finish()


def rnn_like(layers: int = 4, steps: int = 40, *, seed: int) -> Graph:
    """An encoder and a decoder stack of recurrent cells with attention, as a training step.

    A cell has six ops; every decoder step attends to the encoder's outputs, then projects. 4
    layers and 40 steps have about 4,200 ops.

    Args:
        layers: cells above each other, at least 1.
        steps: cells beside each other, at least 1.
        seed: of all that is drawn.

    Raises:
        InputError: a count below its least.
    """
    at_least("layers", layers, 1)
    at_least("steps", steps, 1)
    step = TrainingStep(seed)
    encoded = [step.op(f"encoder/embed{s}", "embedding", [], share=0.1) for s in range(steps)]
    encoded = _stack(step, "encoder", layers, encoded)
    memory = step.op("encoder/memory", "concat", encoded, share=0.2)
    inputs = []
    for s in range(steps):
        target = step.op(f"decoder/embed{s}", "embedding", [], share=0.1)
        inputs.append(step.op(f"decoder/attention{s}", "attention", [target, memory]))
    decoded = _stack(step, "decoder", layers, inputs)
    read = step.variable("projection")
    for s, cell in enumerate(decoded):
        step.op(f"projection/step{s}", "matmul", [cell, read], weights="projection")
    return step.finish()


def transformer_like(layers: int = 6, heads: int = 8, *, seed: int) -> Graph:
    """Transformer layers with one branch per attention head, as a training step.

    Args:
        layers: at least 1.
        heads: at least 1.
        seed: of all that is drawn.

    Raises:
        InputError: a count below its least.
    """
    at_least("layers", layers, 1)
    at_least("heads", heads, 1)
    step = TrainingStep(seed)
    last = step.linear("embedding", [step.op("tokens", "input", [])])
    for i in range(layers):
        path = f"layer{i}"
        ends = []
        for head in range(heads):
            part = f"{path}/head{head}"
            query, key, value = (step.linear(f"{part}/{name}", [last]) for name in "qkv")
            scores = step.op(f"{part}/scores", "matmul", [query, key])
            shares = step.op(f"{part}/softmax", "softmax", [scores], share=0.2)
            ends.append(step.op(f"{part}/mix", "matmul", [shares, value]))
        joined = step.linear(f"{path}/output", [step.op(f"{path}/concat", "concat", ends)])
        attended = step.op(f"{path}/norm1", "norm", [joined, last], share=0.2)
        wide = step.op(f"{path}/gelu", "gelu", [step.linear(f"{path}/wide", [attended])], share=0.2)
        narrow = step.linear(f"{path}/narrow", [wide])
        last = step.op(f"{path}/norm2", "norm", [narrow, attended], share=0.2)
    step.linear("head", [last])
    return step.finish()


class _Forward(NamedTuple):
    name: str
    inputs: tuple[str, ...]
    compute_ns: int
    weights: str | None


class TrainingStep:
    """A training step in the making: add forward ops, then `finish` mirrors them.

    A backward op consumes its op's output, the weights its op read, and one gradient from each
    backward op of its op's consumers. Variable, read and update share a group.
    """

    def __init__(self, seed: int) -> None:
        """An empty step; the seed is of all times and sizes."""
        self._rng = np.random.default_rng(seed)
        self._builder = GraphBuilder()
        self._forward: list[_Forward] = []
        self._outputs: dict[str, tuple[int, int]] = {}  # tensor, bytes
        self._weights: dict[str, tuple[str, int]] = {}  # read op, bytes

    def op(
        self,
        name: str,
        kind: str,
        inputs: Sequence[str],
        *,
        share: float = 1.0,
        weights: str | None = None,
    ) -> str:
        """Add a forward op and return its name.

        Args:
            name: distinct.
            kind: such as "conv".
            inputs: the ops whose outputs it consumes.
            share: its time as a share of what is drawn.
            weights: the path of the variable it is the user of.
        """
        compute_ns = int(drawn(self._rng, MEDIAN_NS, 1)[0] * share)
        module = name.rpartition("/")[0]
        self._builder.op(name, compute_ns, kind=kind, module=module)
        self._add_output(name, int(drawn(self._rng, MEDIAN_BYTES, 1)[0]), "activation")
        for producer in inputs:
            self._builder.edge(self._outputs[producer][0], name)
        self._forward.append(_Forward(name, tuple(inputs), compute_ns, weights))
        return name

    def variable(self, path: str) -> str:
        """Add a variable and the op that reads it; return the latter's name."""
        size = int(drawn(self._rng, 4 * MEDIAN_BYTES, 1)[0])
        name, read = f"{path}/variable", f"{path}/read"
        self._builder.op(
            name, 1000, kind="variable", module=path, persistent_bytes=size, group=path
        )
        self._add_output(name, size, "weight")
        self._builder.op(read, 1000, kind="read", module=path, group=path)
        self._add_output(read, size, "weight")
        self._builder.edge(self._outputs[name][0], read)
        self._weights[path] = (read, size)
        return read

    def linear(self, path: str, inputs: Sequence[str]) -> str:
        """Add a variable and a product with it; return the name of the product."""
        read = self.variable(path)
        return self.op(f"{path}/matmul", "matmul", [*inputs, read], weights=path)

    def finish(self) -> Graph:
        """Add the backward and update ops and build."""
        gradients: dict[str, list[int]] = {}
        differentiable = {forward.name for forward in self._forward}
        for name, inputs, compute_ns, weights in reversed(self._forward):
            grad = f"{name}/grad"
            module = name.rpartition("/")[0]
            self._builder.op(
                grad, 2 * compute_ns, kind="grad", module=module, role="backward", forward_op=name
            )
            self._builder.edge(self._outputs[name][0], grad)
            if weights is not None:
                read, size = self._weights[weights]
                self._builder.edge(self._outputs[read][0], grad)
                tensor = self._builder.tensor(grad, size, memory_class="gradient")
                gradients.setdefault(read, []).append(tensor)
            for tensor in gradients.get(name, ()):
                self._builder.edge(tensor, grad)
            for producer in inputs:
                if producer in differentiable:
                    size = self._outputs[producer][1]
                    tensor = self._builder.tensor(grad, size, memory_class="gradient")
                    gradients.setdefault(producer, []).append(tensor)
        for path, (read, _) in self._weights.items():
            update = f"{path}/update"
            self._builder.op(update, 5000, kind="update", module=path, role="update", group=path)
            for tensor in gradients.get(read, ()):
                self._builder.edge(tensor, update)
        return self._builder.build()

    def _add_output(self, name: str, size: int, memory_class: str) -> None:
        self._outputs[name] = (self._builder.tensor(name, size, memory_class=memory_class), size)


def drawn(rng: np.random.Generator, median: int, count: int) -> Integers:
    """[count] integers of at least 1, log-normal around the median."""
    values = np.rint(median * rng.lognormal(0.0, _SPREAD, count))
    return np.maximum(values, 1).astype(np.int64)


def at_least(name: str, count: int, least: int) -> None:
    """Refuse a smaller count.

    Raises:
        InputError: it is smaller.
    """
    if count < least:
        raise InputError(f"{name} is {count}, not at least {least}")


def _stack(step: TrainingStep, name: str, layers: int, inputs: list[str]) -> list[str]:
    """Recurrent cells of six ops, `layers` above each other; the outputs of the top layer."""
    for layer in range(layers):
        path = f"{name}/layer{layer}"
        read = step.variable(path)
        state: list[str] = []
        outputs: list[str] = []
        for s, below in enumerate(inputs):
            cell = f"{path}/step{s}"
            gates = step.op(f"{cell}/gates", "matmul", [below, *outputs[-1:], read], weights=path)
            parts = [
                step.op(f"{cell}/{part}", kind, [gates], share=0.1)
                for part, kind in (("in", "sigmoid"), ("forget", "sigmoid"), ("new", "tanh"))
            ]
            state.append(step.op(f"{cell}/cell", "cell", [*parts, *state[-1:]], share=0.1))
            outputs.append(step.op(f"{cell}/out", "tanh", [gates, state[-1]], share=0.1))
        inputs = outputs
    return inputs
