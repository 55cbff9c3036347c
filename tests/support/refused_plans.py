"""Plan files that a person or a program spoiled, replayed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from baechi.cluster import Cluster
from baechi.errors import PlanMismatchError
from baechi.placement import place
from baechi.plans import Plan
from baechi.simulation import simulate
from refusals import Refusal, chain, refusal

__all__ = ["REFUSED_PLANS"]


def plan(
    name: str, change: Callable[[dict[str, Any]], Any], *words: str, error: Any = None
) -> Refusal:
    """A plan file with a change, replayed."""

    def call(folder: Path) -> Any:
        path = folder / "plan.json"
        place(chain(), Cluster("2x8GiB"), "m-etf").save(path)
        document = json.loads(path.read_text())
        change(document)
        path.write_text(json.dumps(document))
        return simulate(chain(), Cluster("2x8GiB"), Plan.load(path))

    return refusal(name, call, *words, **({} if error is None else {"error": error}))


REFUSED_PLANS = [
    plan("half of a surrogate pair", lambda d: d.update(algorithm="m\ud800"), "ud800", "UTF-8"),
    plan("another plan schema", lambda d: d.update(schema=2), "schema 2"),
    plan(
        "a size held that is text",
        lambda d: d["held"].update({"gpu:0": {"copy": "many"}}),
        "held: gpu:0: copy",
    ),
    plan("a device that holds a number", lambda d: d["held"].update({"gpu:0": 5}), "held", "gpu:0"),
    plan("a plan without a field", lambda d: d.pop("waits"), '"waits"'),
    plan(
        "an unknown device in a plan", lambda d: d["placement"].update(op1="tpu"), '"op1"', '"tpu"'
    ),
    plan("an op of no device", lambda d: d["placement"].pop("op1"), '"op1"'),
    plan("an op too many", lambda d: d["placement"].update(ghost="gpu:0"), '"ghost"'),
    plan("a device of a list", lambda d: d["placement"].update(op1=["gpu:0"]), '"op1"'),
    plan(
        "an op launched twice",
        lambda d: d.update(launch_order=["op0", "op0", "op2"]),
        "launch_order",
    ),
    plan(
        "a launch before its producer",
        lambda d: d.update(launch_order=["op1", "op0", "op2"]),
        '"op1"',
    ),
    plan("a launch order of numbers", lambda d: d.update(launch_order=[0, 1, 2]), "launch_order"),
    plan("a wait that points forward", lambda d: d.update(waits=[["op0", "op2"]]), '"op0"'),
    plan("a wait for itself", lambda d: d.update(waits=[["op1", "op1"]]), '"op1"'),
    plan("a wait for an unknown op", lambda d: d.update(waits=[["op1", "ghost"]]), '"ghost"'),
    plan(
        "a wait for a transfer that is not",
        lambda d: d.update(waits=[["op1", ["op0:0", "gpu:1"]]]),
        '"op0:0"',
        "gpu:1",
    ),
    plan("a wait of three", lambda d: d.update(waits=[["a", "b", "c"]]), "waits"),
    plan("a decision before time", lambda d: d.update(decided_ns={"op0": -1}), "decided_ns", "-1"),
    plan("a makespan of text", lambda d: d.update(makespan_ns="5"), "makespan_ns"),
    plan(
        "a capital letter in the rules",
        lambda d: d["provenance"].update(rules="Physical"),
        '"Physical"',
    ),
    plan("an executor that is none", lambda d: d.update(executor="thread"), '"thread"'),
    plan("a retention that is none", lambda d: d.update(retention="for ever"), '"for ever"'),
    plan(
        "a cluster of nothing in a plan", lambda d: d["provenance"].update(cluster={}), '"devices"'
    ),
    plan("notes that are a number", lambda d: d["provenance"].update(notes=3), "notes"),
    plan("versions that are a list", lambda d: d["provenance"].update(versions=[1]), "versions"),
    plan(
        "a plan of another graph",
        lambda d: (
            d["graph"].update(op1="0" * 16),
            d["provenance"].update(graph_fingerprint="0" * 64),
        ),
        '"op1" has other compute time',
        error=PlanMismatchError,
    ),
    plan(
        "digests that are numbers",
        lambda d: (d["graph"].update(op1=7), d["provenance"].update(graph_fingerprint="0" * 64)),
        '"op1"',
    ),
    plan(
        "a fingerprint that is a list",
        lambda d: d["provenance"].update(graph_fingerprint=[]),
        "graph_fingerprint",
    ),
]
