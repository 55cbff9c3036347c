"""What rules make of a graph and a cluster, and core errors with names put in."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from baechi.cluster import Cluster
from baechi.columns import core_columns
from baechi.errors import BaechiError, CycleError, InputError, OutOfMemoryError
from baechi.graph import Graph
from baechi.schedules import Schedule

if TYPE_CHECKING:
    from baechi import _core

__all__ = ["RETENTIONS", "RULES", "Setting", "as_graph", "with_names"]

RULES = ("physical", "baechi-tf", "baechi-torch")
RETENTIONS = ("liveness", "training")
# The originals know one kind of channel each.
CHANNELS = {"baechi-tf": "serial", "baechi-torch": "parallel"}


@dataclasses.dataclass(frozen=True, slots=True)
class Setting:
    """A graph on a cluster under a rule set, with what the rules changed."""

    graph: Graph
    cluster: Cluster
    rules: str
    retention: str
    flat_graph: _core.FlatGraph
    flat_cluster: _core.FlatCluster
    notes: tuple[str, ...]
    """What a reader of results must know."""

    @classmethod
    def of(cls, graph: Graph, cluster: Cluster, rules: str, retention: str) -> Setting:
        """Looks the rules up and lets them change what they change.

        Raises:
            InputError: no such rules or retention, or the cluster does not suit the graph.
        """
        if rules not in RULES:
            raise InputError(f'no rules "{rules}"', hint=f"choose from {', '.join(RULES)}")
        if retention not in RETENTIONS:
            names = ", ".join(RETENTIONS)
            raise InputError(f'no retention "{retention}"', hint=f"choose from {names}")
        notes = []
        if cluster.links_assumed and cluster.num_devices > 1:
            note = "links were not given: 10 us and 12 GB/s assumed for each"
            if graph.num_tensors and (graph.tensor_transfer_ns >= 0).all():
                note = "links were not given: assumed, but every tensor has its own transfer time"
            notes.append(note)
        channels = CHANNELS.get(rules, cluster.channels)
        if channels != cluster.channels:
            notes.append(f"{rules} rules know only {channels} channels")
            cluster = cluster.with_channels(channels)
        flat_graph = graph.flatten()
        if rules != "physical":
            if retention != "liveness":
                raise InputError(f'retention "{retention}" belongs to physical rules, not {rules}')
            idle = int((graph.compute_ns == 0).any(axis=0).sum())
            if idle:
                notes.append(f"{rules} rules lift compute times of 0 to 1 ns ({idle} ops)")
                flat_graph = _lifted(graph)
            if rules == "baechi-torch" and len(graph.group_names):
                notes.append(f"{rules} rules know no colocation groups: they may be split")
        flat_cluster = cluster.flatten(graph)
        return cls(graph, cluster, rules, retention, flat_graph, flat_cluster, tuple(notes))

    @property
    def has_groups(self) -> bool:
        """Whether the TensorFlow original would be run with colocation."""
        return bool((self.graph.group >= 0).any())

    def schedule(self, core: _core.Schedule) -> Schedule:
        """The core's schedule with its graph and cluster."""
        return Schedule(self.graph, self.cluster, self.rules, self.retention, core)


def as_graph(value: object) -> Graph:
    """The value, which must be a graph.

    Raises:
        InputError: it is something else.
    """
    if not isinstance(value, Graph):
        raise InputError(f"{value!r} is not a Graph", hint="baechi.load_graph reads one of a file")
    return value


@contextlib.contextmanager
def with_names(graph: Graph, cluster: Cluster) -> Iterator[None]:
    """Puts the names of ops and devices into errors of the core."""
    try:
        yield
    except CycleError as error:
        names = [graph.op_names[op] if isinstance(op, int) else op for op in error.ops]
        raise CycleError(names, hint=error.hint) from None
    except OutOfMemoryError as error:
        if not isinstance(error.op, int):
            raise
        at = error.device
        named = OutOfMemoryError(
            graph.op_names[error.op],
            cluster.names[at] if isinstance(at, int) else at,
            error.needed_bytes,
            error.free_bytes,
            error.num_placed or None,
        )
        raise _with_attributes(named, error) from None
    except BaechiError as error:
        op = getattr(error, "op", None)
        if not isinstance(op, int):
            raise
        at = getattr(error, "device", None)
        text = str(error).replace(f"op {op} ", f'op "{graph.op_names[op]}" ')
        text = (
            text.replace(f"op {op}", f'op "{graph.op_names[op]}"') if text == str(error) else text
        )
        if isinstance(at, int) and at < cluster.num_devices:
            text = text.replace(f"device {at}", f'device "{cluster.names[at]}"')
        named_error = _with_attributes(type(error)(text), error)
        named_error.__dict__["op"] = graph.op_names[op]
        if isinstance(at, int) and at < cluster.num_devices:
            named_error.__dict__["device"] = cluster.names[at]
        raise named_error from None


def _with_attributes(named: BaechiError, error: BaechiError) -> BaechiError:
    for name, value in error.__dict__.items():
        named.__dict__.setdefault(name, value)
    return named


def _lifted(graph: Graph) -> _core.FlatGraph:
    from baechi import _core

    columns = core_columns(graph)
    columns["compute_ns"] = np.where(graph.compute_ns == 0, 1, graph.compute_ns)
    return _core.FlatGraph(*columns.values())
