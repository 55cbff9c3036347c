"""Trials: the candidates that a search has judged so far, each placement once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from baechi.torch.outcomes import Candidate, judge
from baechi.torch.symmetry import Symmetry
from baechi.torch.tasks import Task

__all__ = ["Trials"]

_Key = tuple[tuple[int, ...], tuple[tuple[int, int], ...]]


class Trials:
    """Candidates by placement; pins are kept in all of them."""

    def __init__(self, task: Task, order: Sequence[int]) -> None:
        """Knows no candidate yet; `order` are the units as the model first runs them."""
        self.task = task
        self._symmetry = Symmetry(task, order)
        self._pins = [(unit, device) for unit, device in enumerate(task.pinned) if device >= 0]
        self.known: dict[_Key, Candidate] = {}

    def pinned(self, devices: Sequence[int]) -> tuple[int, ...]:
        """The placement with the pins kept."""
        kept = list(devices)
        for unit, device in self._pins:
            kept[unit] = device
        return tuple(kept)

    def canonical(self, devices: Sequence[int], exceptions: Mapping[int, int]) -> list[int]:
        """The placement that stands for all that differ only in names of devices that are alike.

        With exceptions, which name devices too, it is the placement itself.
        """
        return list(devices) if exceptions else self._symmetry.canonical(devices)

    def judge(
        self, origin: str, devices: Sequence[int], exceptions: Mapping[int, int] | None = None
    ) -> Candidate:
        """Judges a candidate."""
        return self.judge_all(origin, [devices], exceptions)[0]

    def judge_all(
        self,
        origin: str,
        placements: Sequence[Sequence[int]],
        exceptions: Mapping[int, int] | None = None,
    ) -> list[Candidate]:
        """Judges candidates in one call; those that are known are not judged again."""
        more = tuple(sorted((exceptions or {}).items()))
        keys = [(self.pinned(devices), more) for devices in placements]
        new = list(dict.fromkeys(key for key in keys if key not in self.known))
        if new:
            found = judge(self.task, [placement for placement, _ in new], origin, exceptions)
            self.known.update(zip(new, found, strict=True))
        return [self.known[key] for key in keys]

    def is_known(self, devices: Sequence[int], exceptions: Mapping[int, int]) -> bool:
        """Whether a placement has been judged."""
        return (self.pinned(devices), tuple(sorted(exceptions.items()))) in self.known

    def best(self, count: int) -> list[Candidate]:
        """The best so far; of equals the one that was found first."""
        return sorted(self.known.values(), key=lambda one: one.rank)[:count]
