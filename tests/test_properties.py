"""What must hold of every algorithm under all rules, on random cases with all kinds of channels."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import baechi
from baechi import OutOfMemoryError, PlacementError, Plan, Schedule
from scheduled import violations
from strategies import CHANNELS, Case, cases, dense_case, favorites

RULES = ("physical", "baechi-tf", "baechi-torch")
SINGLES = tuple(name for name in baechi.ALGORITHMS if name != "best")

every_rule = pytest.mark.parametrize("rules", RULES)


def algorithms(rules: str) -> tuple[str, ...]:
    """The torch-era original knows no reserves."""
    torch = rules == "baechi-torch"
    return tuple(name for name in SINGLES if not (torch and name.endswith("-reserve")))


def found_by_all(case: Case, rules: str, **options: Any) -> dict[str, Plan]:
    found = {}
    for name in algorithms(rules):
        try:
            found[name] = baechi.place(case.graph, case.cluster, name, rules, **options)
        except (OutOfMemoryError, PlacementError):
            continue
    return found


def errors_of_all(case: Case, rules: str) -> Iterator[OutOfMemoryError | PlacementError]:
    for name in algorithms(rules):
        try:
            baechi.place(case.graph, case.cluster, name, rules, favorites="greedy")
        except (OutOfMemoryError, PlacementError) as error:
            yield error


def drawn(data: st.DataObject, rules: str, **limits: Any) -> tuple[Case, dict[str, Plan]]:
    """A case, and the plans of the algorithms that find one."""
    case = data.draw(cases(**limits))
    options: dict[str, Any] = {"favorites": data.draw(favorites(case)), "seed": 3}
    if rules == "physical":
        options["retention"] = data.draw(st.sampled_from(["liveness", "training"]))
    return case, found_by_all(case, rules, **options)


def homes_of_groups(case: Case, plan: Plan) -> Iterator[set[int]]:
    for group in range(len(case.graph.group_names)):
        yield set(plan.device[case.graph.group == group].tolist())


def assert_allowed(case: Case, plan: Plan) -> None:
    graph, cluster = case.graph, case.cluster
    assert list(plan.placement) == list(graph.op_names)
    assert sorted(plan.order.tolist()) == list(range(graph.num_ops))
    for op, home in enumerate(plan.placement.values()):
        kind = cluster.kinds[cluster.index(home)]
        row = 0 if graph.num_kinds == 1 else graph.device_kinds.index(kind)
        assert graph.compute_ns[row, op] >= 0
        if graph.allowed_set[op] >= 0:
            assert home in graph.allowed_sets[graph.allowed_set[op]]


def assert_predicted(schedule: Schedule, plan: Plan) -> None:
    assert schedule.makespan_ns == plan.makespan_ns
    assert schedule.peak_bytes.tolist() == list(plan.peak_bytes.values())
    assert schedule.busy_ns.tolist() == list(plan.busy_ns.values())
    assert schedule.order.tolist() == plan.order.tolist()
    assert schedule.transferred_bytes == plan.transferred_bytes
    assert len(schedule.transfers.tensor) == plan.num_transfers
    assert schedule.executor == plan.executor


@every_rule
@given(data=st.data())
def test_every_op_gets_a_device_that_may_run_it(rules: str, data: st.DataObject) -> None:
    case, found = drawn(data, rules)
    for plan in found.values():
        assert_allowed(case, plan)


@pytest.mark.parametrize("rules", RULES[:2])  # the torch-era original has no groups
@given(data=st.data())
def test_a_group_never_splits_across_devices(rules: str, data: st.DataObject) -> None:
    case, found = drawn(data, rules)
    for name, plan in found.items():
        assert all(len(homes) == 1 for homes in homes_of_groups(case, plan)), name


@given(data=st.data())
def test_with_ample_memory_every_algorithm_finds_a_plan(data: st.DataObject) -> None:
    _, found = drawn(data, "physical", limits="ample")
    assert tuple(found) == algorithms("physical")


@given(data=st.data())
def test_the_checker_finds_nothing_wrong_with_a_physical_plan(data: st.DataObject) -> None:
    case, found = drawn(data, "physical")
    for name, plan in found.items():
        assert plan.fits, name
        assert violations(baechi.simulate(case.graph, case.cluster, plan)) == [], name


@given(seed=st.integers(0, 2**32))
def test_the_checker_finds_nothing_wrong_where_plans_wait_for_memory(seed: int) -> None:
    case = dense_case(seed)
    for name, plan in found_by_all(case, "physical", favorites="greedy").items():
        schedule = baechi.simulate(case.graph, case.cluster, plan)
        assert_predicted(schedule, plan)
        assert violations(schedule) == [], name


@every_rule
@given(data=st.data())
def test_a_replayed_plan_takes_exactly_what_it_predicts(rules: str, data: st.DataObject) -> None:
    case, found = drawn(data, rules)
    for plan in found.values():
        assert_predicted(baechi.simulate(case.graph, case.cluster, plan), plan)


@every_rule
@given(data=st.data())
def test_a_saved_plan_replays_to_the_same_schedule(
    rules: str, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    case, found = drawn(data, rules)
    file = Path(tmp_path_factory.getbasetemp(), f"{rules}.json")
    for plan in found.values():
        plan.save(file)
        loaded = Plan.load(file, case.graph)
        assert loaded == plan
        direct = baechi.simulate(case.graph, case.cluster, plan)
        assert baechi.simulate(case.graph, loaded.provenance.cluster, loaded) == direct


@every_rule
@given(data=st.data())
def test_no_plan_beats_the_lower_bounds(rules: str, data: st.DataObject) -> None:
    case, found = drawn(data, rules)
    rows = baechi.compare(case.graph, case.cluster, ["round-robin"], rules=rules)
    for plan in found.values():
        assert plan.makespan_ns >= rows.lower_bound_ns


@every_rule
@given(data=st.data())
def test_best_is_the_shortest_plan_that_fits(rules: str, data: st.DataObject) -> None:
    case, found = drawn(data, rules)
    fitting = {name: plan.makespan_ns for name, plan in found.items() if plan.fits}
    options = next(iter(found.values())).provenance.options if found else {}
    try:
        best = baechi.place(
            case.graph, case.cluster, rules=rules, favorites="none", seed=3,
            retention=options.get("retention", "liveness"),
        )  # fmt: skip
    except (OutOfMemoryError, PlacementError):
        without = [name for name in fitting if not name.startswith("m-sct")]
        assert without == []
        return
    table = {row.algorithm: row for row in best.candidates}
    # On the grouped graph only some run, and only where there is one.
    assert tuple(name for name in table if not name.startswith("grouped ")) == algorithms(rules)
    valid = [row.makespan_ns for row in best.candidates if row.error is None]
    assert best.fits
    assert best.makespan_ns == min(ns for ns in valid if ns is not None)
    assert table[best.algorithm].makespan_ns == best.makespan_ns
    assert best.makespan_ns <= fitting.get("single", best.makespan_ns)
    for name in set(fitting) - {"m-sct", "m-sct-reserve"}:
        assert table[name].makespan_ns == fitting[name]


@every_rule
@given(data=st.data())
def test_an_error_names_the_op_the_device_and_true_numbers(rules: str, data: st.DataObject) -> None:
    case = data.draw(cases(limits="dead-tight"))
    for error in errors_of_all(case, rules):
        ops, devices = case.graph.op_names, case.cluster.names
        assert any(f'"{op}"' in str(error) for op in ops)
        if isinstance(error, OutOfMemoryError):
            assert (error.op in ops, error.device in devices) == (True, True)
            assert error.needed_bytes > error.free_bytes
            assert f'"{error.op}" needs {error.needed_bytes} B' in str(error)
            assert f'"{error.device}", which has {error.free_bytes} B' in str(error)


@given(data=st.data())
def test_the_memory_curve_reaches_the_peak_and_no_more(data: st.DataObject) -> None:
    case, found = drawn(data, "physical")
    for plan in found.values():
        schedule = baechi.simulate(case.graph, case.cluster, plan)
        for device, peak in plan.peak_bytes.items():
            times, held = schedule.memory(device)
            assert held.max() == peak
            assert (np.diff(times) >= 0).all()
            ran = plan.device == case.cluster.index(device)
            assert held[0] == case.graph.persistent_bytes[ran].sum()


@every_rule
@pytest.mark.parametrize("channels", CHANNELS)
@pytest.mark.parametrize("algorithm", baechi.ALGORITHMS)
def test_every_algorithm_works_under_all_rules_and_channels(
    algorithm: str, channels: str, rules: str
) -> None:
    if rules == "baechi-torch" and algorithm.endswith("-reserve"):
        pytest.skip("the torch-era original knows no reserves")
    case = dense_case(seed=17)
    matrices = [
        [[number] * case.cluster.num_devices] * case.cluster.num_devices for number in (0, -1)
    ]
    given_channels = {"bus": (matrices[0], matrices[0]), "custom": tuple(matrices)}
    cluster = case.cluster.with_memory("1KiB").with_channels(given_channels.get(channels, channels))
    plan = baechi.place(case.graph, cluster, algorithm, rules)
    schedule = baechi.simulate(case.graph, cluster, plan)
    assert_predicted(schedule, plan)
    if rules == "physical":
        assert violations(schedule) == []
