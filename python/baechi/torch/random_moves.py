"""Random moves: neighbors of a placement that a walk through placements takes by chance."""

from __future__ import annotations

import random
from collections.abc import Sequence

from baechi.torch.splits import UnitCosts

__all__ = ["random_move", "shaken"]

_LENGTHS = (1, 1, 2, 3, 4, 8)  # of stretches of units in the model's order
_LONG_LENGTHS = (1, 1, 2, 4, 8, 16)
# What is moved, as often as it stands here.
_CHOICES = ("unit",) * 9 + ("part",) * 5 + ("cut",) * 3 + ("stretch",) * 2 + ("exchange",)
_BESIDE = 0.8  # how often a unit goes to the device of one that it exchanges values with


def random_move(
    rng: random.Random, costs: UnitCosts, device_of_unit: Sequence[int], num_devices: int
) -> list[int]:
    """A placement in which one thing is somewhere else, or nothing where chance has it so.

    Args:
        rng: what decides.
        costs: the units; there is a free one.
        device_of_unit: the placement; it stays as it is.
        num_devices: how many devices there are.
    """
    devices, order = list(device_of_unit), costs.free
    choice = rng.choice(_CHOICES)
    if choice == "unit":
        unit = rng.choice(order)
        beside = sorted({devices[other] for other in costs.beside[unit]} - {devices[unit]})
        is_beside = bool(beside) and rng.random() < _BESIDE
        devices[unit] = rng.choice(beside) if is_beside else rng.randrange(num_devices)
    elif choice == "part" and costs.parts:
        _set(devices, rng.choice(costs.parts), rng.randrange(num_devices))
    elif choice == "cut":
        _shift_a_cut(rng, order, devices)
    elif choice == "exchange":
        one, other = rng.choice(order), rng.choice(order)
        devices[one], devices[other] = devices[other], devices[one]
    else:
        first = rng.randrange(len(order))
        stretch = order[first : first + rng.choice(_LENGTHS)]
        _set(devices, stretch, rng.randrange(num_devices))
    return devices


def shaken(
    rng: random.Random, costs: UnitCosts, device_of_unit: Sequence[int], num_devices: int
) -> list[int]:
    """A placement in which a few stretches of units are somewhere else, some of them long."""
    devices, order = list(device_of_unit), costs.free
    for _ in range(rng.randint(1, 3)):
        first = rng.randrange(len(order))
        stretch = order[first : first + rng.choice(_LONG_LENGTHS)]
        _set(devices, stretch, rng.randrange(num_devices))
    return devices


def _shift_a_cut(rng: random.Random, order: Sequence[int], devices: list[int]) -> None:
    """Gives units next to a cut of the model's order to the device on its other side."""
    cuts = [at for at in range(1, len(order)) if devices[order[at]] != devices[order[at - 1]]]
    if not cuts:
        return
    cut, length = rng.choice(cuts), rng.choice(_LENGTHS)
    left, right = devices[order[cut - 1]], devices[order[cut]]
    if rng.random() < 0.5:
        _set(devices, order[cut : cut + length], left)
    else:
        _set(devices, order[max(0, cut - length) : cut], right)


def _set(devices: list[int], units: Sequence[int], device: int) -> None:
    for unit in units:
        devices[unit] = device
