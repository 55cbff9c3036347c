"""What makes columns a graph: indices, sums, edges, and no cycle."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np

from baechi.columns import CONTROL, MEMORY_CLASSES, ROLES, Array, Names
from baechi.errors import CycleError, InputError

TOO_MANY: Final = "which 64 bits cannot hold safely"

MOST_NS: Final = 2**62
"""All times of ops together, and of transfers, stay below this, so that 64-bit sums are exact."""

MOST_BYTES: Final = 2**61
"""All bytes together, with a copy of each tensor for every consumer, stay below this."""


def check(columns: Mapping[str, Array], names: Names) -> None:
    """Check that the columns, each right by itself, make a graph together.

    Raises:
        InputError: an index out of range, an op that can run nowhere, a self loop, a repeated
            edge, a second control tensor, a sum that 64 bits cannot hold.
        CycleError: the edges make a cycle; the message names its ops.
    """
    ops, tensors = len(names.op_names), len(columns["tensor_bytes"])
    _check_indices(columns, names, ops, tensors)
    _check_ops(columns, names)
    _check_tensors(columns, names)
    producer = columns["tensor_producer"][columns["edge_tensor"]]
    consumer = columns["edge_consumer"]
    if len(loops := np.flatnonzero(producer == consumer)):
        raise InputError(f'op "{names.op_names[producer[loops[0]]]}" consumes its own output')
    # By consumer, because edges are mostly added so: then the stable sort has little to do.
    keys = np.sort(consumer.astype(np.int64) * tensors + columns["edge_tensor"], kind="stable")
    if len(again := np.flatnonzero(keys[1:] == keys[:-1])):
        op, tensor = divmod(int(keys[again[0]]), tensors)
        source = names.op_names[columns["tensor_producer"][tensor]]
        edge = f'tensor {tensor} of op "{source}" to op "{names.op_names[op]}"'
        raise InputError(f"the edge of {edge} is there twice")
    if not (producer < consumer).all():
        _check_acyclic(producer, consumer, names.op_names)


def topological_order(num_ops: int, producer: Array, consumer: Array) -> list[int]:
    """The ops of every path in order: first in, first out; an op on a cycle is left out.

    Sources come in insertion order; a consumer follows when its last producer has left the
    queue, several of them in the order of their first edges from it. O(edges log edges + ops).
    """
    pairs = producer.astype(np.int64) * num_ops + consumer
    first = np.sort(np.unique(pairs, return_index=True)[1])
    producer, consumer = producer[first], consumer[first]
    by_producer = np.argsort(producer, kind="stable")
    consumers: list[int] = consumer[by_producer].tolist()
    ends: list[int] = np.cumsum(np.bincount(producer, minlength=num_ops)).tolist()
    missing: list[int] = np.bincount(consumer, minlength=num_ops).tolist()
    order = [op for op in range(num_ops) if not missing[op]]
    for op in order:  # the list is the queue: it grows while we walk it
        for child in consumers[ends[op - 1] if op else 0 : ends[op]]:
            missing[child] -= 1
            if not missing[child]:
                order.append(child)
    return order


def _check_indices(columns: Mapping[str, Array], names: Names, ops: int, tensors: int) -> None:
    limits = {
        "group": len(names.group_names),
        "allowed_set": len(names.allowed_sets),
        "role": len(ROLES),
        "forward_op": ops,
        "tensor_producer": ops,
        "tensor_class": len(MEMORY_CLASSES),
        "edge_tensor": tensors,
        "edge_consumer": ops,
    }
    for name, limit in limits.items():
        if len(wrong := np.flatnonzero(columns[name] >= limit)):
            value = int(columns[name][wrong[0]])
            raise InputError(f"{name}[{wrong[0]}] is {value}, but there are only {limit}")


def _check_ops(columns: Mapping[str, Array], names: Names) -> None:
    slowest = columns["compute_ns"].max(axis=0, initial=-1)
    if len(stuck := np.flatnonzero(slowest < 0)):
        kinds = ", ".join(names.device_kinds)
        raise InputError(
            f'op "{names.op_names[stuck[0]]}" can run on no device kind ({kinds})',
            hint="give it a compute time of at least one kind",
        )
    forward = columns["forward_op"]
    belongs = forward >= 0
    wrong = np.flatnonzero(belongs & (columns["role"] != ROLES.index("backward")))
    if len(wrong):
        name = names.op_names[wrong[0]]
        raise InputError(f'op "{name}" has a forward op, but its role is not backward')
    wrong = np.flatnonzero(belongs & (columns["role"][forward] != ROLES.index("forward")))
    if len(wrong):
        name, other = names.op_names[wrong[0]], names.op_names[forward[wrong[0]]]
        raise InputError(f'op "{name}": its forward op "{other}" has not the role forward')
    _check_times("compute_ns", slowest)


def _check_tensors(columns: Mapping[str, Array], names: Names) -> None:
    producer, edge = columns["tensor_producer"], columns["edge_tensor"]
    control = np.flatnonzero(columns["tensor_class"] == CONTROL)
    if len(control):
        heavy = control[columns["tensor_bytes"][control] > 0]
        if len(heavy):
            name = names.op_names[producer[heavy[0]]]
            raise InputError(f'the control tensor of op "{name}" has bytes')
        found, times = np.unique(producer[control], return_counts=True)
        if (times > 1).any():
            name = names.op_names[found[times > 1][0]]
            raise InputError(f'op "{name}" has more than one control tensor')
    # A tensor may be sent once per consumer, and every copy takes room.
    transfer = columns["tensor_transfer_ns"]
    _check_times("tensor_transfer_ns", np.maximum(transfer, 0)[edge])
    _check_times("tensor_transfer_ns", np.maximum(transfer, 0))
    held = {
        name: _sum(columns[name]) for name in ("persistent_bytes", "scratch_bytes", "tensor_bytes")
    }
    for name, total in held.items():
        if total >= MOST_BYTES:
            raise InputError(f"the sum of {name} is {total}, {TOO_MANY}", hint="sizes are bytes")
    copies = _sum(columns["tensor_bytes"][edge])
    if (total := sum(held.values()) + copies) >= MOST_BYTES:
        raise InputError(
            f"all bytes, with a copy of each tensor for every consumer ({copies}), "
            f"add up to {total}, {TOO_MANY}",
            hint="sizes are bytes",
        )


def _check_times(name: str, values: Array) -> None:
    if (total := _sum(values)) >= MOST_NS:
        raise InputError(f"the sum of {name} is {total}, {TOO_MANY}")


def _sum(values: Array) -> int:
    return (int((values >> 32).sum()) << 32) + int((values & 0xFFFFFFFF).sum())


def _check_acyclic(producer: Array, consumer: Array, op_names: tuple[str, ...]) -> None:
    order = topological_order(len(op_names), producer, consumer)
    if len(order) == len(op_names):
        return
    left = np.ones(len(op_names), bool)
    left[order] = False
    inside = left[producer] & left[consumer]
    before = dict(zip(consumer[inside].tolist(), producer[inside].tolist(), strict=True))
    op = next(iter(before))
    walked: dict[int, int] = {}
    while op not in walked:  # an op that is left has a producer that is left
        walked[op] = len(walked)
        op = before[op]
    cycle = [op_names[step] for step in list(walked)[walked[op] :]]
    raise CycleError(cycle[::-1])
