"""Calls with arguments that cannot be meant."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import networkx
import numpy as np

from baechi.cluster import Cluster
from baechi.comparison import compare
from baechi.errors import PlanMismatchError
from baechi.grouping import group
from baechi.original import tf
from baechi.placement import place
from baechi.simulation import simulate, simulate_many
from refusals import Refusal, chain, refusal

__all__ = ["REFUSED_CALLS"]

TWO = Cluster("2x8GiB")


def placing(name: str, *words: str, **options: Any) -> Refusal:
    return refusal(name, lambda _: place(chain(), TWO, **options), *words)


def sct(name: str, *words: str, **options: Any) -> Refusal:
    return placing(name, *words, algorithm="m-sct", **options)


def simulating(
    name: str, placement: Any, *words: str, error: Any = None, **options: Any
) -> Refusal:
    more = {} if error is None else {"error": error}
    return refusal(name, lambda _: simulate(chain(), TWO, placement, **options), *words, **more)


def many(name: str, devices: Any, *words: str, order: Any = None, **options: Any) -> Refusal:
    return refusal(name, lambda _: simulate_many(chain(), TWO, devices, order, **options), *words)


def original(name: str, *words: str, limit: Any = 10**9, **op: Any) -> Refusal:
    def call(_: Path) -> Any:
        graph, devices = networkx.DiGraph(), networkx.DiGraph()
        fields = {"name": "only", "weight": 5, "temporary_memory": 0, "persistent_memory": 1}
        graph.add_node(
            0,
            **{
                **fields,
                "output_memory": [],
                "colocation_group": "c",
                "id": 0,
                "topo_order": 0,
                **op,
            },
        )
        devices.add_node(0, id=0, name="d", memory_limit=limit)
        return tf.m_etf(graph, devices)

    return refusal(name, call, *words)


PLACED = {"op0": "gpu:0", "op1": "gpu:0", "op2": "gpu:1"}
DOWN = np.array([[2, 1, 0]])

REFUSED_CALLS = [
    placing("an unknown algorithm", '"m-eft"', "m-etf", algorithm="m-eft"),
    placing("an algorithm that is a list", "['m-etf']", algorithm=["m-etf"]),
    placing("unknown rules", '"physics"', "baechi-tf", rules="physics"),
    placing("rules that are None", '"None"', rules=None),
    placing("an unknown retention", '"always"', retention="always"),
    placing(
        "training under an original's rules", '"training"', rules="baechi-tf", retention="training"
    ),
    placing("a negative seed", "seed -1", seed=-1),
    placing("a seed of 2^64", f"seed {2**64}", seed=2**64),
    placing("a seed with a fraction", "seed 1.5", seed=1.5),
    placing("a seed of text", "seed '7'", seed="7"),
    placing("repair that is a text", "repair", repair="yes"),
    sct("a threshold that is NaN", "threshold nan", threshold=float("nan")),
    sct("a threshold of text", "threshold '0.5'", threshold="0.5"),
    sct("a threshold without bounds", "threshold inf", threshold=float("inf")),
    sct("a negative threshold", "threshold -0.1", threshold=-0.1),
    sct("unknown favorites", '"best"', favorites="best"),
    sct("favorites of unknown ops", '"op9"', favorites={"op9": "op1"}),
    sct("favorites that are no ops", '"op9"', favorites={"op0": "op9"}),
    sct("favorites of another length", "int[3]", "[2]", favorites=[1, -1]),
    sct("favorites of floats", "float64", favorites=[1.0, -1.0, -1.0]),
    sct("favorites beyond the ops", "favorites[0] is 3", favorites=[3, -1, -1]),
    sct("favorites below -1", "favorites[0] is -2", favorites=[-2, -1, -1]),
    sct("favorites at 2^32", "favorites", str(2**32), favorites=[2**32, -1, -1]),
    sct("ragged favorites", "favorites", favorites=[[1], [2, 3], 4]),
    sct("favorites of a number", "favorites", favorites=7),
    refusal("no graph", lambda _: place("graph.json", TWO), "'graph.json'", "Graph"),
    refusal("a graph of None", lambda _: place(None, TWO), "None", "Graph"),
    simulating("a placement of nothing", {}, '"op0"'),
    simulating("an op missing in a placement", {"op0": "gpu:0", "op1": "gpu:0"}, '"op2"'),
    simulating("an op too many in a placement", {**PLACED, "op9": "gpu:0"}, '"op9"'),
    simulating(
        "an unknown device in a placement", {**PLACED, "op1": "tpu"}, '"tpu"', "gpu:0, gpu:1"
    ),
    simulating("a device that is a list", {**PLACED, "op1": ["gpu:0"]}, "['gpu:0']"),
    simulating("a device beyond the cluster", [0, 2, 0], '"op1"', "device 2"),
    simulating("a negative device", [0, -1, 0], "[1] is -1"),
    simulating("a device at 2^32", [0, 2**32, 0], "[1] is 4294967296"),
    simulating("devices that are floats", [0.0, 1.0, 0.0], "float64"),
    simulating("devices of another length", [0, 1], "int[3]", "[2]"),
    simulating("ragged devices", [[0], [0, 1]], "devices"),
    simulating("None for a placement", None, "object"),
    simulating("a text for a placement", "gpu:0", "<U5"),
    simulating("launching without an order", PLACED, "launch order", executor="launch"),
    simulating("fifo under physical rules", PLACED, '"fifo"', '"physical"', executor="fifo"),
    simulating(
        "a plan for another graph", place(chain(4), TWO, "m-etf"), "op3", error=PlanMismatchError
    ),
    refusal(
        "a plan on a cluster without its devices",
        lambda _: simulate(chain(), Cluster("1xcpu:8GiB"), place(chain(), TWO, "m-etf")),
        '"gpu:0"',
    ),
    many("a batch of one axis", [0, 1, 0], "shape (3,)"),
    many("a batch of the wrong width", [[0, 1]], "[1, 2]"),
    many("a batch of ragged rows", [[0, 1, 0], [1]], "devices"),
    many("a batch of texts", [["a", "b", "c"]], "<U1"),
    many("a device beyond a batch", [[0, 0, 0], [0, 5, 0]], '"op1"', "device 5"),
    many("an order of another shape", [[0, 0, 0]], "(2, 3)", order=[[0, 1, 2]] * 2),
    many("an order that is no permutation", [[0, 0, 0]], '"op1"', order=[[0, 0, 1]]),
    many("an order beyond the ops", [[0, 0, 0]], '"op2"', order=[[0, 1, 7]]),
    many("an order against the edges", [[0, 0, 0]], '"op', order=DOWN),
    many("None for a batch", None, "None"),
    refusal("an unknown grouping step", lambda _: group(chain(), ["merge"]), '"merge"'),
    refusal("a grouping step of text", lambda _: group(chain(), "fuse"), "fuse"),
    refusal(
        "a group limit of text",
        lambda _: group(chain(), most_bytes="8 bananas"),
        "most_bytes",
        "bananas",
    ),
    refusal(
        "a group limit of 2^70",
        lambda _: group(chain(), most_bytes=2**70),
        "most_bytes",
        str(2**70),
    ),
    refusal("a negative group limit", lambda _: group(chain(), most_bytes=-1), "most_bytes", "-1"),
    refusal("an unknown retention of groups", lambda _: group(chain(), retention="x"), '"x"'),
    refusal(
        "an unknown algorithm to compare", lambda _: compare(chain(), TWO, ["m-eft"]), '"m-eft"'
    ),
    refusal("a text of algorithms", lambda _: compare(chain(), TWO, "m-etf"), "m-etf"),
    refusal("an op by an unknown name", lambda _: chain().index("ghost"), '"ghost"', "3 ops"),
    refusal("a device by an unknown name", lambda _: TWO.index("ghost"), '"ghost"', "gpu:0"),
    refusal("memory of an unknown device", lambda _: TWO.with_memory({"tpu": 5}), '"tpu"'),
    refusal("memory by device number 9", lambda _: simulate(chain(), TWO, PLACED).memory(9), "9"),
    refusal("saving a graph as text", lambda folder: chain().save(folder / "graph.txt"), '".txt"'),
    original("an original op without a weight", "weight", weight=None),
    original("an original weight that is NaN", "weight", "nan", weight=float("nan")),
    original("an original weight without end", "weight", "inf", weight=float("inf")),
    original("original memory of text", "persistent_memory", persistent_memory="much"),
    original("original memory of 1e30", "persistent_memory", persistent_memory=10**30),
    original("an original limit of text", "memory_limit", "'8GiB'", limit="8GiB"),
]
