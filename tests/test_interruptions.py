"""Ctrl-C and sudden death: a call stops within a second, and a file is whole at any moment."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from baechi.cluster import Cluster
from baechi.formats import load_graph
from baechi.placement import place
from baechi.plans import Plan
from baechi.workloads import chain

PRESSED = """
import os, signal, sys, threading, time
import numpy as np
import baechi

# A million ops and the tensors between them, in three chains.
num_ops = 1_000_000
others = np.arange(num_ops - 3)
columns = dict(
    compute_ns=np.full(num_ops, 7), tensor_producer=others, tensor_bytes=np.full(num_ops - 3, 9),
    edge_tensor=others, edge_consumer=others + 3,
)
graph = baechi.Graph.from_arrays(**columns)
cluster = baechi.Cluster("4x1TiB")
sent = []

def press():
    sent.append(time.monotonic())
    os.kill(os.getpid(), signal.SIGINT)

def work(what):
    if what == "build":
        baechi.Graph.from_arrays(**columns)
    elif what == "flatten":
        baechi.Graph.from_arrays(**columns).flatten()
    elif what == "group":
        baechi.group(graph)
    elif what == "save":
        graph.save(sys.argv[2])
    elif what == "load":
        baechi.load_graph(sys.argv[2])
    else:
        baechi.place(graph, cluster, what, favorites="greedy")

if sys.argv[1] == "load":
    graph.save(sys.argv[2])
threading.Timer(0.3, press).start()
try:
    for _ in range(1000):
        work(sys.argv[1])
except KeyboardInterrupt:
    late = time.monotonic() - sent[0]
    print("stopped" if late < 1 else f"{late} s late")
"""


@pytest.mark.parametrize(
    "what", ["build", "flatten", "group", "save", "load", "m-topo", "m-etf", "random"]
)
def test_ctrl_c_stops_a_million_ops_within_a_second(what: str, tmp_path: Path) -> None:
    command = [sys.executable, "-c", PRESSED, what, str(tmp_path / "graph.npz")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.stdout == "stopped\n", done.stderr


WRITING = """
import sys
import baechi
from baechi.workloads import chain

path, sizes = sys.argv[1], (400, 900)
things = [chain(size, compute_ns=5, tensor_bytes=2) for size in sizes]
if "plan" in path:
    things = [baechi.place(graph, "4x1GiB", "m-etf") for graph in things]
elif "cluster" in path:
    things = [baechi.Cluster(f"{size // 10}x1GiB") for size in sizes]
things[0].save(path)
print("ready", flush=True)
while True:
    for thing in things:
        thing.save(path)
"""


def loaded_size(path: Path) -> int:
    """The size that the file was written with; it must be whole."""
    if "plan" in path.name:
        return len(Plan.load(path).op_names)
    if "cluster" in path.name:
        return 10 * Cluster.load(path).num_devices
    return load_graph(path).num_ops


@pytest.mark.parametrize("name", ["plan.json", "graph.json", "graph.npz", "cluster.json"])
def test_a_killed_write_leaves_a_whole_file(name: str, tmp_path: Path) -> None:
    moments = random.Random(name)
    path = tmp_path / name
    for _ in range(5):
        command = [sys.executable, "-c", WRITING, str(path)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
            assert writer.stdout is not None
            assert writer.stdout.readline() == "ready\n"
            for _ in range(10):  # what a reader finds while others write
                assert loaded_size(path) in (400, 900)
            time.sleep(moments.uniform(0, 0.05))
            writer.kill()
        assert loaded_size(path) in (400, 900)


def test_a_new_write_after_a_killed_one_is_not_in_its_way(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    plan = place(chain(5, compute_ns=5, tensor_bytes=2), "2x1GiB", "m-etf")
    (tmp_path / ".baechi.1.1.tmp").write_text("half a pl")
    plan.save(path)
    assert Plan.load(path) == plan


def test_ctrl_c_between_the_members_of_an_archive_is_no_other_error(tmp_path: Path) -> None:
    script = """
import sys
from baechi.workloads import chain

def press(frame, event, argument):
    if event == "call" and frame.f_code.co_qualname == "_ZipWriteFile.__init__":
        raise KeyboardInterrupt

graph = chain(3, seed=0)
graph.save(sys.argv[1])
sys.settrace(press)
try:
    graph.save(sys.argv[1])
except KeyboardInterrupt:
    print("stopped")
"""
    path = tmp_path / "graph.npz"
    command = [sys.executable, "-c", script, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout == "stopped\n", done.stderr
    assert load_graph(path) == chain(3, seed=0)
