"""The static memory ledger: what each device holds while a trace runs under a placement.

The core replays the trace in program order, as the host issues the ops: PyTorch allocates when an
op is issued. Nothing is run. A value that is read on another device is copied there once, before
its first reader, and dropped after its last; what autograd saves stays for its backward; gradients
of a value are added up per device and cross once; checkpointed regions are forgotten in forward and
computed again in backward. ``rust/core/src/program`` has the rules, here indices become names.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import numpy.typing as npt

from baechi.torch.flat_trace import FlatTrace
from baechi.torch.memory import CLASSES, DeviceMemory, Memory, Moved
from baechi.torch.modules import Layout
from baechi.torch.trace import Trace

__all__ = ["Updates", "replay"]


@dataclasses.dataclass(frozen=True)
class Updates:
    """What an optimizer's step needs.

    Attributes:
        rows: storage, bytes of state, bytes while it is updated, bytes of those that stay until
            the next parameter on the device is updated; of each parameter, in model order.
        together: whether all parameters of a device are updated at once.
    """

    rows: npt.NDArray[np.int64] = dataclasses.field(
        default_factory=lambda: np.zeros((0, 4), np.int64)
    )
    together: bool = False


def replay(
    trace: Trace,
    flat: FlatTrace,
    layout: Layout,
    num_devices: int,
    *,
    updates: Updates | None = None,
    accumulate_in_place: bool = False,
) -> Memory:
    """The static memory ledger: what each device holds while a trace runs under a placement.

    Args:
        trace: what runs.
        flat: the same for the core.
        layout: where everything is.
        num_devices: how many devices there are.
        updates: what the optimizer needs.
        accumulate_in_place: gradients of one value are added into the first where nothing else
            holds it, as autograd does on plain devices; under a dispatch mode it never does.
    """
    updates = updates or Updates()
    homes = np.full(len(trace.storages), -1, np.int32)
    homes[list(layout.home_of_storage)] = list(layout.home_of_storage.values())
    peaks, causes, held, moved, order, deaths = flat.replay(
        np.array(layout.device_of_step, np.int32),
        homes,
        num_devices,
        updates.rows,
        updates.together,
        accumulate_in_place,
    )
    devices = tuple(
        DeviceMemory(peak, _cause(trace, cause), dict(zip(CLASSES, row, strict=True)))
        for peak, cause, row in zip(peaks.tolist(), causes.tolist(), held.tolist(), strict=True)
    )
    return Memory(
        devices,
        tuple(
            Moved(s, d, nbytes, bool(back), value) for s, d, nbytes, back, value in moved.tolist()
        ),
        tuple(order.tolist()),
        {at: _moment(trace, code) for at, code in enumerate(deaths.tolist()) if code >= 0},
    )


def _cause(trace: Trace, code: int) -> str:
    """What reached a peak: the key of a step, the name of a function, or a word."""
    words = ("", "weights", "optimizer", "gradient", "gradient copy")
    if code < len(words) - 1:
        return words[code + 1]
    step = code - len(words) + 1
    if step < len(trace.steps):
        return trace.steps[step].key
    return trace.functions[step - len(trace.steps)].name


def _moment(trace: Trace, code: int) -> tuple[str, int]:
    """The inverse of `_position`."""
    end = len(trace.steps)
    if code < end:
        return ("step", code)
    return ("end", 0) if code == end else ("function", code - end - 1)
