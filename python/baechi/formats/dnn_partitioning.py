"""Workloads and expert placements of msr-fiddle/dnn-partitioning (JSON), read only.

The model behind them moves a tensor out to host memory and in again, whatever its bytes: a
tensor has 0 bytes here and a given transfer time of twice the file's cost.
"""

from __future__ import annotations

import decimal
import json
import os
from collections import Counter
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from baechi.cluster import Cluster, Device
from baechi.errors import InputError
from baechi.formats.strict_json import LARGEST, array, integer, naming, read
from baechi.graph import Graph

__all__ = ["Workload", "node_ids", "read_placement", "workload_from"]

KINDS: Final = ("accelerator", "cpu")
_MODULE: Final = "node/"  # the module path of an op holds the id of its node, as JSON
_NS_PER_MS: Final = 6  # as a power of ten
_UNLIMITED_BYTES: Final = 2**60
_MOST_DEVICES: Final = 4096
_EXACT: Final = decimal.Context(prec=100)


class Workload(NamedTuple):
    """A graph, and the name of the op of each node id of the file."""

    graph: Graph
    ids: dict[int | str, str]


def node_ids(graph: Graph) -> dict[int | str, str]:
    """The op name of each node id of the file that the graph was read from.

    Raises:
        InputError: the graph was not read from such a file.
    """
    ids: dict[int | str, str] = {}
    for name, module in zip(graph.op_names, graph.module_paths, strict=True):
        try:
            ids[json.loads(module.removeprefix(_MODULE))] = name
        except (ValueError, TypeError):
            raise InputError(f'op "{name}" does not come from a dnn-partitioning file') from None
    return ids


def read_placement(path: str | os.PathLike[str], graph: Graph) -> dict[str, str]:
    """The placement in a human-expert file: op name to device name.

    Args:
        path: the file; its entries of "fpgas" are accelerator:0, ... and of "cpus" cpu:0, ...
        graph: the graph of the workload it belongs to.

    Raises:
        InputError: the content is wrong, a node is unknown, placed twice or not at all.
        OSError: the file cannot be read.
    """
    names = node_ids(graph)
    placement: dict[str, str] = {}
    document = read(path)
    with naming(os.fspath(path)):
        for field, kind in (("fpgas", "accelerator"), ("cpus", "cpu")):
            entries = array(_object(document, "the placement").get(field, []), f'field "{field}"')
            for k, entry in enumerate(entries):
                where = f'"nodes" of entry {k} of "{field}"'
                for node in array(_object(entry, where).get("nodes", []), where):
                    name = names.get(_id(node, where))
                    if name is None or name in placement:
                        fault = "unknown" if name is None else "placed twice"
                        raise InputError(f"node {json.dumps(node)} in {where} is {fault}")
                    placement[name] = f"{kind}:{k}"
        if missing := [node for node, name in names.items() if name not in placement]:
            shown = ", ".join(map(json.dumps, missing[:5]))
            raise InputError(f"{len(missing)} nodes have no device: {shown}")
    return {name: placement[name] for name in graph.op_names}


def workload_from(document: Any, file: str) -> Workload:
    """The workload in a parsed document.

    Args:
        document: what the JSON file holds, decimals as `Decimal`.
        file: its name, for messages.

    Raises:
        InputError: the content is wrong; the message names file, field and node.
        CycleError: the edges make a cycle.
    """
    with naming(file):
        top = _object(document, "the workload")
        nodes = _nodes(top)
        names = _unique_names(nodes)
        columns = _op_columns(nodes, names)
        position = {node: i for i, node in enumerate(nodes)}
        graph = Graph.from_arrays(
            op_names=names,
            module_paths=[f"{_MODULE}{json.dumps(node)}" for node in nodes],
            device_kinds=KINDS,
            default_cluster=_cluster(top),
            **columns,
            **_tensor_columns(array(top.get("edges", []), 'field "edges"'), position),
        )
        return Workload(graph, dict(zip(nodes, names, strict=True)))


def _nodes(top: Mapping[str, Any]) -> dict[int | str, Mapping[str, Any]]:
    nodes: dict[int | str, Mapping[str, Any]] = {}
    for i, node in enumerate(array(top.get("nodes", []), 'field "nodes"')):
        where = f"node {i} of the file"
        identity = _id(_object(node, where).get("id"), where)
        if identity in nodes:
            raise InputError(f"two nodes have the id {json.dumps(identity)}")
        nodes[identity] = node
    return nodes


def _unique_names(nodes: Mapping[int | str, Mapping[str, Any]]) -> list[str]:
    given = []
    for identity, node in nodes.items():
        name = node.get("name")
        if not isinstance(name, str | None):
            raise InputError(f'"name" of node {json.dumps(identity)} is not a text')
        given.append(name or f"node{identity}")
    times = Counter(given)
    taken = {name for name in given if times[name] == 1}
    names = []
    for identity, name in zip(nodes, given, strict=True):
        unique = name
        while times[name] > 1 and (unique == name or unique in taken):
            unique = f"{unique}_{identity}"
        taken.add(unique)
        names.append(unique)
    return names


