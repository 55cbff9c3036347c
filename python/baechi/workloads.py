"""Synthetic graphs; the same arguments give the same graph.

Durations and sizes follow log-normal distributions around the medians of the layered graphs that
the original placers were measured on: 245 us per op, 440 KB per output.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from baechi.errors import InputError
from baechi.graph import MEMORY_CLASSES, ROLES, Graph
from baechi.training_steps import (
    MEDIAN_BYTES,
    MEDIAN_NS,
    Integers,
    at_least,
    drawn,
    inception_like,
    rnn_like,
    transformer_like,
)

__all__ = [
    "chain",
    "diamond",
    "fan_out",
    "inception_like",
    "random_layered",
    "rnn_like",
    "training_blocks",
    "transformer_like",
]

_NEAR: Final = 0.85  # share of edges from the layer just before


def chain(
    num_ops: int,
    *,
    seed: int | None = None,
    compute_ns: int | None = None,
    tensor_bytes: int | None = None,
) -> Graph:
    """Ops one after another.

    Args:
        num_ops: at least 1.
        seed: needed unless both figures are given.
        compute_ns: ns of every op; None: drawn.
        tensor_bytes: bytes of every output; None: drawn.

    Raises:
        InputError: a count below its least, or no seed where one is needed.
    """
    at_least("num_ops", num_ops, 1)
    before = np.arange(num_ops - 1)
    return _plain(num_ops, before, before + 1, seed, compute_ns, tensor_bytes)


def diamond(
    width: int = 2,
    *,
    seed: int | None = None,
    compute_ns: int | None = None,
    tensor_bytes: int | None = None,
) -> Graph:
    """One op, then `width` ops that consume its output, then one that consumes all of theirs.

    Args:
        width: ops in the middle, at least 1.
        seed: as in `chain`.
        compute_ns: as in `chain`.
        tensor_bytes: as in `chain`.

    Raises:
        InputError: as in `chain`.
    """
    at_least("width", width, 1)
    middle = np.arange(1, width + 1)
    producer = np.concatenate([np.zeros(width, np.int64), middle])
    consumer = np.concatenate([middle, np.full(width, width + 1)])
    return _plain(width + 2, producer, consumer, seed, compute_ns, tensor_bytes)


def fan_out(
    num_consumers: int,
    *,
    seed: int | None = None,
    compute_ns: int | None = None,
    tensor_bytes: int | None = None,
) -> Graph:
    """One op whose one output many ops consume.

    Args:
        num_consumers: at least 0.
        seed: as in `chain`.
        compute_ns: as in `chain`.
        tensor_bytes: as in `chain`.

    Raises:
        InputError: as in `chain`.
    """
    at_least("num_consumers", num_consumers, 0)
    consumer = np.arange(1, num_consumers + 1)
    producer = np.zeros(num_consumers, np.int64)
    return _plain(num_consumers + 1, producer, consumer, seed, compute_ns, tensor_bytes)


def random_layered(num_ops: int, width: int, fan_in: int = 2, *, seed: int) -> Graph:
    """Layers of `width` ops; 85 % of the inputs come from the layer before, others from any.

    Args:
        num_ops: at least 1; the last layer may be shorter.
        width: ops per layer, at least 1.
        fan_in: inputs drawn per op outside the first layer; one drawn twice counts once.
        seed: of all that is drawn.

    Raises:
        InputError: a count below its least.
    """
    for name, count in (("num_ops", num_ops), ("width", width), ("fan_in", fan_in)):
        at_least(name, count, 1)
    rng = np.random.default_rng(seed)
    consumer = np.repeat(np.arange(width, num_ops), fan_in)
    layer_start = consumer // width * width
    near = rng.random(len(consumer)) < _NEAR
    least = np.where(near, layer_start - width, 0)
    producer = rng.integers(least, layer_start)
    _, first = np.unique(consumer * num_ops + producer, return_index=True)
    first.sort()
    return Graph.from_arrays(
        compute_ns=drawn(rng, MEDIAN_NS, num_ops),
        tensor_producer=np.arange(num_ops),
        tensor_bytes=drawn(rng, MEDIAN_BYTES, num_ops),
        edge_tensor=producer[first],
        edge_consumer=consumer[first],
    )


def training_blocks(num_ops: int, branches: int = 4, depth: int = 3, *, seed: int) -> Graph:
    """Blocks of parallel branches and a join, forward, then the same mirrored, backward.

    A backward op consumes the gradients of its op's consumers and its op's own output. With an
    odd number of ops the last forward op is the loss and has no backward op. About 1.73 edges per
    op; a million ops take a few seconds.

    Args:
        num_ops: forward and backward ops together, at least 1; the last block may be cut short.
        branches: branches per block, at least 1.
        depth: ops per branch, at least 1.
        seed: of all that is drawn.

    Raises:
        InputError: a count below its least.
    """
    for name, count in (("num_ops", num_ops), ("branches", branches), ("depth", depth)):
        at_least(name, count, 1)
    rng = np.random.default_rng(seed)
    forward = (num_ops + 1) // 2
    backward = num_ops - forward
    producer, consumer = _block_edges(forward, branches, depth)
    mirrored = num_ops - 1 - np.arange(forward)  # of an odd count, the loss mirrors itself
    own = np.arange(backward)
    edge_tensor = np.concatenate([producer, mirrored[consumer], own])
    edge_consumer = np.concatenate([consumer, mirrored[producer], mirrored[own]])
    order = np.argsort(edge_consumer, kind="stable")
    compute_ns = drawn(rng, MEDIAN_NS, forward)
    output_bytes = drawn(rng, MEDIAN_BYTES, forward)
    weight_bytes = drawn(rng, 4 * MEDIAN_BYTES, forward)
    join = np.arange(forward) % (branches * depth + 1) == branches * depth
    weight_bytes[join] = 0
    back = own[::-1]
    names, modules = _block_names(forward, branches, depth)
    gradient, activation = MEMORY_CLASSES.index("gradient"), MEMORY_CLASSES.index("activation")
    return Graph.from_arrays(
        op_names=names + [f"{names[op]}/grad" for op in back.tolist()],
        module_paths=modules + modules[:backward][::-1],
        compute_ns=np.concatenate([compute_ns, 2 * compute_ns[back]]),
        persistent_bytes=np.concatenate([weight_bytes, np.zeros(backward, np.int64)]),
        role=np.repeat([ROLES.index("forward"), ROLES.index("backward")], [forward, backward]),
        forward_op=np.concatenate([np.full(forward, -1), back]),
        tensor_producer=np.arange(num_ops),
        tensor_bytes=np.concatenate([output_bytes, output_bytes[back]]),
        tensor_class=np.repeat([activation, gradient], [forward, backward]),
        edge_tensor=edge_tensor[order],
        edge_consumer=edge_consumer[order],
    )


def _plain(
    num_ops: int,
    producer: Integers,
    consumer: Integers,
    seed: int | None,
    compute_ns: int | None,
    tensor_bytes: int | None,
) -> Graph:
    """One tensor per op; figures that are not given are drawn."""
    if seed is None and (compute_ns is None or tensor_bytes is None):
        raise InputError("a seed is needed", hint="or give both compute_ns and tensor_bytes")
    rng = np.random.default_rng(seed)
    times, sizes = drawn(rng, MEDIAN_NS, num_ops), drawn(rng, MEDIAN_BYTES, num_ops)
    return Graph.from_arrays(
        compute_ns=times if compute_ns is None else np.full(num_ops, compute_ns),
        tensor_producer=np.arange(num_ops),
        tensor_bytes=sizes if tensor_bytes is None else np.full(num_ops, tensor_bytes),
        edge_tensor=producer,
        edge_consumer=consumer,
    )


def _block_edges(forward: int, branches: int, depth: int) -> tuple[Integers, Integers]:
    """The forward edges as (producer, consumer), by consumer, then by producer."""
    block = branches * depth + 1
    op = np.arange(forward)
    start, place = op - op % block, op % block
    join = place == block - 1
    first = ~join & (place % depth == 0)
    inner = ~join & ~first
    after_join = op[first & (start > 0)]
    ends = np.arange(1, branches + 1) * depth - 1
    joins = op[join]
    producer = np.concatenate(
        [start[after_join] - 1, op[inner] - 1, (start[joins, np.newaxis] + ends).ravel()]
    )
    consumer = np.concatenate([after_join, op[inner], np.repeat(joins, branches)])
    order = np.lexsort((producer, consumer))
    return producer[order], consumer[order]


def _block_names(forward: int, branches: int, depth: int) -> tuple[list[str], list[str]]:
    """[forward] op names and module paths."""
    places = [f"/branch{b}/op{d}" for b in range(branches) for d in range(depth)] + ["/join"]
    blocks = [f"block{b}" for b in range(-(-forward // len(places)))]
    names = [block + place for block in blocks for place in places]
    modules = [block for block in blocks for _ in places]
    return names[:forward], modules[:forward]
