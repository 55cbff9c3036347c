"""Graphs of networkx, in and out; docs/formats.md lists the attributes."""

from __future__ import annotations

import numbers
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from baechi.columns import texts
from baechi.errors import InputError, MissingFrameworkError
from baechi.graph import MEMORY_CLASSES, ROLES, Graph

if TYPE_CHECKING:
    import networkx

__all__ = ["from_networkx", "to_networkx"]

_OP_FIELDS = {
    "compute_ns",
    "kind",
    "module",
    "persistent_bytes",
    "scratch_bytes",
    "group",
    "allowed_devices",
    "role",
    "forward_op",
}
_TENSOR_DEFAULTS = {"bytes": 0, "memory_class": "activation", "transfer_ns": None}


def to_networkx(graph: Graph) -> networkx.MultiDiGraph[str]:
    """The graph as a networkx.MultiDiGraph, with everything that `from_networkx` needs.

    Raises:
        MissingFrameworkError: networkx is not installed.
    """
    result = _networkx().MultiDiGraph(
        device_kinds=graph.device_kinds,
        group_names=graph.group_names,
        allowed_sets=graph.allowed_sets,
    )
    if graph.default_cluster is not None:
        result.graph["default_cluster"] = graph.default_cluster
    times = graph.compute_ns.T.tolist()
    for i, name in enumerate(graph.op_names):
        group, allowed, forward = graph.group[i], graph.allowed_set[i], graph.forward_op[i]
        pairs = zip(graph.device_kinds, times[i], strict=True)
        result.add_node(
            name,
            compute_ns={kind: None if ns < 0 else ns for kind, ns in pairs},
            kind=graph.op_kinds[i],
            module=graph.module_paths[i],
            persistent_bytes=int(graph.persistent_bytes[i]),
            scratch_bytes=int(graph.scratch_bytes[i]),
            group=graph.group_names[group] if group >= 0 else None,
            allowed_devices=graph.allowed_sets[allowed] if allowed >= 0 else None,
            role=ROLES[graph.role[i]],
            forward_op=graph.op_names[forward] if forward >= 0 else None,
        )
    tensors = [_tensor_attributes(graph, i) for i in range(graph.num_tensors)]
    edges = zip(graph.edge_tensor.tolist(), graph.edge_consumer.tolist(), strict=True)
    for position, (tensor, consumer) in enumerate(edges):
        producer = graph.op_names[graph.tensor_producer[tensor]]
        result.add_edge(
            producer,
            graph.op_names[consumer],
            tensor=tensor,
            position=position,
            **tensors[tensor],
        )
    unconsumed = np.setdiff1d(np.arange(graph.num_tensors), graph.edge_tensor).tolist()
    result.graph["unconsumed_tensors"] = [
        {"producer": graph.op_names[graph.tensor_producer[i]], "tensor": i, **tensors[i]}
        for i in unconsumed
    ]
    return result


def from_networkx(graph: networkx.DiGraph[Any] | networkx.MultiDiGraph[Any]) -> Graph:
    """The graph in a directed graph of networkx; the order of its nodes and edges is kept.

    Raises:
        InputError: the graph is not directed, or an attribute is missing or wrong; the message
            names the op.
        CycleError: the edges make a cycle.
        MissingFrameworkError: networkx is not installed.
    """
    if not isinstance(graph, _networkx().DiGraph):
        raise InputError(f"a {type(graph).__name__} of networkx is not a directed graph")
    names = [str(node) for node in graph]
    index = {name: i for i, name in enumerate(names)}
    if len(index) < len(names):
        raise InputError("two nodes have the same name as text")
    ops = [_op_attributes(name, graph.nodes[node]) for name, node in zip(names, graph, strict=True)]
    kinds = texts("device kind", graph.graph.get("device_kinds", ())) or _kinds(ops)
    groups = {
        name: i for i, name in enumerate(texts("group name", graph.graph.get("group_names", ())))
    }
    sets = {
        texts("allowed device", devices): i
        for i, devices in enumerate(_rows(graph, "allowed_sets"))
    }
    columns: dict[str, Any] = {"compute_ns": [], "group": [], "allowed_set": [], "role": []}
    columns |= {"forward_op": [], "persistent_bytes": [], "scratch_bytes": []}
    for name, op in zip(names, ops, strict=True):
        group, allowed, forward = op.get("group"), op.get("allowed_devices"), op.get("forward_op")
        devices = () if allowed is None else _devices(name, allowed)
        if not isinstance(group, str | None):
            raise InputError(f'op "{name}": group {group!r} is not a text')
        columns["compute_ns"].append(_times(name, op["compute_ns"], kinds))
        columns["group"].append(-1 if group is None else groups.setdefault(group, len(groups)))
        columns["allowed_set"].append(
            -1 if allowed is None else sets.setdefault(devices, len(sets))
        )
        columns["role"].append(_choice(name, ROLES, op.get("role", "forward")))
        columns["forward_op"].append(-1 if forward is None else _op(name, index, forward))
        for field in ("persistent_bytes", "scratch_bytes"):
            columns[field].append(op.get(field, 0))
    times = columns.pop("compute_ns")
    return Graph.from_arrays(
        op_names=names,
        op_kinds=[op.get("kind", "") for op in ops],
        module_paths=[op.get("module", "") for op in ops],
        device_kinds=kinds,
        group_names=list(groups),
        allowed_sets=list(sets),
        compute_ns=list(zip(*times, strict=True)) if times else [[]] * len(kinds),
        default_cluster=graph.graph.get("default_cluster"),
        **columns,
        **_tensor_columns(graph, index),
    )


