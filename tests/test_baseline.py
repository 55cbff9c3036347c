"""Tests that the literal baseline gives every recorded answer of the original placers."""

import math

import pytest

import baseline_lp
import baseline_tf
import baseline_torch
import vectors
from original_graphs import small_graph

UNLIMITED = 10**9


TF_RUNS = vectors.runs(vectors.tf_records())
TORCH_RUNS = vectors.runs(vectors.torch_records())
TF_SCT_RUNS = [
    run for run in TF_RUNS if "favorite_edges" in run.values[0]["results"][run.values[1]]
]
TORCH_LP_RUNS = [
    run for run in TORCH_RUNS if "lp_optimum" in run.values[0]["results"][run.values[1]]
]


def place_tf(graph, devices, record, name):
    """Run the TF placer that `name` means on a record."""
    colocation = record["colocation"]
    reserve_memory = name.endswith("_reserve")
    if name.startswith("m_topo"):
        return baseline_tf.m_topo(graph, devices, colocation, uniform=name == "m_topo")
    if name.startswith("m_etf"):
        return baseline_tf.m_etf(graph, devices, colocation, reserve_memory)
    return baseline_tf.m_sct(
        graph,
        devices,
        colocation=colocation,
        reserve_memory=reserve_memory,
        favorites=dict(record["results"][name]["favorites"]),
    )


def place_torch(graph, devices, record, name):
    """Run the torch placer that `name` means on a record."""
    if name.startswith("m_topo"):
        return baseline_torch.m_topo(graph, devices, uniform=name == "m_topo")
    if name == "m_etf":
        return baseline_torch.m_etf(graph, devices)
    favorites = dict(record["results"][name]["favorites"])
    return baseline_torch.m_sct(graph, devices, favorites=favorites)


def outcome(place, record, name):
    """Place a rebuilt graph; return it and the name of the error type, if any."""
    graph = vectors.op_graph(record)
    try:
        place(graph, vectors.device_graph(record), record, name)
    except (AssertionError, RuntimeError, TypeError) as error:
        return graph, type(error).__name__
    return graph, None


@pytest.mark.parametrize(("record", "name"), TF_RUNS)
def test_tf_baseline_equals_the_record(record, name):
    expected = record["results"][name]
    graph, error = outcome(place_tf, record, name)
    assert error == expected.get("error")
    if error is not None:
        return
    assert vectors.column(graph, "p") == expected["p"]
    if "start" in expected:
        assert vectors.column(graph, "start_ts") == expected["start"]
        assert graph.graph["makespan"] == expected["makespan"]
    baseline_tf.virtual_scheduler(graph, vectors.device_graph(record))
    assert graph.graph["makespan"] == expected["replay_makespan"]
    assert graph.graph["peak"] == expected["replay_peak"]


@pytest.mark.parametrize(("record", "name"), TORCH_RUNS)
def test_torch_baseline_equals_the_record(record, name):
    expected = record["results"][name]
    graph, error = outcome(place_torch, record, name)
    assert error == expected.get("error")
    assert vectors.column(graph, "topo_order") == expected["topo_order"]
    if error is not None:
        return
    assert vectors.column(graph, "p") == expected["p"]
    assert graph.graph["peak"] == expected["peak_mem"]
    if "start" in expected:
        assert vectors.column(graph, "start_ts") == pytest.approx(expected["start"], abs=1e-5)
        assert graph.graph["makespan"] == pytest.approx(expected["makespan"], abs=1e-5)


@pytest.mark.parametrize(("record", "name"), TF_SCT_RUNS)
def test_favorite_edges_give_the_recorded_favorites(record, name):
    expected = record["results"][name]
    favorites = baseline_tf.assign_favorites(vectors.op_graph(record), expected["favorite_edges"])
    assert favorites == dict(expected["favorites"])


@pytest.mark.parametrize(("record", "name"), TF_SCT_RUNS + TORCH_LP_RUNS)
def test_the_linear_program_has_the_recorded_optimum(record, name):
    optimum, _ = baseline_tf.lp_favorites(vectors.op_graph(record), threshold=0.1)
    assert optimum == pytest.approx(record["results"][name]["lp_optimum"], abs=2e-6)


def figure_1():
    """Build the worked example of the paper."""
    return small_graph(
        {1: 1, 2: 3, 3: 3, 4: 1, 5: 3, 6: 1},
        [(1, 2, 1), (2, 3, 1), (3, 4, 1), (1, 5, 1), (5, 6, 1), (6, 4, 1)],
        op_bytes={1: 1, 2: 2, 3: 2, 4: 1, 5: 1, 6: 1},
    )


