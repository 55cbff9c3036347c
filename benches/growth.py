"""How placing time grows: m-ETF and m-SCT from 1k to 1M ops, drawn to docs/growth.svg.

Run as `python benches/growth.py` with matplotlib installed (`pip install 'baechi[docs]'`).
"""

from __future__ import annotations

import statistics
import time
from pathlib import Path

import numpy as np

from baechi import Cluster, Graph, _core
from baechi.workloads import random_layered, training_blocks

SIZES = (1_000, 3_000, 10_000, 30_000, 100_000, 300_000, 1_000_000)
ALGORITHMS = ("m-etf", "m-sct")
PICTURE = Path(__file__).parent.parent / "docs" / "growth.svg"


def graphs(family: str, num_ops: int) -> Graph:
    if family == "training blocks":
        return training_blocks(num_ops, seed=0)
    return random_layered(num_ops, width=100, fan_in=2, seed=0)


def seconds(graph: Graph, algorithm: str) -> float:
    """Median CPU seconds on eight devices with a channel each, favorites by the greedy rule."""
    cluster = Cluster("8x99999GiB", channels="serial")
    flat_graph, flat_cluster = graph.flatten(), cluster.flatten(graph)
    favorites = _core.greedy_favorites(flat_graph, flat_cluster, "physical")
    times = []
    for _ in range(3 if graph.num_ops >= 300_000 else 7):
        started = time.process_time()
        _core.place(flat_graph, flat_cluster, algorithm, "physical", favorites=favorites)
        times.append(time.process_time() - started)
    return statistics.median(times)


def main() -> None:
    import matplotlib

    matplotlib.use("svg")
    import matplotlib.pyplot as plt

    plt.rcParams["svg.hashsalt"] = "baechi"
    figure, axes = plt.subplots(figsize=(6.4, 4.2), layout="constrained")
    print("| ops | " + " | ".join(f"{a}, {f}" for f in FAMILIES for a in ALGORITHMS) + " |")
    print("| --- |" + " --- |" * len(FAMILIES) * len(ALGORITHMS))
    measured: dict[tuple[str, str], list[float]] = {}
    for num_ops in SIZES:
        cells = []
        for family in FAMILIES:
            graph = graphs(family, num_ops)
            for algorithm in ALGORITHMS:
                taken = seconds(graph, algorithm)
                measured.setdefault((family, algorithm), []).append(taken)
                cells.append(f"{taken * 1e3:,.1f} ms")
        print(f"| {num_ops:,} | " + " | ".join(cells) + " |", flush=True)
    for (family, algorithm), times in measured.items():
        axes.loglog(SIZES, times, marker="o", label=f"{algorithm}, {family}")
    first = min(times[0] for times in measured.values())
    guide = [first * n * np.log(n) / (SIZES[0] * np.log(SIZES[0])) for n in SIZES]
    axes.loglog(SIZES, guide, color="gray", linestyle=":", label="n log n")
    axes.set_xlabel("ops")
    axes.set_ylabel("CPU seconds, one thread")
    axes.grid(visible=True, which="both", linewidth=0.3)
    axes.legend()
    figure.savefig(PICTURE, metadata={"Date": None})
    print(f"\ndrawn to {PICTURE}")


FAMILIES = ("training blocks", "layered, width 100")

if __name__ == "__main__":
    main()
