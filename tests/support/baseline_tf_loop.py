"""The event loop of the TF-era baseline: score all ready ops on all devices, commit one, repeat.

Every ready op is scored on every device after every single commit. Transfers queue on one
half-duplex channel per device, outputs are freed when their last consumer starts. Times and bytes
are integers. Nothing here is meant to be fast. The file is longer than others because the loop, its
scores and its books are one rule set that is read against one document.
"""

import math
from dataclasses import dataclass, field

from baseline_tf_devices import (
    build_devices,
    colocation_groups,
    forget_placement,
    record_graph,
    send,
    topo_numbers,
)


@dataclass
class Reserve:
    """What a group reserved on its device, what is left of it, how many members have to start."""

    need_bytes: int
    left_bytes: int
    num_unstarted: int


@dataclass
class Run:
    """What the event loop changes: the devices, the ready list, the clock and the counters."""

    graph: object
    devices: list
    topo: dict
    groups: dict
    favorites: dict
    colocation: bool
    reserve_memory: bool
    ready: list
    parents_done: dict
    children_started: dict
    now: int = 0
    num_started: int = 0
    reserves: dict = field(default_factory=dict)
    scores: dict = field(default_factory=dict)
    fits: dict = field(default_factory=dict)
    urgent: dict = field(default_factory=dict)


def event_loop(op_graph, device_graph, favorites, colocation, reserve_memory):
    """Advance from event to event; commit one op at a time until no device can start anything."""
    if reserve_memory and not colocation:
        raise ValueError("reserve_memory reserves for colocation groups: set colocation too")
    forget_placement(op_graph)
    run = Run(
        graph=op_graph,
        devices=build_devices(device_graph),
        topo=topo_numbers(op_graph),
        groups=colocation_groups(op_graph),
        favorites=favorites,
        colocation=colocation,
        reserve_memory=reserve_memory,
        ready=[op for op in op_graph.nodes if op_graph.in_degree(op) == 0],
        parents_done=dict.fromkeys(op_graph.nodes, 0),
        children_started=dict.fromkeys(op_graph.nodes, 0),
    )
    next_time = 0
    while next_time is not None:
        run.now = next_time
        finish_ops(run)
        commit_startable_ops(run)
        next_time = next_event(run)
    if run.num_started != op_graph.number_of_nodes():
        raise AssertionError(f"# scheduled ops={run.num_started}, # ops={len(op_graph)}")
    record_graph(op_graph, run.devices, run.now)
    return op_graph


def finish_ops(run):
    """Make the children of the ops that end now ready; drag the clocks of idle devices along."""
    for device in run.devices:
        if device.last_op is not None and device.free_at == run.now:
            for child in run.graph.succ[device.last_op]:
                run.parents_done[child] += 1
                if run.parents_done[child] == run.graph.in_degree(child):
                    run.ready.append(child)
        device.free_at = max(device.free_at, run.now)


def commit_startable_ops(run):
    """Commit the best candidate of all devices, score everything again, until none is left."""
    while True:
        score_all(run)
        best = None
        for device in run.devices:
            op = candidate(run, device)
            if op is None:
                continue
            key = run.scores[op, device.index], run.topo[op]
            if best is None or key < best[0]:
                best = key, op, device
        if best is None:
            return
        commit(run, best[1], best[2])


def score_all(run):
    """Compute the earliest start of every ready op on every device, and when it becomes urgent.

    A device without room for the group loses its start, but still counts for the urgent time.
    """
    for op in run.ready:
        urgent = -math.inf
        for device in run.devices:
            fits = op_fits(run, op, device)
            start = earliest_start(run, op, device) if fits else None
            run.fits[op, device.index] = fits
            run.scores[op, device.index] = start
            if fits:
                urgent = max(urgent, start)
        run.urgent[op] = urgent if urgent > -math.inf else math.inf
    if run.colocation:
        drop_devices_without_room(run)


