"""Where steps and weights go when units are placed: slow and literal, to compare with the core."""

from collections.abc import Callable, Mapping, Sequence

from baechi.torch.memory import HOST
from baechi.torch.modules import Layout, Units
from baechi.torch.trace import Trace

UNKNOWN = -2  # no device yet


def lay_out(
    trace: Trace,
    units: Units,
    device_of_unit: Sequence[int],
    exceptions: Mapping[int, int] | None = None,
) -> Layout:
    """Where every step and weight goes when the units are placed.

    Args:
        trace: one step of the model.
        units: its units.
        device_of_unit: device index of each unit.
        exceptions: device index of single steps that go elsewhere than the rules say.
    """
    exceptions = exceptions or {}
    devices = [UNKNOWN] * len(trace.steps)
    homes = {storage: device_of_unit[unit] for storage, unit in units.of_storage.items()}
    values = trace.values

    def home(value: int) -> int:
        one = values[value]
        return devices[one.step] if one.step >= 0 else homes.get(one.storage, HOST)

    for at, unit in enumerate(units.of_step):
        if at in exceptions:
            devices[at] = exceptions[at]
        elif unit >= 0:
            devices[at] = device_of_unit[unit]
    copied: set[tuple[int, int]] = set()  # (value, device)

    def settle(at: int, device: int) -> None:
        """Tied glue goes together, where the first of it went."""
        devices[at] = device
        anchor = units.tied_glue.get(at, at)
        for step in (anchor, *(one for one, to in units.tied_glue.items() if to == anchor)):
            if devices[step] == UNKNOWN:
                devices[step] = device

    for at, step in enumerate(trace.steps):
        if devices[at] == UNKNOWN:
            anchor = units.tied_glue.get(at, -1)
            if anchor >= 0 and devices[anchor] >= 0:
                settle(at, devices[anchor])
            else:
                inside = {device_of_unit[unit] for unit in units.inside[step.path]}
                held = {home(v): (0, 0) for v in step.reads if home(v) >= 0}
                for v in step.reads:
                    for device, (nbytes, count) in list(held.items()):
                        if device == home(v) or (v, device) in copied:
                            held[device] = nbytes + values[v].nbytes, count + 1
                most = max(held, key=held.__getitem__) if held else UNKNOWN
                settle(at, inside.pop() if len(inside) == 1 else most)
        if devices[at] >= 0:
            copied.update(
                (v, devices[at]) for v in step.reads if home(v) not in (devices[at], UNKNOWN)
            )
    _adopt_from_readers(trace, devices, settle)
    _place_constants(trace, devices, homes)
    return Layout(tuple(devices), homes)


def _adopt_from_readers(
    trace: Trace, devices: list[int], settle: Callable[[int, int], None]
) -> None:
    """Ops that read nothing from a device go to their first reader's, else to the next op's."""
    readers: dict[int, int] = {}
    for at, step in enumerate(trace.steps):
        for value in step.reads:
            readers.setdefault(value, at)
    for at in range(len(devices) - 1, -1, -1):
        if devices[at] == UNKNOWN:
            following = at + 1 if at + 1 < len(devices) else -1
            first = min(
                (readers[v] for v in trace.steps[at].makes if v in readers), default=following
            )
            settle(at, devices[first] if first >= 0 else UNKNOWN)
    known = next((device for device in reversed(devices) if device >= 0), 0)
    for at in range(len(devices) - 1, -1, -1):
        known = devices[at] = devices[at] if devices[at] >= 0 else known


def _place_constants(trace: Trace, devices: Sequence[int], homes: dict[int, int]) -> None:
    """Weights that no module owns (constants) are kept by their first reader."""
    for at, step in enumerate(trace.steps):
        for value in step.reads:
            storage = trace.values[value].storage
            if trace.storages[storage].kind == "constant":
                homes.setdefault(storage, devices[at])
    for number, one in enumerate(trace.storages):
        if one.kind not in ("made", "input"):
            homes.setdefault(number, 0)
