"""Hooks that run the modules of a model on their devices.

Every module gets two. The first one, on entering, says where the module runs and moves its
arguments there; the second takes that back. The outermost placed module of a thread also enters
the function mode of ``glue``, so that submodules may be called alone and a recomputation in one
of autograd's threads finds all it needs. Hooks hold no values and survive deepcopy and pickle.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence
from torch.utils._pytree import tree_map_only

from baechi.torch.checkpointing import follow_checkpoints
from baechi.torch.compiling import is_compiling_part, outside
from baechi.torch.custom_functions import follow_custom_functions
from baechi.torch.frames import Frame, refuse_stale
from baechi.torch.module_homes import places_of_modules
from baechi.torch.operands import Moves, rebuilt
from baechi.torch.runtime import ModuleRuntime
from baechi.torch.streams import cross_copy
from baechi.torch.trees import tensors_in

__all__ = [
    "Enter",
    "add_hooks",
    "detached_hooks",
    "finish_outputs",
    "finish_pass",
    "move_arguments",
    "remove_hooks",
]


class Enter:
    """The hook before a module's forward. A frame on the thread already at its device is enough.

    ``device`` is where the whole module runs, None where its parts are on several devices.
    """

    def __init__(
        self,
        runtime: ModuleRuntime,
        path: str,
        device: torch.device | None,
        own_device: torch.device,
    ) -> None:
        """Remembers where the module is."""
        self.runtime = runtime
        self.path = path
        self.device = device
        self.own_device = own_device

    def __call__(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        """Pushes a frame and moves the arguments to the module's device."""
        if torch.compiler.is_compiling():
            # Within a part all is on one device; what others compile goes on around the hook.
            return None if is_compiling_part() else outside(self._enter)(module, args, kwargs)
        return self._enter(module, args, kwargs)

    def _enter(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        frames = self.runtime.state.frames
        device = self.device
        if frames:
            if isinstance(module, _PASSING) and _passes_on(module):
                return None
            top = frames[-1]
            if top.module is module:
                top.depth += 1
                return None
            if device is not None and top.device == device:
                return None
        frame = Frame(module, self.path, device, self.own_device)
        self.runtime.push(frame)
        if device is None:
            return None
        return move_arguments(self.runtime, frame, args, kwargs)


# Where these do nothing they are nowhere: a graph has no op for them either.
_PASSING = (nn.Identity, nn.modules.dropout._DropoutNd)


def _passes_on(module: nn.Module) -> bool:
    """Whether a module of those kinds returns its input as it is."""
    return not module.training or getattr(module, "p", 0) == 0


def move_arguments(
    runtime: ModuleRuntime, frame: Frame, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments on the device of the frame's module, which remembers their originals."""
    state = runtime.state
    if state.stale:
        refuse_stale(state.stale, (args, kwargs), f'module "{frame.path}"')
    assert frame.device is not None
    moves = Moves(state.cache, frame.device)
    args = tuple([_move_argument(value, moves, runtime) for value in args])
    if kwargs:
        kwargs = {key: _move_argument(value, moves, runtime) for key, value in kwargs.items()}
    frame.moved = moves.made
    return args, kwargs


class Leave:
    """The hook after a module's forward, which also runs if that raises."""

    def __init__(self, runtime: ModuleRuntime) -> None:
        """Remembers whose frames to leave."""
        self.runtime = runtime

    def __call__(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any
    ) -> Any:
        """Pops the module's frame, if it has one."""
        if torch.compiler.is_compiling():
            if is_compiling_part():
                return None
            return outside(self._leave)(module, args, kwargs, result)
        return self._leave(module, args, kwargs, result)

    def _leave(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any
    ) -> Any:
        frames = self.runtime.state.frames
        if not any(frame.module is module for frame in frames):
            return None
        if frames[-1].module is module and frames[-1].depth:
            frames[-1].depth -= 1
            return None
        return finish_pass(self.runtime, module, args, kwargs, result)


def finish_pass(
    runtime: ModuleRuntime,
    module: nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    result: Any,
) -> Any:
    """Leaves a module; after the outermost one, checks and moves what outlives the pass."""
    if not runtime.pop(module):
        return result
    stale, runtime.state.stale = runtime.state.stale, {}
    if result is None:  # forward has raised, most likely: that error is the one to show
        return None
    if stale:
        living = (args, kwargs, result, [*module.parameters(), *module.buffers()])
        refuse_stale(stale, living, f'the caller of "{type(module).__name__}"')
    return finish_outputs(runtime, args, kwargs, result)


def finish_outputs(
    runtime: ModuleRuntime, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any
) -> Any:
    """The outputs where they are wanted."""
    return _beside_inputs(args, kwargs, result) if runtime.outputs == "inputs" else result


def _beside_inputs(args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> Any:
    """The outputs on the device of the first tensor among the inputs."""
    first = next(tensors_in((args, kwargs)), None)
    return (
        result
        if first is None
        else tree_map_only(Tensor, lambda value: cross_copy(value, first.device), result)
    )


def _move_argument(value: Any, moves: Moves, runtime: ModuleRuntime) -> Any:
    """The argument on the module's device.

    Lists, dicts and objects stay themselves, because the module may change them: what they hold
    is moved when a function uses it. So are integers of the host, which may be lengths that have
    to stay there.
    """
    if isinstance(value, Tensor):
        is_number = value.is_floating_point() or value.is_complex()
        return moves.tensor(value) if is_number or value.device in runtime.devices else value
    if isinstance(value, PackedSequence):
        order = (value.sorted_indices, value.unsorted_indices)
        return PackedSequence(
            moves.tensor(value.data),
            value.batch_sizes,
            *(None if index is None else moves.tensor(index) for index in order),
        )
    if isinstance(value, tuple) and value:
        return rebuilt(value, [_move_argument(item, moves, runtime) for item in value])
    if dataclasses.is_dataclass(value) and type(value).__hash__ is not None:  # a frozen one
        instance: Any = value
        fields = {x.name: getattr(value, x.name) for x in dataclasses.fields(instance) if x.init}
        moved = {key: _move_argument(item, moves, runtime) for key, item in fields.items()}
        changed = {key: item for key, item in moved.items() if item is not fields[key]}
        return dataclasses.replace(instance, **changed) if changed else value
    return value


def add_hooks(
    model: nn.Module,
    device_of_module: Mapping[str, torch.device],
    *,
    outputs: str = "where-computed",
    with_root: bool = True,
) -> ModuleRuntime:
    """Lets the model run with its modules on these devices; one device needs no hooks.

    The weights have to be there already. A module without children runs as a whole on its device.
    One with children does so if all modules in it that have weights or no children agree.

    Args:
        model: gets the hooks.
        device_of_module: devices by module path; the longest prefix decides.
        outputs: "where-computed" or "inputs".
        with_root: whether the model itself gets hooks as well as its submodules.
    """
    all_places = places_of_modules(model, device_of_module)
    devices = frozenset(at for places in all_places.values() for at in places.inside)
    runtime = ModuleRuntime(devices, outputs)
    if len(devices) == 1:
        return runtime
    follow_checkpoints()
    follow_custom_functions()
    for module, places in all_places.items():
        if module is model and not with_root:
            continue
        module.register_forward_pre_hook(
            Enter(runtime, places.path, places.only, places.own), prepend=True, with_kwargs=True
        )
        module.register_forward_hook(Leave(runtime), with_kwargs=True, always_call=True)
    return runtime


def remove_hooks(model: nn.Module) -> None:
    """Takes the hooks off; those of the user stay."""
    for module in model.modules():
        for table, ours in _hooks_of(module):
            for number in ours:
                table.pop(number)


@contextmanager
def detached_hooks(model: nn.Module) -> Iterator[None]:
    """The model without our hooks for a while; they come back to where they were."""
    before = [(table, dict(table)) for x in model.modules() for table, ours in _hooks_of(x) if ours]
    remove_hooks(model)
    try:
        yield
    finally:
        for table, items in before:
            table.clear()
            table.update(items)


def _hooks_of(module: nn.Module) -> list[tuple[dict[int, Any], list[int]]]:
    """The tables of a module that know of hooks, each with the numbers of ours in it."""
    before, after = module._forward_pre_hooks, module._forward_hooks
    entering = [number for number, hook in before.items() if isinstance(hook, Enter)]
    leaving = [number for number, hook in after.items() if isinstance(hook, Leave)]
    tables: list[tuple[dict[int, Any], list[int]]] = [
        (before, entering),
        (module._forward_pre_hooks_with_kwargs, entering),
        (after, leaving),
        (module._forward_hooks_with_kwargs, leaving),
        (module._forward_hooks_always_called, leaving),
    ]
    return tables
