"""What `make demo-graphs` runs: real graphs of BERT on devices with little memory."""

import time
from pathlib import Path

import baechi
from baechi.formats.dnn_partitioning import read_placement
from baechi.units import format_bytes, format_ns

ROOT = Path(__file__).parent.parent
WORKLOADS = ROOT / "benches" / "workloads" / "dnn-partitioning"
PLAN_FILE = ROOT / "target" / "demo-graphs-plan.json"
REPORT_FILE = ROOT / "target" / "demo-graphs.html"
TRACE_FILE = ROOT / "target" / "demo-graphs-trace.json"


def main() -> None:
    started = time.perf_counter()
    graph = baechi.load_graph(
        WORKLOADS / "throughput-inputs/OperatorGraphs/bert_L-12_training.json"
    )
    whole = format_bytes(int(graph.persistent_bytes.sum()))
    heading(
        f"One training step of BERT with 12 layers: {graph.num_ops} ops, {whole} of memory,",
        "on four accelerators of 8 GiB, so no single one can hold it.",
    )
    cluster = baechi.Cluster("4xaccelerator:8GiB")
    ungrouped = baechi.compare(graph, cluster)
    print(ungrouped)

    grouping = baechi.group(graph)
    heading(
        f"The same after grouping: {grouping.graph.num_ops} ops instead of {graph.num_ops}.",
        "An op with one consumer goes where that goes, and chains become single ops.",
    )
    grouped = baechi.compare(grouping.graph, cluster)
    print(grouped)

    plan = ungrouped.best
    if grouped.best is not None:
        expanded = grouping.expand(grouped.best)
        if plan is None or (expanded.fits and expanded.makespan_ns < plan.makespan_ns):
            plan = expanded
    assert plan is not None, "this graph has a plan on these devices"
    heading(f"The best plan, for all {len(plan.op_names)} ops.")
    print(plan)
    save_and_replay(graph, cluster, plan)
    report(graph, plan, ungrouped)

    against_an_expert()
    print(f"\nThe demo took {time.perf_counter() - started:.1f} s. README.md says how to go on.")


def save_and_replay(graph: baechi.Graph, cluster: baechi.Cluster, plan: baechi.Plan) -> None:
    PLAN_FILE.parent.mkdir(exist_ok=True)
    plan.save(PLAN_FILE)
    size = format_bytes(PLAN_FILE.stat().st_size)
    loaded = baechi.Plan.load(PLAN_FILE, graph)
    replayed = baechi.simulate(graph, cluster, loaded)
    assert replayed.makespan_ns == plan.makespan_ns, "a replay equals the prediction"
    assert replayed.peak_bytes.tolist() == list(plan.peak_bytes.values())
    print(f"\nSaved as {PLAN_FILE.relative_to(ROOT)} ({size}), loaded and replayed: the same step")
    print("time and the same peak on every device, to the nanosecond and the byte.")


def report(graph: baechi.Graph, plan: baechi.Plan, compared: baechi.Comparison) -> None:
    plan.report(REPORT_FILE, graph, compared=compared)
    plan.trace(TRACE_FILE, graph)
    print(f"\nReport to open in a browser: {REPORT_FILE.relative_to(ROOT)}")
    print(f"Trace to open in Perfetto: {TRACE_FILE.relative_to(ROOT)}")


def against_an_expert() -> None:
    graph = baechi.load_graph(WORKLOADS / "throughput-inputs/LayerGraphs/bert24_training.json")
    cluster = baechi.Cluster("6xaccelerator:1.5GiB")
    split = read_placement(WORKLOADS / "human-experts/bert24_training_expert.json", graph)
    by_hand = baechi.simulate(graph, cluster, split)
    assert by_hand.fits, "the expert's split fits 1.5 GiB"
    heading(
        f"BERT with 24 layers, {graph.num_ops} ops, on six accelerators of 1.5 GiB, and a split",
        "made by hand. (It was made to keep a pipeline busy; here a single step is timed.)",
    )
    comparison = baechi.compare(graph, cluster, ["contiguous", "m-topo", "m-etf", "m-sct"])
    print(comparison)
    assert comparison.best is not None, "this graph has a plan on these devices"
    times = by_hand.makespan_ns / comparison.best.makespan_ns
    print(f"by hand: {format_ns(by_hand.makespan_ns)}, {times:.2f}x the shortest step above")


def heading(*lines: str) -> None:
    print("", *lines, "", sep="\n")


if __name__ == "__main__":
    main()
