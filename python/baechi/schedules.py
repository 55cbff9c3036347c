"""Schedule: when every op and transfer of one step runs, and what memory that takes."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from baechi.cluster import Cluster
from baechi.errors import InputError
from baechi.graph import Graph
from baechi.units import counted, format_bytes, format_ns

if TYPE_CHECKING:
    from baechi._core import Schedule as CoreSchedule
    from baechi.summaries import Summary

__all__ = ["Schedule", "TransferColumns"]

Int32s = npt.NDArray[np.int32]
Int64s = npt.NDArray[np.int64]


class TransferColumns(NamedTuple):
    """Transfers in commit order; every column is [transfers]."""

    tensor: Int32s
    source: Int32s
    destination: Int32s
    consumer: Int32s  # the op whose launch caused it
    start_ns: Int64s
    end_ns: Int64s
    wait: Int64s  # as `Schedule.op_wait`


class Schedule:
    """One step of a placed graph: times in integer ns, sizes in integer bytes. Frozen.

    Under the rules `baechi-tf` a transfer is shown from the start of its send to the end of its
    receive.

    Attributes:
        graph, cluster: what was scheduled on what; links and channels are those of the rules.
        rules, retention: the rules it was scheduled under (docs/rules.md).
        executor: "launch", or "fifo" for the TensorFlow original's virtual scheduler.
        device, order: int32[ops], device and launch index.
        start_ns, end_ns: int64[ops].
        op_wait: int64[ops], what freed the memory an op waited for: 2 i for the end of op i,
            2 j + 1 for that of transfer j, -1 for nothing.
        not_before_ns: int64[ops], when each launch was decided (the originals' rules), or int64[0].
        busy_ns, peak_bytes: int64[devices].
        peak_op: int32[devices], the op whose launch reached the peak, -1 if none did.
        makespan_ns: the greatest end.
    """

    graph: Graph
    cluster: Cluster
    rules: str
    retention: str
    executor: str
    device: Int32s
    order: Int32s
    start_ns: Int64s
    end_ns: Int64s
    op_wait: Int64s
    not_before_ns: Int64s
    busy_ns: Int64s
    peak_bytes: Int64s
    peak_op: Int32s
    makespan_ns: int
    transfers: TransferColumns
    _core: CoreSchedule

    __slots__ = (*(name for name in __annotations__),)

    def __init__(
        self, graph: Graph, cluster: Cluster, rules: str, retention: str, core: CoreSchedule
    ) -> None:
        """Takes the columns over from the core."""
        transfers = TransferColumns(
            *(getattr(core, f"transfer_{name}") for name in TransferColumns._fields)
        )
        values = {
            "graph": graph,
            "cluster": cluster,
            "rules": rules,
            "retention": retention,
            "transfers": transfers,
            "_core": core,
        }
        for name in self.__slots__:
            value = values[name] if name in values else getattr(core, name)
            object.__setattr__(self, name, value)
        for column in (*transfers, *(getattr(self, name) for name in self.__slots__)):
            if isinstance(column, np.ndarray):
                column.setflags(write=False)

    @property
    def cap_bytes(self) -> Int64s:
        """int64[devices]: memory minus reserve."""
        return self.cluster.memory_bytes - self.cluster.reserve_bytes

    @property
    def repaired(self) -> bool:
        """Whether the placer ran out of memory and this is its repair."""
        return self._core.repaired

    @property
    def fits(self) -> bool:
        """Whether no device's peak exceeds its cap."""
        return bool((self.peak_bytes <= self.cap_bytes).all())

    @property
    def over_limit(self) -> tuple[str, ...]:
        """Names of the devices whose peak exceeds their cap."""
        over = np.flatnonzero(self.peak_bytes > self.cap_bytes)
        return tuple(self.cluster.names[device] for device in over)

    @property
    def transferred_bytes(self) -> int:
        """Bytes of all transfers."""
        return int(self.graph.tensor_bytes[self.transfers.tensor].sum())

    def memory(self, device: str | int) -> tuple[Int64s, Int64s]:
        """Use of a device over time under the physical rules (docs/rules.md, section 3).

        Args:
            device: its name or index.

        Raises:
            InputError: there is no such device.

        Returns:
            Times in ns and the bytes held after the event at that time, one entry per event in
            event order; the first is what is held from time 0 on.
        """
        from baechi import _core

        at = self.cluster.index(device) if isinstance(device, str) else device
        if not 0 <= at < self.cluster.num_devices:
            raise InputError(f"no device {at}: there are {self.cluster.num_devices}")
        graph, cluster = self.graph.flatten(), self.cluster.flatten(self.graph)
        return _core.memory_curves(graph, cluster, self._core, retention=self.retention)[at]

    def report(self, path: str | os.PathLike[str]) -> None:
        """Writes one HTML file that shows this step (docs/report.md); it needs no network.

        Raises:
            OSError: the file cannot be written.
        """
        from baechi.report import write_report

        write_report(path, self)

    def trace(self, path: str | os.PathLike[str]) -> None:
        """Writes a trace that Perfetto and chrome://tracing open (docs/report.md).

        Raises:
            OSError: the file cannot be written.
        """
        from baechi.report import write_trace

        write_trace(path, self)

    def _repr_html_(self) -> str:
        from baechi.report.notebooks import summary_html

        return summary_html(self.summary)

    def __eq__(self, other: object) -> bool:
        """Whether everything but the graph's and cluster's names of things is equal."""
        if not isinstance(other, Schedule):
            return NotImplemented
        names = [name for name in self.__slots__ if name not in ("_core", "transfers")]
        return all(_equal(getattr(self, name), getattr(other, name)) for name in names) and all(
            _equal(one, two) for one, two in zip(self.transfers, other.transfers, strict=True)
        )

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        """Counts and the makespan."""
        return (
            f"Schedule({len(self.device)} ops, {len(self.transfers.tensor)} transfers, "
            f"{format_ns(self.makespan_ns)}, {self.rules})"
        )

    def __str__(self) -> str:
        """What does not fit, the step time, and one line per device."""
        return str(self.summary)

    @property
    def summary(self) -> Summary:
        """What `print` shows, in parts."""
        from baechi.holdings import at_peaks
        from baechi.summaries import DeviceLine, Summary

        num_ops = np.bincount(self.device, minlength=self.cluster.num_devices).tolist()
        peak_ops = [self.graph.op_names[op] if op >= 0 else None for op in self.peak_op.tolist()]
        step, held = self.makespan_ns, at_peaks(self)
        moved = f" of {format_bytes(self.transferred_bytes)}" if self.transferred_bytes else ""
        return Summary(
            headline=f"step {format_ns(step)} under {self.rules} rules, "
            f"{counted(len(self.transfers.tensor), 'transfer', 'transfers')}{moved}",
            devices=tuple(
                DeviceLine(
                    name=name,
                    num_ops=num_ops[at],
                    busy=int(self.busy_ns[at]) / step if step else 0.0,
                    peak_bytes=int(self.peak_bytes[at]),
                    cap_bytes=int(self.cap_bytes[at]),
                    peak_op=peak_ops[at],
                    held=held[at],
                )
                for at, name in enumerate(self.cluster.names)
            ),
        )

    def _frozen(self, name: str, *_: object) -> None:
        raise AttributeError(f"a Schedule is frozen: {name} stays as it is")

    __setattr__ = __delattr__ = _frozen


def _equal(one: object, other: object) -> bool:
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
        return np.array_equal(one, other)
    return one == other
