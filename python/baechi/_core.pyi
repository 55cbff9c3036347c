from collections.abc import Sequence
from typing import Any, final

import numpy as np
import numpy.typing as npt

__all__ = [
    "ALGORITHMS",
    "FlatCluster",
    "FlatGraph",
    "FlatTrace",
    "FlatUnits",
    "Relaxation",
    "Schedule",
    "__version__",
    "bounds",
    "coplace",
    "fuse",
    "greedy_favorites",
    "judge_placements",
    "lower_bounds",
    "memory_curves",
    "pairs",
    "place",
    "round_favorites",
    "simulate_given",
    "simulate_launched",
    "simulate_many",
]

_Int32s = npt.NDArray[np.int32]
_Int64s = npt.NDArray[np.int64]
_Float64s = npt.NDArray[np.float64]
_Bytes = npt.NDArray[np.uint8]
_Counted = tuple[_Int64s, _Int64s, _Int64s, _Int64s]

ALGORITHMS: Sequence[str]
__version__: str

@final
class FlatGraph:
    def __new__(
        cls,
        compute_ns: _Int64s,
        persistent_bytes: _Int64s,
        scratch_bytes: _Int64s,
        group: _Int32s,
        allowed_set: _Int32s,
        role: _Bytes,
        forward_op: _Int32s,
        tensor_producer: _Int32s,
        tensor_bytes: _Int64s,
        tensor_transfer_ns: _Int64s,
        tensor_class: _Bytes,
        edge_tensor: _Int32s,
        edge_consumer: _Int32s,
        order: _Int32s | None = None,
    ) -> FlatGraph: ...

@final
class FlatCluster:
    def __new__(
        cls,
        memory_bytes: _Int64s,
        reserve_bytes: _Int64s,
        kind: _Int32s,
        speed: npt.NDArray[np.float64],
        latency_ns: _Int64s,
        bytes_per_s: _Int64s,
        send_channel: _Int32s,
        recv_channel: _Int32s,
        allowed: _Bytes,
    ) -> FlatCluster: ...

@final
class FlatTrace:
    def __new__(cls, columns: dict[str, _Int64s]) -> FlatTrace: ...
    def replay(
        self,
        device_of_step: _Int32s,
        home_of_storage: _Int32s,
        num_devices: int,
        updates: _Int64s,
        together: bool,
        in_place: bool,
    ) -> tuple[_Int64s, _Int64s, _Int64s, _Int64s, _Int32s, _Int64s]: ...

@final
class FlatUnits:
    def __new__(
        cls,
        trace: FlatTrace,
        num_units: int,
        columns: dict[str, _Int64s],
    ) -> FlatUnits: ...
    def lay_out(
        self,
        trace: FlatTrace,
        device_of_unit: _Int32s,
        exceptions: _Int32s,
        num_devices: int,
    ) -> tuple[_Int32s, _Int32s]: ...

@final
class Schedule:
    @property
    def device(self) -> _Int32s: ...
    @property
    def order(self) -> _Int32s: ...
    @property
    def start_ns(self) -> _Int64s: ...
    @property
    def end_ns(self) -> _Int64s: ...
    @property
    def busy_ns(self) -> _Int64s: ...
    @property
    def peak_bytes(self) -> _Int64s: ...
    @property
    def peak_op(self) -> _Int32s: ...
    @property
    def makespan_ns(self) -> int: ...
    @property
    def repaired(self) -> bool: ...
    @property
    def executor(self) -> str: ...
    @property
    def op_wait(self) -> _Int64s: ...
    @property
    def not_before_ns(self) -> _Int64s: ...
    @property
    def transfer_tensor(self) -> _Int32s: ...
    @property
    def transfer_source(self) -> _Int32s: ...
    @property
    def transfer_destination(self) -> _Int32s: ...
    @property
    def transfer_consumer(self) -> _Int32s: ...
    @property
    def transfer_start_ns(self) -> _Int64s: ...
    @property
    def transfer_end_ns(self) -> _Int64s: ...
    @property
    def transfer_wait(self) -> _Int64s: ...

