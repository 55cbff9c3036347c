"""Predictions: the plan that follows from a finished schedule."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping

import numpy as np

from baechi.holdings import at_peaks
from baechi.plans import Candidate, Device, Plan, Provenance, Wait
from baechi.schedules import Schedule

__all__ = ["plan_of"]


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
        held=_Held(schedule),
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

    def __iter__(self) -> Iterator[str]:
        return iter(self._lists)

    def __len__(self) -> int:
        return len(self._lists)


class _Held(Mapping[str, Mapping[str, int]]):
    """What makes up each peak, found only when somebody looks: it takes half as long as placing."""

    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule

    @functools.cached_property
    def _found(self) -> dict[str, Mapping[str, int]]:
        return dict(zip(self._schedule.cluster.names, at_peaks(self._schedule), strict=True))

    def __getitem__(self, device: str) -> Mapping[str, int]:
        return self._found[device]

    def __iter__(self) -> Iterator[str]:
        return iter(self._schedule.cluster.names)

    def __len__(self) -> int:
        return self._schedule.cluster.num_devices
