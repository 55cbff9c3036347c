from collections.abc import Sequence
from typing import Any, final

import numpy as np
import numpy.typing as npt

__all__ = [
    "ALGORITHMS",
    "FlatCluster",
    "FlatGraph",
    "Schedule",
    "__version__",
    "coplace",
    "fuse",
    "greedy_favorites",
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
def greedy_favorites(graph: FlatGraph, cluster: FlatCluster, rules: str) -> _Int32s: ...
def round_favorites(
    graph: FlatGraph,
    cluster: FlatCluster,
    rules: str,
    values: npt.NDArray[np.float64],
    threshold: float,
) -> _Int32s: ...
def coplace(graph: FlatGraph, labels: _Int32s, most_bytes: int) -> _Int32s: ...
def fuse(
    graph: FlatGraph, labels: _Int32s, retention: str
) -> tuple[_Int32s, _Int32s, _Int32s, list[npt.NDArray[Any]]]: ...
