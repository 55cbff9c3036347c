"""Grouping: fewer, larger ops to place, and the way back to a plan for the ops themselves."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Collection
from typing import Any

import numpy as np
import numpy.typing as npt

from baechi import _core
from baechi.cluster import Cluster, as_cluster
from baechi.columns import COLUMNS, dense
from baechi.devices import Size
from baechi.digests import Digests
from baechi.errors import InputError, OutOfMemoryError
from baechi.graph import Graph
from baechi.plans import Plan
from baechi.predictions import plan_of
from baechi.rules import Setting, as_graph, with_names
from baechi.units import parse_bytes

__all__ = ["STEPS", "Grouping", "group"]

STEPS = ("colocation", "coplace", "fuse", "forward")
FORWARD = 0
UNLIMITED_BYTES = 2**61


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Grouping:
    """A graph whose ops stand for ops of an original graph.

    Attributes:
        original: the graph that was grouped.
        graph: what to place instead.
        node_of: int32[original ops], op of `graph`; -1 for a backward op that follows later.
        steps: what was done.
    """

    original: Graph
    graph: Graph
    node_of: npt.NDArray[np.int32] = dataclasses.field(repr=False)
    steps: tuple[str, ...]

    @property
    def members(self) -> dict[str, tuple[str, ...]]:
        """Op name of `graph` to the names of the original ops it stands for."""
        found: dict[str, list[str]] = {name: [] for name in self.graph.op_names}
        for name, node in zip(self.original.op_names, self.node_of.tolist(), strict=True):
            if node >= 0:
                found[self.graph.op_names[node]].append(name)
        return {name: tuple(ops) for name, ops in found.items()}

    def devices(self, plan: Plan) -> npt.NDArray[np.int32]:
        """int32[original ops]: device indices of the plan, which is one for `graph`.

        An op that is not in `graph` goes where its colocation group is, else where its forward op
        is, else where its first producer is; without any of them, to the first device.

        Raises:
            PlanMismatchError: the plan is for another graph.
        """
        plan.check(self.graph)
        graph, placed = self.original, self.node_of >= 0
        device = np.full(graph.num_ops, -1, np.int32)
        device[placed] = plan.device[self.node_of[placed]]
        if placed.all():
            return device
        homes = np.full(len(graph.group_names) + 1, -1, np.int32)  # the last stands for no group
        homes[graph.group[placed]] = device[placed]
        homes[-1] = -1
        consumers, first = np.unique(graph.edge_consumer, return_index=True)
        parent = np.full(graph.num_ops, -1, np.int32)
        parent[consumers] = graph.tensor_producer[graph.edge_tensor[first]]
        leader = np.where(graph.forward_op >= 0, graph.forward_op, parent).tolist()
        groups = graph.group.tolist()
        for op in graph.topological_order().tolist():
            if placed[op]:
                continue
            home = int(homes[groups[op]])
            if home < 0:
                home = int(device[leader[op]]) if leader[op] >= 0 else 0
            device[op] = home
            if groups[op] >= 0:
                homes[groups[op]] = home
        return device

    def expand(self, plan: Plan, cluster: Cluster | Any = None) -> Plan:
        """A plan for the original graph that keeps every op where its group was placed.

        Its launch order is found anew: by list scheduling with devices fixed, within the limits if
        the ops can be launched so, else group by group. Its prediction is for the original ops.

        Args:
            plan: a plan for `graph`.
            cluster: by default the plan's; it has the plan's devices, perhaps in another order.

        Raises:
            PlanMismatchError: the plan is for another graph.
            InputError: a device cannot run one of the original ops, or is not in the cluster.
        """
        made = plan.provenance
        cluster = as_cluster(made.cluster if cluster is None else cluster)
        # The whole step frees what it no longer needs; half a step keeps what the other half needs.
        retention = "liveness" if "forward" in self.steps else plan.retention
        setting = Setting.of(self.original, cluster, made.rules, retention)
        at = np.array([cluster.index(device.name) for device in plan.devices], np.int32)
        with with_names(self.original, setting.cluster):
            core = self.scheduled(setting, at[self.devices(plan)], plan.order)
        provenance = dataclasses.replace(
            made,
            made_for=self.original,
            graph_digests=Digests(self.original),
            options={**made.options, "grouping": list(self.steps), "retention": retention},
        )
        return plan_of(
            setting.schedule(core),
            algorithm=plan.algorithm,
            candidates=plan.candidates,
            provenance=provenance,
        )

    def scheduled(
        self,
        setting: Setting,
        device: npt.NDArray[np.int32],
        order: npt.NDArray[np.int32],
    ) -> _core.Schedule:
        """Schedules the original ops on devices: within the limits if that is found, else without.

        Args:
            setting: the original graph on its cluster.
            device: int32[original ops].
            order: int32[ops of `graph`], launch indices, to fall back on.
        """
        flat, rules, retention = (
            (setting.flat_graph, setting.flat_cluster),
            setting.rules,
            setting.retention,
        )
        with contextlib.suppress(OutOfMemoryError):
            return _core.simulate_given(*flat, device, rules, retention=retention, limits=True)
        if rules == "physical" and (self.node_of >= 0).all():
            # What the plan's groups need together is enough for their ops one after the other.
            position = np.argsort(self.original.topological_order())
            launch = np.lexsort((position, order[self.node_of]))
            one_by_one = np.argsort(launch).astype(np.int32)
            with contextlib.suppress(OutOfMemoryError):
                return _core.simulate_launched(
                    *flat, device, one_by_one, rules, retention=retention, limits=True
                )
        return _core.simulate_given(*flat, device, rules, retention=retention)


def group(
    graph: Graph,
    steps: Collection[str] = ("colocation", "coplace", "fuse"),
    *,
    most_bytes: Size | None = None,
    retention: str = "liveness",
) -> Grouping:
    """Groups a graph for placing (Baechi, SoCC 2020, section 4).

    Args:
        graph: the graph.
        steps: any of "colocation" (what the graph's own groups say), "coplace" (an op with exactly
            one child joins the child's group), "fuse" (groups become single ops along every edge
            that cannot close a cycle), "forward" (backward and update ops are left out and follow
            their forward ops in `Grouping.expand`; place with retention="training"). Without
            "fuse", groups are colocation groups of the grouped graph.
        most_bytes: persistent bytes up to which co-placement lets a group grow; default: no limit.
        retention: "training" keeps outputs of forward ops that fusion would make vanish.

    Raises:
        InputError: an unknown step.
    """
    graph = as_graph(graph)
    if isinstance(steps, str):
        raise InputError(f'steps are "{steps}", one text', hint=f'write ["{steps}"]')
    unknown = [step for step in steps if step not in STEPS]
    if unknown:
        raise InputError(f'no step "{unknown[0]}"', hint=f"choose from {', '.join(STEPS)}")
    base, base_of = _forward_half(graph) if "forward" in steps else (graph, None)
    if "forward" in steps:
        retention = "training"
    labels = base.group if "colocation" in steps else np.full(base.num_ops, -1, np.int32)
    if "coplace" in steps:
        limit = UNLIMITED_BYTES if most_bytes is None else _limit(most_bytes)
        labels = _core.coplace(base.flatten(), dense(labels), limit)
    if "fuse" in steps and base.num_ops:
        grouped, node_of = _fused(base, labels, retention)
    else:
        grouped, node_of = _regrouped(base, labels), np.arange(base.num_ops, dtype=np.int32)
    if base_of is not None:
        kept = base_of >= 0
        node_of, base_nodes = base_of.copy(), node_of
        node_of[kept] = base_nodes[base_of[kept]]
    done = tuple(step for step in STEPS if step in steps)
    return Grouping(original=graph, graph=grouped, node_of=node_of, steps=done)


def _limit(most_bytes: Size) -> int:
    try:
        return parse_bytes(most_bytes)
    except InputError as error:
        raise InputError(f"most_bytes: {error}") from None


def _forward_half(graph: Graph) -> tuple[Graph, npt.NDArray[np.int32]]:
    """The forward ops with their tensors and edges, and the new index of each old op (-1: none)."""
    keep = graph.role == FORWARD
    op_of = np.where(keep, np.cumsum(keep) - 1, -1).astype(np.int32)
    tensors = keep[graph.tensor_producer]
    tensor_of = np.where(tensors, np.cumsum(tensors) - 1, -1).astype(np.int32)
    edges = tensors[graph.edge_tensor] & keep[graph.edge_consumer]
    # A backward op's persistent bytes (its gradients, say) are where its forward op is.
    persistent = graph.persistent_bytes.copy()
    owned = graph.forward_op >= 0
    np.add.at(persistent, graph.forward_op[owned], graph.persistent_bytes[owned])
    columns = _columns(graph, keep, tensors)
    columns["persistent_bytes"] = persistent[keep]
    columns["tensor_producer"] = op_of[graph.tensor_producer[tensors]]
    columns["edge_tensor"] = tensor_of[graph.edge_tensor[edges]]
    columns["edge_consumer"] = op_of[graph.edge_consumer[edges]]
    return _graph(graph, columns, np.flatnonzero(keep)), op_of


def _fused(
    graph: Graph, labels: npt.NDArray[np.int32], retention: str
) -> tuple[Graph, npt.NDArray[np.int32]]:
    node_of, first_of, _, arrays = _core.fuse(graph.flatten(), dense(labels), retention)
    columns = {column.name: array for column, array in zip(COLUMNS, arrays, strict=True)}
    columns["group"] = labels[first_of]
    columns["forward_op"] = np.where(columns["role"] == 1, columns["forward_op"], -1)
    forward = columns["forward_op"]
    forward[forward >= 0] = np.where(
        columns["role"][forward[forward >= 0]] == FORWARD, forward[forward >= 0], -1
    )
    return _graph(graph, columns, first_of, labels), node_of


def _regrouped(graph: Graph, labels: npt.NDArray[np.int32]) -> Graph:
    columns = {column.name: getattr(graph, column.name) for column in COLUMNS}
    return _graph(graph, columns | {"group": labels}, np.arange(graph.num_ops), labels)


def _columns(graph: Graph, ops: npt.NDArray[Any], tensors: npt.NDArray[Any]) -> dict[str, Any]:
    columns: dict[str, Any] = {"compute_ns": graph.compute_ns[:, ops]}
    for name in ("scratch_bytes", "group", "allowed_set", "role", "forward_op"):
        columns[name] = getattr(graph, name)[ops]
    for name in ("tensor_bytes", "tensor_transfer_ns", "tensor_class"):
        columns[name] = getattr(graph, name)[tensors]
    return columns


def _graph(
    graph: Graph,
    columns: dict[str, Any],
    ops: npt.NDArray[Any],
    labels: npt.NDArray[np.int32] | None = None,
) -> Graph:
    """A graph of some of the original's ops; groups that no op is in any more are dropped."""
    names = graph.group_names
    if labels is not None and labels is not graph.group:
        names = tuple(f"group{label}" for label in range(int(labels.max(initial=-1)) + 1))
    used, group = np.unique(columns["group"], return_inverse=True)
    if len(used) and used[0] < 0:
        used, group = used[1:], group - 1
    columns = columns | {"group": group.astype(np.int32)}
    at = ops.tolist()
    return Graph.from_arrays(
        op_names=[graph.op_names[op] for op in at],
        op_kinds=[graph.op_kinds[op] for op in at],
        module_paths=[graph.module_paths[op] for op in at],
        device_kinds=graph.device_kinds,
        group_names=[names[label] for label in used.tolist()],
        allowed_sets=graph.allowed_sets,
        default_cluster=graph.default_cluster,
        **columns,
    )