def _tensor_attributes(graph: Graph, tensor: int) -> dict[str, Any]:
    transfer = int(graph.tensor_transfer_ns[tensor])
    return {
        "bytes": int(graph.tensor_bytes[tensor]),
        "memory_class": MEMORY_CLASSES[graph.tensor_class[tensor]],
        "transfer_ns": None if transfer < 0 else transfer,
    }


def _op_attributes(name: str, attributes: Mapping[str, Any]) -> Mapping[str, Any]:
    if "compute_ns" not in attributes:
        raise InputError(f'op "{name}" has no attribute "compute_ns"')
    if not isinstance(attributes.get("module", ""), str):
        raise InputError(f'op "{name}": attribute "module" is not a text')
    return {field: attributes[field] for field in _OP_FIELDS if field in attributes}


def _kinds(ops: list[Mapping[str, Any]]) -> tuple[str, ...]:
    mappings = [op["compute_ns"] for op in ops if isinstance(op["compute_ns"], Mapping)]
    return tuple(dict.fromkeys(kind for times in mappings for kind in times)) or ("gpu",)


def _times(name: str, compute_ns: Any, kinds: tuple[str, ...]) -> list[Any]:
    if not isinstance(compute_ns, Mapping):
        return [compute_ns] * len(kinds)
    if unknown := [kind for kind in compute_ns if kind not in kinds]:
        raise InputError(f'op "{name}": unknown device kind {unknown[0]!r} in compute_ns')
    return [-1 if compute_ns.get(kind) is None else compute_ns[kind] for kind in kinds]


def _devices(name: str, allowed: Any) -> tuple[str, ...]:
    if isinstance(allowed, str):
        return (allowed,)
    if not isinstance(allowed, Iterable) or not all(isinstance(one, str) for one in allowed):
        raise InputError(f'op "{name}": allowed_devices {allowed!r} are not texts')
    return tuple(sorted(allowed) if isinstance(allowed, set | frozenset) else allowed)


def _rows(graph: Any, field: str) -> list[Any]:
    rows = graph.graph.get(field, ())
    if not isinstance(rows, list | tuple):
        raise InputError(f'graph attribute "{field}" is {rows!r}, not a list')
    return list(rows)


def _choice(name: str, choices: tuple[str, ...], value: Any) -> int:
    if not isinstance(value, str) or value not in choices:
        raise InputError(f'op "{name}": {value!r} is not one of {", ".join(choices)}')
    return choices.index(value)


def _op(name: str, index: Mapping[str, int], other: Any) -> int:
    if str(other) not in index:
        raise InputError(f'op "{name}": there is no op "{other}"')
    return index[str(other)]


def _tensor_columns(graph: Any, index: Mapping[str, int]) -> dict[str, Any]:
    """Tensors and edges; edges with the same number `tensor` share it, others have their own."""
    edges = list(graph.edges(data=True))
    if all(isinstance(attributes.get("position"), int) for _, _, attributes in edges):
        edges.sort(key=lambda edge: edge[2]["position"])
    rows: dict[Any, tuple[int, dict[str, Any]]] = {}
    consumed: list[tuple[Any, int]] = []
    for i, (producer, consumer, attributes) in enumerate(edges):
        label = attributes.get("tensor", f"edge {i}")
        _add_tensor(rows, label, str(producer), index, attributes)
        consumed.append((label, index[str(consumer)]))
    for attributes in _rows(graph, "unconsumed_tensors"):
        if not isinstance(attributes, Mapping):
            raise InputError(f'an entry of "unconsumed_tensors" is {attributes!r}, not a mapping')
        producer = str(attributes.get("producer"))
        _add_tensor(rows, attributes.get("tensor"), producer, index, attributes)
    numbered = all(isinstance(label, int) for label in rows)
    labels = sorted(rows) if numbered else list(rows)
    numbers = {label: i for i, label in enumerate(labels)}
    values = [rows[label] for label in labels]
    return {
        "tensor_producer": [producer for producer, _ in values],
        "tensor_bytes": [value["bytes"] for _, value in values],
        "tensor_transfer_ns": [
            -1 if value["transfer_ns"] is None else value["transfer_ns"] for _, value in values
        ],
        "tensor_class": [MEMORY_CLASSES.index(value["memory_class"]) for _, value in values],
        "edge_tensor": [numbers[label] for label, _ in consumed],
        "edge_consumer": [consumer for _, consumer in consumed],
    }


def _add_tensor(
    rows: dict[Any, tuple[int, dict[str, Any]]],
    label: Any,
    producer: str,
    index: Mapping[str, int],
    attributes: Mapping[str, Any],
) -> None:
    if not isinstance(label, int | str):
        raise InputError(f'op "{producer}": tensor {label!r} is not a number or a text')
    values = {field: attributes.get(field, d) for field, d in _TENSOR_DEFAULTS.items()}
    _choice(producer, MEMORY_CLASSES, values["memory_class"])
    for field in ("bytes", "transfer_ns"):
        if not isinstance(values[field], numbers.Real | None):
            what = f'op "{producer}", tensor {label}'
            raise InputError(f"{what}: {field} is {values[field]!r}, not a number")
    row = (_op(producer, index, producer), values)
    if rows.setdefault(label, row) != row:
        raise InputError(f'op "{producer}": the edges of tensor {label} do not agree')


def _networkx() -> Any:
    try:
        import networkx
    except ImportError as error:
        raise MissingFrameworkError("networkx") from error
    return networkx
