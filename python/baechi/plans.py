"""Plan: which device runs each op and in which order, with what was predicted; what travels."""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from baechi.cluster import Cluster
from baechi.digests import differences
from baechi.errors import PlanMismatchError
from baechi.graph import Graph
from baechi.units import format_bytes, format_ns

if TYPE_CHECKING:
    from baechi.schedules import Schedule

__all__ = ["Candidate", "Device", "Plan", "Provenance", "Wait"]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Candidate:
    """One algorithm's result in the table that `best` chose from."""

    algorithm: str
    makespan_ns: int | None
    """Length of the step in ns, None where it found no placement."""
    largest_peak_bytes: int | None
    """Greatest peak of a device in bytes, None where it found no placement."""
    transferred_bytes: int | None
    error: str | None = None
    """Why it found no placement."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Provenance:
    """What a plan was made from; nothing that differs between two runs or two machines."""

    graph_fingerprint: str
    graph_digests: Mapping[str, str]
    """Op name to a digest of its costs, memory, inputs and constraints; names what changed."""
    cluster: Cluster
    algorithm: str
    """The algorithm asked for, such as "best"."""
    options: Mapping[str, Any]
    rules: str
    versions: Mapping[str, str]
    notes: tuple[str, ...] = ()
    """What a reader must know, such as links that were assumed."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Device:
    """What was predicted for one device."""

    name: str
    cap_bytes: int
    """Memory minus reserve."""
    peak_bytes: int
    peak_op: str | None
    """The op whose launch reaches the peak, None if nothing runs there."""
    busy_ns: int
    num_ops: int


