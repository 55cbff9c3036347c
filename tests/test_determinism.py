"""The same input gives the same bytes: in every process, whatever the hash seed."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

import baechi
from baechi import workloads

WRITE = """
import sys
import baechi
from baechi import GraphBuilder, workloads

graph = workloads.training_blocks(120, seed=5)
builder = GraphBuilder(["gpu", "cpu"])
for at in range(12):
    devices = {"d2", "d0", "d1"} if at % 3 == 0 else None
    builder.op(f"op{at}", {"gpu": 3, "cpu": 9}, group=f"g{at % 5}", allowed_devices=devices)
for at in range(11):
    builder.connect(f"op{at}", f"op{at + 1}", 7)
pinned = builder.build()
cluster = {"d0": 2**20, "d1": 2**20, "d2": 2**20}
for algorithm in sys.argv[1:]:
    print(baechi.place(graph, "3x2GiB", algorithm).to_json())
    print(baechi.place(pinned, cluster, algorithm, "baechi-tf").to_json())
"""


def written(hash_seed: str, *algorithms: str) -> bytes:
    environment = os.environ | {"PYTHONHASHSEED": hash_seed}
    command = [sys.executable, "-c", WRITE, *algorithms]
    return subprocess.run(command, capture_output=True, check=True, env=environment).stdout


@pytest.mark.parametrize("algorithms", [("best",), baechi.ALGORITHMS[:-1]])
def test_plan_files_are_the_same_bytes_in_every_process(algorithms: tuple[str, ...]) -> None:
    first = written("0", *algorithms)
    assert len(first) > 10_000
    assert written("1", *algorithms) == first
    assert written("random", *algorithms) == first


def test_placing_twice_in_one_process_gives_the_same_bytes() -> None:
    graph = workloads.training_blocks(200, seed=2)
    one, two = (baechi.place(graph, "2x2GiB").to_json() for _ in range(2))
    assert one == two


def test_a_plan_file_holds_no_clock_and_no_host() -> None:
    text = baechi.place(workloads.chain(3, seed=1), "2x1GiB").to_json()
    assert os.uname().nodename not in text
    assert "placing_s" not in text