def f2():
    """Build the golden graph F2."""
    return small_graph({0: 5, 1: 4, 2: 7, 3: 4}, [(0, 2, 1), (1, 2, 3), (1, 3, 1)])


def f21():
    """Build the golden graph F21."""
    return small_graph(
        {0: 9, 1: 9, 2: 8, 3: 5, 4: 6, 5: 4}, [(0, 2, 2), (1, 2, 3), (1, 3, 1), (4, 5, 3)]
    )


def f3():
    """Build the golden graph F3."""
    edges = [(0, 2, 1), (0, 3, 5), (0, 4, 2), (1, 2, 1), (1, 3, 1), (1, 4, 1), (2, 5, 5)]
    edges += [(2, 6, 3), (3, 5, 4), (3, 6, 1), (3, 7, 5), (4, 8, 1)]
    durations = {0: 6, 1: 7, 2: 9, 3: 8, 4: 10, 5: 6, 6: 6, 7: 10, 8: 6}
    return small_graph(durations, edges)


def starts(graph):
    """Return {op: (device, start)}."""
    return {op: (node["p"], node["start_ts"]) for op, node in graph.nodes(data=True)}


@pytest.mark.parametrize(
    ("build", "limits", "torch_etf", "torch_sct", "tf_etf", "replay_etf", "tf_sct", "replay_sct"),
    [
        pytest.param(figure_1, [UNLIMITED] * 2, 8, 8, 8, 8, 8, 8, id="figure-1"),
        pytest.param(figure_1, [4, 4], 9, 9, 9, None, 9, None, id="figure-1-limit-4"),
        pytest.param(f2, [UNLIMITED] * 2, 14, 14, 14, 14, 14, 14, id="f2"),
        pytest.param(f21, [UNLIMITED] * 2, 22, 22, 22, 22, 22, 22, id="f21-2-devices"),
        pytest.param(f21, [UNLIMITED] * 3, 20, 20, 20, 20, 20, 20, id="f21-3-devices"),
        pytest.param(f3, [UNLIMITED] * 3, 29, 30, 29, 34, 32, 34, id="f3-3-devices"),
        pytest.param(f3, [UNLIMITED] * 2, 38, 38, 36, 38, 42, 42, id="f3-2-devices"),
    ],
)
def test_golden_makespans(
    build, limits, torch_etf, torch_sct, tf_etf, replay_etf, tf_sct, replay_sct
):
    devices = vectors.devices(limits)
    assert baseline_torch.m_etf(build(), devices).graph["makespan"] == torch_etf
    graph = baseline_torch.m_sct(build(), devices, threshold=0.1)
    assert graph.graph["makespan"] == torch_sct
    for place, own, replay in (
        (baseline_tf.m_etf, tf_etf, replay_etf),
        (baseline_tf.m_sct, tf_sct, replay_sct),
    ):
        graph = place(build(), devices)
        assert graph.graph["makespan"] == own
        if replay is not None:
            assert baseline_tf.virtual_scheduler(graph, devices).graph["makespan"] == replay


@pytest.mark.parametrize(("num_devices", "makespan"), [(2, 24), (3, 19)])
def test_f21_with_the_torch_threshold(num_devices, makespan):
    graph = baseline_torch.m_sct(f21(), vectors.devices([UNLIMITED] * num_devices), threshold=0.5)
    assert graph.graph["makespan"] == makespan


@pytest.mark.parametrize(
    ("build", "optimum"), [(figure_1, 8), (f2, 12.5), (f21, 18.2), (f3, 77 / 3)]
)
def test_golden_optima_of_the_linear_program(build, optimum):
    assert baseline_tf.lp_favorites(build(), threshold=0.1)[0] == pytest.approx(optimum, abs=1e-6)


def test_f3_schedules_on_three_devices():
    devices = vectors.devices([UNLIMITED] * 3)
    common = {0: (0, 0), 1: (1, 0), 2: (1, 7), 3: (0, 8), 7: (0, 16), 6: (1, 17), 5: (1, 23)}
    torch = starts(baseline_torch.m_etf(f3(), devices))
    assert torch == common | {4: (2, 8), 8: (2, 18)}
    tf = starts(baseline_tf.m_etf(f3(), devices))
    assert tf == common | {4: (2, 11), 8: (2, 21)}
    sct = starts(baseline_torch.m_sct(f3(), devices, favorites={2: 5, 3: 7, 4: 8}))
    assert sct == common | {4: (2, 8), 8: (2, 18), 5: (1, 20), 6: (2, 24)}


