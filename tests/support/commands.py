"""Running the command line in this process, and files for it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import jsonschema
import pytest

import baechi
from baechi import Cluster, Device, GraphBuilder, Link, workloads
from baechi.cli import main

__all__ = ["SCHEMA", "Done", "Files", "run", "valid"]

SCHEMA = json.loads(
    (Path(__file__).parents[2] / "docs" / "command-line.schema.json").read_text(encoding="utf-8")
)


class Done(NamedTuple):
    """What a command wrote, and its exit code."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> dict[str, Any]:
        """The JSON on stdout."""
        found: dict[str, Any] = json.loads(self.out)
        return found


class Files:
    """A folder with a graph, a cluster and two plans."""

    def __init__(self, folder: Path) -> None:
        """Writes them."""
        self.folder = folder
        self.graph = str(folder / "graph.json")
        self.plan = str(folder / "plan.json")
        self.other = str(folder / "other.json")
        self.cluster = str(folder / "cluster.json")
        graph = workloads.transformer_like(layers=1, heads=2, seed=0)
        cluster = Cluster("2x512MiB", Link("10us", "12GB/s"))
        graph.save(self.graph)
        cluster.save(self.cluster)
        baechi.place(graph, cluster, "m-sct").save(self.plan)
        baechi.place(graph, cluster, "single").save(self.other)

    def placement(self, **changes: Any) -> str:
        """A bare placement on the first device, with changes."""
        names = baechi.load_graph(self.graph).op_names
        path = self.folder / "placement.json"
        path.write_text(json.dumps({**dict.fromkeys(names, "gpu:0"), **changes}))
        return str(path)

    def small(self, *, persistent_bytes: int) -> str:
        """A graph of two ops that hold bytes on two different devices if they have to."""
        builder = GraphBuilder()
        builder.op("a", 10, persistent_bytes=persistent_bytes)
        builder.op("b", 20, persistent_bytes=persistent_bytes)
        builder.connect("a", "b", 50)
        path = self.folder / "small.json"
        builder.build().save(path)
        return str(path)

    def uneven(self) -> str:
        """A cluster file with unequal devices and links."""
        path = self.folder / "uneven.json"
        devices = [Device("d0", "gpu", 2**30), Device("d1", "cpu", 2**31, reserve_bytes=2**20)]
        links = {("d0", "d1"): Link(10, 10**9), ("d1", "d0"): Link(20, 0)}
        Cluster(devices, links).save(path)
        return str(path)


def run(capsys: pytest.CaptureFixture[str], *words: str) -> Done:
    """A command in this process."""
    capsys.readouterr()
    code = main(words)
    return Done(code, *capsys.readouterr())


def valid(done: Done, kind: str) -> dict[str, Any]:
    """The document, which fits its schema."""
    schema = {**{k: v for k, v in SCHEMA.items() if k != "anyOf"}, "$ref": f"#/$defs/{kind}"}
    jsonschema.Draft202012Validator(schema).validate(done.document)
    return done.document