@dataclasses.dataclass(frozen=True, slots=True)
class Wait:
    """An op or transfer that waits until another ended, because that frees its memory.

    A name stands for an op, a pair (tensor, destination device) for a transfer.
    """

    what: str | tuple[str, str]
    waits_for: str | tuple[str, str]


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Plan:
    """A placement with its launch order and prediction. Times in ns, sizes in bytes. Frozen.

    Attributes:
        op_names: the graph's ops in its order; `device` and `order` are int32[ops] columns for them.
        devices: what was predicted for each device, in cluster order.
        makespan_ns: predicted length of the step.
        transferred_bytes, num_transfers: of all transfers.
        transfer_order: channel name to its transfers (tensor, destination), in order; "unlimited"
            holds those that need no channel.
        waits: what waits for memory (docs/rules.md, section 2).
        decided_ns: int64[ops] under the originals' rules (nothing starts earlier), else int64[0].
        algorithm: the one whose placement this is.
        executor: "launch", or "fifo" where only the original's virtual scheduler gives times.
        candidates: the table that `best` chose from, else the one algorithm.
    """

    op_names: tuple[str, ...]
    device: npt.NDArray[np.int32]
    order: npt.NDArray[np.int32]
    devices: tuple[Device, ...]
    makespan_ns: int
    transferred_bytes: int
    num_transfers: int
    waits: tuple[Wait, ...]
    decided_ns: npt.NDArray[np.int64]
    algorithm: str
    executor: str
    retention: str
    candidates: tuple[Candidate, ...]
    provenance: Provenance
    transfer_order: Mapping[str, tuple[tuple[str, str], ...]]

    @functools.cached_property
    def placement(self) -> Mapping[str, str]:
        """Op name to device name, in graph order."""
        names = [device.name for device in self.devices]
        homes = (names[at] for at in self.device.tolist())
        return MappingProxyType(dict(zip(self.op_names, homes, strict=True)))

    @property
    def launch_order(self) -> tuple[str, ...]:
        """Op names in launch order."""
        return tuple(self.op_names[op] for op in np.argsort(self.order, kind="stable").tolist())

    @property
    def peak_bytes(self) -> dict[str, int]:
        """Predicted peak by device name."""
        return {device.name: device.peak_bytes for device in self.devices}

    @property
    def busy_ns(self) -> dict[str, int]:
        """Time that each device computes, by device name."""
        return {device.name: device.busy_ns for device in self.devices}

    @property
    def fits(self) -> bool:
        """Whether no device's predicted peak exceeds its cap."""
        return all(device.peak_bytes <= device.cap_bytes for device in self.devices)

    def check(self, graph: Graph) -> None:
        """Compares the graph with the one that the plan was made for.

        Raises:
            PlanMismatchError: they differ; every difference is named.
        """
        if graph.fingerprint == self.provenance.graph_fingerprint:
            return
        found = differences(self.op_names, self.provenance.graph_digests, graph)
        raise PlanMismatchError(
            f"the plan was made for another graph ({len(found)} differences)",
            found,
            hint="place the changed graph again",
        )

    def to_json(self) -> str:
        """The plan as sorted JSON, one op per line (docs/formats.md)."""
        from baechi.formats.plan_json import write_document

        return write_document(self)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the plan in one step: the old file stays until the new one is complete.

        Raises:
            OSError: the file cannot be written.
        """
        from baechi.files import write_atomically

        write_atomically(path, self.to_json().encode())

    @classmethod
    def load(cls, path: str | os.PathLike[str], graph: Graph | None = None) -> Plan:
        """Reads a plan.

        Args:
            path: a file that `save` wrote; a person may have changed devices in it.
            graph: if given, the plan is checked against it.

        Raises:
            InputError: not a plan; the message names the file and the field.
            PlanMismatchError: the graph differs; every difference is named.
            OSError: the file cannot be read.
        """
        from baechi.formats.plan_json import read_plan

        plan = read_plan(path)
        if graph is not None:
            plan.check(graph)
        return plan

    def __eq__(self, other: object) -> bool:
        """Whether both would be saved as the same bytes."""
        if not isinstance(other, Plan):
            return NotImplemented
        return self is other or self.to_json() == other.to_json()

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        """Counts, makespan and algorithm."""
        return (
            f"Plan({len(self.op_names)} ops on {len(self.devices)} devices, "
            f"{format_ns(self.makespan_ns)}, {self.algorithm})"
        )

    def __str__(self) -> str:
        """The step time, one line per device, and the notes."""
        lines = [f"{self.algorithm}: step {format_ns(self.makespan_ns)}, {self.num_transfers} "
                 f"transfers of {format_bytes(self.transferred_bytes)}"]
        width = max(len(device.name) for device in self.devices)
        for device in self.devices:
            busy = device.busy_ns / self.makespan_ns if self.makespan_ns else 0.0
            over = "  OVER THE LIMIT" if device.peak_bytes > device.cap_bytes else ""
            lines.append(
                f"  {device.name:{width}}  {device.num_ops:>7} ops  busy {busy:4.0%}  peak "
                f"{format_bytes(device.peak_bytes)} of {format_bytes(device.cap_bytes)}{over}"
            )
        return "\n".join([*lines, *(f"  note: {note}" for note in self.provenance.notes)])


def plan_of(
    schedule: Schedule,
    *,
    algorithm: str,
    candidates: tuple[Candidate, ...],
    provenance: Provenance,
) -> Plan:
    """The plan of a finished schedule."""
    graph, cluster, transfers = schedule.graph, schedule.cluster, schedule.transfers
    num_ops = np.bincount(schedule.device, minlength=cluster.num_devices)
    devices = tuple(
        Device(
            name=name,
            cap_bytes=int(schedule.cap_bytes[at]),
            peak_bytes=int(schedule.peak_bytes[at]),
            peak_op=graph.op_names[schedule.peak_op[at]] if schedule.peak_op[at] >= 0 else None,
            busy_ns=int(schedule.busy_ns[at]),
            num_ops=int(num_ops[at]),
        )
        for at, name in enumerate(cluster.names)
    )
    return Plan(
        op_names=graph.op_names,
        device=schedule.device,
        order=schedule.order,
        devices=devices,
        makespan_ns=schedule.makespan_ns,
        transferred_bytes=schedule.transferred_bytes,
        num_transfers=len(transfers.tensor),
        waits=_waits(schedule),
        decided_ns=schedule.not_before_ns,
        algorithm=algorithm,
        executor=schedule.executor,
        retention=schedule.retention,
        candidates=candidates,
        provenance=provenance,
        transfer_order=_TransferOrder(schedule),
    )


def _waits(schedule: Schedule) -> tuple[Wait, ...]:
    graph, transfers = schedule.graph, schedule.transfers

    def transfer(at: int) -> tuple[str, str]:
        destination = schedule.cluster.names[transfers.destination[at]]
        return graph.tensor_name(int(transfers.tensor[at])), destination

    def event(code: int) -> str | tuple[str, str]:
        return transfer(code // 2) if code % 2 else graph.op_names[code // 2]

    ops = np.flatnonzero(schedule.op_wait >= 0).tolist()
    waiting = [Wait(graph.op_names[op], event(int(schedule.op_wait[op]))) for op in ops]
    late = np.flatnonzero(transfers.wait >= 0).tolist()
    waiting += [Wait(transfer(at), event(int(transfers.wait[at]))) for at in late]
    return tuple(waiting)


class _TransferOrder(Mapping[str, tuple[tuple[str, str], ...]]):
    """Transfers per channel, named only when somebody looks: there may be a million."""

    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule

    @functools.cached_property
    def _lists(self) -> dict[str, tuple[tuple[str, str], ...]]:
        cluster, transfers = self._schedule.cluster, self._schedule.transfers
        names = cluster.channel_names()
        send = cluster.send_channel[transfers.source, transfers.destination].tolist()
        recv = cluster.recv_channel[transfers.source, transfers.destination].tolist()
        tensors = map(self._schedule.graph.tensor_name, transfers.tensor.tolist())
        homes = (cluster.names[at] for at in transfers.destination.tolist())
        lists: dict[str, list[tuple[str, str]]] = {}
        for transfer, *channels in zip(zip(tensors, homes, strict=True), send, recv, strict=True):
            used = {names[channel] for channel in channels if channel >= 0} or {"unlimited"}
            for name in used:
                lists.setdefault(name, []).append(transfer)
        return {name: tuple(lists[name]) for name in sorted(lists)}

    def __getitem__(self, channel: str) -> tuple[tuple[str, str], ...]:
        return self._lists[channel]

    def __iter__(self) -> Any:
        return iter(self._lists)

    def __len__(self) -> int:
        return len(self._lists)
