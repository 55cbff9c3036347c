"""The evidence of docs/m-sct.md: `python benches/m_sct.py` prints its tables.

Times are CPU seconds of the whole call on one thread, each in a process of its own. `--most-ops
100000` leaves out the larger graphs, `--whole-ops 100000` also solves those whole (minutes).
"""

from __future__ import annotations

import argparse
import collections
import json
import math
import resource
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "tests/support"))

import baechi
import families
from baechi.relaxation import relax

WORKLOADS = sorted(Path(__file__).parent.glob("workloads/dnn-partitioning/*-inputs/*/*.json"))
SIZES = (1_000, 10_000, 100_000, 1_000_000)
RATIOS = (0.1, 1.0, 10.0)
SEEDS = (11, 12, 13)
DEVICES = (2, 4, 8)
METHODS = ("lp", "greedy", "none")


def measure(name, num_ops, ratio, limit_s, whole):
    """One solution: CPU seconds, gap, MiB beyond the graph."""
    graph, cluster = families.family(name, num_ops, ratio=ratio, seed=1), families.unit_cluster()
    graph.flatten()
    baechi.favorites(families.family(name, 3_000, ratio=1.0, seed=1), cluster)  # imports
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start = time.process_time(), time.perf_counter()
    if whole:
        from baechi import _core

        pairs = _core.pairs(graph.flatten(), cluster.flatten(graph), "physical")
        times = (column.astype(float) for column in pairs[2:])
        found = relax(*pairs[:2], *times, whole_ops=graph.num_ops)
        gap = 1 - found.lower_bound / found.upper_bound
    else:
        gap = baechi.favorites(graph, cluster, time_limit=limit_s).gap
    return {
        "num_ops": graph.num_ops,
        "cpu_s": time.process_time() - start[0],
        "wall_s": time.perf_counter() - start[1],
        "gap": gap,
        "mib": (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024,
    }


def measured(*given):
    """`measure` in a process of its own."""
    done = subprocess.run(
        [sys.executable, __file__, "--measure", json.dumps(given)],
        stdout=subprocess.PIPE,
        check=True,
    )
    return json.loads(done.stdout)


def print_speed(most_ops, whole_ops):
    print("| graph | ops | favorites, CPU s | gap | MiB beyond the graph | whole program, CPU s |")
    print("| --- | ---: | ---: | ---: | ---: | ---: |")
    rows = [(name, size, 1.0, None) for name in families.FAMILIES for size in SIZES]
    rows += [("layered", 10_000, ratio, 5.0) for ratio in (1.0, 10.0)]
    for name, size, ratio, limit_s in rows:
        if size > most_ops:
            continue
        row = measured(name, size, ratio, limit_s, False)
        whole = "-"
        if size <= whole_ops and limit_s is None:
            whole = f"{measured(name, size, ratio, None, True)['cpu_s']:.2f}"
        what = f"{name}, ratio {ratio:g}" + (f", {limit_s:g} s" if limit_s else "")
        print(
            f"| {what} | {row['num_ops']:,} | {row['cpu_s']:.2f} | {row['gap']:.1e} | "
            f"{row['mib']:.0f} | {whole} |",
            flush=True,
        )


def with_ratio(graph, ratio):
    """A workload with one kind of device; `ratio` is mean transfer over mean compute time."""
    compute = np.maximum(graph.compute_ns[0], 1)
    transfer = graph.tensor_transfer_ns * (ratio * compute.mean() / graph.tensor_transfer_ns.mean())
    return baechi.Graph.from_arrays(
        compute_ns=compute,
        tensor_producer=graph.tensor_producer,
        tensor_transfer_ns=np.rint(transfer).astype(np.int64),
        edge_tensor=graph.edge_tensor,
        edge_consumer=graph.edge_consumer,
    )


def graphs():
    """(set, graph) of everything that is placed."""
    for path in WORKLOADS:
        for ratio in RATIOS:
            yield "24 workloads", with_ratio(baechi.load_graph(path), ratio)
    for name in (*families.FAMILIES, "layered"):
        for ratio in RATIOS:
            for seed in SEEDS:
                yield f"{name}, 1,000 ops", families.family(name, 1_000, ratio=ratio, seed=seed)


def print_gain():
    gains = collections.defaultdict(list)
    for name, graph in graphs():
        for channels in ("parallel", "duplex"):
            gain = collections.defaultdict(list)
            for num_devices in DEVICES:
                link = baechi.Link(latency_ns=0, bytes_per_s=10**9)
                cluster = baechi.Cluster(f"{num_devices}x1TiB", link, channels)
                base = baechi.place(graph, cluster, "m-etf").makespan_ns
                for method in METHODS:
                    plan = baechi.place(graph, cluster, "m-sct", favorites=method)
                    gain[method].append(100 * math.log(plan.makespan_ns / base))
            for method in METHODS:
                gains[name, channels, method].append(np.mean(gain[method]))
    print("| graphs | channels | lp | greedy | none |")
    print("| --- | --- | ---: | ---: | ---: |")
    for name, channels in dict.fromkeys(key[:2] for key in gains):
        cells = []
        for method in METHODS:
            values = np.array(gains[name, channels, method])
            cells.append(f"{values.mean():+.2f} ± {values.std(ddof=1) / len(values) ** 0.5:.2f}")
        count = len(gains[name, channels, "lp"])
        print(f"| {name} ({count}) | {channels} | {' | '.join(cells)} |")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--most-ops", type=int, default=SIZES[-1])
    parser.add_argument("--whole-ops", type=int, default=10_000)
    parser.add_argument("--measure", type=json.loads, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.measure:
        print(json.dumps(measure(*given.measure)))
        return
    print(f"highspy {version('highspy')}\n")
    print_speed(given.most_ops, given.whole_ops)
    print("\nLength of the step against m-etf in %, mean ± standard error over graphs:\n")
    print_gain()


if __name__ == "__main__":
    main()
