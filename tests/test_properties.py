"""What must hold of every algorithm under all rules and channels, on random cases."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import baechi
from baechi import OutOfMemoryError, Plan, PlacementError, Schedule
from scheduled import violations
from strategies import CHANNELS, Case, cases, favorites, placements

RULES = ("physical", "baechi-tf", "baechi-torch")
# The torch-era original knows neither colocation groups nor reserves.
SINGLES = tuple(name for name in baechi.ALGORITHMS if name != "best")
WITHOUT_RESERVE = tuple(name for name in SINGLES if not name.endswith("-reserve"))

every_rule = pytest.mark.parametrize("rules", RULES)
every_channel = pytest.mark.parametrize("channels", CHANNELS)


def algorithms(rules: str) -> tuple[str, ...]:
    return WITHOUT_RESERVE if rules == "baechi-torch" else SINGLES


def plans(case: Case, rules: str, **options: Any) -> dict[str, Plan | Exception]:
    """What each algorithm finds, or how it fails."""
    found: dict[str, Plan | Exception] = {}
    for name in algorithms(rules):
        try:
            found[name] = baechi.place(case.graph, case.cluster, name, rules, **options)
        except (OutOfMemoryError, PlacementError) as error:
            found[name] = error
    return found


def drawn_plans(data: st.DataObject, channels: str, rules: str) -> tuple[Case, dict[str, Plan]]:
    """A case and the plans of all algorithms that find one."""
    case = data.draw(cases(channels=channels))
    options: dict[str, Any] = {"favorites": data.draw(favorites(case)), "seed": 3}
    if rules == "physical":
        options["retention"] = data.draw(st.sampled_from(["liveness", "training"]))
    found = plans(case, rules, **options)
    return case, {name: plan for name, plan in found.items() if isinstance(plan, Plan)}


def same_prediction(schedule: Schedule, plan: Plan) -> bool:
    return (
        schedule.makespan_ns == plan.makespan_ns
        and schedule.peak_bytes.tolist() == list(plan.peak_bytes.values())
        and schedule.busy_ns.tolist() == list(plan.busy_ns.values())
        and schedule.order.tolist() == plan.order.tolist()
        and schedule.transferred_bytes == plan.transferred_bytes
    )


@every_rule
@every_channel
@given(data=st.data())
def test_every_op_has_a_device_that_may_run_it_and_groups_stay_whole(
    channels: str, rules: str, data: st.DataObject
) -> None:
    case, found = drawn_plans(data, channels, rules)
    graph, cluster = case.graph, case.cluster
    for name, plan in found.items():
        assert set(plan.placement) == set(graph.op_names), name
        assert sorted(plan.order.tolist()) == list(range(graph.num_ops)), name
        homes: dict[int, set[str]] = {}
        for op, home in enumerate(plan.placement.values()):
            allowed = int(graph.allowed_set[op])
            kind = cluster.kinds[cluster.index(home)]
            row = 0 if graph.num_kinds == 1 else graph.device_kinds.index(kind)
            assert allowed < 0 or home in graph.allowed_sets[allowed], name
            assert graph.compute_ns[row, op] >= 0, name
            homes.setdefault(int(graph.group[op]), set()).add(home)
        del homes[-1:0]
    assert found or not found


@every_channel
@given(data=st.data())
def test_the_checker_finds_nothing_wrong_with_a_plan(channels: str, data: st.DataObject) -> None:
    case, found = drawn_plans(data, channels, "physical")
    for name, plan in found.items():
        assert plan.fits, name
        schedule = baechi.simulate(case.graph, case.cluster, plan)
        assert violations(schedule) == [], name