def _op_columns(nodes: Mapping[int | str, Mapping[str, Any]], names: list[str]) -> dict[str, Any]:
    accelerator, cpu, sizes, group, role = [], [], [], [], []
    groups: dict[str, int] = {}
    for (identity, node), name in zip(nodes.items(), names, strict=True):
        what = f'of node {json.dumps(identity)} ("{name}")'
        supported = _flag(node.get("supportedOnFpga"), f'"supportedOnFpga" {what}', default=True)
        time = _time_ns(node.get("fpgaLatency"), f'"fpgaLatency" {what}')
        accelerator.append(time if supported else -1)
        cpu.append(_time_ns(node.get("cpuLatency"), f'"cpuLatency" {what}'))
        sizes.append(_ceiling(node.get("size") or 0, f'"size" {what}'))
        color = node.get("colorClass")
        if not isinstance(color, int | str | None):
            raise InputError(f'"colorClass" {what} is not an integer or a text')
        key = f"color{json.dumps(color)}"
        group.append(-1 if color is None else groups.setdefault(key, len(groups)))
        role.append(
            int(_flag(node.get("isBackwardNode"), f'"isBackwardNode" {what}', default=False))
        )
    forward: dict[int, list[int]] = {}
    for op, (color, backward) in enumerate(zip(group, role, strict=True)):
        if not backward:
            forward.setdefault(color, []).append(op)
    return {
        "group_names": list(groups),
        "compute_ns": [accelerator, cpu],
        "persistent_bytes": sizes,
        "group": group,
        "role": role,
        "forward_op": [
            forward[color][0]
            if backward and color >= 0 and len(forward.get(color, ())) == 1
            else -1
            for color, backward in zip(group, role, strict=True)
        ],
    }


def _tensor_columns(edges: list[Any], position: Mapping[int | str, int]) -> dict[str, Any]:
    tensor_of: dict[int, int] = {}
    costs: list[int] = []
    pairs: dict[tuple[int, int], None] = {}
    for i, edge in enumerate(edges):
        ends = [_id(_object(edge, f"edge {i}").get(f), f"edge {i}") for f in ("sourceId", "destId")]
        for end in ends:
            if end not in position:
                raise InputError(f"edge {i}: there is no node {json.dumps(end)}")
        source, consumer = (position[end] for end in ends)
        cost = _time_ns(edge.get("cost"), f'"cost" of edge {i}')
        tensor = tensor_of.setdefault(source, len(costs))
        if tensor == len(costs):
            costs.append(cost)
        elif cost >= 0 and costs[tensor] != cost:
            if costs[tensor] >= 0:
                node = json.dumps(ends[0])
                raise InputError(f"edge {i}: the edges out of node {node} differ in cost")
            costs[tensor] = cost
        pairs[tensor, consumer] = None  # an edge that is there twice says nothing new
    return {
        "tensor_producer": list(tensor_of),
        "tensor_bytes": [0] * len(costs),
        "tensor_transfer_ns": [2 * max(cost, 0) for cost in costs],
        "edge_tensor": [tensor for tensor, _ in pairs],
        "edge_consumer": [consumer for _, consumer in pairs],
    }


def _cluster(top: Mapping[str, Any]) -> Cluster | None:
    counts = [_count(top.get(field), f'field "{field}"') for field in ("maxFPGAs", "maxCPUs")]
    size = top.get("maxSizePerFPGA")
    memory = _UNLIMITED_BYTES
    if size is not None:
        number = _number(size, 'field "maxSizePerFPGA"')
        memory = int(number.to_integral_value(decimal.ROUND_FLOOR, _EXACT))
    memories = (memory, _UNLIMITED_BYTES)
    devices = [
        Device(f"{kind}:{k}", kind, room)
        for kind, count, room in zip(KINDS, counts, memories, strict=True)
        for k in range(count)
    ]
    return Cluster(devices) if devices else None


def _object(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise InputError(f"{where} is not an object")
    return value


def _id(value: Any, where: str) -> int | str:
    if type(value) is int or isinstance(value, str):
        return value
    raise InputError(f"{where}: the id {value!r} is not an integer or a text")


def _flag(value: Any, where: str, *, default: bool) -> bool:
    if value is None:
        return default
    if value not in (0, 1) or isinstance(value, decimal.Decimal):
        raise InputError(f"{where} is {value!r}, not true, false, 0 or 1")
    return bool(value)


def _count(value: Any, where: str) -> int:
    count = 0 if value is None else integer(value, where)
    if count > _MOST_DEVICES:
        raise InputError(f"{where} is {count}, more than {_MOST_DEVICES}")
    return count


def _number(value: Any, where: str) -> decimal.Decimal:
    if type(value) is not int and not isinstance(value, decimal.Decimal):
        raise InputError(f"{where} is {value!r}, not a number")
    if not 0 <= value < LARGEST:
        shown = "too large" if value > 0 else f"{value}"[:40]
        raise InputError(f"{where} is {shown}, not from 0 to 2^62 - 1")
    return decimal.Decimal(value)


def _ceiling(value: Any, where: str, exponent: int = 0) -> int:
    number = _number(value, where).scaleb(exponent, _EXACT)
    return int(number.to_integral_value(decimal.ROUND_CEILING, _EXACT))


def _time_ns(value: Any, where: str) -> int:
    """Milliseconds as ns, rounded up; -1 where there is no value."""
    return -1 if value is None else _ceiling(value, where, _NS_PER_MS)
