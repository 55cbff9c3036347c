"""The search for placements of a model's modules."""

import dataclasses

import pytest

from baechi.torch.outcomes import judge
from baechi.torch.search import search
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


def test_fewest_devices_leaves_a_device_empty_where_two_are_enough() -> None:
    task = with_caps(prepared("bert", "training", 3).task, [0.8, 0.8, 0.8])
    outcome, _ = search(dataclasses.replace(task, objective="fewest-devices"))
    assert outcome.fits
    assert len(set(outcome.device_of_unit)) == 2
