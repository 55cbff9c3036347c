"""A graph in words: what it computes, what it holds, what limits where it may run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from baechi.cli.output import Outcome
from baechi.graph import MEMORY_CLASSES, ROLES
from baechi.units import format_bytes, format_ns

if TYPE_CHECKING:
    import numpy.typing as npt
    from rich.console import RenderableType

    from baechi.graph import Graph

__all__ = ["outcome"]


def outcome(graph: Graph, name: str, top: int) -> Outcome:
    """For `baechi show`."""
    document = _document(graph, top)
    return Outcome(document=lambda: document, shown=lambda width, _: _shown(document, name, width))


def _document(graph: Graph, top: int) -> dict[str, Any]:
    outputs = np.zeros(graph.num_ops, np.int64)
    np.add.at(outputs, graph.tensor_producer, graph.tensor_bytes)
    by_class = np.bincount(graph.tensor_class, graph.tensor_bytes, len(MEMORY_CLASSES))
    roles = np.bincount(graph.role, minlength=len(ROLES)).tolist()
    path, work = _bounds(graph)
    held = graph.persistent_bytes + graph.scratch_bytes + outputs
    fastest = _fastest(graph)
    return {
        "kind": "graph",
        "num_ops": graph.num_ops,
        "num_tensors": graph.num_tensors,
        "num_edges": graph.num_edges,
        "num_groups": len(graph.group_names),
        "num_pinned": int((graph.allowed_set >= 0).sum()),
        "device_kinds": list(graph.device_kinds),
        "roles": {role: count for role, count in zip(ROLES, roles, strict=True) if count},
        "compute_ns": work,
        "longest_path_ns": path,
        "persistent_bytes": int(graph.persistent_bytes.sum()),
        "largest_scratch_bytes": int(graph.scratch_bytes.max(initial=0)),
        "tensor_bytes": {
            name: int(size) for name, size in zip(MEMORY_CLASSES, by_class, strict=True) if size
        },
        "given_transfers": int((graph.tensor_transfer_ns >= 0).sum()),
        "longest_ops": [{"op": op, "ns": n} for op, n in _largest(graph, fastest, top)],
        "largest_ops": [{"op": op, "bytes": n} for op, n in _largest(graph, held, top)],
        "fingerprint": graph.fingerprint,
    }


def _fastest(graph: Graph) -> npt.NDArray[np.int64]:
    """[ops]: the time on the fastest kind of device."""
    times = np.where(graph.compute_ns < 0, np.iinfo(np.int64).max, graph.compute_ns)
    fastest: npt.NDArray[np.int64] = times.min(axis=0)
    return fastest


def _bounds(graph: Graph) -> tuple[int, int]:
    """Longest path and sum of compute times, every op on its fastest kind."""
    from baechi import _core
    from baechi.cluster import Cluster, Device

    if graph.allowed_sets:  # a pin says nothing of the kind of its devices
        graph = _unpinned(graph)
    cluster = Cluster([Device(kind, kind, 2**61) for kind in graph.device_kinds])
    path, _ = _core.lower_bounds(graph.flatten(), cluster.flatten(graph))
    return path, int(_fastest(graph).sum())


def _unpinned(graph: Graph) -> Graph:
    from baechi.columns import COLUMNS
    from baechi.graph import Graph

    columns: dict[str, Any] = {column.name: getattr(graph, column.name) for column in COLUMNS}
    columns["allowed_set"] = None
    return Graph.from_arrays(
        **columns,
        op_names=graph.op_names,
        device_kinds=graph.device_kinds,
        group_names=graph.group_names,
    )


def _largest(graph: Graph, column: npt.NDArray[np.int64], top: int) -> list[tuple[str, int]]:
    order = np.argsort(-column, kind="stable")[:top].tolist()
    return [(graph.op_names[op], int(column[op])) for op in order if column[op] > 0]


def _shown(found: dict[str, Any], name: str, width: int) -> list[RenderableType]:
    from baechi.tables import hanging

    counts = f"{found['num_ops']} ops, {found['num_tensors']} tensors, {found['num_edges']} edges"
    memory = [f"{format_bytes(found['persistent_bytes'])} persistent"]
    memory += [f"{size} {name}" for name, size in _sizes(found["tensor_bytes"])]
    memory.append(f"at most {format_bytes(found['largest_scratch_bytes'])} scratch")
    lines = {
        "compute": f"{format_ns(found['compute_ns'])} in all, "
        f"{format_ns(found['longest_path_ns'])} on the longest path",
        "memory": ", ".join(memory),
        "roles": ", ".join(f"{count} {role}" for role, count in found["roles"].items()),
        "limits": f"{found['num_groups']} groups, {found['num_pinned']} pinned ops, "
        f"kinds {', '.join(found['device_kinds'])}",
        "longest": ", ".join(f'"{x["op"]}" {format_ns(x["ns"])}' for x in found["longest_ops"]),
        "largest": ", ".join(
            f'"{x["op"]}" {format_bytes(x["bytes"])}' for x in found["largest_ops"]
        ),
    }
    if found["given_transfers"]:
        lines["transfers"] = f"{found['given_transfers']} tensors have times of their own"
    rows = [hanging(f"  {label:9}  {text}", width) for label, text in lines.items() if text]
    return [hanging(f"{name}: {counts}", width, "bold"), *rows]


def _sizes(by_class: dict[str, int]) -> list[tuple[str, str]]:
    return [(name, format_bytes(size)) for name, size in by_class.items()]
