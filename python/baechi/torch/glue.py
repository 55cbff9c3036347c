"""Which device runs a function call whose operands are on several devices.

Between the placed modules of a model there are functions: residual adds, concatenations, masks.
A function mode sees each call. Inside a module whose parts are all on one device it runs there.
In any other module it runs on the device that holds most bytes of its operands, where a copy made
earlier in the pass counts as held and the first operand wins a tie; a call that uses a weight of
the module itself runs where that weight is. Tensors of the host stay there while no operand of
the call is on a device of the plan, because code reads lengths and flags of them. A call that
changes an operand in place runs where that operand is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from baechi.torch.frames import ThreadState, lost_change, refuse_stale, remember_stale
from baechi.torch.operands import (
    Mixed,
    Moves,
    changed_operand,
    common_device,
    operand_on_host,
)
from baechi.torch.transfer_cache import version_of
from baechi.torch.trees import tensors_in

__all__ = ["GlueMode"]

# Calls that mix devices on purpose, and those that only ask about their operands.
_LEFT_ALONE = frozenset(
    (
        *("to", "copy_", "cpu", "cuda", "type_as", "set_", "swap_tensors", "backward", "grad"),
        *("numpy", "item", "tolist", "data_ptr", "untyped_storage", "get_device", "detach"),
        *("size", "dim", "numel", "stride", "is_contiguous", "element_size", "is_same_size"),
        *("is_floating_point", "is_complex", "result_type", "register_hook", "retain_grad"),
        *("requires_grad_", "__len__", "__get__", "__set__", "__delete__", "__repr__"),
        *("__format__", "__hash__", "__deepcopy__", "__reduce_ex__"),
    )
)


class GlueMode(TorchFunctionMode):
    """Runs every torch function of the thread that enters it on one device."""

    def __init__(self, runtime: Any, state: ThreadState, devices: frozenset[torch.device]) -> None:
        """Reads and writes the state of the thread; ``runtime`` is for who finds the mode."""
        super().__init__()
        self.runtime = runtime
        self._state = state
        self._devices = devices
        self._counts_versions = not torch.is_inference_mode_enabled()

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Runs a call at once if its operands are where it runs, else moves them first."""
        state = self._state
        if state.stale or not self._counts_versions:
            self._look_at_changes(func, args, kwargs or {})
        device = common_device(args, state.frames[-1].device)
        if kwargs:
            if device is not Mixed.MIXED:
                device = common_device(kwargs.values(), device)
            if device is not Mixed.MIXED:
                return func(*args, **kwargs)
            return self.run_aligned(func, args, kwargs)
        return func(*args) if device is not Mixed.MIXED else self.run_aligned(func, args, {})

    def run_aligned(
        self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Runs a call after its operands were moved to one device."""
        name = getattr(func, "__name__", "")
        if name in _LEFT_ALONE:
            return func(*args, **kwargs)
        position = operand_on_host(name, args)
        on_host = None
        if position is not None:
            on_host = args[position].cpu()
            args = (*args[:position], None, *args[position + 1 :])
        device = self._device_of_call(name, args, kwargs)
        made: list[tuple[Tensor, Tensor, int]] = []
        if device is not None:
            moves = Moves(self._state.cache, device)
            args, kwargs = moves.within(args), moves.within(kwargs)
            made = moves.made
        if position is not None:
            args = (*args[:position], on_host, *args[position + 1 :])
        result = func(*args, **kwargs)
        for _, copy, version in made:
            if version_of(copy) != version:
                raise lost_change(f'"{name}"', f'module "{self._state.frames[-1].path}"')
        return result

    def _device_of_call(
        self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> torch.device | None:
        """Where the call runs; None if its operands stay where they are."""
        target = changed_operand(name, args, kwargs)
        if target is not None:
            return target.device
        operands = list(tensors_in((args, kwargs)))
        if not any(value.device in self._devices for value in operands):
            return None
        frame = self._state.frames[-1]
        if frame.device is not None:
            return frame.device
        own = {id(weight) for weight in _own_weights(frame.module)}
        if any(id(value) in own for value in operands):
            return frame.own_device
        return self._majority(operands)

    def _majority(self, operands: Sequence[Tensor]) -> torch.device:
        held = {value.device: 0 for value in operands if value.device in self._devices}
        for value in operands:
            for device in held:
                if value.device == device or self._state.cache.holds(value, device):
                    held[device] += value.nbytes
        return max(held, key=held.__getitem__)  # the first of those that hold most

    def _look_at_changes(
        self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        state = self._state
        name = getattr(func, "__name__", "")
        if state.stale and name not in _LEFT_ALONE:
            refuse_stale(state.stale, (args, kwargs), f'"{name}"')
        if not self._counts_versions:  # changes of inference tensors are known by names only
            target = changed_operand(name, args, kwargs)
            if target is not None:
                storage = target.untyped_storage()._cdata
                for original in state.cache.originals_of(storage):
                    remember_stale(state, original, state.frames[-1].path)
                state.cache.drop_copies_of(storage)


def _own_weights(module: nn.Module) -> Iterator[Tensor]:
    for group in (module._parameters, module._buffers):
        for weight in group.values():
            if weight is not None:
                yield weight
