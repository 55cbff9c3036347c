"""Holding: storages that live longer than the traced program and autograd explain."""

from __future__ import annotations

from collections.abc import Mapping

from baechi.torch.flat_trace import flatten
from baechi.torch.ledger import replay
from baechi.torch.modules import Layout
from baechi.torch.trace import Trace

__all__ = ["hold"]


def hold(trace: Trace, deaths: Mapping[int, tuple[str, int]]) -> None:
    """Marks the storages that lived longer than the program and autograd explain.

    Python locals of an eager model keep tensors, and so do recomputed regions. What was still
    there at the end of the step is not held: the caller's outputs, gradients.
    """
    homes = {i: 0 for i, s in enumerate(trace.storages) if s.kind not in ("made", "input")}
    alone = replay(trace, flatten(trace), Layout((0,) * len(trace.steps), homes), 1)
    ranks: dict[tuple[str, int], int] = {("step", i): i for i in range(len(trace.steps))}
    ranks["end", 0] = len(ranks)
    for function in alone.order:
        ranks["function", function] = len(ranks)
    for at, explained in alone.deaths.items():
        seen = deaths.get(at)
        if seen in ranks and ranks[seen] > ranks[explained]:
            trace.storages[at].held_until = seen
