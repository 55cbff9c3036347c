"""Hook copies: a model's hooks for a copy of it, which leave alone what the user's hooks hold.

A function that closes over a list, or that counts in a global of its file, gets copies of these.
Modules among them become those of the model's copy, and tensors what the copy's tensors are.
"""

from __future__ import annotations

import copy
import dis
import functools
import sysconfig
import types
from collections.abc import Callable, Iterator
from typing import Any

import torch

__all__ = ["CannotRunHookError", "Tolerant", "copy_of_hook"]

_LIBRARIES = tuple(sysconfig.get_paths()[name] for name in ("stdlib", "purelib", "platlib"))
_GLOBALS = ("LOAD_GLOBAL", "STORE_GLOBAL", "DELETE_GLOBAL", "LOAD_NAME")
_WRITERS = {"open", "save", "savez", "dump", "write", "write_bytes", "write_text"}


class CannotRunHookError(Exception):
    """A hook whose copy would still change what the user holds."""


class Tolerant:
    """A hook that is left out from its first failure on, which `failure` tells.

    Hooks may ask for numbers, or for a device, that a run without them does not have.
    """

    def __init__(self, hook: Callable[..., Any] | None, failure: str = "") -> None:
        """The hook is a copy, so that half a run of it does no harm; None with a failure."""
        self.hook, self.failure = hook, failure

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """What the hook returns, or None if it fails or has failed."""
        if self.hook is None or self.failure:
            return None
        try:
            return self.hook(*args, **kwargs)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:  # whatever a user's hook may raise
            lines = str(error).strip().splitlines() or [""]
            self.failure = f"{type(error).__name__}: {lines[0]}"
            return None


def copy_of_hook(hook: Any, memo: dict[int, Any]) -> Any:
    """A copy of a hook with all that it may change.

    Args:
        hook: a function, a method, a partial or an object that can be called.
        memo: that of the `copy.deepcopy` of the model.

    Raises:
        CannotRunHookError: something cannot be copied, or the hook's code writes files.
    """
    tried = dict(memo)  # what fails leaves half-made copies in it
    try:
        copied = _copied(hook, tried)
    except CannotRunHookError:
        raise
    except Exception as error:  # whatever an object's __deepcopy__ may raise
        raise CannotRunHookError(f"what it holds cannot be copied: {error}") from error
    memo.update(tried)
    return copied


def _copied(value: Any, memo: dict[int, Any]) -> Any:
    if isinstance(value, types.FunctionType):
        return _copied_function(value, memo)
    if isinstance(value, types.MethodType):
        return types.MethodType(_copied(value.__func__, memo), _copied(value.__self__, memo))
    if isinstance(value, functools.partial):
        given = [_copied(argument, memo) for argument in value.args]
        named = {name: _copied(argument, memo) for name, argument in value.keywords.items()}
        return functools.partial(_copied(value.func, memo), *given, **named)
    if isinstance(value, types.ModuleType | types.BuiltinFunctionType | type):
        return value
    return copy.deepcopy(value, memo)


def _copied_function(function: types.FunctionType, memo: dict[int, Any]) -> types.FunctionType:
    if id(function) in memo:
        found: types.FunctionType = memo[id(function)]
        return found
    code, scope, is_users = function.__code__, function.__globals__, not _is_librarys(function)
    if not is_users and not function.__closure__:
        return function
    if is_users:
        writer = next((name for name in _names_in(code) if name in _WRITERS), None)
        if writer is not None:
            raise CannotRunHookError(f'it calls "{writer}", which may write a file')
        scope = memo.setdefault(id(scope), dict(scope))
    cells = tuple(
        memo.setdefault(id(cell), types.CellType()) for cell in function.__closure__ or ()
    )
    made = types.FunctionType(code, scope, function.__name__, function.__defaults__, cells)
    made.__module__, made.__qualname__ = function.__module__, function.__qualname__
    made.__dict__.update(function.__dict__)
    memo[id(function)] = made  # it may be found again in what it holds
    try:
        made.__defaults__ = copy.deepcopy(function.__defaults__, memo)
        made.__kwdefaults__ = copy.deepcopy(function.__kwdefaults__, memo)
        for cell, copied in zip(function.__closure__ or (), cells, strict=True):
            if _is_filled(cell) and not _is_filled(copied):  # another hook may share it
                copied.cell_contents = _copied(cell.cell_contents, memo)
        if is_users:
            _copy_globals(code, function.__globals__, scope, memo)
    except BaseException:
        del memo[id(function)]
        raise
    return made


def _is_filled(cell: types.CellType) -> bool:
    """Whether the variable has a value."""
    return cell != types.CellType()


def _copy_globals(
    code: types.CodeType, old: dict[str, Any], new: dict[str, Any], memo: dict[int, Any]
) -> None:
    """Gives a copied function its own of the globals that its code names."""
    for name in _names_in(code):
        if name in old and new[name] is old[name] and not _is_librarys(old[name]):
            new[name] = _copied(old[name], memo)


def _is_librarys(value: Any) -> bool:
    code = getattr(value, "__code__", None)
    return code is not None and code.co_filename.startswith(_LIBRARIES)


def _names_in(code: types.CodeType) -> Iterator[str]:
    """Names of globals, and of attributes that are called, also in functions that it makes."""
    for instruction in dis.get_instructions(code):
        if instruction.opname in _GLOBALS or instruction.opname in ("LOAD_METHOD", "LOAD_ATTR"):
            yield instruction.argval
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names_in(constant)
