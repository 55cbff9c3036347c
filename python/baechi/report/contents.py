"""Contents: the arrays that the script of a page draws from."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from baechi.critical import Causes, causes, critical_path
from baechi.report.outline import pack_outline
from baechi.report.packing import Packer
from baechi.report.usage import pack_usage
from baechi.schedules import Schedule

__all__ = ["MOST_OPS", "Contents", "contents_of"]

MOST_OPS = 50_000
"""Up to so many ops each one is on the page; beyond it only the most notable are."""
_NOTABLE = 8_000
_MOST_EDGES = 150_000
_BINS = 2_000
Indices = npt.NDArray[np.int64]


class Contents(NamedTuple):
    """What the script is given."""

    facts: dict[str, Any]
    block: str
    """The arrays, deflated, in base64; `facts` has their index."""
    num_critical: int
    """Ops and transfers on the critical path."""


class _Shown(NamedTuple):
    """Which ops and transfers are on the page, by their index in the schedule."""

    ops: Indices
    transfers: Indices
    all_ops: bool


def contents_of(schedule: Schedule) -> Contents:
    """The arrays of one schedule; the same schedule always gives the same ones."""
    packer = Packer()
    found = causes(schedule)
    path = critical_path(schedule)
    codes = [2 * step.op if step.op >= 0 else 2 * step.transfer + 1 for step in path]
    critical = np.array(codes, np.int64)
    shown = _shown(schedule, critical, found)
    _pack_ops(packer, schedule, shown, found)
    channels = _pack_transfers(packer, schedule, shown, found)
    packer.numbers("critical", _renumbered(critical, shown, schedule), "i4")
    if not shown.all_ops:
        _pack_density(packer, schedule)
    edges = _pack_edges(packer, schedule, shown)
    facts = {
        "makespan_ns": schedule.makespan_ns,
        "rules": schedule.rules,
        "devices": _devices(schedule),
        "channels": channels,
        "all_ops": shown.all_ops,
        "all_edges": edges,
        "num_ops": schedule.graph.num_ops,
        "num_transfers": len(schedule.transfers.tensor),
        "bins": _BINS,
        "memory": pack_usage(packer, schedule),
        "outline": pack_outline(packer, schedule, each_op=shown.all_ops),
    }
    facts["index"] = packer.index
    return Contents(facts, packer.block(), len(path))


def _devices(schedule: Schedule) -> list[dict[str, Any]]:
    num_ops = np.bincount(schedule.device, minlength=schedule.cluster.num_devices)
    return [
        {
            "name": name,
            "cap_bytes": int(schedule.cap_bytes[at]),
            "peak_bytes": int(schedule.peak_bytes[at]),
            "busy_ns": int(schedule.busy_ns[at]),
            "num_ops": int(num_ops[at]),
        }
        for at, name in enumerate(schedule.cluster.names)
    ]


def _shown(schedule: Schedule, critical: Indices, found: Causes) -> _Shown:
    """All, or the critical path, what is longest, and what these waited for."""
    num_ops, num_moves = schedule.graph.num_ops, len(schedule.transfers.tensor)
    if num_ops <= MOST_OPS and num_moves <= 2 * MOST_OPS:
        return _Shown(np.arange(num_ops), np.arange(num_moves), True)
    transfers = schedule.transfers
    wanted = []
    for parity, lengths, own in (
        (0, schedule.end_ns - schedule.start_ns, found.op),
        (1, transfers.end_ns - transfers.start_ns, found.transfer),
    ):
        longest = np.argsort(-lengths, kind="stable")[: _NOTABLE // 2]
        on_path = critical[critical % 2 == parity] // 2
        on_path = on_path[np.argsort(-lengths[on_path], kind="stable")[: _NOTABLE // 2]]
        chosen = np.union1d(longest, on_path)
        wanted.append(2 * chosen + parity)
        wanted.append(own[chosen])
    codes = np.unique(np.concatenate(wanted))
    codes = codes[codes >= 0]
    return _Shown(codes[codes % 2 == 0] // 2, codes[codes % 2 == 1] // 2, False)


def _renumbered(codes: Indices, shown: _Shown, schedule: Schedule) -> Indices:
    """The codes with the numbers that ops and transfers have on the page; -2: not on it."""
    op_at = np.full(schedule.graph.num_ops + 1, -1, np.int64)
    move_at = np.full(len(schedule.transfers.tensor) + 1, -1, np.int64)
    op_at[shown.ops] = np.arange(len(shown.ops))
    move_at[shown.transfers] = np.arange(len(shown.transfers))
    is_op = codes % 2 == 0
    at = np.where(is_op, op_at[np.where(is_op, codes // 2, -1)], -1)
    at = np.where(~is_op & (codes >= 0), move_at[np.where(is_op, -1, codes // 2)], at)
    renumbered: Indices = np.where(codes < 0, -1, np.where(at < 0, -2, 2 * at + codes % 2))
    return renumbered


def _pack_ops(packer: Packer, schedule: Schedule, shown: _Shown, found: Causes) -> None:
    names = schedule.graph.op_names
    packer.texts("op_name", [names[op] for op in shown.ops.tolist()])
    packer.numbers("op_device", schedule.device[shown.ops], "i4")
    packer.numbers("op_start", schedule.start_ns[shown.ops], "f8")
    packer.numbers("op_end", schedule.end_ns[shown.ops], "f8")
    packer.numbers("op_order", schedule.order[shown.ops], "i4")
    packer.numbers("op_role", schedule.graph.role[shown.ops], "u1")
    packer.numbers("op_cause", _renumbered(found.op[shown.ops], shown, schedule), "i4")
    packer.numbers("op_reason", found.op_reason[shown.ops], "u1")


def _pack_transfers(
    packer: Packer, schedule: Schedule, shown: _Shown, found: Causes
) -> list[dict[str, Any]]:
    """Packs them and returns the channels that they hold, each with the device it belongs to."""
    cluster, transfers, rows = schedule.cluster, schedule.transfers, shown.transfers
    tensor, source = transfers.tensor[rows], transfers.source[rows]
    destination = transfers.destination[rows]
    graph = schedule.graph
    packer.texts("move_name", [graph.tensor_name(at) for at in tensor.tolist()])
    packer.numbers("move_bytes", graph.tensor_bytes[tensor], "f8")
    packer.numbers("move_source", source, "i4")
    packer.numbers("move_destination", destination, "i4")
    packer.numbers("move_start", transfers.start_ns[rows], "f8")
    packer.numbers("move_end", transfers.end_ns[rows], "f8")
    packer.numbers("move_cause", _renumbered(found.transfer[rows], shown, schedule), "i4")
    packer.numbers("move_reason", found.transfer_reason[rows], "u1")
    for name, ops in (
        ("move_producer", graph.tensor_producer[tensor].astype(np.int64)),
        ("move_consumer", transfers.consumer[rows].astype(np.int64)),
    ):
        packer.numbers(name, _renumbered(2 * ops, shown, schedule), "i4")
    packer.numbers("move_send", cluster.send_channel[source, destination], "i4")
    packer.numbers("move_recv", cluster.recv_channel[source, destination], "i4")
    names = cluster.channel_names() if (cluster.send_channel >= 0).any() else ()
    channels = []
    for channel, name in enumerate(names):
        users = np.argwhere(cluster.send_channel == channel)[:, 0].tolist()
        users += np.argwhere(cluster.recv_channel == channel)[:, 1].tolist()
        owner = users[0] if len(set(users)) == 1 else -1
        channels.append({"name": name, "device": owner})
    return channels


def _pack_density(packer: Packer, schedule: Schedule) -> None:
    """Busy share of each device in each of some equal parts of the step, in 255ths."""
    width = max(schedule.makespan_ns, 1) / _BINS
    rows = []
    for device in range(schedule.cluster.num_devices):
        ops = np.flatnonzero(schedule.device == device)
        ops = ops[np.argsort(schedule.order[ops], kind="stable")]
        start, end = schedule.start_ns[ops], schedule.end_ns[ops]
        # Ops of a device follow each other: busy time up to an edge is that of the ops before it.
        edges = np.arange(_BINS + 1) * width
        before = np.concatenate([[0], np.cumsum(end - start)])
        at = np.searchsorted(start, edges, side="right")
        last_end = np.concatenate([[0], end])[at]
        busy = before[at] - np.maximum(last_end - edges, 0)
        rows.append(np.clip(np.diff(busy) / width * 255, 0, 255))
    packer.numbers("density", np.array(rows).round(), "u1")


def _pack_edges(packer: Packer, schedule: Schedule, shown: _Shown) -> bool:
    """Who feeds whom, among the ops on the page; whether all edges found room."""
    graph = schedule.graph
    producer = graph.tensor_producer[graph.edge_tensor].astype(np.int64)
    consumer, num_bytes = graph.edge_consumer.astype(np.int64), graph.tensor_bytes
    op_at = np.full(graph.num_ops, -1, np.int64)
    op_at[shown.ops] = np.arange(len(shown.ops))
    kept = np.flatnonzero((op_at[producer] >= 0) & (op_at[consumer] >= 0))
    complete = len(kept) <= _MOST_EDGES and shown.all_ops
    if len(kept) > _MOST_EDGES:
        largest = np.argsort(-num_bytes[graph.edge_tensor[kept]], kind="stable")[:_MOST_EDGES]
        kept = np.sort(kept[largest])
    packer.numbers("edge_producer", op_at[producer[kept]], "i4")
    packer.numbers("edge_consumer", op_at[consumer[kept]], "i4")
    packer.numbers("edge_bytes", num_bytes[graph.edge_tensor[kept]], "f8")
    return complete
