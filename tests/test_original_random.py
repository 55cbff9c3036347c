"""Tests that the drop-in equals the literal baseline on random graphs: results and failures."""

import random

from hypothesis import given, settings

import baseline_tf
import baseline_torch
from baechi.errors import OutOfMemoryError, PlacementError
from baechi.original import tf, torch
from original_graphs import cases, outcome

THEIRS = (AssertionError, RuntimeError, TypeError)
OURS = (OutOfMemoryError, PlacementError)
# Every example of the first three tests is a graph of its own, placed by every algorithm: together
# more than 2,000 graphs.
MANY = settings(max_examples=800)


def assert_same(build, theirs, ours, times=True):
    """Run both on graphs of their own; compare all that they leave behind."""
    (their_graph, their_devices), (our_graph, our_devices) = build(), build()
    expected = outcome(lambda graph: theirs(graph, their_devices), their_graph, THEIRS, times)
    actual = outcome(lambda graph: ours(graph, our_devices), our_graph, OURS, times)
    assert actual == expected
    return their_graph, our_graph


def with_favorites(place, case, *options):
    return lambda graph, devices: place(graph, devices, *options, favorites=case.favorites(graph))


def with_options(place, *options):
    return lambda graph, devices: place(graph, devices, *options)


@MANY
@given(cases())
def test_tf_without_groups_equals_the_baseline(case):
    for uniform in (True, False):
        theirs, ours = (with_options(m.m_topo, False, uniform) for m in (baseline_tf, tf))
        assert_same(case.tf, theirs, ours, times=False)
    assert_same(case.tf, baseline_tf.m_etf, tf.m_etf)
    assert_same(case.tf, *(with_favorites(m.m_sct, case) for m in (baseline_tf, tf)))


@MANY
@given(cases())
def test_tf_with_groups_equals_the_baseline(case):
    for uniform in (True, False):
        theirs, ours = (with_options(m.m_topo, True, uniform) for m in (baseline_tf, tf))
        assert_same(case.tf, theirs, ours, times=False)
    for reserve in (True, False):
        assert_same(case.tf, *(with_options(m.m_etf, True, reserve) for m in (baseline_tf, tf)))
        theirs, ours = (
            with_favorites(m.m_sct, case, 0.1, True, reserve) for m in (baseline_tf, tf)
        )
        assert_same(case.tf, theirs, ours)


@MANY
@given(cases())
def test_torch_equals_the_baseline_down_to_the_ranks_of_failed_runs(case):
    for uniform in (True, False):
        theirs, ours = (with_options(m.m_topo, uniform) for m in (baseline_torch, torch))
        assert_ranks(*assert_same(case.torch, theirs, ours, times=False))
    assert_ranks(*assert_same(case.torch, baseline_torch.m_etf, torch.m_etf))
    theirs, ours = (with_favorites(m.m_sct, case) for m in (baseline_torch, torch))
    assert_ranks(*assert_same(case.torch, theirs, ours))


def assert_ranks(theirs, ours):
    for name in ("p", "topo_order"):
        assert dict(ours.nodes(data=name)) == dict(theirs.nodes(data=name))


@settings(max_examples=400)
@given(cases())
def test_a_replay_of_any_placement_equals_the_baseline(case):
    def build():
        graph, devices = case.tf(order_only=False)
        rng = random.Random(case.seed)
        for op in graph.nodes:
            graph.nodes[op]["p"] = rng.randrange(case.num_devices)
        return graph, devices

    assert_same(build, baseline_tf.virtual_scheduler, tf.virtual_scheduler)


@settings(max_examples=100)
@given(cases(most_ops=60))
def test_larger_graphs_equal_the_baseline(case):
    for reserve in (True, False):
        theirs, ours = (
            with_favorites(m.m_sct, case, 0.1, True, reserve) for m in (baseline_tf, tf)
        )
        assert_same(case.tf, theirs, ours)
    assert_same(case.torch, *(with_favorites(m.m_sct, case) for m in (baseline_torch, torch)))


@settings(max_examples=100)
@given(cases(most_ops=8))
def test_m_sct_finds_the_favorites_of_the_baseline(case):
    """The same program in the same layout gives the same vertex of the solver."""
    assert_same(lambda: case.tf(ids=True), baseline_tf.m_sct, tf.m_sct)
    assert_same(lambda: case.torch(ids=True), baseline_torch.m_sct, torch.m_sct)


@settings(max_examples=200)
@given(cases())
def test_ops_without_duration_count_as_in_the_baseline(case):
    def zeroed(build):
        graph, devices = build()
        for op in random.Random(case.seed).sample(list(graph.nodes), 1 + len(graph) // 6):
            graph.nodes[op]["weight"] = 0
        return graph, devices

    for options in ((), (True,), (True, True)):
        theirs, ours = (with_options(m.m_etf, *options) for m in (baseline_tf, tf))
        assert_same(lambda: zeroed(case.tf), theirs, ours)
    theirs, ours = (with_favorites(m.m_sct, case) for m in (baseline_tf, tf))
    assert_same(lambda: zeroed(case.tf), theirs, ours)
    theirs, ours = (with_favorites(m.m_sct, case) for m in (baseline_torch, torch))
    assert_ranks(*assert_same(lambda: zeroed(case.torch), theirs, ours))
