"""Flat traces: a trace and its units as columns for the core, where placements are judged.

Names stay here. The core (``rust/core/src/program``) lays placements out, replays their memory
(`ledger`) and simulates their time (`outcomes`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from baechi import _core
from baechi.torch.modules import Layout, Units
from baechi.torch.trace import Trace

__all__ = ["FlatTrace", "exception_rows", "flatten", "flatten_units", "lay_out"]

FlatTrace = _core.FlatTrace
Int64s = npt.NDArray[np.int64]
_KINDS = ("parameter", "buffer", "constant", "input", "made")
_LAST_SEQUENCE = 2**48  # autograd's number of accumulations is greater than any 64-bit integer


def flatten(trace: Trace) -> FlatTrace:
    """The trace as the core takes it."""
    return _core.FlatTrace(
        {
            **_storages(trace),
            **_values(trace),
            **_steps(trace),
            **_functions(trace),
            **_lists("region", "region_step", trace.regions),
            "follows": _column([trace.source != "export"]),
            "output": _column(trace.outputs),
            "seed": _column(
                [trace.seed_function, trace.values[trace.loss].nbytes] if trace.training else []
            ),
        }
    )


def _column(numbers: Iterable[int]) -> Int64s:
    return np.fromiter(numbers, np.int64)


def _lists(name: str, entry: str, lists: Sequence[Sequence[int]]) -> dict[str, Int64s]:
    """Lists of numbers as their starts and all entries."""
    starts = np.zeros(len(lists) + 1, np.int64)
    np.cumsum([len(one) for one in lists], out=starts[1:])
    return {f"{name}_start": starts, entry: _column(at for one in lists for at in one)}


def _position(trace: Trace, at: tuple[str, int] | None) -> int:
    """A step, the end of forward, or a function, as one number."""
    if at is None:
        return -1
    kind, number = at
    offset = {"step": 0, "end": len(trace.steps), "function": len(trace.steps) + 1}[kind]
    return offset + number


def _storages(trace: Trace) -> dict[str, Int64s]:
    return {
        "storage_bytes": _column(one.nbytes for one in trace.storages),
        "storage_kind": _column(_KINDS.index(one.kind) for one in trace.storages),
        "storage_until": _column(_position(trace, one.held_until) for one in trace.storages),
    }


def _values(trace: Trace) -> dict[str, Int64s]:
    gradients = [one.gradient or (-1, -1) for one in trace.values]
    return {
        "value_storage": _column(one.storage for one in trace.values),
        "value_bytes": _column(one.nbytes for one in trace.values),
        "value_step": _column(one.step for one in trace.values),
        "value_function": _column(function for function, _ in gradients),
        "value_number": _column(number for _, number in gradients),
    }


def _steps(trace: Trace) -> dict[str, Int64s]:
    steps = trace.steps
    return {
        "step_sequence": _column(one.sequence for one in steps),
        "step_peak": _column(one.born_peak for one in steps),
        **_lists("read", "read", [one.reads for one in steps]),
        **_lists("make", "make", [one.makes for one in steps]),
        **_lists("born", "born", [one.born for one in steps]),
        **_lists("saved", "saved_storage", [[s.storage for s in one.saved] for one in steps]),
        "saved_function": _column(saved.function for one in steps for saved in one.saved),
    }


def _functions(trace: Trace) -> dict[str, Int64s]:
    functions = trace.functions
    edges = [edge for one in functions for edge in one.edges]
    return {
        "function_step": _column(one.step for one in functions),
        "function_parameter": _column(one.parameter for one in functions),
        "function_sequence": _column(min(one.sequence, _LAST_SEQUENCE) for one in functions),
        "function_peak": _column(one.born_peak for one in functions),
        **_lists("function_born", "function_born", [one.born for one in functions]),
        **_lists("edge", "edge_function", [[e.function for e in one.edges] for one in functions]),
        "edge_number": _column(edge.number for edge in edges),
        "edge_bytes": _column(edge.nbytes for edge in edges),
        "edge_taken": _column(int(edge.incoming.source == "taken") for edge in edges),
        "edge_at": _column(edge.incoming.at for edge in edges),
    }


def flatten_units(trace: Trace, flat: FlatTrace, units: Units) -> _core.FlatUnits:
    """The units of a trace as the core takes them."""
    scopes = {path: number for number, path in enumerate(units.inside)}
    owners = zip(trace.steps, units.of_step, strict=True)
    return _core.FlatUnits(
        flat,
        len(units.names),
        {
            "unit_of_step": _column(units.of_step),
            "unit_of_storage": _column(
                units.of_storage.get(at, -1) for at in range(len(trace.storages))
            ),
            "tied_to": _column(units.tied_glue.get(at, -1) for at in range(len(trace.steps))),
            "scope_of_step": _column(
                scopes[step.path] if unit < 0 else -1 for step, unit in owners
            ),
            **_lists("scope", "scope_unit", list(units.inside.values())),
        },
    )


def lay_out(
    flat: FlatTrace,
    units: _core.FlatUnits,
    device_of_unit: Sequence[int],
    num_devices: int,
    exceptions: Mapping[int, int] | None = None,
) -> Layout:
    """Where every step and weight goes when the units are placed.

    Args:
        flat: one step of the model.
        units: its units.
        device_of_unit: device index of each unit.
        num_devices: how many devices there are.
        exceptions: device index of single steps that go elsewhere than the rules say.
    """
    steps, homes = units.lay_out(
        flat, np.array(device_of_unit, np.int32), exception_rows(exceptions), num_devices
    )
    kept = {at: home for at, home in enumerate(homes.tolist()) if home >= 0}
    return Layout(tuple(steps.tolist()), kept)


def exception_rows(exceptions: Mapping[int, int] | None) -> npt.NDArray[np.int32]:
    """Steps and their devices."""
    return np.array(sorted((exceptions or {}).items()), np.int32).reshape(-1, 2)
