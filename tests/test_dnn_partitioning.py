"""The dnn-partitioning workloads and their human-expert placements."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from baechi.errors import InputError
from baechi.formats import load_graph
from baechi.formats.dnn_partitioning import node_ids, read_placement
from baechi.graph import Graph

FOLDER = Path(__file__).parents[1] / "benches/workloads/dnn-partitioning"
WORKLOADS = sorted(FOLDER.glob("*-inputs/*/*.json"))
EXPERTS = sorted(FOLDER.glob("human-experts/*.json"))


def load(tmp_path: Path, **fields: Any) -> Graph:
    (tmp_path / "workload.json").write_text(json.dumps({"nodes": [], "edges": []} | fields))
    return load_graph(tmp_path / "workload.json")


def node(identity: Any, **fields: Any) -> dict[str, Any]:
    return {"id": identity, "fpgaLatency": 1, "cpuLatency": 10} | fields


def test_all_workloads_are_there() -> None:
    assert (len(WORKLOADS), len(EXPERTS)) == (24, 6)


@pytest.mark.parametrize("path", WORKLOADS, ids=lambda path: f"{path.parts[-3]}/{path.stem}")
def test_a_workload_has_the_counts_of_its_file(path: Path) -> None:
    whole, graph = json.loads(path.read_text()), load_graph(path)
    sources = {edge["sourceId"] for edge in whole["edges"]}
    assert graph.num_ops == len(whole["nodes"])
    assert (graph.num_tensors, graph.num_edges) == (len(sources), len(whole["edges"]))
    assert graph.default_cluster is not None
    assert len(graph.default_cluster.devices) == whole["maxFPGAs"] + whole["maxCPUs"]


@pytest.mark.parametrize("path", WORKLOADS, ids=lambda path: f"{path.parts[-3]}/{path.stem}")
def test_a_workload_has_the_sums_of_its_file(path: Path) -> None:
    whole, graph = json.loads(path.read_text()), load_graph(path)
    times_ms = [row["fpgaLatency"] for row in whole["nodes"]]
    assert -1 < graph.compute_ns[0].sum() - sum(times_ms) * 1e6 <= len(times_ms)
    costs_ms = {edge["sourceId"]: edge["cost"] for edge in whole["edges"]}
    expected_ns = 2e6 * sum(costs_ms.values())
    assert -1 < graph.tensor_transfer_ns.sum() - expected_ns <= 2 * len(costs_ms)


@pytest.mark.parametrize("path", EXPERTS, ids=lambda path: path.stem)
def test_an_expert_places_every_op_on_a_device(path: Path) -> None:
    name = path.stem.removesuffix("_expert")
    graph = load_graph(FOLDER / f"throughput-inputs/LayerGraphs/{name}.json")
    placement = read_placement(path, graph)
    assert tuple(placement) == graph.op_names
    assert set(placement.values()) == {f"accelerator:{k}" for k in range(6)}


def test_milliseconds_become_nanoseconds_rounded_up(tmp_path: Path) -> None:
    graph = load(tmp_path, nodes=[node(1, fpgaLatency=0.14, cpuLatency=0.0000011)])
    assert graph.compute_ns.tolist() == [[140_000], [2]]


def test_a_transfer_takes_the_cost_out_and_in_through_host_memory(tmp_path: Path) -> None:
    edges = [{"sourceId": 1, "destId": d, "cost": 0.5} for d in (2, 3)]
    graph = load(tmp_path, nodes=[node(1), node(2), node(3)], edges=edges)
    assert graph.tensor_transfer_ns.tolist() == [1_000_000]
    assert graph.tensor_bytes.tolist() == [0]
    assert graph.edge_tensor.tolist() == [0, 0]


@pytest.mark.parametrize("supported", [False, 0])
def test_an_unsupported_node_cannot_run_on_an_accelerator(tmp_path: Path, supported: int) -> None:
    graph = load(tmp_path, nodes=[node(1, supportedOnFpga=supported)])
    assert graph.compute_ns.tolist() == [[-1], [10_000_000]]


def test_a_latency_that_is_missing_or_null_cannot_run_there(tmp_path: Path) -> None:
    graph = load(
        tmp_path,
        nodes=[{"id": 1, "cpuLatency": 1}, {"id": 2, "fpgaLatency": 1, "cpuLatency": None}],
    )
    assert graph.compute_ns.tolist() == [[-1, 1_000_000], [1_000_000, -1]]


def test_one_forward_node_of_a_color_is_the_forward_op(tmp_path: Path) -> None:
    nodes = [node(i, colorClass=i // 10, isBackwardNode=i % 2) for i in (10, 11, 20, 22, 23)]
    graph = load(tmp_path, nodes=nodes)
    assert graph.role.tolist() == [0, 1, 0, 0, 1]
    assert graph.forward_op.tolist() == [-1, 0, -1, -1, -1]
    assert graph.group_names == ("color1", "color2")


def test_names_that_are_shared_get_their_id(tmp_path: Path) -> None:
    nodes = [node(1, name="a"), node("x", name="a"), node(3), node(4, name="a_1")]
    assert load(tmp_path, nodes=nodes).op_names == ("a_1_1", "a_x", "node3", "a_1")


def test_node_ids_survive_saving(tmp_path: Path) -> None:
    graph = load(tmp_path, nodes=[node(7, name="a"), node("x"), node("7")])
    graph.save(tmp_path / "saved.json")
    expected = {7: "a", "x": "nodex", "7": "node7"}
    assert node_ids(graph) == expected
    assert node_ids(load_graph(tmp_path / "saved.json")) == expected


def test_a_file_without_device_counts_has_no_default_cluster(tmp_path: Path) -> None:
    assert load(tmp_path, nodes=[node(1)]).default_cluster is None


def test_the_default_cluster_has_the_memory_of_the_file(tmp_path: Path) -> None:
    graph = load(tmp_path, nodes=[node(1)], maxFPGAs=2, maxCPUs=1, maxSizePerFPGA=100.5)
    assert graph.default_cluster is not None
    devices = graph.default_cluster.devices
    assert [device.name for device in devices] == ["accelerator:0", "accelerator:1", "cpu:0"]
    assert [device.memory_bytes for device in devices] == [100, 100, 2**60]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"nodes": [{"id": 1}]}, 'op "node1" can run on no device kind'),
        ({"nodes": [node(1), node(1)]}, "two nodes have the id 1"),
        ({"nodes": [node(None)]}, "node 0 of the file"),
        ({"nodes": [node(1.5)]}, "node 0 of the file"),
        ({"nodes": [node(1, name=5)]}, '"name" of node 1'),
        ({"nodes": [node(1, fpgaLatency="2")]}, '"fpgaLatency" of node 1'),
        ({"nodes": [node(1, fpgaLatency=-1)]}, '"fpgaLatency" of node 1'),
        ({"nodes": [node(1, fpgaLatency=True)]}, '"fpgaLatency" of node 1'),
        ({"nodes": [node(1, isBackwardNode=2)]}, '"isBackwardNode" of node 1'),
        ({"nodes": [node(1)], "edges": [{"sourceId": 1, "destId": 2}]}, "there is no node 2"),
        ({"nodes": [node(1)], "maxFPGAs": 10**9}, '"maxFPGAs" is 1000000000'),
        ({"nodes": [node(1)], "maxFPGAs": 1, "maxSizePerFPGA": -1}, "maxSizePerFPGA"),
        (
            {
                "nodes": [node(1), node(2), node(3)],
                "edges": [{"sourceId": 1, "destId": d, "cost": d} for d in (2, 3)],
            },
            "edges out of node 1 differ in cost",
        ),
    ],
)
def test_a_wrong_workload_is_refused(tmp_path: Path, fields: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        load(tmp_path, **fields)


def test_a_huge_exponent_is_refused_without_computing_it(tmp_path: Path) -> None:
    (tmp_path / "wrong.json").write_text(
        '{"nodes": [{"id": 1, "fpgaLatency": 1e999999999}], "edges": []}'
    )
    with pytest.raises(InputError, match="fpgaLatency"):
        load_graph(tmp_path / "wrong.json")


@pytest.mark.parametrize(
    ("fpgas", "message"),
    [
        ([{"nodes": [1]}], "1 nodes have no device: 2"),
        ([{"nodes": [1, 2]}, {"nodes": [2]}], "node 2 in .* is placed twice"),
        ([{"nodes": [1, 2, 3]}], "node 3 in .* is unknown"),
        ([[1, 2]], "not an object"),
    ],
)
def test_a_wrong_placement_is_refused(tmp_path: Path, fpgas: list[Any], message: str) -> None:
    graph = load(tmp_path, nodes=[node(1), node(2)])
    (tmp_path / "expert.json").write_text(json.dumps({"fpgas": fpgas}))
    with pytest.raises(InputError, match=message):
        read_placement(tmp_path / "expert.json", graph)


def test_a_placement_of_another_kind_of_graph_is_refused(tmp_path: Path) -> None:
    (tmp_path / "expert.json").write_text("{}")
    with pytest.raises(InputError, match="does not come from"):
        read_placement(tmp_path / "expert.json", Graph.from_arrays(num_ops=1))