@pytest.mark.parametrize("place", [baseline_tf.m_etf, baseline_torch.m_etf])
def test_f21_schedule_on_two_devices(place):
    assert starts(place(f21(), vectors.devices([UNLIMITED] * 2))) == {
        0: (0, 0),
        1: (1, 0),
        3: (1, 9),
        4: (0, 9),
        2: (1, 14),
        5: (0, 15),
    }


def test_tf_transfers_of_a_fan_out_queue():
    graph = small_graph({0: 2, 1: 3, 2: 3, 3: 3}, [(0, 1, 4), (0, 2, 4), (0, 3, 4)])
    baseline_tf.m_etf(graph, vectors.devices([UNLIMITED] * 3))
    assert starts(graph) == {0: (0, 0), 1: (0, 2), 2: (0, 5), 3: (1, 6)}
    assert graph.graph["makespan"] == 9


@pytest.mark.parametrize("place", [baseline_tf.m_sct, baseline_torch.m_sct])
def test_the_linear_program_is_no_lower_bound_if_transfers_are_long(place):
    edges = [(0, 1, 10), (0, 2, 10), (1, 3, 10), (2, 3, 10)]
    graph = small_graph(dict.fromkeys(range(4), 1), edges)
    assert baseline_tf.lp_favorites(graph, threshold=0.1)[0] == pytest.approx(13)
    assert place(graph, vectors.devices([UNLIMITED] * 2)).graph["makespan"] == 4


@pytest.mark.parametrize(
    ("threshold", "favorite", "others"),
    [(0.1, (0, 0.09, 0.1), (0.100001, 0.5, 1)), (0.5, (0, 0.4999, 0.5), (0.500001, 1))],
)
def test_the_threshold_itself_still_is_a_favorite(threshold, favorite, others):
    assert all(baseline_lp.is_favorite(value, threshold) for value in favorite)
    assert not any(baseline_lp.is_favorite(value, threshold) for value in others)


def test_a_stale_parent_link_erases_a_newer_favorite():
    graph = small_graph(dict.fromkeys(range(4), 1), [(0, 2, 1), (0, 3, 1), (1, 2, 1)])
    assert baseline_tf.assign_favorites(graph, [0, 1, 2]) == {1: 2}


@pytest.mark.parametrize(
    ("uniform", "first", "second"), [(True, {1, 2, 3, 5}, {4, 6}), (False, {1, 2, 5}, {3, 4, 6})]
)
def test_m_topo_on_figure_1(uniform, first, second):
    graph = baseline_tf.m_topo(figure_1(), vectors.devices([4, 4]), uniform=uniform)
    placed = [{op for op, device in graph.nodes(data="p") if device == d} for d in (0, 1)]
    assert placed == [first, second]


def test_an_op_of_no_duration_loses_its_children():
    graph = small_graph({0: 0, 1: 1}, [(0, 1, 1)])
    with pytest.raises(AssertionError, match="# scheduled ops=1, # ops=2"):
        baseline_tf.m_etf(graph, vectors.devices([UNLIMITED]))


def test_persistent_bytes_without_outputs_are_never_charged():
    graph = small_graph(
        {0: 1, 1: 1}, [], persistent_memory={0: 8, 1: 8}, output_memory={0: [], 1: []}
    )
    assert baseline_tf.m_etf(graph, vectors.devices([10])).graph["peak"] == [0]


def test_persistent_bytes_beyond_the_outputs_push_the_book_over_the_limit():
    memory = {
        "persistent_memory": {0: 8, 1: 0, 2: 0},
        "output_memory": {0: [1], 1: [5], 2: []},
    }
    graph = small_graph({0: 1, 1: 1, 2: 1}, [(0, 1, 1), (1, 2, 1)], **memory)
    baseline_tf.m_etf(graph, vectors.devices([10, 10]))
    # Freeing op 0 adds 7 bytes: 13 are used on device 0, where op 2 without any bytes does not fit.
    assert vectors.column(graph, "p") == [0, 0, 1]
    assert graph.graph["peak"] == [6, 0]


def test_reserving_without_groups_is_refused():
    with pytest.raises(ValueError, match="set colocation too"):
        baseline_tf.m_etf(f2(), vectors.devices([math.inf]), reserve_memory=True)
