"""The call of one op on simulated devices: its plain arguments, its device, what it writes."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from baechi.torch.simdev_books import HOST, name_of_index
from baechi.torch.simdev_tensor import SimTensor

if TYPE_CHECKING:
    from baechi.torch.simdev_ops import Simulation

__all__ = ["Call", "at_rows", "common_index", "is_list_op", "run_lists", "traits_of"]


class Call:
    """The arguments of one op with plain tensors in place of the simulated ones."""

    __slots__ = ("args", "hosts", "kwargs", "seen")

    def __init__(
        self, simulation: Simulation, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        """Takes the arguments apart; ``seen`` are the simulated tensors, ``hosts`` the others."""
        self.seen: list[SimTensor] = []
        self.hosts: list[torch.Tensor] = []
        self.args = tuple(self._strip(simulation, func, value) for value in args)
        self.kwargs = {name: self._strip(simulation, func, value) for name, value in kwargs.items()}

    def _strip(self, simulation: Simulation, func: Any, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            if isinstance(value, SimTensor):
                if value._simulation is not simulation:
                    raise RuntimeError(f"{func}: a tensor of simulated devices that are gone")
                self.seen.append(value)
                return value._inner
            self.hosts.append(value)
            return value.to("meta") if simulation.dry else value
        if isinstance(value, list | tuple) and value and not isinstance(value[0], int | float):
            return [self._strip(simulation, func, item) for item in value]
        return value


def common_index(func: Any, call: Call) -> int:
    """The device of all operands; numbers in tensors without dimensions may be on the host."""
    index = call.seen[0]._index
    for tensor in call.seen:
        if tensor._index != index:
            raise _mismatch(func, index, tensor._index)
    for host in call.hosts:
        if host.dim() > 0:
            raise _mismatch(func, index, HOST)
    return index


def _mismatch(func: Any, first: int, second: int) -> RuntimeError:
    names = f"{name_of_index(first)} and {name_of_index(second)}"
    return RuntimeError(
        "Expected all tensors to be on the same device, but found at least two devices, "
        f"{names}! (in {func})"
    )


@functools.cache
def is_list_op(func: Any) -> bool:
    """Whether an op does the same for every position of its lists, as foreach optimizers do."""
    return any(name in func._schema.name for name in ("_foreach_", "_fused_", "_amp_foreach_"))


def at_rows(value: Any, rows: Sequence[int], num_rows: int) -> Any:
    """The part of an argument that has a value for each position; others as they are."""
    is_list = isinstance(value, list | tuple) and len(value) == num_rows
    return [value[row] for row in rows] if is_list else value


def run_lists(simulation: Simulation, func: Any, call: Call, num_rows: int) -> Any:
    """Runs a list op; without values position by position: lists have more forms than tensors."""
    if not simulation.dry or len(func._schema.returns) > 1:
        return simulation.kernel(func, call.args, call.kwargs)
    parts = [
        simulation.kernel(
            func,
            [at_rows(value, [row], num_rows) for value in call.args],
            {name: at_rows(value, [row], num_rows) for name, value in call.kwargs.items()},
        )
        for row in range(num_rows)
    ]
    return None if parts[0] is None else [part[0] for part in parts]


@functools.cache
def traits_of(func: Any) -> tuple[bool, bool, str]:
    """Whether an op may change shapes in place, is a view, and which tensors it writes."""
    arguments = func._schema.arguments
    writing = [a for a in arguments if a.alias_info is not None and a.alias_info.is_write]
    name = func._schema.name
    changes_shape = (
        torch.Tag.inplace_view in func.tags
        or any(argument.is_out for argument in arguments)
        or any(word in name for word in ("resize_", "set_"))
    )
    is_view = not writing and any(a.alias_info is not None for a in arguments)
    if not writing:
        return changes_shape, is_view, "none"
    first = len(writing) == 1 and writing[0] is arguments[0] and "List" not in str(writing[0].type)
    return changes_shape, is_view, "first" if first else "all"
