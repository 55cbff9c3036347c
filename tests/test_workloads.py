"""Synthetic graphs from a seed."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from baechi.errors import InputError
from baechi.graph import MEMORY_CLASSES, ROLES, Graph
from baechi.workloads import (
    chain,
    diamond,
    fan_out,
    inception_like,
    random_layered,
    rnn_like,
    training_blocks,
    transformer_like,
)

MAKERS: dict[str, Callable[[int], Graph]] = {
    "chain": lambda seed: chain(5, seed=seed),
    "diamond": lambda seed: diamond(3, seed=seed),
    "fan_out": lambda seed: fan_out(4, seed=seed),
    "random_layered": lambda seed: random_layered(200, 10, seed=seed),
    "training_blocks": lambda seed: training_blocks(200, seed=seed),
    "inception_like": lambda seed: inception_like(2, seed=seed),
    "rnn_like": lambda seed: rnn_like(2, 3, seed=seed),
    "transformer_like": lambda seed: transformer_like(2, 2, seed=seed),
}


@pytest.fixture(params=MAKERS)
def make(request: pytest.FixtureRequest) -> Callable[[int], Graph]:
    """Every maker, as a function of the seed."""
    return MAKERS[request.param]


def test_the_same_seed_gives_the_same_graph(make: Callable[[int], Graph]) -> None:
    assert make(7) == make(7)


def test_another_seed_gives_another_graph(make: Callable[[int], Graph]) -> None:
    assert make(7) != make(8)


def test_insertion_order_is_topological(make: Callable[[int], Graph]) -> None:
    graph = make(0)
    assert (graph.tensor_producer[graph.edge_tensor] < graph.edge_consumer).all()


def test_training_edges_come_by_consumer() -> None:
    graph = training_blocks(200, seed=0)
    assert (np.diff(graph.edge_consumer) >= 0).all()


def test_given_figures_need_no_seed() -> None:
    graph = diamond(compute_ns=10, tensor_bytes=4)
    assert graph.compute_ns.tolist() == [[10, 10, 10, 10]]
    assert graph.tensor_bytes.tolist() == [4, 4, 4, 4]


def test_a_seed_is_needed_for_what_is_drawn() -> None:
    with pytest.raises(InputError, match="seed"):
        chain(3, compute_ns=10)


def test_a_chain_is_a_chain() -> None:
    graph = chain(3, compute_ns=1, tensor_bytes=1)
    assert graph.edge_tensor.tolist() == [0, 1]
    assert graph.edge_consumer.tolist() == [1, 2]


def test_fan_out_shares_one_tensor() -> None:
    graph = fan_out(3, compute_ns=1, tensor_bytes=1)
    assert graph.edge_tensor.tolist() == [0, 0, 0]


@pytest.mark.parametrize(
    "call",
    [
        lambda: chain(0, seed=0),
        lambda: diamond(0, seed=0),
        lambda: fan_out(-1, seed=0),
        lambda: random_layered(10, 0, seed=0),
        lambda: training_blocks(0, seed=0),
        lambda: inception_like(0, seed=0),
        lambda: rnn_like(1, 0, seed=0),
        lambda: transformer_like(1, 0, seed=0),
    ],
)
def test_counts_below_their_least_are_refused(call: Callable[[], Graph]) -> None:
    with pytest.raises(InputError, match="not at least"):
        call()


def test_layered_inputs_come_mostly_from_the_layer_before() -> None:
    graph = random_layered(10_000, 100, seed=0)
    producer, consumer = graph.tensor_producer[graph.edge_tensor], graph.edge_consumer
    near = consumer // 100 - producer // 100 == 1
    assert 0.83 < near.mean() < 0.89


def test_layered_figures_have_the_medians() -> None:
    graph = random_layered(10_000, 100, seed=0)
    assert np.median(graph.compute_ns) == pytest.approx(245_000, rel=0.05)
    assert np.median(graph.tensor_bytes) == pytest.approx(440_000, rel=0.05)


@pytest.mark.parametrize("num_ops", [1, 2, 3, 26, 27, 51, 52, 1000, 1001])
def test_training_blocks_have_the_number_of_ops_asked_for(num_ops: int) -> None:
    assert training_blocks(num_ops, seed=0).num_ops == num_ops


def test_training_blocks_have_about_1_73_edges_per_op() -> None:
    graph = training_blocks(10_000, seed=0)
    assert graph.num_edges / graph.num_ops == pytest.approx(1.73, abs=0.01)


def test_every_backward_op_consumes_the_output_of_its_forward_op() -> None:
    graph = training_blocks(101, seed=0)
    producer = graph.tensor_producer[graph.edge_tensor]
    edges = set(zip(producer.tolist(), graph.edge_consumer.tolist(), strict=True))
    backward = np.flatnonzero(graph.role == ROLES.index("backward")).tolist()
    assert len(backward) == 50
    assert all((int(graph.forward_op[op]), op) in edges for op in backward)


def test_backward_edges_mirror_the_forward_edges() -> None:
    graph = training_blocks(100, seed=0)
    producer = graph.tensor_producer[graph.edge_tensor].tolist()
    edges = set(zip(producer, graph.edge_consumer.tolist(), strict=True))
    forward = {(a, b) for a, b in edges if b < 50}
    assert {(99 - b, 99 - a) for a, b in forward} == {(a, b) for a, b in edges if a >= 50}


def test_the_first_block_is_branches_and_a_join() -> None:
    graph = training_blocks(26, branches=2, depth=2, seed=0)
    producer = graph.tensor_producer[graph.edge_tensor].tolist()
    edges = list(zip(producer, graph.edge_consumer.tolist(), strict=True))
    assert edges[:8] == [(0, 1), (2, 3), (1, 4), (3, 4), (4, 5), (5, 6), (4, 7), (7, 8)]


@pytest.mark.parametrize("name", ["inception_like", "rnn_like", "transformer_like"])
def test_model_like_steps_have_all_three_roles(name: str) -> None:
    assert set(MAKERS[name](0).role.tolist()) == {0, 1, 2}


@pytest.mark.parametrize("name", ["inception_like", "rnn_like", "transformer_like"])
def test_updates_share_a_group_with_their_variable_and_get_gradients(name: str) -> None:
    graph = MAKERS[name](0)
    gradient = MEMORY_CLASSES.index("gradient")
    for op in np.flatnonzero(graph.role == ROLES.index("update")).tolist():
        variable = graph.index(graph.op_names[op].removesuffix("update") + "variable")
        assert graph.group[op] == graph.group[variable] >= 0
        inputs = graph.edge_tensor[graph.edge_consumer == op]
        assert (graph.tensor_class[inputs] == gradient).all()
        assert len(inputs)


def test_sizes_are_those_in_the_documentation() -> None:
    assert 1100 < inception_like(seed=0).num_ops < 1300
    assert 4100 < rnn_like(seed=0).num_ops < 4300
