"""What the fuzzer feeds with bytes: readers that must answer with a value or an InputError.

A value that was read is written and read again, placed if it is small, and must come out the same.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Final

from baechi.cluster import Cluster
from baechi.errors import BaechiError, InputError
from baechi.formats import dnn_partitioning, load_graph
from baechi.graph import Graph
from baechi.placement import place
from baechi.plans import Plan
from baechi.simulation import simulate
from baechi.units import format_bytes, format_ns, parse_bandwidth, parse_bytes, parse_ns
from baechi.workloads import diamond, training_blocks

__all__ = ["SEEDS", "TARGETS"]

FOLDER: Final = Path(tempfile.mkdtemp(prefix="baechi-fuzz-"))
CLUSTER: Final = Cluster({"gpu:0": 2**20, "gpu:1": 2**20})
SMALL: Final = diamond(compute_ns=10, tensor_bytes=4)


def graph_file(data: bytes) -> None:
    path = FOLDER / "graph"
    path.write_bytes(data)
    try:
        graph = load_graph(path)
    except InputError:
        return
    for suffix in ("json", "npz"):
        graph.save(FOLDER / f"again.{suffix}")
        assert load_graph(FOLDER / f"again.{suffix}") == graph
    if graph.num_ops <= 50:
        placed(graph)


def placed(graph: Graph) -> None:
    cluster = graph.default_cluster or CLUSTER
    if cluster.num_devices > 8:
        return
    for algorithm in ("m-etf", "m-topo", "contiguous"):
        try:
            plan = place(graph, cluster, algorithm, repair=False)
        except BaechiError:
            continue
        assert plan.fits
        assert simulate(graph, cluster, plan).makespan_ns == plan.makespan_ns


def plan_file(data: bytes) -> None:
    path = FOLDER / "plan.json"
    path.write_bytes(data)
    try:
        plan = Plan.load(path)
        str(plan), repr(plan)
        plan.save(FOLDER / "again.json")
        assert Plan.load(FOLDER / "again.json") == plan
        simulate(SMALL, plan.provenance.cluster, plan)
    except BaechiError:
        return


def cluster_json(data: bytes) -> None:
    cluster_file(data, FOLDER / "cluster.json")


def cluster_toml(data: bytes) -> None:
    cluster_file(data, FOLDER / "cluster.toml")


def cluster_file(data: bytes, path: Path) -> None:
    path.write_bytes(data)
    try:
        cluster = Cluster.load(path)
    except InputError:
        return
    if cluster.num_devices <= 64:
        cluster.save(FOLDER / "again.json")
        assert Cluster.load(FOLDER / "again.json") == cluster
        repr(cluster), cluster.channel_names()


def expert_file(data: bytes) -> None:
    path = FOLDER / "expert.json"
    path.write_bytes(data)
    try:
        dnn_partitioning.read_placement(path, WORKLOAD)
    except InputError:
        return


def units(data: bytes) -> None:
    text = data.decode(errors="replace")
    for parse in (parse_bytes, parse_ns, parse_bandwidth):
        try:
            amount = parse(text)
        except InputError:
            continue
        assert 0 <= amount < 2**62
        format_bytes(amount), format_ns(amount)
    try:
        cluster = Cluster(text)
    except InputError:
        return
    assert cluster.num_devices >= 1


WORKLOAD_JSON: Final = b"""{"maxFPGAs": 2, "maxSizePerFPGA": 1000, "maxCPUs": 1, "nodes": [
{"id": 0, "name": "a", "supportedOnFpga": 1, "cpuLatency": 2.5, "fpgaLatency": 1.25, "size": 10},
{"id": 1, "cpuLatency": 2, "fpgaLatency": 1e-3, "isBackwardNode": 1, "colorClass": 4}],
"edges": [{"sourceId": 0, "destId": 1, "cost": 0.5}]}"""
TOML: Final = b"""channels = "serial"
links = { latency = "10us", bandwidth = "12GB/s" }
[[devices]]
name = "cuda:0"
kind = "a6000"
memory = "48GiB"
reserve = "1GiB"
speed = 1.5
[[devices]]
name = "cpu"
memory = 1_000
"""
HOSTS: Final = b"""[[hosts]]
name = "n0"
devices = "2xh100:80GB"
link = { latency = "3us", bandwidth = 0 }
channels = "shared"
[[hosts]]
name = "n1"
devices = { "cuda:0" = "24GiB" }
[network]
link = { latency = "30us", bandwidth = "100Gbps" }
channels = "host-serial"
"""


def written(save: Callable[[Path], None], name: str) -> bytes:
    path = FOLDER / f"seed.{name}"
    save(path)
    return path.read_bytes()


(FOLDER / "workload.json").write_bytes(WORKLOAD_JSON)
WORKLOAD: Final = load_graph(FOLDER / "workload.json")
GRAPHS: Final = (SMALL, training_blocks(1, 2, 2, seed=0), WORKLOAD)
PLANS: Final = tuple(
    place(SMALL, CLUSTER, name, rules, favorites="greedy")
    for name, rules in [("best", "physical"), ("m-etf", "baechi-tf"), ("m-etf", "baechi-torch")]
)

TARGETS: Final[dict[str, Callable[[bytes], None]]] = {
    "graph_json": graph_file,
    "graph_npz": graph_file,
    "workload": graph_file,
    "plan": plan_file,
    "cluster_json": cluster_json,
    "cluster_toml": cluster_toml,
    "expert": expert_file,
    "units": units,
}
SEEDS: Final[dict[str, list[bytes]]] = {
    "graph_json": [written(graph.save, "json") for graph in GRAPHS],
    "graph_npz": [written(graph.save, "npz") for graph in GRAPHS],
    "workload": [WORKLOAD_JSON],
    "plan": [plan.to_json().encode() for plan in PLANS],
    "cluster_json": [written(CLUSTER.save, "json"), b'{"devices": "2x8GiB", "schema": 1}'],
    "cluster_toml": [TOML, HOSTS],
    "expert": [b'{"fpgas": [{"nodes": [0]}, {"nodes": [1]}], "cpus": []}'],
    "units": [b"1.5GiB", b"10 us", b"100Gb/s", b"2xh100:80GB,cpu:256GB", b"1e3", b".5KB"],
}
