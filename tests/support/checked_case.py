"""What the independent checker reads: a graph, a cluster and a finished schedule as plain lists."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

Wait = tuple[str, int] | None  # ("op", op) or ("transfer", position in `transfers`)


@dataclasses.dataclass
class FinishedSchedule:
    """What is checked; times in nanoseconds, lists indexed by op unless said otherwise."""

    device: list[int]
    order: list[int]  # launch index
    start_ns: list[int]
    end_ns: list[int]
    # (tensor, source, destination, start_ns, end_ns, op that caused it), in commit order
    transfers: list[tuple[int, int, int, int, int, int]]
    op_wait: list[Wait]
    transfer_wait: list[Wait]  # by position in `transfers`
    makespan_ns: int
    peak_bytes: list[int]  # by device


class Case:
    """The three inputs as plain lists, and what is near what."""

    def __init__(self, graph: Any, cluster: Any, schedule: Any) -> None:
        """Copies the columns."""
        self.compute = _plain(graph.compute_ns)
        self.persistent = _plain(graph.persistent_bytes)
        self.scratch = _plain(graph.scratch_bytes)
        self.group = _plain(graph.group)
        self.role = _plain(graph.role)
        self.allowed = [
            None if k < 0 else set(graph.allowed_sets[k]) for k in _plain(graph.allowed_set)
        ]
        self.producer = _plain(graph.tensor_producer)
        self.bytes = _plain(graph.tensor_bytes)
        self.given_ns = _plain(graph.tensor_transfer_ns)
        edges = list(zip(_plain(graph.edge_tensor), _plain(graph.edge_consumer), strict=True))
        self.ops = range(len(self.persistent))
        self.tensors = range(len(self.bytes))
        self.inputs: list[list[int]] = [[] for _ in self.ops]  # in edge order
        self.consumers: list[list[int]] = [[] for _ in self.tensors]
        for tensor, op in edges:
            self.inputs[op].append(tensor)
            self.consumers[tensor].append(op)
        self.outputs: list[list[int]] = [[] for _ in self.ops]
        for tensor in self.tensors:
            self.outputs[self.producer[tensor]].append(tensor)

        self.names = list(cluster.names)
        self.devices = range(len(self.names))
        kinds = list(graph.device_kinds)
        self.kind = [0 if len(kinds) == 1 else kinds.index(kind) for kind in cluster.kinds]
        self.speed = _plain(cluster.speed)
        self.cap = [
            memory - reserve
            for memory, reserve in zip(
                _plain(cluster.memory_bytes), _plain(cluster.reserve_bytes), strict=True
            )
        ]
        self.latency = _plain(cluster.latency_ns)
        self.rate = _plain(cluster.bytes_per_s)
        self.send = _plain(cluster.send_channel)
        self.receive = _plain(cluster.recv_channel)

        self.device = _plain(schedule.device)
        self.order = _plain(schedule.order)
        self.start = _plain(schedule.start_ns)
        self.end = _plain(schedule.end_ns)
        self.transfers = [tuple(transfer) for transfer in schedule.transfers]
        self.caused: dict[int, list[int]] = {}  # positions in `transfers` by op
        self.sends: dict[int, list[int]] = {}  # and by tensor
        for k, transfer in enumerate(self.transfers):
            self.caused.setdefault(transfer[5], []).append(k)
            self.sends.setdefault(transfer[0], []).append(k)
        self.op_wait = list(schedule.op_wait)
        self.transfer_wait = list(schedule.transfer_wait)
        self.makespan = schedule.makespan_ns
        self.peak = _plain(schedule.peak_bytes)

    def launched(self) -> list[int]:
        """The ops in launch order."""
        return sorted(self.ops, key=lambda op: self.order[op])

    def compute_ns(self, op: int, device: int) -> int | None:
        """Section 1; None where the op cannot run there or may not."""
        time_ns = self.compute[self.kind[device]][op]
        allowed = self.allowed[op]
        if time_ns < 0 or (allowed is not None and self.names[device] not in allowed):
            return None
        return math.ceil(float(time_ns) / float(self.speed[device]))

    def transfer_ns(self, tensor: int, source: int, destination: int) -> int:
        """Section 1, in exact integers."""
        if self.given_ns[tensor] >= 0:
            return int(self.given_ns[tensor])
        latency, rate = self.latency[source][destination], self.rate[source][destination]
        if rate == 0:
            return int(latency)
        return int(latency + -(-self.bytes[tensor] * 10**9 // rate))

    def channels(self, source: int, destination: int) -> set[int]:
        """The channels that a transfer holds: two, one, or none."""
        return {self.send[source][destination], self.receive[source][destination]} - {-1}


def _plain(column: Any) -> list[Any]:
    return list(column.tolist() if hasattr(column, "tolist") else column)
