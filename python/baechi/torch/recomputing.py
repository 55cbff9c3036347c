"""Recomputing: checkpointed regions of a placed graph, run through torch's checkpoint."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import torch.utils.checkpoint as checkpoints
from torch.fx import GraphModule, Node

from baechi.torch.outlining import outline
from baechi.torch.program import CheckpointRegion

__all__ = ["Recomputed", "recompute_regions", "recompute_regions_once"]


def recompute_regions_once() -> None:
    """Lets one thread at a time ask a checkpointed region for what it saved, in this process.

    Autograd has a thread for each device. Where a region is on several devices, their threads ask
    at the same time, and PyTorch would run it in each of them and mix up what these runs save.
    """
    original = checkpoints._checkpoint_hook
    if not issubclass(original, _OneThreadAtATime):
        checkpoints._checkpoint_hook = _OneThreadAtATime  # type: ignore[misc]


class _OneThreadAtATime(checkpoints._checkpoint_hook):
    """The first thread that unpacks runs the region, the others find its results."""

    def __init__(self, frame: Any) -> None:
        super().__init__(frame)
        lock = threading.RLock()
        unpack: Callable[[Any], Any] = self.unpack_hook

        def unpack_alone(holder: Any) -> Any:
            with lock:
                return unpack(holder)

        self.unpack_hook = unpack_alone


class Recomputed:
    """Calls a part of a graph so that backward computes its activations again."""

    def __init__(
        self, number: int, part: GraphModule, num_weights: int, preserve_rng_state: bool
    ) -> None:
        """The first values of a call are weights, as many as that."""
        self.__name__ = f"recomputed_{number}"
        self.part = part
        self.num_weights = num_weights
        self.preserve_rng_state = preserve_rng_state

    def __call__(self, *values: Any) -> Any:
        """Runs the part in a checkpoint."""
        # Checkpoint refuses arguments that change in place before backward, as statistics do;
        # a model's own code does not pass weights as arguments either.
        weights, others = values[: self.num_weights], values[self.num_weights :]
        return checkpoints.checkpoint(
            functools.partial(self.part.forward, *weights),
            *others,
            use_reentrant=False,
            preserve_rng_state=self.preserve_rng_state,
        )


def recompute_regions(
    graph_module: GraphModule,
    region_of: Mapping[Node, int],
    regions: Sequence[CheckpointRegion],
    weights: Collection[Node],
) -> None:
    """Makes each region, a run of nodes, one call; `weights` are the placeholders of such."""
    recompute_regions_once()
    for number, region in enumerate(regions):
        nodes = [node for node in graph_module.graph.nodes if region_of.get(node) == number]
        if not nodes:
            continue

        def recomputed(
            part: GraphModule,
            reads: Sequence[Node],
            number: int = number,
            region: CheckpointRegion = region,
        ) -> Recomputed:
            num_weights = sum(node in weights for node in reads)
            return Recomputed(number, part, num_weights, region.preserve_rng_state)

        outline(graph_module, nodes, recomputed, first=weights)
