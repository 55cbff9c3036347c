"""The devices of the TF-era baseline: clocks, channels and books, and how ops are numbered."""

from collections import deque
from dataclasses import dataclass, field


@dataclass
class Device:
    """One device during a run: its clock, its channel, what it received, its memory book."""

    index: int
    limit_bytes: int
    used_bytes: int = 0
    peak_bytes: int = 0
    free_at: int = 0
    channel_free_at: int = 0
    received_at: dict = field(default_factory=dict)
    last_op: object = None


def send(tensor, end_of_producer, sender, receiver):
    """Send one tensor, once per receiver, over both channels; return when it has arrived."""
    if tensor["name"] not in receiver.received_at:
        send_start = max(end_of_producer, sender.channel_free_at)
        sender.channel_free_at = send_start + tensor["weight"]
        receive_start = max(send_start, receiver.channel_free_at)
        receiver.channel_free_at = receive_start + tensor["weight"]
        receiver.received_at[tensor["name"]] = receiver.channel_free_at
    return receiver.received_at[tensor["name"]]


def topo_numbers(op_graph):
    """Number the ops topologically (Kahn, first in first out), unless they carry `topo_order`."""
    given = dict(op_graph.nodes(data="topo_order"))
    if all(number is not None for number in given.values()):
        return given
    parents_left = dict(op_graph.in_degree())
    queue = deque(op for op in op_graph.nodes if parents_left[op] == 0)
    numbers = {}
    while queue:
        op = queue.popleft()
        numbers[op] = len(numbers)
        for child in op_graph.succ[op]:
            parents_left[child] -= 1
            if parents_left[child] == 0:
                queue.append(child)
    return numbers


def colocation_groups(op_graph):
    """List the ops of every colocation group in node order."""
    groups = {}
    for op, node in op_graph.nodes(data=True):
        groups.setdefault(node["colocation_group"], []).append(op)
    return groups


def build_devices(device_graph):
    """Build the run-time devices in ascending id."""
    nodes = [node for _, node in device_graph.nodes(data=True)]
    return [Device(index, node["memory_limit"]) for index, node in enumerate(nodes)]


def forget_placement(op_graph):
    """Clear what an earlier run wrote on the nodes."""
    for _, node in op_graph.nodes(data=True):
        node.update(p=None, start_ts=None, end_ts=None)


def record_graph(op_graph, devices, makespan):
    """Write what concerns the whole graph: the makespan and the peak of every device."""
    op_graph.graph["makespan"] = makespan
    op_graph.graph["peak"] = [device.peak_bytes for device in devices]
