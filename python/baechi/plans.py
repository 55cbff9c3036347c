"""Plan: which device runs each op and in which order, with what was predicted; what travels."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import os
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from baechi.cluster import Cluster
from baechi.digests import differences
from baechi.errors import PlanMismatchError
from baechi.graph import Graph
from baechi.units import counted, format_bytes, format_ns

if TYPE_CHECKING:
    from baechi.comparison import Comparison
    from baechi.summaries import Summary

__all__ = ["Candidate", "Device", "Plan", "Provenance", "Wait"]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Candidate:
    """One algorithm's result in the table that `best` chose from."""

    algorithm: str
    makespan_ns: int | None
    """Length of the step in ns, None where it found no placement."""
    largest_peak_bytes: int | None
    """Greatest peak of a device in bytes, None where it found no placement."""
    transferred_bytes: int | None
    error: str | None = None
    """Why it found no placement."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Provenance:
    """What a plan was made from; nothing that differs between two runs or two machines."""

    made_for: Graph | str
    """The graph, or its fingerprint where the plan comes from a file."""
    graph_digests: Mapping[str, str]
    """Op name to a digest of its costs, memory, inputs and constraints; names what changed."""
    cluster: Cluster
    algorithm: str
    """The algorithm asked for, such as "best"."""
    options: Mapping[str, Any]
    rules: str
    versions: Mapping[str, str]
    notes: tuple[str, ...] = ()
    """What a reader must know, such as links that were assumed."""

    @property
    def graph_fingerprint(self) -> str:
        """SHA-256 of the graph; a graph finds it when it is first asked."""
        return self.made_for if isinstance(self.made_for, str) else self.made_for.fingerprint


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Device:
    """What was predicted for one device."""

    name: str
    cap_bytes: int
    """Memory minus reserve."""
    peak_bytes: int
    peak_op: str | None
    """The op whose launch reaches the peak, None if nothing runs there."""
    busy_ns: int
    num_ops: int


@dataclasses.dataclass(frozen=True, slots=True)
class Wait:
    """An op or transfer that waits until another ended, because that frees its memory.

    A name stands for an op, a pair (tensor, destination device) for a transfer.
    """

    what: str | tuple[str, str]
    waits_for: str | tuple[str, str]


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Plan:
    """A placement with its launch order and prediction. Times in ns, sizes in bytes. Frozen.

    Attributes:
        op_names: the graph's ops in its order.
        device, order: int32[ops], device and launch index of each.
        devices: what was predicted for each device, in cluster order.
        makespan_ns: predicted length of the step.
        transferred_bytes, num_transfers: of all transfers.
        transfer_order: channel name to its transfers (tensor, destination), in order; "unlimited"
            holds those that need no channel.
        waits: what waits for memory (docs/rules.md, section 2).
        decided_ns: int64[ops] under the originals' rules (nothing starts earlier), else int64[0].
        algorithm: the one whose placement this is.
        executor: "launch", or "fifo" where only the original's virtual scheduler gives times.
        candidates: the table that `best` chose from, else the one algorithm.
        held: device name to what makes up its peak, bytes by category (`baechi.holdings`); empty
            under the originals' rules, which count peaks in another way.
    """

    op_names: tuple[str, ...]
    device: npt.NDArray[np.int32]
    order: npt.NDArray[np.int32]
    devices: tuple[Device, ...]
    makespan_ns: int
    transferred_bytes: int
    num_transfers: int
    waits: tuple[Wait, ...]
    decided_ns: npt.NDArray[np.int64]
    algorithm: str
    executor: str
    retention: str
    candidates: tuple[Candidate, ...]
    provenance: Provenance
    transfer_order: Mapping[str, tuple[tuple[str, str], ...]]
    held: Mapping[str, Mapping[str, int]]

    @functools.cached_property
    def placement(self) -> Mapping[str, str]:
        """Op name to device name, in graph order."""
        homes = (self.devices[at].name for at in self.device.tolist())
        return MappingProxyType(dict(zip(self.op_names, homes, strict=True)))

    @property
    def launch_order(self) -> tuple[str, ...]:
        """Op names in launch order."""
        return tuple(self.op_names[op] for op in np.argsort(self.order, kind="stable").tolist())

    @property
    def peak_bytes(self) -> dict[str, int]:
        """Predicted peak by device name."""
        return {device.name: device.peak_bytes for device in self.devices}

    @property
    def busy_ns(self) -> dict[str, int]:
        """Time that each device computes, by device name."""
        return {device.name: device.busy_ns for device in self.devices}

    @property
    def fits(self) -> bool:
        """Whether no device's predicted peak exceeds its cap."""
        return all(device.peak_bytes <= device.cap_bytes for device in self.devices)

    def check(self, graph: Graph) -> None:
        """Compares the graph with the one that the plan was made for.

        Raises:
            PlanMismatchError: they differ; every difference is named.
        """
        if graph.fingerprint == self.provenance.graph_fingerprint:
            return
        found = differences(self.op_names, self.provenance.graph_digests, graph)
        raise PlanMismatchError(
            f"the plan was made for another graph ({len(found)} differences)",
            found,
            hint="place the changed graph again",
        )

    def to_json(self) -> str:
        """The plan as sorted JSON, one op per line (docs/formats.md)."""
        from baechi.formats.plan_json import write_document

        return write_document(self)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the plan in one step: the old file stays until the new one is complete.

        Raises:
            OSError: the file cannot be written.
        """
        from baechi.files import write_atomically

        write_atomically(path, self.to_json().encode())

    def report(
        self,
        path: str | os.PathLike[str],
        graph: Graph | None = None,
        *,
        compared: Comparison | None = None,
    ) -> None:
        """Writes one HTML file that shows the plan (docs/report.md); it needs no network.

        Args:
            path: where.
            graph: its graph; a plan that was just made knows it, one from a file does not.
            compared: adds its table, with the peaks of all plans.

        Raises:
            InputError: the plan does not know its graph and none was given.
            PlanMismatchError: the plan was made for another graph.
            OSError: the file cannot be written.
        """
        from baechi.report import replay, write_report

        write_report(path, replay(self, graph), plan=self, compared=compared)

    def trace(self, path: str | os.PathLike[str], graph: Graph | None = None) -> None:
        """Writes a trace that Perfetto and chrome://tracing open; arguments as in `report`."""
        from baechi.report import replay, write_trace

        write_trace(path, replay(self, graph))

    @classmethod
    def load(cls, path: str | os.PathLike[str], graph: Graph | None = None) -> Plan:
        """Reads a plan; from the file of a model's plan, a `baechi.torch.ModelPlan`.

        Args:
            path: a file that `save` wrote; a person may have changed devices in it.
            graph: what to check the plan against, a model's plan against a model.

        Raises:
            InputError: not a plan; the message names the file and the field.
            PlanMismatchError: the graph differs; every difference is named.
            OSError: the file cannot be read.
        """
        from baechi.formats.plan_json import read_plan

        plan = read_plan(path)
        if plan is None:
            return importlib.import_module("baechi.torch").ModelPlan.load(path, graph)  # type: ignore[no-any-return]
        if graph is not None:
            plan.check(graph)
        return plan

    def _repr_html_(self) -> str:
        from baechi.report.notebooks import summary_html

        return summary_html(self.summary)

    def __eq__(self, other: object) -> bool:
        """Whether both would be saved as the same bytes."""
        if isinstance(other, Plan):
            return self is other or self.to_json() == other.to_json()
        return NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        """Counts, makespan and algorithm."""
        return (
            f"Plan({len(self.op_names)} ops on {len(self.devices)} devices, "
            f"{format_ns(self.makespan_ns)}, {self.algorithm})"
        )

    def __str__(self) -> str:
        """What does not fit, the step time, one line per device, and the notes."""
        return str(self.summary)

    @property
    def summary(self) -> Summary:
        """What `print` shows, in parts."""
        from baechi.summaries import DeviceLine, Summary

        made = self.provenance
        chosen = f" ({made.algorithm} of {len(self.candidates)})"
        asked = "" if made.algorithm == self.algorithm else chosen
        moved = f" of {format_bytes(self.transferred_bytes)}" if self.transferred_bytes else ""
        waits = f", {len(self.waits)} waits for memory" if self.waits else ""
        step = f"step {format_ns(self.makespan_ns)} under {made.rules} rules"
        transfers = f"{counted(self.num_transfers, 'transfer', 'transfers')}{moved}{waits}"
        return Summary(
            headline=f"{self.algorithm}{asked}: {step}, {transfers}",
            devices=tuple(
                DeviceLine(
                    name=device.name,
                    num_ops=device.num_ops,
                    busy=device.busy_ns / self.makespan_ns if self.makespan_ns else 0.0,
                    peak_bytes=device.peak_bytes,
                    cap_bytes=device.cap_bytes,
                    peak_op=device.peak_op,
                    held=self.held.get(device.name, {}),
                )
                for device in self.devices
            ),
            remarks=self._remarks(),
            notes=made.notes,
        )

    def _remarks(self) -> tuple[str, ...]:
        """Between which bounds the value of m-SCT's linear program lies, in plans by m-SCT."""
        options = self.provenance.options
        lower = options.get("unlimited_lower_bound_ns")
        upper = options.get("unlimited_upper_bound_ns")
        if not (self.algorithm.startswith("m-sct") and type(lower) is type(upper) is int):
            return ()
        gap = (upper - lower) / upper if upper else 0.0
        between = f"{format_ns(lower)} to {format_ns(upper)}, gap {gap:.2%}"
        return (f"favorites ({options.get('favorites')}): unlimited-device value {between}",)
