"""The TensorFlow-era placers in literal Python: oracle of the rules, slow side of the benches.

Node attributes: weight, temporary_memory, persistent_memory, output_memory, colocation_group and
perhaps topo_order; edge attributes: id, weight, tensor. Times and bytes are integers.
"""

import heapq
from collections import deque

from baseline_lp import assign_favorites, lp_favorites
from baseline_tf_devices import (
    build_devices,
    colocation_groups,
    forget_placement,
    record_graph,
    send,
    topo_numbers,
)
from baseline_tf_loop import event_loop

__all__ = ["assign_favorites", "lp_favorites", "m_etf", "m_sct", "m_topo", "virtual_scheduler"]


def m_topo(op_graph, device_graph, colocation=False, uniform=True):
    """Fill one device after the other in topological order; never come back to an earlier one.

    Args:
        op_graph: The ops; `p` is written on its nodes.
        device_graph: The devices in ascending id, each with a `memory_limit`.
        colocation: Place the whole group with its first op.
        uniform: Cap every device at its share plus the largest op, instead of at its limit.
    """
    forget_placement(op_graph)
    topo = topo_numbers(op_graph)
    devices = build_devices(device_graph)
    groups = colocation_groups(op_graph)
    op_bytes = {
        op: node["temporary_memory"] + sum(node["output_memory"])
        for op, node in op_graph.nodes(data=True)
    }
    cap = sum(op_bytes.values()) // len(devices) + max(op_bytes.values())
    waiting = deque(sorted(op_graph.nodes, key=topo.get))
    for device in devices:
        while waiting:
            op = waiting[0]
            if op_graph.nodes[op]["p"] is not None:
                waiting.popleft()
                continue
            members = groups[op_graph.nodes[op]["colocation_group"]] if colocation else [op]
            need_bytes = group_bytes(op_graph, members) if colocation else op_bytes[op]
            room = (cap if uniform else device.limit_bytes) - device.used_bytes
            # The uniform test of groups is strict, all others are not.
            if need_bytes > room or (colocation and uniform and need_bytes == room):
                break
            for member in members:
                op_graph.nodes[member]["p"] = device.index
                device.used_bytes += op_bytes[member]
                device.peak_bytes = device.used_bytes
    num_left = sum(node["p"] is None for _, node in op_graph.nodes(data=True))
    if num_left:
        raise RuntimeError(f"{num_left} operators cannot be placed")
    record_graph(op_graph, devices, None)
    return op_graph


def m_etf(op_graph, device_graph, colocation=False, reserve_memory=False):
    """Place the op that can start earliest; see `m_sct` for the arguments."""
    return event_loop(op_graph, device_graph, {}, colocation, reserve_memory)


def m_sct(
    op_graph, device_graph, threshold=0.1, colocation=False, reserve_memory=False, favorites=None
):
    """Place as `m_etf`, but let an idle device wait for the favorite child of its last op.

    Args:
        op_graph: The ops; `p`, `start_ts` and `end_ts` are written on its nodes.
        device_graph: The devices in ascending id, each with a `memory_limit`.
        threshold: An edge is a favorite edge if its LP value is at most this.
        colocation: Keep every colocation group on one device.
        reserve_memory: Let the first op of a group reserve memory for all of it (colocation only).
        favorites: The favorite child of each op, to be used instead of the linear program.
    """
    if favorites is None:
        favorites = assign_favorites(op_graph, lp_favorites(op_graph, threshold)[1])
    return event_loop(op_graph, device_graph, dict(favorites), colocation, reserve_memory)


def virtual_scheduler(op_graph, device_graph):
    """Replay the placement `p`: ops in the order of their ready times, transfers pushed at once.

    The times on the nodes, the makespan and the peaks become those of the replay.
    """
    topo = topo_numbers(op_graph)
    devices = build_devices(device_graph)
    ready_at = dict.fromkeys(op_graph.nodes, 0)
    parents_left = dict(op_graph.in_degree())
    children_left = dict(op_graph.out_degree())
    queue = [(0, topo[op], op) for op in op_graph.nodes if parents_left[op] == 0]
    heapq.heapify(queue)
    while queue:
        _, _, op = heapq.heappop(queue)
        node = op_graph.nodes[op]
        device = devices[node["p"]]
        node["start_ts"] = max(device.free_at, ready_at[op])
        node["end_ts"] = device.free_at = node["start_ts"] + node["weight"]
        device.used_bytes += sum(node["output_memory"])
        device.peak_bytes = max(device.peak_bytes, device.used_bytes + node["temporary_memory"])
        for parent in op_graph.pred[op]:
            children_left[parent] -= 1
            if children_left[parent] == 0:
                producer = op_graph.nodes[parent]
                freed_bytes = sum(producer["output_memory"]) - producer["persistent_memory"]
                devices[producer["p"]].used_bytes -= freed_bytes
        for child, edge in op_graph.succ[op].items():
            receiver = devices[op_graph.nodes[child]["p"]]
            arrivals = [node["end_ts"]]
            if receiver is not device:
                arrivals = [send(x, node["end_ts"], device, receiver) for x in edge["tensor"]]
            ready_at[child] = max([ready_at[child], *arrivals])
            parents_left[child] -= 1
            if parents_left[child] == 0:
                heapq.heappush(queue, (ready_at[child], topo[child], child))
    record_graph(op_graph, devices, max(device.free_at for device in devices))
    return op_graph


def group_bytes(op_graph, members):
    """Return what `m_topo` wants free for a group: its largest temporary and all that persists."""
    nodes = [op_graph.nodes[member] for member in members]
    return max(node["temporary_memory"] for node in nodes) + sum(
        node["persistent_memory"] for node in nodes
    )
