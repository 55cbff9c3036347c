"""Graphs in files: `load_graph` tells the format by the content, `save_graph` by the suffix."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from baechi.errors import InputError

if TYPE_CHECKING:
    from baechi.graph import Graph

__all__ = ["load_graph", "save_graph"]


def load_graph(path: str | os.PathLike[str]) -> Graph:
    """Read a graph: Baechi's JSON or npz, or a dnn-partitioning workload.

    Args:
        path: the file; its suffix does not matter.

    Raises:
        InputError: the content is none of these, or wrong; the message names file, field and op.
        CycleError: the edges make a cycle.
        OSError: the file cannot be read.
    """
    from baechi.formats import dnn_partitioning, graph_json, graph_npz, strict_json

    file = os.fspath(path)
    with open(file, "rb") as stream:
        if stream.read(4) == graph_npz.MAGIC:
            return graph_npz.read_graph(file)
    document = strict_json.read(file)
    if isinstance(document, dict) and document.get("format") == graph_json.FORMAT:
        return graph_json.graph_from(document, file)
    if isinstance(document, dict) and {"nodes", "edges"} <= document.keys():
        return dnn_partitioning.workload_from(document, file).graph
    raise InputError(
        f"{file}: not a graph file",
        hint=f'a graph is JSON with "format": "{graph_json.FORMAT}", an npz file of Baechi, or a '
        'dnn-partitioning workload with "nodes" and "edges"',
    )


def save_graph(graph: Graph, path: str | os.PathLike[str]) -> None:
    """Write a graph as .json (to read and compare) or .npz (for a million ops).

    Args:
        graph: the graph; its default cluster is not written.
        path: the file; it is replaced only once the new one is complete.

    Raises:
        InputError: another suffix.
        OSError: the file cannot be written.
    """
    from baechi.formats import graph_json, graph_npz

    suffix = Path(path).suffix.lower()
    if suffix == ".json":
        graph_json.write_graph(graph, path)
    elif suffix == ".npz":
        graph_npz.write_graph(graph, path)
    else:
        raise InputError(f'{os.fspath(path)}: a graph is saved as .json or .npz, not "{suffix}"')
