"""The static memory ledger, slow and literal: the core has to find exactly the same.

It replays the trace in program order, as the host issues the ops: PyTorch allocates when an op is
issued. A value that is read on another device is copied there once, before its first reader, and
dropped after its last; what autograd saves stays for its backward; gradients of a value are added
up per device and cross once (docs/memory.md).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from baechi.torch.memory import Memory
from baechi.torch.trace import Trace
from ledger_oracle_backward import Backward
from ledger_oracle_forward import Replay


def replay(
    trace: Trace,
    device_of_step: Sequence[int],
    home_of_storage: Mapping[int, int],
    num_devices: int,
    *,
    optimizer_bytes: Mapping[int, int] | None = None,
    optimizer_scratch: Sequence[int] | None = None,
    accumulate_in_place: bool = False,
) -> Memory:
    """Replays a trace under a placement.

    Args:
        trace: what runs.
        device_of_step: device index of each step.
        home_of_storage: device index of each parameter, buffer and constant, by storage.
        num_devices: how many devices there are.
        optimizer_bytes: optimizer state of each parameter, by storage.
        optimizer_scratch: bytes that the optimizer's step needs besides, by device.
        accumulate_in_place: gradients of one value are added into the first where nothing else
            holds it, as autograd does on plain devices; under a dispatch mode it never does.
    """
    run = Replay(trace, device_of_step, home_of_storage, num_devices, accumulate_in_place)
    run.charge_persistent(optimizer_bytes or {})
    for step in range(len(trace.steps)):
        run.forward(step)
    run.end_forward()
    if trace.training:
        Backward(run).run()
        run.optimize(optimizer_scratch or [0] * num_devices)
    return run.result()