def drop_devices_without_room(run):
    """Take a start back where the group of an op that is not pinned yet has no room."""
    for op in run.ready:
        if run.graph.nodes[op]["p"] is None:
            need_bytes = group_need_bytes(run, op)
            for device in run.devices:
                if need_bytes > device.limit_bytes - device.used_bytes:
                    run.scores[op, device.index] = None


def op_fits(run, op, device):
    """Test that `op` is not pinned elsewhere and that its outputs and temporaries have room now."""
    node = run.graph.nodes[op]
    if node["p"] is not None and node["p"] != device.index:
        return False
    return node["temporary_memory"] + sum(node["output_memory"]) <= free_bytes(run, op, device)


def free_bytes(run, op, device):
    """Return what `op` may use on `device`: what is free and what its group reserved there."""
    free = device.limit_bytes - device.used_bytes
    reserve = run.reserves.get(run.graph.nodes[op]["colocation_group"])
    if reserve is not None and run.graph.nodes[op]["p"] == device.index:
        free += reserve.left_bytes
    return free


def group_need_bytes(run, op):
    """Return what the group of `op` must find free before its first op is placed."""
    nodes = [
        run.graph.nodes[member] for member in run.groups[run.graph.nodes[op]["colocation_group"]]
    ]
    need_bytes = sum(node["persistent_memory"] for node in nodes)
    if run.reserve_memory:
        need_bytes += max(node["temporary_memory"] for node in nodes)
        need_bytes += max(sum(node["output_memory"]) for node in nodes)
    return need_bytes


def earliest_start(run, op, device):
    """Return when `op` could start on `device` if each remote parent could send by itself."""
    data_ready = 0
    for parent, edge in run.graph.pred[op].items():
        node = run.graph.nodes[parent]
        arrival = node["end_ts"]
        if node["p"] != device.index:
            arrival = -1
            transfer_time = 0
            for tensor in edge["tensor"]:
                if tensor["name"] in device.received_at:
                    arrival = max(arrival, device.received_at[tensor["name"]])
                else:
                    transfer_time += tensor["weight"]
                    sender = run.devices[node["p"]]
                    send_start = max(node["end_ts"], sender.channel_free_at)
                    receive_start = max(send_start, device.channel_free_at)
                    arrival = max(arrival, receive_start + transfer_time)
        data_ready = max(data_ready, arrival)
    return max(data_ready, device.free_at)


def awaited_favorite(run, device):
    """Return the favorite an idle device is awake for, or None if the device is free."""
    favorite = run.favorites.get(device.last_op)
    if favorite not in run.ready or run.graph.nodes[favorite]["p"] is not None:
        return None
    starts = [run.scores[favorite, other.index] for other in run.devices]
    start = starts[device.index]
    if start is None or start != min(s for s in starts if s is not None):
        return None
    return favorite


def most_urgent(run, device):
    """Return the ready op that becomes urgent first among those that fit, groups not considered."""
    fitting = [op for op in run.ready if run.fits[op, device.index]]
    return min(fitting, key=lambda op: (run.urgent[op], run.topo[op]), default=None)


def earliest(run, device):
    """Return the ready op with the least start on `device`; the topological number breaks ties."""
    fitting = [op for op in run.ready if run.scores[op, device.index] is not None]
    return min(fitting, key=lambda op: (run.scores[op, device.index], run.topo[op]), default=None)


def candidate(run, device):
    """Return the op that `device` would start now, or None."""
    if run.now < device.free_at:
        return None
    favorite = awaited_favorite(run, device)
    if favorite is not None:
        urgent = most_urgent(run, device)
        if run.urgent[urgent] <= run.now:
            return urgent
        return favorite if run.scores[favorite, device.index] <= run.now else None
    op = earliest(run, device)
    return op if op is not None and run.scores[op, device.index] <= run.now else None


