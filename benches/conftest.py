"""What the benches share: graphs of a size, and how a row of the table is timed.

Where benchmarking is disabled, as in `make check`, every graph is small and runs once.
"""

import functools
import math
from types import SimpleNamespace

import networkx as nx
import pytest

import baechi
from baechi import workloads

SMALL = 200
# What the original placers were measured with: 134 us and 0.0001754 us per byte.
LINK = baechi.Link(latency_ns=134_000, bytes_per_s=5_700_000_000)
# No limit that a graph here would reach.
AMPLE = "1TiB"


def pytest_addoption(parser):
    parser.addoption(
        "--slow-baseline", action="store_true", help="time the baseline at 10,000 ops: 20 s"
    )


@pytest.fixture
def scaled(request):
    """Function from a size to that size, or to a small one where nothing is timed."""
    is_small = request.config.getoption("benchmark_disable")
    return lambda count, small=SMALL: min(count, small) if is_small else count


@pytest.fixture
def timed(benchmark):
    """Function that times a call and writes down what the table needs.

    Arguments: what the row is called; how many ops one call handles; the call. `rounds` calls are
    timed and their median counts. Rows of one `series` and size are compared with its baseline.
    """

    def run(what, num_ops, call, *, rounds, series=None, is_baseline=False):
        benchmark.extra_info.update(
            what=what, num_ops=num_ops, series=series, is_baseline=is_baseline
        )
        return benchmark.pedantic(call, rounds=rounds, warmup_rounds=int(rounds > 1))

    return run


@functools.cache
def layered(num_ops):
    """The layered graph that the original placers were measured on, 100 ops wide at 10,000."""
    return workloads.random_layered(num_ops, width=math.isqrt(num_ops), fan_in=2, seed=1)


@functools.cache
def training(num_ops, branches=4):
    """Blocks of parallel branches, forward and mirrored backward."""
    return workloads.training_blocks(num_ops, branches=branches, seed=1)


def cluster(num_devices, memory=AMPLE, channels="serial"):
    return baechi.Cluster(f"{num_devices}x{memory}", LINK, channels)


def as_originals(graph, num_devices):
    """The graph and the devices as the originals' networkx graphs."""
    ops = nx.DiGraph()
    for op, duration_ns in enumerate(graph.compute_ns[0].tolist()):
        ops.add_node(op, id=op, weight=max(duration_ns, 1), temporary_memory=0)
        ops.nodes[op].update(persistent_memory=0, output_memory=[], colocation_group=op)
    producers = graph.tensor_producer.tolist()
    sizes = graph.tensor_bytes.tolist()
    for producer, size in zip(producers, sizes, strict=True):
        ops.nodes[producer]["output_memory"].append(size)
    pairs = zip(graph.edge_tensor.tolist(), graph.edge_consumer.tolist(), strict=True)
    for number, (tensor, consumer) in enumerate(pairs):
        time_ns = LINK.latency_ns - (-sizes[tensor] * 10**9 // LINK.bytes_per_s)
        carried = [{"name": tensor, "weight": time_ns}]
        ops.add_edge(producers[tensor], consumer, id=number, weight=time_ns, tensor=carried)
    devices = nx.DiGraph()
    for device in range(num_devices):
        devices.add_node(device, id=device, memory_limit=2**40)
    return ops, devices


@pytest.fixture
def make():
    """The functions above."""
    return SimpleNamespace(
        layered=layered, training=training, cluster=cluster, as_originals=as_originals
    )
