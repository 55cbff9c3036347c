"""The torch-era placers in literal Python: oracle of the rules, slow side of the benches.

An event loop re-scores every ready op on every device after every single commit. Transfers run in
parallel, nothing is freed, and every edge is a tensor of its own. Times are float milliseconds,
memory is in bytes. Nothing here is meant to be fast.
"""

import math
from dataclasses import dataclass, field

from baseline_lp import assign_favorites, lp_favorites


@dataclass
class Device:
    """One device during a run: its clock, its memory book, the op it ran last."""

    index: int
    limit_bytes: float
    used_bytes: float = 0
    peak_bytes: float = 0
    free_at: float = 0
    last_op: object = None


@dataclass
class Run:
    """What the event loop changes: the devices, the ready list, the clock and the counters."""

    graph: object
    devices: list
    favorites: dict
    ready: list
    now: float = 0
    num_placed: int = 0
    parents_done: dict = field(default_factory=dict)
    scores: dict = field(default_factory=dict)
    urgent: dict = field(default_factory=dict)


def m_etf(op_graph, device_graph):
    """Place the op that can start earliest; see `m_sct` for the shared loop."""
    return event_loop(op_graph, device_graph, {})


def m_sct(op_graph, device_graph, threshold=0.5, favorites=None):
    """Place as `m_etf`, but let an idle device wait for the favorite child of its last op.

    Args:
        op_graph: The ops; `p`, `topo_order`, `start_ts` and `end_ts` are written on its nodes.
        device_graph: The devices in ascending id, each with a `memory_limit`.
        threshold: An edge is a favorite edge if its LP value is at most this.
        favorites: The favorite child of each op, to be used instead of the linear program.
    """
    if favorites is None:
        favorites = assign_favorites(op_graph, lp_favorites(op_graph, threshold)[1])
    return event_loop(op_graph, device_graph, dict(favorites))


def event_loop(op_graph, device_graph, favorites):
    """Advance from event to event; commit one op at a time until no device can start anything."""
    forget_placement(op_graph)
    devices = build_devices(device_graph)
    sources = [op for op in op_graph.nodes if op_graph.in_degree(op) == 0]
    run = Run(op_graph, devices, favorites, sources, parents_done=dict.fromkeys(op_graph.nodes, 0))
    next_time = 0
    while next_time is not None:
        run.now = next_time
        finish_ops(run)
        commit_startable_ops(run)
        next_time = next_event(run)
    if run.num_placed != op_graph.number_of_nodes():
        raise AssertionError(f"# scheduled ops={run.num_placed}, # ops={len(op_graph)}")
    record_graph(op_graph, devices, run.now)
    return op_graph


def finish_ops(run):
    """Make the children of the ops that end now ready; drag the clocks of idle devices along."""
    for device in run.devices:
        if device.last_op is not None and device.free_at == run.now:
            for child in run.graph.successors(device.last_op):
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
            if best is None or run.scores[op, device.index] < run.scores[best]:
                best = op, device.index
        if best is None:
            return
        commit(run, best[0], run.devices[best[1]])


def score_all(run):
    """Compute the earliest start of every ready op on every device, and when it becomes urgent."""
    run.scores = {}
    for op in run.ready:
        starts = []
        for device in run.devices:
            start = earliest_start(run, op, device)
            run.scores[op, device.index] = start
            if start is not None:
                starts.append(start)
        run.urgent[op] = max(starts, default=math.inf)


def earliest_start(run, op, device):
    """Return when `op` could start on `device`, or None if it does not fit."""
    if not fits(run.graph, op, device):
        return None
    data_ready = 0
    for parent in run.graph.predecessors(op):
        data_ready = max(data_ready, arrival(run.graph, parent, op, device))
    return max(data_ready, device.free_at)


def arrival(graph, parent, op, device):
    """Return when the output of `parent` is on `device`; a transfer starts at once."""
    end = graph.nodes[parent]["end_ts"]
    if graph.nodes[parent]["p"] == device.index:
        return end
    return end + graph.edges[parent, op]["weight"]


def fits(graph, op, device):
    """Test the two memory rules: the op's peak over what is used, its parameters over the peak."""
    node = graph.nodes[op]
    copied_bytes = remote_input_bytes(graph, op, device)
    return (
        device.used_bytes + copied_bytes + node["peak_mem"] <= device.limit_bytes
        and device.peak_bytes + copied_bytes + node["parameter_mem"] <= device.limit_bytes
    )