def next_event(run):
    """Return the least time after now at which any device can do something, or None at the end."""
    events = []
    for device in run.devices:
        if run.now < device.free_at:
            events.append(device.free_at)
            continue
        favorite = awaited_favorite(run, device)
        if favorite is not None:
            urgent = run.urgent[most_urgent(run, device)]
            events.append(min(run.scores[favorite, device.index], urgent))
            continue
        op = earliest(run, device)
        if op is not None:
            events.append(run.scores[op, device.index])
    if not events:
        return None
    if min(events) <= run.now:
        raise AssertionError("Timestamp should move forward")
    return min(events)


def commit(run, op, device):
    """Start `op` on `device`: receive inputs, pin its group, charge it, free what it used up."""
    graph, node = run.graph, run.graph.nodes[op]
    data_ready = 0
    for parent, edge in graph.pred[op].items():
        parent_node = graph.nodes[parent]
        arrivals = [parent_node["end_ts"]]
        if parent_node["p"] != device.index:
            sender = run.devices[parent_node["p"]]
            arrivals = [send(x, parent_node["end_ts"], sender, device) for x in edge["tensor"]]
        data_ready = max([data_ready, *arrivals])
    if node["p"] is None:
        pin(run, op, device)
    allocate(run, op, sum(node["output_memory"]))
    allocate(run, op, node["temporary_memory"])
    node["start_ts"] = max(data_ready, device.free_at)
    node["end_ts"] = node["start_ts"] + node["weight"]
    device.free_at = node["end_ts"]
    device.last_op = op
    free(run, op, node["temporary_memory"])
    for parent in graph.pred[op]:
        run.children_started[parent] += 1
        if run.children_started[parent] == graph.out_degree(parent):
            parent_node = graph.nodes[parent]
            free(run, parent, sum(parent_node["output_memory"]) - parent_node["persistent_memory"])
    end_reserve(run, op)
    run.num_started += 1
    run.ready.remove(op)


def pin(run, op, device):
    """Fix the device of `op`, or of its whole group, of which every member must fit alone."""
    members = [op]
    if run.colocation:
        members = run.groups[run.graph.nodes[op]["colocation_group"]]
    if run.reserve_memory:
        need_bytes = group_need_bytes(run, op)
        device.used_bytes += need_bytes
        device.peak_bytes = max(device.peak_bytes, device.used_bytes)
        reserve = Reserve(need_bytes, need_bytes, len(members))
        run.reserves[run.graph.nodes[op]["colocation_group"]] = reserve
    for member in members:
        node = run.graph.nodes[member]
        node["p"] = device.index
        need_bytes = node["temporary_memory"] + sum(node["output_memory"])
        if need_bytes > free_bytes(run, member, device):
            raise AssertionError(f"Cannot place op {member} on dev {device.index}")


def allocate(run, op, num_bytes):
    """Charge bytes of `op`: first what its group has left of its reserve, then free memory."""
    device = run.devices[run.graph.nodes[op]["p"]]
    reserve = run.reserves.get(run.graph.nodes[op]["colocation_group"])
    if reserve is not None:
        drawn = min(num_bytes, reserve.left_bytes)
        reserve.left_bytes -= drawn
        num_bytes -= drawn
    device.used_bytes += num_bytes
    device.peak_bytes = max(device.peak_bytes, device.used_bytes)


def free(run, op, num_bytes):
    """Free bytes of `op`: give them back to its group's reserve while members have to start."""
    reserve = run.reserves.get(run.graph.nodes[op]["colocation_group"])
    if reserve is not None and reserve.num_unstarted > 0:
        given_back = min(num_bytes, reserve.need_bytes - reserve.left_bytes)
        reserve.left_bytes += given_back
        num_bytes -= given_back
    run.devices[run.graph.nodes[op]["p"]].used_bytes -= num_bytes


def end_reserve(run, op):
    """Count a start of the group of `op`; after its last one, free what is left of the reserve."""
    reserve = run.reserves.get(run.graph.nodes[op]["colocation_group"])
    if reserve is not None:
        reserve.num_unstarted -= 1
        if reserve.num_unstarted == 0:
            run.devices[run.graph.nodes[op]["p"]].used_bytes -= reserve.left_bytes
            reserve.left_bytes = 0
