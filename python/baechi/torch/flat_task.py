"""Flat tasks: what the core needs to judge placements, made once per task."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from baechi import _core
from baechi.cluster import Cluster
from baechi.torch.flat_trace import FlatTrace, flatten, flatten_units
from baechi.torch.ledger import Updates
from baechi.torch.modules import Units
from baechi.torch.operator_graph import OperatorGraph
from baechi.torch.optimizers import Optimizer
from baechi.torch.trace import Trace

__all__ = ["FlatTask", "flatten_task"]


@dataclasses.dataclass(frozen=True)
class FlatTask:
    """A task in the core.

    Attributes:
        ops: unit, step (-1 for none) and launch index in PyTorch's own order, of each op.
    """

    trace: FlatTrace
    units: _core.FlatUnits
    graph: _core.FlatGraph
    cluster: _core.FlatCluster
    ops: npt.NDArray[np.int32]
    updates: Updates


def flatten_task(
    trace: Trace,
    units: Units,
    operators: OperatorGraph,
    cluster: Cluster,
    optimizer: Optimizer | None,
    parameters: Sequence[tuple[int, int, tuple[int, ...]]],
) -> FlatTask:
    """Makes the columns."""
    flat = flatten(trace)
    ops = np.full((3, operators.graph.num_ops), -1, np.int32)
    for at_units in (operators.of_unit, operators.updates):
        if at_units:
            ops[0, list(at_units)] = np.arange(len(units.names))
    for at_steps in (operators.of_step, operators.backward_of_step):
        at = np.array(at_steps, np.int64)
        ops[1, at[at >= 0]] = np.flatnonzero(at >= 0)
    ops[2, list(operators.order)] = np.arange(len(operators.order))
    return FlatTask(
        flat,
        flatten_units(trace, flat, units),
        operators.graph.flatten(),
        cluster.flatten(operators.graph),
        ops,
        _updates(optimizer, parameters),
    )


def _updates(
    optimizer: Optimizer | None, parameters: Sequence[tuple[int, int, tuple[int, ...]]]
) -> Updates:
    if optimizer is None:
        return Updates()
    rows = [
        (storage, optimizer.state_bytes(nbytes, shape), *optimizer.update_bytes(nbytes, shape))
        for storage, nbytes, shape in parameters
    ]
    return Updates(np.array(rows, np.int64).reshape(-1, 4), optimizer.foreach)
