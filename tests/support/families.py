"""Training steps of any size as arrays: inception, transformer, rnn; random layered graphs.

One tensor per op; a backward op consumes the gradients of its op's consumers and its op's output.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from baechi.cluster import Cluster, Link
from baechi.graph import Graph

Integers = npt.NDArray[np.int64]
FAMILIES = ("inception", "transformer", "rnn")


class Shape(NamedTuple):
    """Edges of a forward pass between ops in topological order."""

    num_ops: int
    producer: Integers
    consumer: Integers


def family(name: str, num_ops: int, *, ratio: float, seed: int) -> Graph:
    """A graph of about that many ops; `ratio` is mean transfer time over mean compute time."""
    if name == "layered":
        return _layered(num_ops, ratio, seed)
    shape = {"inception": _inception, "transformer": _transformer, "rnn": _rnn}[name](num_ops // 2)
    return _training_step(shape, ratio, seed)


def program(name: str, num_ops: int, *, seed: int) -> tuple[npt.NDArray[Any], ...]:
    """Parents, children, transfers and durations of a family at ratio 1, one pair per edge."""
    graph = family(name, num_ops, ratio=1.0, seed=seed)
    parent = graph.tensor_producer[graph.edge_tensor].astype(np.int32)
    transfer = graph.tensor_bytes[graph.edge_tensor].astype(np.float64)
    durations = graph.compute_ns.reshape(-1).astype(np.float64)
    return parent, graph.edge_consumer.astype(np.int32), transfer, durations


def unit_cluster(num_devices: int = 4) -> Cluster:
    """Equal devices whose links take one ns per byte."""
    return Cluster(f"{num_devices}x1TiB", Link(latency_ns=0, bytes_per_s=10**9))


def _inception(num_ops: int) -> Shape:
    """Blocks of four branches of one to three convolutions (conv, bn, relu) and a join."""
    edges, ends, at = [], [], 0
    for convolutions in (1, 2, 3, 2):
        last = -1
        for _ in range(3 * convolutions):
            edges.append((last, at))
            last, at = at, at + 1
        ends.append(last)
    edges += [(end, at) for end in ends]
    return _repeated(at + 1, edges, num_ops)


def _transformer(num_ops: int) -> Shape:
    """Layers of eight heads, a projection and two dense ops, with residual connections."""
    edges, ends, at = [], [], 0
    for _ in range(8):
        query, key, value, scores, softmax, mix = range(at, at + 6)
        edges += [(-1, query), (-1, key), (-1, value), (query, scores), (key, scores)]
        edges += [(scores, softmax), (softmax, mix), (value, mix)]
        ends.append(mix)
        at += 6
    concat, project, norm1, wide, gelu, narrow, norm2 = range(at, at + 7)
    edges += [(end, concat) for end in ends]
    edges += [(concat, project), (project, norm1), (-1, norm1), (norm1, wide), (wide, gelu)]
    edges += [(gelu, narrow), (narrow, norm2), (norm1, norm2)]
    return _repeated(at + 7, edges, num_ops)


def _repeated(size: int, edges: list[tuple[int, int]], num_ops: int) -> Shape:
    """A block again and again behind an input; -1 stands for the last op of the block before."""
    blocks = max(1, num_ops // size)
    block = np.array(edges)
    offset = 1 + size * np.arange(blocks)[:, None]
    producer, consumer = ((offset + block[:, side]).ravel() for side in (0, 1))
    return Shape(1 + size * blocks, producer, consumer)


def _rnn(num_ops: int, layers: int = 8) -> Shape:
    """Encoder and decoder of eight layers, attention to all encoder outputs, a projection."""
    per_step = 12 * layers + 4
    steps = max(1, (num_ops - 1) // per_step)
    producer: list[Integers] = []
    consumer: list[Integers] = []

    def link(tail: Integers, head: Integers) -> None:
        producer.append(tail)
        consumer.append(head)

    def stack(first: int, inputs: Integers) -> tuple[int, Integers]:
        # Cells of six ops; numbered step by step, so that the order is topological.
        base = first + 6 * layers * np.arange(steps)
        for layer in range(layers):
            gates, a, b, c, cell, out = (base + 6 * layer + part for part in range(6))
            link(inputs, gates)
            link(out[:-1], gates[1:])
            for part in (a, b, c):
                link(gates, part)
                link(part, cell)
            link(cell[:-1], cell[1:])
            link(gates, out)
            link(cell, out)
            inputs = out
        return first + 6 * layers * steps, inputs

    embedded = np.arange(steps)
    at, encoded = stack(steps, embedded)
    memory, at = at, at + 1
    link(encoded, np.full(steps, memory))
    target = at + np.arange(steps)
    attention = target + steps
    link(target, attention)
    link(np.full(steps, memory), attention)
    at, decoded = stack(at + 2 * steps, attention)
    projection = at + np.arange(steps)
    link(decoded, projection)
    return Shape(at + steps, np.concatenate(producer), np.concatenate(consumer))


def _training_step(shape: Shape, ratio: float, seed: int) -> Graph:
    """Forward and mirrored backward; a backward op takes twice as long."""
    forward = shape.num_ops
    num_ops = 2 * forward
    rng = np.random.default_rng(seed)
    own = np.arange(forward)
    mirror = num_ops - 1 - own
    tensor = np.concatenate([shape.producer, mirror[shape.consumer], own])
    consumer = np.concatenate([shape.consumer, mirror[shape.producer], mirror])
    order = np.argsort(consumer, kind="stable")
    compute = rng.lognormal(0.0, 1.0, forward)
    compute = np.concatenate([compute, 2.0 * compute[::-1]])
    return _graph(compute, rng.lognormal(0.0, 1.0, num_ops), tensor[order], consumer[order], ratio)


def _layered(num_ops: int, ratio: float, seed: int) -> Graph:
    """Layers of sqrt(ops) / 2; 2.2 inputs per op on average, 85 % from the layer before."""
    rng = np.random.default_rng(seed)
    width = max(2, round(num_ops**0.5 / 2))
    ops = np.arange(width, num_ops)
    consumer = np.repeat(ops, 2 + (rng.random(len(ops)) < 0.2))
    layer = consumer // width * width
    least = np.where(rng.random(len(consumer)) < 0.85, layer - width, 0)
    keys = np.unique(consumer * num_ops + rng.integers(least, layer))
    compute, sizes = rng.lognormal(0.0, 1.0, num_ops), rng.lognormal(0.0, 1.0, num_ops)
    return _graph(compute, sizes, keys % num_ops, keys // num_ops, ratio)


def _graph(
    compute: npt.NDArray[np.float64],
    sizes: npt.NDArray[np.float64],
    edge_tensor: Integers,
    edge_consumer: Integers,
    ratio: float,
) -> Graph:
    compute_ns = np.maximum(1, np.rint(compute * 1e5)).astype(np.int64)
    scale = ratio * compute_ns.mean() / sizes.mean()
    return Graph.from_arrays(
        compute_ns=compute_ns,
        tensor_producer=np.arange(len(compute)),
        tensor_bytes=np.maximum(1, np.rint(sizes * scale)).astype(np.int64),
        edge_tensor=edge_tensor,
        edge_consumer=edge_consumer,
    )
