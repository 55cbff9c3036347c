"""The search for placements of a model's modules."""

import dataclasses
import random

import pytest

from baechi import Cluster, Link
from baechi.torch.outcomes import Outcome, judge
from baechi.torch.search import search
from baechi.torch.splits import measure_units
from baechi.torch.symmetry import Symmetry
from baechi.torch.tasks import Task
from torch_ledgers import prepared


def with_caps(task: Task, shares: list[float]) -> Task:
    """Limits that are shares of what one device would need."""
    alone = judge(task, [[0] * len(task.units.names)], "alone")[0].peaks[0]
    return dataclasses.replace(task, caps=tuple(int(alone * share) for share in shares))


@pytest.mark.parametrize("name", ["bert", "unet", "gpt2", "gnmt"])
def test_a_plan_is_found_where_three_unequal_devices_have_a_fifth_to_spare(name: str) -> None:
    outcome, _ = search(with_caps(prepared(name, "training", 3).task, [0.6, 0.4, 0.2]))
    assert outcome.fits


def test_the_search_is_never_worse_than_what_is_obvious() -> None:
    task = with_caps(prepared("unet", "training", 3).task, [0.9, 0.7, 0.5])
    outcome, found = search(task)
    assert "even split" in found
    assert all(outcome.rank(task) <= other.rank(task) for other in found.values())


def test_the_same_task_gives_the_same_placement() -> None:
    task = with_caps(prepared("gpt2", "training", 3).task, [0.5, 0.5, 0.3])
    assert search(task)[0] == search(task)[0]


def test_most_headroom_fills_devices_less_than_the_fastest_step_does() -> None:
    task = with_caps(prepared("bert", "training", 3).task, [0.8, 0.8, 0.8])
    spread, _ = search(dataclasses.replace(task, objective="most-headroom"))
    fastest, _ = search(task)
    assert max(spread.memory.peaks) < max(fastest.memory.peaks)
    assert spread.step_ns >= fastest.step_ns


@pytest.mark.parametrize("name", ["bert", "gpt2"])
def test_most_headroom_gives_up_a_twentieth_of_it_for_speed(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = with_caps(prepared(name, "training", 3).task, [0.8, 0.7, 0.8])
    task = dataclasses.replace(task, objective="most-headroom")

    def share(outcome: Outcome) -> float:
        return max(p / cap for p, cap in zip(outcome.memory.peaks, task.caps, strict=True))

    near, _ = search(task)
    monkeypatch.setattr("baechi.torch.search._fastest_near", lambda *given: given[-1])
    exact, _ = search(task)
    assert share(near) <= 1.05 * share(exact)
    assert near.step_ns < exact.step_ns


def test_fewest_devices_leaves_a_device_empty_where_two_are_enough() -> None:
    task = with_caps(prepared("bert", "training", 3).task, [0.8, 0.8, 0.8])
    outcome, _ = search(dataclasses.replace(task, objective="fewest-devices"))
    assert outcome.fits
    assert len(set(outcome.device_of_unit)) == 2


@pytest.mark.parametrize("name", ["gpt2", "gnmt"])
def test_placements_that_differ_in_names_of_alike_devices_cost_the_same(name: str) -> None:
    task = with_caps(prepared(name, "training", 5).task, [0.4, 0.4, 0.7, 0.4, 0.4])
    order, rng = measure_units(task).order, random.Random(1)
    symmetry = Symmetry(task, order)
    for _ in range(20):
        placement = rng.choices(range(5), k=len(order))
        stands_for_it = symmetry.canonical(placement)
        one, other = judge(task, [placement, stands_for_it], "random")
        assert one.rank[0] == other.rank[0]
        assert one.num_used == other.num_used
        assert one.peaks[2] == other.peaks[2]
        assert sorted(one.peaks) == sorted(other.peaks)
        used = dict.fromkeys(stands_for_it[unit] for unit in order)
        used.pop(2, None)
        assert list(used) == [0, 1, 3, 4][: len(used)]
        exchanged = [{0: 4, 4: 1, 1: 0}.get(device, device) for device in placement]
        assert symmetry.canonical(exchanged) == stands_for_it


def test_devices_are_alike_with_equal_links_and_limits_and_without_pins() -> None:
    def canonical(task: Task) -> list[int]:
        placement = [2, 1, 0] + [2] * (len(task.units.names) - 3)
        return Symmetry(task, range(len(placement))).canonical(placement)[:3]

    task = prepared("gpt2", "training", 3).task
    assert canonical(task) == [0, 1, 2]
    assert canonical(with_caps(task, [0.5, 0.6, 0.5])) == [0, 1, 2]
    assert canonical(with_caps(task, [0.5, 0.5, 0.6])) == [2, 0, 1]
    assert canonical(with_caps(task, [0.4, 0.5, 0.6])) == [2, 1, 0]
    pinned = dataclasses.replace(task, pinned=(2, *task.pinned[1:]))
    assert canonical(pinned) == [2, 0, 1]
    link, slow = Link("10us", "12GB/s"), Link("10us", "1GB/s")
    names = task.cluster.names
    pairs = {(a, b): link for a in names for b in names if a != b}
    slow_pair = {(names[0], names[1]): slow, (names[1], names[0]): slow}
    cluster = Cluster(task.cluster.devices, pairs | slow_pair)
    assert canonical(dataclasses.replace(task, cluster=cluster)) == [2, 0, 1]


def test_devices_that_are_alike_are_used_in_their_order() -> None:
    task = with_caps(prepared("gpt2", "training", 6).task, [0.4] * 6)
    outcome, _ = search(task)
    order = measure_units(task).order
    used = list(dict.fromkeys(outcome.device_of_unit[unit] for unit in order))
    assert used == list(range(len(used)))
