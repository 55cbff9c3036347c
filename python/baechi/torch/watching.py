"""Calls of a placed model that show something, or that follow what an earlier pass has shown.

`lessons` says what that is. All other calls, which are most, do not come here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from baechi.torch.frames import Frame, ThreadState
from baechi.torch.lessons import asks_only, read_by
from baechi.torch.operands import changed_operand
from baechi.torch.trees import tensors_in

__all__ = ["is_watched", "watched"]

# Numbers drawn elsewhere would be other numbers.
_RANDOM = frozenset(("rand", "randn", "randint", "randperm", "normal", "bernoulli"))


def is_watched(state: ThreadState, frame: Frame) -> bool:
    """Whether any call in a frame may show something or has to follow it."""
    if frame.device is None:
        return bool(state.notes.loose)
    return bool(frame.unread) or frame.has_left


def watched(
    mode: Any, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Runs a call; ``mode`` is the `glue.GlueMode` that has seen it."""
    frame = mode.state.frames[-1]
    name = getattr(func, "__name__", "")
    wanted = _device_named(kwargs)
    if wanted in mode.devices and next(tensors_in((args, kwargs)), None) is None:
        return _made(mode, func, name, args, kwargs)
    if frame.device is not None:
        return _inside(mode, func, name, args, kwargs)
    result = mode.run(func, args, kwargs)
    if mode.state.notes.loose and not asks_only(name, result):
        _look_for_readers(mode, name, args, kwargs, result)
    return result


def _device_named(kwargs: dict[str, Any]) -> torch.device | None:
    device = kwargs.get("device")
    return torch.device(device) if isinstance(device, str) else device


def _made(
    mode: Any, func: Callable[..., Any], name: str, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """A call that makes a value of nothing: where it is first read, or where its module is."""
    frame, notes = mode.state.frames[-1], mode.state.notes
    if frame.device is not None:
        return func(*args, **{**kwargs, "device": frame.device})
    if name in _RANDOM or kwargs.get("requires_grad"):
        return func(*args, **kwargs)
    key, device = notes.factory(frame.path, name)
    result = func(*args, **(kwargs if device is None else {**kwargs, "device": device}))
    if key is not None:
        notes.made(tensors_in(result), key)
    return result


def _inside(
    mode: Any, func: Callable[..., Any], name: str, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """A call in a module that runs on one device as a whole."""
    frame = mode.state.frames[-1]
    if frame.has_left and name == "to":  # the device may be that of an argument left elsewhere
        here = frame.device
        args = tuple([here if _is_of(mode, value) else value for value in args])
        kwargs = {key: here if _is_of(mode, value) else value for key, value in kwargs.items()}
    result = mode.run(func, args, kwargs)
    if frame.unread and not asks_only(name, result):
        for value in tensors_in((read_by(name, args), kwargs)):
            frame.unread.pop(id(value), None)
    return result


def _is_of(mode: Any, value: Any) -> bool:
    return isinstance(value, torch.device) and value in mode.devices


def _look_for_readers(
    mode: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any
) -> None:
    """Notes which values made of nothing a call has read, or that it made more of them."""
    notes = mode.state.notes
    operands = list(tensors_in((read_by(name, args), kwargs)))
    here: list[Tensor] = [value for value in operands if value.device in mode.devices]
    loose = [value for value in here if notes.is_loose(value)]
    if not loose:
        return
    results = list(tensors_in(result))
    if len(loose) == len(here) and not notes.paused:
        notes.derived(results, loose)
        return
    target = changed_operand(name, args, kwargs)
    if target is not None and any(target is value for value in loose):
        notes.read(loose, mode.majority(operands))
        notes.settle(target)
    elif results:
        notes.read(loose, results[0].device)