def remote_input_bytes(graph, op, device):
    """Sum the inputs of `op` that lie on other devices, once per edge."""
    return sum(
        graph.edges[parent, op]["requested_bytes"]
        for parent in graph.predecessors(op)
        if graph.nodes[parent]["p"] != device.index
    )


def awaited_favorite(run, device):
    """Return the favorite an idle device is awake for, or None if the device is free."""
    favorite = run.favorites.get(device.last_op)
    if favorite is None or favorite not in run.ready:
        return None
    start = run.scores[favorite, device.index]
    starts = [run.scores[favorite, other.index] for other in run.devices]
    if start is None or start != min(s for s in starts if s is not None):
        return None
    return favorite


def most_urgent(run, device):
    """Return the ready op that becomes urgent first among those that fit; first ready on a tie."""
    fitting = [op for op in run.ready if run.scores[op, device.index] is not None]
    return min(fitting, key=lambda op: run.urgent[op], default=None)


def earliest(run, device):
    """Return the ready op with the least start on `device`; first ready on a tie."""
    fitting = [op for op in run.ready if run.scores[op, device.index] is not None]
    return min(fitting, key=lambda op: run.scores[op, device.index], default=None)


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
            urgent = most_urgent(run, device)
            events.append(min(run.scores[favorite, device.index], run.urgent[urgent]))
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
    """Place `op` on `device` now: charge its memory, receive its inputs, run it."""
    graph, node = run.graph, run.graph.nodes[op]
    node["p"] = device.index
    node["topo_order"] = run.num_placed
    charge(graph, op, device)
    data_ready = 0
    for parent in graph.predecessors(op):
        data_ready = max(data_ready, arrival(graph, parent, op, device))
        remote = graph.nodes[parent]["p"] != device.index
        free_bytes = device.limit_bytes - device.used_bytes
        if remote and graph.edges[parent, op]["requested_bytes"] > free_bytes:
            raise AssertionError(f"not enough memory to rcv tensor of {op} on {device.index}")
    node["start_ts"] = max(data_ready, device.free_at)
    node["end_ts"] = node["start_ts"] + node["weight"]
    device.free_at = node["end_ts"]
    device.last_op = op
    run.num_placed += 1
    run.ready.remove(op)


def charge(graph, op, device):
    """Charge what stays of `op` and the copies of its inputs; nothing is ever freed."""
    node = graph.nodes[op]
    before = device.used_bytes
    device.used_bytes += node["permanent_mem"] + remote_input_bytes(graph, op, device)
    device.peak_bytes = max(
        device.peak_bytes,
        before + node["permanent_mem"] + node["temporary_mem"],
        device.used_bytes,
    )


def m_topo(op_graph, device_graph, uniform=True):
    """Fill one device after the other in ascending op id; never come back to an earlier one.

    Args:
        op_graph: The ops; `p` and `topo_order` are written on its nodes.
        device_graph: The devices in ascending id, each with a `memory_limit`.
        uniform: Cap every device at its share of all permanent memory plus the largest op, and
            test peaks against that; otherwise test the device limit as `m_etf` does.
    """
    forget_placement(op_graph)
    devices = build_devices(device_graph)
    permanent = [mem for _, mem in op_graph.nodes(data="permanent_mem")]
    cap = sum(permanent) // len(devices) + max(permanent)
    waiting = sorted(op_graph.nodes)
    num_placed = 0
    for device in devices:
        while waiting:
            op = waiting[0]
            node = op_graph.nodes[op]
            if uniform and device.used_bytes + node["peak_mem"] > cap:
                break
            if not uniform and not fits(op_graph, op, device):
                break
            node["p"] = device.index
            node["topo_order"] = num_placed
            charge(op_graph, op, device)
            num_placed += 1
            waiting.pop(0)
    if waiting:
        raise RuntimeError(f"{len(waiting)} operators cannot be placed")
    record_graph(op_graph, devices, None)
    return op_graph


def build_devices(device_graph):
    """Build the run-time devices in ascending id."""
    return [
        Device(index, node["memory_limit"])
        for index, (_, node) in enumerate(device_graph.nodes(data=True))
    ]


def forget_placement(op_graph):
    """Clear what an earlier run wrote on the nodes."""
    for _, node in op_graph.nodes(data=True):
        node.update(p=None, topo_order=None, start_ts=None, end_ts=None)


def record_graph(op_graph, devices, makespan):
    """Write what concerns the whole graph: the makespan and the peak of every device."""
    op_graph.graph["makespan"] = makespan
    op_graph.graph["peak"] = [device.peak_bytes for device in devices]
