"""The recorded answers of the two original placers, and how their graphs are rebuilt.

The records are copies of the shared vectors; their README says what each field means. The torch
runs whose m_sct failed were recorded without favorites. `original-pytorch-favorites.json` holds
favorites for them that are ours: an optimal vertex of the linear program under which the run fails
exactly as recorded.
"""

import gzip
import json
from pathlib import Path

import networkx as nx
import pytest

DATA = Path(__file__).parent.parent / "data"


def tf_records():
    """Load the records of the TensorFlow-era placers."""
    return read_gzip("original-tf.json.gz")


def torch_records():
    """Load the records of the torch-era placers; every m_sct result has favorites."""
    records = read_gzip("original-pytorch.json.gz")
    favorites = json.loads((DATA / "original-pytorch-favorites.json").read_text())
    for record in records:
        if record["id"] in favorites:
            record["results"]["m_sct"]["favorites"] = favorites[record["id"]]
    return records


def runs(records):
    """List every (record, algorithm) as a pytest parameter with a readable id."""
    return [
        pytest.param(record, name, id=f"{record['id']}-{name}")
        for record in records
        for name in record["results"]
    ]


def column(graph, attribute):
    """List a node attribute in ascending op id."""
    return [graph.nodes[op][attribute] for op in sorted(graph.nodes)]


def op_graph(record):
    """Rebuild the op graph: nodes in list order, edges in ascending id (ties depend on it)."""
    graph = nx.DiGraph()
    for node in record["graph"]["nodes"]:
        graph.add_node(node["id"], **node)
    for edge in sorted(record["graph"]["edges"], key=lambda edge: edge["id"]):
        attributes = {key: value for key, value in edge.items() if key not in ("u", "v")}
        graph.add_edge(edge["u"], edge["v"], **attributes)
    return graph


def device_graph(record):
    """Rebuild the devices in ascending id, each with its memory limit."""
    if "memory_limits" in record:
        return devices(record["memory_limits"])
    return devices([record["memory_limit"]] * record["devices"])


def devices(limits):
    """Build a device graph from memory limits."""
    graph = nx.DiGraph()
    for index, limit in enumerate(limits):
        graph.add_node(index, id=index, memory_limit=limit)
    return graph


def read_gzip(name):
    """Read one compressed JSON file of the data folder."""
    with gzip.open(DATA / name, "rt", encoding="utf-8") as file:
        return json.load(file)
