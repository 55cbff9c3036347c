"""Compiled modules: modules that run on one device, with a compiled forward in place of theirs.

The forward is an attribute of the module, so that hooks, the user's and ours, are called as
before, outside of what is compiled. It survives deepcopy and pickle.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import _get_current_function_mode_stack, _pop_mode_temporarily

from baechi.torch.compiling import Compiling
from baechi.torch.glue import GlueMode
from baechi.torch.module_homes import places_of_modules
from baechi.torch.operands import Moves
from baechi.torch.runtime import ModuleRuntime
from baechi.torch.transfer_cache import version_of
from baechi.torch.trees import tensors_in

__all__ = ["CompiledForward", "add_forwards", "detached_forwards", "remove_forwards"]


class CompiledForward:
    """The forward of a module all on one device, compiled at the first call that can be."""

    def __init__(
        self,
        module: nn.Module,
        forward: Callable[..., Any],
        device: torch.device,
        compiling: Compiling,
        runtime: ModuleRuntime,
    ) -> None:
        """Takes forward as the function of the class."""
        self._module, self._forward, self._runtime = module, forward, runtime
        self._device, self._compiling = device, compiling
        self._part: Callable[..., Any] | None = None

    def __getstate__(self) -> dict[str, Any]:
        """All but the compiled code."""
        return {**self.__dict__, "_part": None}

    @property
    def __wrapped__(self) -> Callable[..., Any]:
        """The module's own forward, for who asks for its signature."""
        return MethodType(self._forward, self._module)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the compiled forward if all it is given can be on its device, else the plain one."""
        if torch.compiler.is_compiling():  # within a larger part
            return self._forward(self._module, *args, **kwargs)
        state = self._runtime.state
        if state.frames:
            state.frames[-1].unread.clear()  # no mode sees what compiled code reads
        moves = Moves(state.cache, self._device)
        here = tuple([_on_device(value, moves) for value in args])
        named = {name: _on_device(value, moves) for name, value in kwargs.items()}
        reason = self._reason_against((here, named))
        if reason:
            self._compiling.note(reason)
            return self._forward(self._module, *args, **kwargs)
        if self._part is None:
            function = _with_own_code(self._forward, self._module)
            self._part = self._compiling.part(function, self._compile_children)
        with _without_glue():
            result = self._part(*here, **named)
        for original, copy, version in moves.made:
            if version_of(copy) != version:
                original.copy_(copy)
        return result

    def _compile_children(self) -> None:
        def forward_of(module: nn.Module) -> CompiledForward:
            forward = type(module).forward
            return CompiledForward(module, forward, self._device, self._compiling, self._runtime)

        _add_below(self._module, lambda module: True, forward_of)

    def _reason_against(self, values: Any) -> str:
        if any(value.device != self._device for value in tensors_in(values)):
            return "a module is given a list or dict with tensors of another device"
        if any(isinstance(mode, GlueMode) for mode in _function_modes()[:-1]):
            return "a function mode of another's is active within the model"
        return ""


def _on_device(value: Any, moves: Moves) -> Any:
    # What is not a number comes from the host here: without the compiler, glue would move it.
    return moves.tensor(value) if isinstance(value, Tensor) else value


def _with_own_code(forward: Callable[..., Any], module: nn.Module) -> Callable[..., Any]:
    """Torch keeps a few compilations for each code object, which modules of a class share."""

    def call(*args: Any, **kwargs: Any) -> Any:
        return forward(module, *args, **kwargs)

    call.__code__ = call.__code__.replace(co_name="compiled")
    return call


def _function_modes() -> list[Any]:
    modes: list[Any] = _get_current_function_mode_stack()  # type: ignore[no-untyped-call]
    return modes


@contextmanager
def _without_glue() -> Iterator[None]:
    """All on one device needs no glue, which the compiler would read as a part of the model."""
    modes = _function_modes()
    with ExitStack() as stack:
        if modes and isinstance(modes[-1], GlueMode):
            stack.enter_context(_pop_mode_temporarily())
        yield


def add_forwards(
    model: nn.Module,
    device_of_module: Mapping[str, torch.device],
    compiling: Compiling,
    runtime: ModuleRuntime,
) -> None:
    """Gives the largest modules on one device a compiled forward; not the model itself.

    Single layers of PyTorch stay as they are, and modules whose forward somebody has replaced.
    """
    places = places_of_modules(model, device_of_module)

    def forward_of(module: nn.Module) -> CompiledForward:
        device = places[module].only
        assert device is not None
        return CompiledForward(module, type(module).forward, device, compiling, runtime)

    _add_below(model, lambda module: places[module].only is not None, forward_of)


def _add_below(
    model: nn.Module,
    is_whole: Callable[[nn.Module], bool],
    forward_of: Callable[[nn.Module], CompiledForward],
) -> None:
    waiting = list(model.children())
    met: set[nn.Module] = set(waiting)
    while waiting:
        module = waiting.pop()
        is_container = type(module).forward is nn.Module.forward
        if is_container or not is_whole(module):
            inner = [child for child in module.children() if child not in met]
            met.update(inner)
            waiting += inner
        elif "forward" not in vars(module) and not _is_layer(module):
            vars(module)["forward"] = forward_of(module)


def _is_layer(module: nn.Module) -> bool:
    is_torch_s = type(module).__module__.startswith("torch.nn.")
    return is_torch_s and next(module.children(), None) is None


def remove_forwards(model: nn.Module) -> list[tuple[nn.Module, CompiledForward]]:
    """Gives modules their own forward back; returns what was taken off."""
    found = [(module, vars(module).get("forward")) for module in model.modules()]
    taken = [(module, held) for module, held in found if isinstance(held, CompiledForward)]
    for module, _ in taken:
        del vars(module)["forward"]
    return taken


@contextmanager
def detached_forwards(model: nn.Module) -> Iterator[None]:
    """The model with its own forwards for a while."""
    taken = remove_forwards(model)
    try:
        yield
    finally:
        for module, held in taken:
            vars(module)["forward"] = held
