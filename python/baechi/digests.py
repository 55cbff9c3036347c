"""Digests per op, so that a plan can name what changed in a graph since it was made."""

from __future__ import annotations

import functools
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from baechi.graph import Graph

__all__ = ["ASPECTS", "Digests", "differences", "digests"]

ASPECTS = ("compute time", "memory", "inputs", "constraints")
Words = npt.NDArray[np.uint64]


class Digests(Mapping[str, str]):
    """Op name to digest, made when somebody looks: a graph may have a million ops."""

    def __init__(self, graph: Graph) -> None:
        """Keeps the graph."""
        self._graph = graph

    @functools.cached_property
    def _digests(self) -> dict[str, str]:
        return dict(zip(self._graph.op_names, digests(self._graph), strict=True))

    def __getitem__(self, name: str) -> str:
        """The digest of one op."""
        return self._digests[name]

    def __iter__(self) -> Iterator[str]:
        """Op names in graph order."""
        return iter(self._graph.op_names)

    def __len__(self) -> int:
        """How many ops."""
        return self._graph.num_ops


def digests(graph: Graph) -> list[str]:
    """[ops]: 16 hexadecimal digits per op, four for each of `ASPECTS`.

    They depend on names and numbers, never on positions: an op that is only moved keeps its digest.
    """
    columns = [
        _mix_rows(
            [*graph.compute_ns, _names(graph.device_kinds).sum(keepdims=True)], graph.num_ops
        ),
        _mix_rows([graph.persistent_bytes, graph.scratch_bytes, _outputs(graph)], graph.num_ops),
        _inputs(graph),
        _constraints(graph),
    ]
    words = np.zeros(graph.num_ops, np.uint64)
    for column in columns:
        words = (words << np.uint64(16)) | (column >> np.uint64(48))
    return [f"{word:016x}" for word in words.tolist()]


def differences(op_names: Sequence[str], known: Mapping[str, str], graph: Graph) -> list[str]:
    """Every difference between a graph and the digests of an earlier one.

    Args:
        op_names: the earlier graph's ops, in its order.
        known: the earlier graph's digests by op name.
        graph: the graph as it is now.
    """
    now = dict(zip(graph.op_names, digests(graph), strict=True))
    found = [f'op "{name}" is gone' for name in op_names if name not in now]
    found += [f'op "{name}" is new' for name in graph.op_names if name not in known]
    for name, digest in now.items():
        before = known.get(name, digest)
        for at, aspect in enumerate(ASPECTS):
            if before[4 * at : 4 * at + 4] != digest[4 * at : 4 * at + 4]:
                found.append(f'op "{name}" has other {aspect}')
    order = [name for name in op_names if name in now]
    order_now = [name for name in graph.op_names if name in known]
    moved = (name for before, name in zip(order, order_now, strict=True) if before != name)
    if (first := next(moved, None)) is not None:
        found.append(f'the ops are in another order, from op "{first}" on')
    return found or ["kinds, module paths, or the order of tensors or edges changed"]


def _mix(words: Words) -> Words:
    """A good 64-bit mix of each word (the finalizer of SplitMix64)."""
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))


def _mix_rows(columns: Sequence[npt.NDArray[np.generic]], length: int) -> Words:
    state = np.full(length, 0x9E3779B97F4A7C15, np.uint64)
    for column in columns:
        words = column.astype(np.int64).view(np.uint64) if column.dtype.kind == "i" else column
        state = _mix(state * np.uint64(31) + words.astype(np.uint64))
    return state


def _names(names: Sequence[str]) -> Words:
    """[names]: a word per text."""
    words = np.fromiter((zlib.crc32(name.encode()) for name in names), np.uint64, len(names))
    return _mix(words + np.uint64(1))


def _tensors(graph: Graph) -> Words:
    """[tensors]: a word each, of its numbers, its producer and its place among the outputs."""
    producer = graph.tensor_producer
    order = np.argsort(producer, kind="stable")
    first = np.searchsorted(producer[order], producer[order], side="left")
    ordinal = np.empty(len(order), np.int64)
    ordinal[order] = np.arange(len(order)) - first
    names = _names(graph.op_names)[producer]
    columns: list[npt.NDArray[Any]] = [graph.tensor_bytes, graph.tensor_transfer_ns]
    columns += [graph.tensor_class, names, ordinal]
    return _mix_rows(columns, graph.num_tensors)


def _outputs(graph: Graph) -> Words:
    words = np.zeros(graph.num_ops, np.uint64)
    np.add.at(words, graph.tensor_producer, _tensors(graph))
    return words


def _inputs(graph: Graph) -> Words:
    words = np.zeros(graph.num_ops, np.uint64)
    np.add.at(words, graph.edge_consumer, _tensors(graph)[graph.edge_tensor])
    return _mix(words)


def _constraints(graph: Graph) -> Words:
    nothing = np.zeros(1, np.uint64)
    groups = np.concatenate([_names(graph.group_names), nothing])[graph.group]
    sets = [_names(names).sum(dtype=np.uint64) for names in graph.allowed_sets]
    allowed = np.concatenate([np.array(sets, np.uint64), nothing])[graph.allowed_set]
    forward = np.concatenate([_names(graph.op_names), nothing])[graph.forward_op]
    return _mix_rows([groups, allowed, graph.role, forward], graph.num_ops)
