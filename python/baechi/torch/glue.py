"""Which device runs a function call whose operands are on several devices, and their moves.

Between the placed modules of a model there are functions: residual adds, concatenations, masks.
A function mode sees each call. Inside a module whose parts are all on one device it runs there.
In any other module it runs on the device that holds most bytes of its operands, where a copy made
earlier in the pass counts as held and the first operand wins a tie; a call that uses a weight of
the module itself runs where that weight is. Tensors of the host stay there while no operand of
the call is on a device of the plan, because code reads lengths and flags of them.

A call that changes its first operand in place runs where that operand is. A change in place of a
copy would be lost for whoever reads the original: that is found by versions and is an error.
"""

from __future__ import annotations

import enum
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from baechi.errors import PlacementError
from baechi.torch.transfer_cache import TransferCache, version_of

__all__ = ["Frame", "GlueMode", "Moves", "ThreadState", "tensors_in"]

# These mix devices on purpose, or only ask about their operands.
_LEFT_ALONE = frozenset(
    "to copy_ cpu cuda backward grad type_as set_ register_hook size dim numel stride item tolist"
    " is_contiguous element_size is_floating_point is_complex data_ptr untyped_storage detach"
    " requires_grad_ retain_grad __len__ __get__ __set__ __delete__ __repr__ __format__ __hash__"
    " __deepcopy__ __reduce_ex__ numpy is_same_size get_device swap_tensors result_type".split()
)
# Positions of operands that have to be on the host, whatever the device of the others.
_ON_HOST = {"_pack_padded_sequence": 1, "_pad_packed_sequence": 1, "tensor_split": 1}
_RECURRENT = frozenset(("lstm", "gru", "rnn_tanh", "rnn_relu"))
_CONTAINERS = (list, tuple)


class _Mixed(enum.Enum):
    MIXED = enum.auto()


_MIXED = _Mixed.MIXED


class Frame:
    """A placed module that is running on a thread; ``device`` is None where its parts differ."""

    __slots__ = ("depth", "device", "module", "moved", "own_device", "path")

    def __init__(
        self, module: nn.Module, path: str, device: torch.device | None, own_device: torch.device
    ) -> None:
        """Starts without moved arguments; ``depth`` counts calls of the module within itself."""
        self.depth = 0
        self.module = module
        self.path = path
        self.device = device
        self.own_device = own_device
        self.moved: list[tuple[Tensor, Tensor, int]] = []


class ThreadState(threading.local):
    """What one thread is running: frames, the copies of its pass, originals of changed copies."""

    def __init__(self) -> None:
        """Starts outside of any placed module."""
        self.frames: list[Frame] = []
        self.cache = TransferCache()
        self.mode: GlueMode | None = None
        self.key: tuple[str, bool, bool] | None = None
        self.stale: dict[int, tuple[weakref.ref[Any], str]] = {}


class Moves:
    """Moves the tensors in a value to a device and remembers each (original, copy, version)."""

    def __init__(self, cache: TransferCache, device: torch.device) -> None:
        """Starts without moves."""
        self._cache = cache
        self.device = device
        self.made: list[tuple[Tensor, Tensor, int]] = []

    def tensor(self, value: Tensor) -> Tensor:
        """The tensor on the device."""
        if value.device == self.device:
            return value
        copy = self._cache.fetch(value, self.device)
        self.made.append((value, copy, version_of(copy)))
        return copy

    def within(self, value: Any) -> Any:
        """The same nest of lists, tuples, dicts and slices with its tensors on the device."""
        if isinstance(value, Tensor):
            return self.tensor(value)
        if isinstance(value, tuple):
            inner = [self.within(item) for item in value]
            if all(new is old for new, old in zip(inner, value, strict=True)):
                return value
            return type(value)(*inner) if hasattr(value, "_fields") else type(value)(inner)
        if type(value) is list:
            return [self.within(item) for item in value]
        if type(value) is dict:
            return {key: self.within(item) for key, item in value.items()}
        if type(value) is slice:
            return slice(*(self.within(x) for x in (value.start, value.stop, value.step)))
        return value


