"""Placing where memory is just enough: what is solved, and that nothing ever exceeds a limit."""

from collections import Counter
from collections.abc import Callable

import pytest

import baechi
from baechi import Cluster, Graph, GraphBuilder, OutOfMemoryError, PlacementError
from checker import check
from scheduled import finished
from tight_cases import around_a_plan, packing

ALGORITHMS = ("single", "contiguous", "m-topo", "m-etf", "m-sct")


def shares_solved(
    case: Callable[[int], tuple[Graph, Cluster] | None], count: int
) -> dict[str, float]:
    """Share of the cases that each algorithm solves; "best" means at least one of them."""
    solved: Counter[str] = Counter()
    found = seed = 0
    while found < count:
        made = case(seed)
        seed += 1
        if made is None:
            continue
        found += 1
        graph, cluster = made
        fitting = [name for name in ALGORITHMS if fits(graph, cluster, name)]
        solved.update(fitting)
        solved["best"] += bool(fitting)
    return {name: solved[name] / count for name in (*ALGORITHMS, "best")}


def fits(graph: Graph, cluster: Cluster, algorithm: str) -> bool:
    try:
        plan = baechi.place(graph, cluster, algorithm, favorites="greedy")
    except (OutOfMemoryError, PlacementError):
        return False
    schedule = baechi.simulate(graph, cluster, plan)
    assert check(graph, cluster, finished(schedule)) == []
    return True


def test_nearly_every_packing_that_a_program_proved_is_found(
    record_property: Callable[[str, object], None],
) -> None:
    solved = shares_solved(packing, 200)
    record_property("solved", solved)
    assert solved["best"] >= 0.95, solved


def test_most_plans_that_fit_to_the_last_byte_are_matched(
    record_property: Callable[[str, object], None],
) -> None:
    solved = shares_solved(around_a_plan, 100)
    record_property("solved", solved)
    assert solved["best"] >= 0.8, solved


def tight() -> Graph:
    builder = GraphBuilder()
    builder.op("a", 5, persistent_bytes=6)
    builder.op("b", 5, persistent_bytes=5)
    builder.op("c", 5, persistent_bytes=5)
    builder.op("d", 5, persistent_bytes=4)
    return builder.build()


def dead_end() -> Graph:
    """On two devices of 10 bytes a walk in order leaves the last op over; 3 + 3 + 4 twice fits."""
    builder = GraphBuilder()
    for name, size in zip("abcdef", (3, 3, 3, 4, 4, 3), strict=True):
        builder.op(name, 5, persistent_bytes=size)
    return builder.build()


@pytest.mark.parametrize("algorithm", ["m-topo", "m-topo-nonuniform"])
def test_a_repaired_plan_says_so(algorithm: str) -> None:
    plan = baechi.place(dead_end(), {"x": 10, "y": 10}, algorithm)
    assert plan.fits
    assert any("repair" in note for note in plan.provenance.notes)


def test_without_repair_the_dead_end_is_an_error() -> None:
    with pytest.raises(OutOfMemoryError) as caught:
        baechi.place(dead_end(), {"x": 10, "y": 10}, "m-topo", repair=False)
    assert not caught.value.proved_infeasible
    assert "smallest_limit" in str(caught.value)


def test_an_op_larger_than_every_device_is_a_proof() -> None:
    with pytest.raises(OutOfMemoryError, match=r'op "a" needs 6 B on one device') as caught:
        baechi.place(tight(), "8x5", "m-etf")
    assert caught.value.proved_infeasible


def test_a_group_larger_than_every_device_is_a_proof() -> None:
    builder = GraphBuilder()
    builder.op("a", 5, persistent_bytes=6, group="g")
    builder.op("b", 5, persistent_bytes=5, group="g")
    with pytest.raises(OutOfMemoryError, match='group "g" needs 11 B') as caught:
        baechi.place(builder.build(), {"x": 10, "y": 10})
    assert caught.value.proved_infeasible


def test_more_persistent_bytes_than_memory_is_a_proof() -> None:
    with pytest.raises(OutOfMemoryError, match="20 B in all, the devices have 19 B") as caught:
        baechi.place(tight(), {"x": 9, "y": 10})
    assert caught.value.proved_infeasible


def test_the_error_names_who_holds_the_space() -> None:
    with pytest.raises(OutOfMemoryError) as caught:
        baechi.place(tight(), {"x": 9, "y": 10}, "m-etf")
    assert caught.value.holders
    assert all(size > 0 for _, size in caught.value.holders)


def test_the_smallest_limit_found_is_enough_and_not_much_more() -> None:
    graph = tight()
    with pytest.raises(OutOfMemoryError) as caught:
        baechi.place(graph, {"x": 9, "y": 9})
    limits = caught.value.smallest_limit()
    assert baechi.place(graph, limits).fits
    assert limits == {"x": 10, "y": 10}


def test_the_same_input_is_repaired_the_same_way() -> None:
    graph, cluster = around_a_plan(8)
    one, other = (baechi.place(graph, cluster, "m-etf").to_json() for _ in range(2))
    assert one == other
