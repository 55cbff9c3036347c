"""Instances with just enough memory: proved packings, and plans whose peaks are the limits."""

from __future__ import annotations

import highspy
import numpy as np

from baechi import Cluster, Graph, Link, place

LINK = Link(2, 10**9)


def packing(seed: int) -> tuple[Graph, Cluster] | None:
    """Persistent bytes only, tensors of 0 bytes; None unless a small MILP finds a packing."""
    rng = np.random.default_rng(seed)
    num_ops, num_devices = int(rng.integers(8, 40)), int(rng.integers(2, 5))
    sizes = rng.integers(1, 60, num_ops)
    slack = rng.choice([0.0, 0.01, 0.03, 0.08])
    shares = rng.dirichlet(np.full(num_devices, 8.0)) if rng.random() < 0.5 else None
    parts = np.full(num_devices, 1 / num_devices) if shares is None else shares
    caps = np.ceil(sizes.sum() * parts * (1 + slack)).astype(int)
    if not _packs(sizes, caps):
        return None
    edges = [
        (op, consumer)
        for op in range(num_ops)
        for consumer in range(op + 1, min(num_ops, op + 6))
        if rng.random() < 0.3
    ]
    producers = sorted({op for op, _ in edges})
    tensor_of = {op: tensor for tensor, op in enumerate(producers)}
    graph = Graph.from_arrays(
        compute_ns=rng.integers(1, 20, num_ops),
        persistent_bytes=sizes,
        tensor_producer=producers,
        tensor_bytes=np.zeros(len(producers), int),
        edge_tensor=[tensor_of[op] for op, _ in edges],
        edge_consumer=[consumer for _, consumer in edges],
    )
    return graph, Cluster({f"gpu:{k}": int(cap) for k, cap in enumerate(caps)}, LINK)


def around_a_plan(seed: int) -> tuple[Graph, Cluster]:
    """Tensors with bytes, limits at the peaks of a plan: it fits to the last byte."""
    rng = np.random.default_rng(seed)
    num_ops, num_devices = int(rng.integers(10, 60)), int(rng.integers(2, 5))
    reach = int(rng.choice([4, 10, 40]))
    edges = [
        (op, consumer)
        for op in range(num_ops)
        for consumer in range(op + 1, min(num_ops, op + reach))
        if rng.random() < 0.3
    ]
    graph = Graph.from_arrays(
        compute_ns=rng.integers(1, 20, num_ops),
        persistent_bytes=rng.integers(0, 40, num_ops) * rng.integers(0, 2, num_ops),
        scratch_bytes=rng.integers(0, 10, num_ops),
        tensor_producer=np.arange(num_ops),
        tensor_bytes=rng.integers(0, 30, num_ops),
        edge_tensor=[op for op, _ in edges],
        edge_consumer=[consumer for _, consumer in edges],
    )
    roomy = Cluster(f"{num_devices}x1GiB", LINK)
    algorithm = ("random", "round-robin", "contiguous", "m-topo", "m-etf")[seed % 5]
    plan = place(graph, roomy, algorithm, seed=seed)
    return graph, roomy.with_memory({name: max(1, peak) for name, peak in plan.peak_bytes.items()})


class _Quiet(highspy.Highs):
    """HiGHS without its banner."""

    def enableCallbacks(self) -> None:  # called by the constructor, before anything prints
        self.setOptionValue("output_flag", False)
        super().enableCallbacks()


def _packs(sizes: np.ndarray, caps: np.ndarray) -> bool:
    """Whether the sizes fit the bins, by a MILP with one binary per size and bin."""
    num_sizes, num_bins = len(sizes), len(caps)
    model = _Quiet()
    model.setOptionValue("threads", 1)
    model.setOptionValue("time_limit", 5.0)
    put = [[model.addBinary() for _ in range(num_bins)] for _ in range(num_sizes)]
    for row in put:
        model.addConstr(sum(row[1:], row[0]) == 1)
    for at, cap in enumerate(caps):
        load = sum(
            (int(sizes[k]) * put[k][at] for k in range(1, num_sizes)), int(sizes[0]) * put[0][at]
        )
        model.addConstr(load <= int(cap))
    model.run()
    return bool(model.getModelStatus() == highspy.HighsModelStatus.kOptimal)