def place(
    graph: FlatGraph,
    cluster: FlatCluster,
    algorithm: str,
    rules: str,
    *,
    retention: str = "liveness",
    favorites: _Int32s | None = None,
    seed: int = 0,
    colocation: bool = True,
    op_bytes: _Counted | None = None,
    walk: _Int32s | None = None,
    repair: bool = True,
) -> Schedule: ...
def simulate_given(
    graph: FlatGraph,
    cluster: FlatCluster,
    device: _Int32s,
    rules: str,
    *,
    retention: str = "liveness",
    op_bytes: _Counted | None = None,
    limits: bool = False,
) -> Schedule: ...
def simulate_launched(
    graph: FlatGraph,
    cluster: FlatCluster,
    device: _Int32s,
    order: _Int32s,
    rules: str,
    *,
    op_wait: _Int64s | None = None,
    transfer_wait: _Int64s | None = None,
    not_before_ns: _Int64s | None = None,
    retention: str = "liveness",
    reserve: bool = False,
    colocation: bool = True,
    limits: bool = False,
) -> Schedule: ...
def simulate_many(
    graph: FlatGraph,
    cluster: FlatCluster,
    device: _Int32s,
    order: _Int32s | None,
    *,
    retention: str = "liveness",
    peaks: bool = True,
) -> tuple[_Int64s, _Int64s | None]: ...
def memory_curves(
    graph: FlatGraph, cluster: FlatCluster, schedule: Schedule, *, retention: str = "liveness"
) -> list[tuple[_Int64s, _Int64s]]: ...
def lower_bounds(graph: FlatGraph, cluster: FlatCluster) -> tuple[int, int]: ...
def pairs(
    graph: FlatGraph, cluster: FlatCluster, rules: str
) -> tuple[_Int32s, _Int32s, _Int64s, _Int64s]: ...

@final
class Relaxation:
    def __new__(
        cls,
        parent: _Int32s,
        child: _Int32s,
        transfer: _Float64s,
        compute: _Float64s,
        *,
        whole_ops: int,
        block_nodes: int,
        sweeps: int,
        deep_nodes: int,
        seconds: float | None = None,
    ) -> Relaxation: ...
    def next(
        self, *, seconds: float | None = None
    ) -> (
        tuple[_Float64s, _Float64s, _Float64s, _Float64s, _Float64s, _Int32s, _Int32s, _Float64s]
        | None
    ): ...
    def give(self, columns: _Float64s, duals: _Float64s) -> None: ...
    def outcome(self) -> tuple[_Float64s, float, float, dict[str, int]]: ...

def bounds(
    parent: _Int32s, child: _Int32s, transfer: _Float64s, compute: _Float64s, values: _Float64s
) -> tuple[float, float]: ...
def greedy_favorites(graph: FlatGraph, cluster: FlatCluster, rules: str) -> _Int32s: ...
def round_favorites(
    num_ops: int,
    parent: _Int32s,
    child: _Int32s,
    values: _Float64s,
    threshold: float,
    rules: str,
) -> _Int32s: ...
def coplace(graph: FlatGraph, labels: _Int32s, most_bytes: int) -> _Int32s: ...
def fuse(
    graph: FlatGraph, labels: _Int32s, retention: str
) -> tuple[_Int32s, _Int32s, _Int32s, list[npt.NDArray[Any]]]: ...
def judge_placements(
    trace: FlatTrace,
    units: FlatUnits,
    graph: FlatGraph,
    cluster: FlatCluster,
    ops: _Int32s,
    updates: _Int64s,
    together: bool,
    in_place: bool,
    device_of_unit: _Int32s,
    exceptions: _Int32s,
) -> tuple[_Int64s, _Int64s, _Int32s]: ...
