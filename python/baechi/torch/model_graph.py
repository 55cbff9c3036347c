"""A model's step as a `baechi.Graph`, for the placers and for everything else that takes one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch

from baechi.graph import Graph
from baechi.torch.costs import Costs
from baechi.torch.device_argument import TorchDevices
from baechi.torch.garbage import old_objects_spared
from baechi.torch.losses import LossArgument
from baechi.torch.planning import prepare

__all__ = ["model_graph"]


def model_graph(
    model: torch.nn.Module,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    devices: TorchDevices = None,
    mode: Literal["training", "inference"] = "training",
    optimizer: Any = None,
    loss: LossArgument = None,
    pin: Mapping[str, str] | None = None,
    granularity: Literal["module", "op"] = "module",
    backward: Literal["colocated", "free"] = "colocated",
    level: Literal["auto", "op", "module"] = "auto",
    autocast: torch.dtype | None = None,
    costs: Costs | None = None,
) -> Graph:
    """The graph of one step with prices: what `baechi.plan` gives the placers.

    Its ops are the weights of each module, forward ops, one backward op for each forward op with
    autograd functions, and updates. Modules that share weights or change values of each other are
    a colocation group, as are their ops; so are runs of ops without weights.

    Args:
        model: as for `baechi.plan`, like all arguments that are not named here.
        args: positional arguments of forward.
        kwargs: keyword arguments of forward.
        devices: their kinds have a price each in the graph, and pins name them.
        mode: "inference" leaves out backward ops and updates.
        optimizer: its state is persistent, and updates have its time.
        loss: as for `baechi.plan`.
        pin: the ops of a pinned module are allowed on its device alone.
        granularity: with "op", ops that use no weights are in no group with others.
        backward: "colocated" runs a backward op where its forward op is, as autograd does. With
            "free" it may run elsewhere, and reads the weights that it needs: for placers that
            decide about backward ops too, in graphs that one process does not train by autograd.
        level: which code is traced.
        autocast: as under ``torch.autocast`` with this type.
        costs: measured times.

    Raises:
        InputError: as `baechi.plan` does.
    """
    with old_objects_spared():
        prepared = prepare(
            model,
            args,
            kwargs,
            devices=devices,
            mode=mode,
            optimizer=optimizer,
            loss=loss,
            pin=pin,
            granularity=granularity,
            backward=backward,
            level=level,
            autocast=autocast,
            costs=costs,
        )
    return prepared.task.operators.graph
