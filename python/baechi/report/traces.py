"""Traces: a schedule in the JSON trace event format that Perfetto and chrome://tracing open."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from typing import Any

import numpy as np

from baechi.critical import REASONS, Causes, causes
from baechi.holdings import CATEGORIES, curve, holdings
from baechi.schedules import Schedule
from baechi.units import format_bytes, format_ns

__all__ = ["trace_text"]

_COMPUTE = 0
Event = dict[str, Any]


def trace_text(schedule: Schedule) -> str:
    """The trace as text, one event per line.

    A process is a device with one track for its ops and one for each of its channels; channels of
    several devices are a process of their own. Flows lead from the op that made a tensor over its
    transfer to the op that it was sent for. Counters show memory by category. Times are in
    microseconds, with nanoseconds after the point.
    """
    found = causes(schedule)
    events = itertools.chain(
        _tracks(schedule), _ops(schedule, found), _transfers(schedule, found), _memory(schedule)
    )
    lines = ",\n".join(json.dumps(event, separators=(",", ":")) for event in events)
    made = {"rules": schedule.rules, "step": format_ns(schedule.makespan_ns)}
    return (
        f'{{"displayTimeUnit":"ns","otherData":{json.dumps(made)},"traceEvents":[\n{lines}\n]}}\n'
    )


def _tracks(schedule: Schedule) -> Iterator[Event]:
    cluster = schedule.cluster
    for device, name in enumerate(cluster.names):
        cap = format_bytes(int(schedule.cap_bytes[device]))
        yield _named("process_name", device, _COMPUTE, name=f"{name} ({cap})")
        yield _named("process_sort_index", device, _COMPUTE, sort_index=device)
        yield _named("thread_name", device, _COMPUTE, name="ops")
        yield _named("thread_sort_index", device, _COMPUTE, sort_index=0)
    shared = False
    for channel, (process, track, name) in enumerate(_channels(schedule)):
        shared |= process == cluster.num_devices
        yield _named("thread_name", process, track, name=name)
        yield _named("thread_sort_index", process, track, sort_index=channel + 1)
    if shared:
        yield _named("process_name", cluster.num_devices, _COMPUTE, name="channels")
    for device in np.unique(schedule.transfers.destination[_unlimited(schedule)]).tolist():
        name = f"transfers to {cluster.names[device]}"
        yield _named("thread_name", device, _free_track(schedule), name=name)


def _ops(schedule: Schedule, found: Causes) -> Iterator[Event]:
    names = schedule.graph.op_names
    columns = (schedule.device, schedule.start_ns, schedule.end_ns, found.op, found.op_reason)
    rows = zip(names, *(column.tolist() for column in columns), strict=True)
    for name, device, start, end, cause, reason in rows:
        told: dict[str, Any] = {"waited for": REASONS[reason]}
        if cause >= 0:
            told["which"] = _name(schedule, cause)
        yield _slice(name, "op", device, _COMPUTE, start, end, told)


def _transfers(schedule: Schedule, found: Causes) -> Iterator[Event]:
    graph, transfers, channels = schedule.graph, schedule.transfers, _channels(schedule)
    cluster = schedule.cluster
    producers = graph.tensor_producer[transfers.tensor]
    send = cluster.send_channel[transfers.source, transfers.destination]
    recv = cluster.recv_channel[transfers.source, transfers.destination]
    columns = (*transfers[:6], producers, send, recv, found.transfer, found.transfer_reason)
    for at, row in enumerate(zip(*(column.tolist() for column in columns), strict=True)):
        tensor, source, destination, consumer, start, end, producer, out, into, cause, reason = row
        name = graph.tensor_name(tensor)
        told: dict[str, Any] = {
            "bytes": int(graph.tensor_bytes[tensor]),
            "from": cluster.names[source],
            "to": cluster.names[destination],
            "waited for": REASONS[reason],
        }
        if cause >= 0:
            told["which"] = _name(schedule, cause)
        tracks = list(dict.fromkeys(channels[held][:2] for held in (out, into) if held >= 0))
        tracks = tracks or [(destination, _free_track(schedule))]
        for process, track in tracks:
            yield _slice(name, "transfer", process, track, start, end, told)
        # A flow binds to the slice that encloses its time: the producer's, ours, the consumer's.
        made, used = int(schedule.start_ns[producer]), int(schedule.start_ns[consumer])
        yield _flow("s", at, int(schedule.device[producer]), _COMPUTE, made)
        for process, track in tracks:
            yield _flow("t", at, process, track, start)
        yield _flow("f", at, int(schedule.device[consumer]), _COMPUTE, used)


def _memory(schedule: Schedule) -> Iterator[Event]:
    held = holdings(schedule)
    for device in range(schedule.cluster.num_devices):
        times, by_category = curve(held, device)
        used = np.flatnonzero(by_category.any(axis=1))
        # Of several events in one instant a counter can show one: the one with most in memory.
        order = np.lexsort((by_category.sum(axis=0), times))
        last = np.flatnonzero(np.append(times[order][1:] != times[order][:-1], True))
        rows = order[last]
        for at in rows.tolist():
            told = {CATEGORIES[one]: int(by_category[one, at]) for one in used.tolist()}
            yield {
                "name": "memory",
                "ph": "C",
                "pid": device,
                "ts": _us(int(times[at])),
                "args": told or {"persistent": 0},
            }


def _channels(schedule: Schedule) -> list[tuple[int, int, str]]:
    """Process, track and name of each channel."""
    cluster = schedule.cluster
    if not (cluster.send_channel >= 0).any() and not (cluster.recv_channel >= 0).any():
        return []
    found = []
    for channel, name in enumerate(cluster.channel_names()):
        users = set(np.argwhere(cluster.send_channel == channel)[:, 0].tolist())
        users |= set(np.argwhere(cluster.recv_channel == channel)[:, 1].tolist())
        process = users.pop() if len(users) == 1 else cluster.num_devices
        found.append((process, channel + 1, name))
    return found


def _unlimited(schedule: Schedule) -> Any:
    cluster, transfers = schedule.cluster, schedule.transfers
    send = cluster.send_channel[transfers.source, transfers.destination]
    recv = cluster.recv_channel[transfers.source, transfers.destination]
    return (send < 0) & (recv < 0)


def _free_track(schedule: Schedule) -> int:
    """The track of transfers without a channel, after all channels."""
    cluster = schedule.cluster
    return int(max(cluster.send_channel.max(), cluster.recv_channel.max(), 0)) + 2


def _name(schedule: Schedule, code: int) -> str:
    if code % 2 == 0:
        return schedule.graph.op_names[code // 2]
    transfers = schedule.transfers
    name = schedule.graph.tensor_name(int(transfers.tensor[code // 2]))
    return f"{name} to {schedule.cluster.names[transfers.destination[code // 2]]}"


def _us(time_ns: int) -> float:
    return time_ns / 1000


def _slice(
    name: str, kind: str, process: int, track: int, start: int, end: int, told: dict[str, Any]
) -> Event:
    return {
        "name": name,
        "cat": kind,
        "ph": "X",
        "pid": process,
        "tid": track,
        "ts": _us(start),
        "dur": _us(end - start),
        "args": told,
    }


def _flow(phase: str, number: int, process: int, track: int, time_ns: int) -> Event:
    found: Event = {"name": "transfer", "cat": "transfer", "ph": phase, "id": number}
    found |= {"pid": process, "tid": track, "ts": _us(time_ns)}
    return found | ({"bp": "e"} if phase == "f" else {})


def _named(what: str, process: int, track: int, **told: Any) -> Event:
    return {"name": what, "ph": "M", "pid": process, "tid": track, "args": told}