def tensors_in(value: Any) -> Iterator[Tensor]:
    """The tensors in a nest of lists, tuples and dicts, in order."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, _CONTAINERS):
        for item in value:
            yield from tensors_in(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from tensors_in(item)
    elif type(value) is slice:
        yield from tensors_in((value.start, value.stop, value.step))


class GlueMode(TorchFunctionMode):
    """Runs every torch function of one thread on one device; see the head of this file."""

    def __init__(
        self, runtime: Any, state: ThreadState, devices: frozenset[torch.device]
    ) -> None:
        """Reads and writes the state of the thread that enters it."""
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
        device = _common_device(args, state.frames[-1].device)
        if kwargs:
            if device is not _MIXED:
                device = _common_device(kwargs.values(), device)
            return self._align(func, args, kwargs) if device is _MIXED else func(*args, **kwargs)
        return self._align(func, args, {}) if device is _MIXED else func(*args)

    def _align(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: Any) -> Any:
        name = getattr(func, "__name__", "")
        if name in _LEFT_ALONE:
            return func(*args, **kwargs)
        fixed = _host_position(name, args)
        if fixed is not None:
            on_host = args[fixed].cpu()
            args = (*args[:fixed], None, *args[fixed + 1 :])
        operands = list(tensors_in((args, kwargs)))
        device = self._device_of_call(name, args, kwargs, operands)
        made: list[tuple[Tensor, Tensor, int]] = []
        if device is not None:
            moves = Moves(self._state.cache, device)
            args, kwargs = moves.within(args), moves.within(kwargs)
            made = moves.made
        if fixed is not None:
            args = (*args[:fixed], on_host, *args[fixed + 1 :])
        result = func(*args, **kwargs)
        for _, copy, version in made:
            if version_of(copy) != version:
                raise _lost_change(f'"{name}"', self._state.frames[-1].path)
        return result

    def _device_of_call(
        self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], operands: list[Tensor]
    ) -> torch.device | None:
        """Where the call runs; None if its operands stay where they are."""
        target = _changed_operand(name, args, kwargs)
        if target is not None:
            return target.device
        if not any(value.device in self._devices for value in operands):
            return None
        frame = self._state.frames[-1]
        if frame.device is not None:
            return frame.device
        own = {id(weight) for weight in _own_weights(frame.module)}
        if any(id(value) in own for value in operands):
            return frame.own_device
        return self._majority(operands)

    def _majority(self, operands: list[Tensor]) -> torch.device:
        held: dict[torch.device, int] = {}
        for value in operands:
            if value.device in self._devices:
                held.setdefault(value.device, 0)
        for value in operands:
            for device in held:
                if value.device == device or self._state.cache.holds(value, device):
                    held[device] += value.nbytes
        return max(held, key=held.__getitem__)

    def _look_at_changes(self, func: Callable[..., Any], args: Any, kwargs: Any) -> None:
        name = getattr(func, "__name__", "")
        if self._state.stale and name not in _LEFT_ALONE:
            refuse_stale(self._state.stale, (args, kwargs), f'"{name}"')
        if not self._counts_versions:  # changes of inference tensors are known by names only
            target = _changed_operand(name, args, kwargs)
            if target is not None:
                storage = target.untyped_storage()._cdata
                for original in self._state.cache.originals_of(storage):
                    _remember_stale(self._state, original, self._state.frames[-1].path)
                self._state.cache.drop_copies_of(storage)


def _common_device(
    values: Iterable[Any], device: torch.device | None
) -> torch.device | _Mixed | None:
    """The one device of the tensors and of ``device``, None without any, else ``_MIXED``."""
    common: torch.device | _Mixed | None = device
    for value in values:
        if isinstance(value, Tensor):
            found = value.device
            if common is None:
                common = found
            elif found != common:
                return _MIXED
        elif isinstance(value, _CONTAINERS) and value:
            common = _common_device(value, common)
            if common is _MIXED:
                return _MIXED
    return common


def mark_stale(state: ThreadState, frame: Frame) -> None:
    """Remembers the originals whose copies the frame's module has changed in place."""
    for original, copy, version in frame.moved:
        if version_of(copy) != version:
            _remember_stale(state, original, frame.path)


def _remember_stale(state: ThreadState, original: Tensor, path: str) -> None:
    storage = original.untyped_storage()
    state.stale[storage._cdata] = weakref.ref(storage), path


def refuse_stale(
    stale: dict[int, tuple[weakref.ref[Any], str]], values: Any, reader: str
) -> None:
    """Raises if one of the tensors should have been changed with its copy."""
    for value in tensors_in(values):
        entry = stale.get(value.untyped_storage()._cdata)
        if entry is not None and entry[0]() is not None:
            raise _lost_change(f'module "{entry[1]}"', reader)


def _lost_change(changer: str, reader: str) -> PlacementError:
    return PlacementError(
        f"{changer} changes an input in place that came from another device, and {reader} would"
        " read the value from before",
        hint="put the two on one device (a pin), or use the op that is not in place",
    )


def _host_position(name: str, args: tuple[Any, ...]) -> int | None:
    position = _ON_HOST.get(name)
    # Of the two overloads of a recurrent layer, the packed one has batch sizes, which are integers.
    if position is None and name in _RECURRENT:
        position = 1
    if position is None or len(args) <= position or not isinstance(args[position], Tensor):
        return None
    return None if args[position].is_floating_point() else position


def _changed_operand(
    name: str, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Tensor | None:
    out = kwargs.get("out")
    if out is not None:
        return next(tensors_in(out), None)
    first = args[0] if args else None
    is_method = name.endswith("_") and not name.endswith("__")
    is_operator = name == "__setitem__" or (name.startswith("__i") and name not in _NOT_IN_PLACE)
    if isinstance(first, Tensor) and (is_method or is_operator or kwargs.get("inplace")):
        return first
    return None


_NOT_IN_PLACE = frozenset(("__index__", "__int__", "__invert__", "__iter__"))


def _own_weights(module: nn.Module) -> Iterator[Tensor]:
    for group in (module._parameters, module._buffers):
        for weight in group.values():
            if weight is not None:
                yield weight
