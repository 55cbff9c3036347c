"""A file that may be a graph, a plan or a cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from baechi.cli import arguments as shared
from baechi.errors import InputError

__all__ = ["Thing", "read_thing"]


class Thing(NamedTuple):
    """What was in a file."""

    kind: str
    """ "graph", "plan", "model plan" or "cluster"."""
    value: Any


def read_thing(path: str) -> Thing:
    """Reads a file by its content; text that names no file describes devices, such as "4x8GiB".

    Raises:
        InputError: it is none of these.
    """
    from baechi.cluster import Cluster, as_cluster
    from baechi.formats import load_graph, strict_json
    from baechi.formats.plan_json import FORMAT, MODEL_FORMAT
    from baechi.plans import Plan

    if path != "-" and not Path(path).exists():
        if Path(path).suffix or "/" in path:
            raise FileNotFoundError(2, "No such file or directory", path)
        try:
            return Thing("cluster", as_cluster(path))
        except InputError as error:
            message = str(error).split("\nhint: ")[0]
            raise InputError(
                f'no file "{path}", and no devices either: {message}', hint=error.hint
            ) from None
    with shared.file_named(path) as file:
        if Path(path).suffix.lower() == ".toml":
            return Thing("cluster", Cluster.load(file))
        with open(file, "rb") as stream:
            is_npz = stream.read(2) == b"PK"
        document = None if is_npz else strict_json.read(file)
        if isinstance(document, dict) and document.get("format") == FORMAT:
            return Thing("plan", Plan.load(file))
        if isinstance(document, dict) and document.get("format") == MODEL_FORMAT:
            return Thing("model plan", Plan.load(file))
        if isinstance(document, dict) and "devices" in document and "edges" not in document:
            return Thing("cluster", Cluster.load(file))
        try:
            return Thing("graph", load_graph(file))
        except InputError as error:
            if "not a graph file" not in str(error):
                raise
            raise InputError(f"{path}: neither a graph nor a plan nor a cluster") from None
