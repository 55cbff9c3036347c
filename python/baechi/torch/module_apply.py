"""Running a model whose modules are on several devices, by hooks and a function mode.

Every module gets two hooks. The first one, on entering, says where the module runs and moves its
arguments there; the second takes that back. The outermost placed module of a thread also enters
the function mode of ``glue``, so that submodules may be called alone and a recomputation in one
of autograd's threads finds all it needs. Hooks hold no values and survive deepcopy and pickle.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence
from torch.optim import Optimizer
from torch.utils._pytree import tree_map_only

from baechi.errors import InputError
from baechi.torch.checkpointing import follow_checkpoints
from baechi.torch.frames import Frame, refuse_stale
from baechi.torch.operands import Moves, rebuilt, tensors_in
from baechi.torch.parameters import MovedWeights, move_back, move_weights, weight_devices
from baechi.torch.runtime import ModuleRuntime
from baechi.torch.streams import cross_copy

__all__ = [
    "AppliedModules",
    "add_hooks",
    "apply_modules",
    "device_at",
    "module_devices",
    "remove_hooks",
    "remove_modules",
]


@dataclasses.dataclass(frozen=True)
class AppliedModules:
    """What `remove_modules` needs; ``runtime`` is None for one device, which needs no hooks."""

    runtime: ModuleRuntime | None
    moved: MovedWeights


def apply_modules(
    model: nn.Module,
    device_of_module: Mapping[str, torch.device],
    *,
    optimizers: Sequence[Optimizer] = (),
    outputs: str = "where-computed",
) -> AppliedModules:
    """Moves the weights to the devices of their modules and lets the model run there.

    Args:
        model: it stays the same object, and so do its parameters and buffers.
        device_of_module: devices by module path, "" for all that have no longer prefix. A module
            that is at several paths has the device of the first; so have tied weights.
        optimizers: those whose state moves along.
        outputs: "where-computed", or "inputs" for the device of the first input tensor.
    """
    homes = module_devices(model, device_of_module)
    moved = move_weights(model, weight_devices(model, homes), optimizers=optimizers)
    return AppliedModules(add_hooks(model, device_of_module, outputs=outputs), moved)


def remove_modules(
    model: nn.Module, applied: AppliedModules, *, optimizers: Sequence[Optimizer] = ()
) -> None:
    """Takes the hooks off and moves the weights, as they are now, back to where they were."""
    remove_hooks(model)
    move_back(model, applied.moved, optimizers=optimizers)


def module_devices(
    model: nn.Module, device_of_module: Mapping[str, torch.device]
) -> dict[nn.Module, torch.device]:
    """The device of every module, by its first path."""
    return {module: device_at(path, device_of_module) for path, module in model.named_modules()}


def device_at(path: str, device_of_module: Mapping[str, torch.device]) -> torch.device:
    """The device of a module: that of the longest dotted prefix of its path; "" is the default."""
    prefix = path
    while prefix not in device_of_module:
        if not prefix:
            raise InputError(
                f'module "{path}" has no device', hint='give "" a device, as the default'
            )
        prefix = prefix.rpartition(".")[0]
    return device_of_module[prefix]


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
        frames = self.runtime.state.frames
        device = self.device
        if frames:
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
        state = self.runtime.state
        if state.stale:
            refuse_stale(state.stale, (args, kwargs), f'module "{self.path}"')
        moves = Moves(state.cache, device)
        args = tuple([_move_argument(value, moves, self.runtime) for value in args])
        if kwargs:
            kwargs = {
                key: _move_argument(value, moves, self.runtime) for key, value in kwargs.items()
            }
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
        frames = self.runtime.state.frames
        if not any(frame.module is module for frame in frames):
            return None
        if frames[-1].module is module and frames[-1].depth:
            frames[-1].depth -= 1
            return None
        if not self.runtime.pop(module):
            return None
        stale, self.runtime.state.stale = self.runtime.state.stale, {}
        if result is None:  # forward has raised, most likely: that error is the one to show
            return None
        if stale:
            living = (args, kwargs, result, [*module.parameters(), *module.buffers()])
            refuse_stale(stale, living, f'the caller of "{type(module).__name__}"')
        if self.runtime.outputs == "inputs":
            return _beside_inputs(args, kwargs, result)
        return None


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
) -> ModuleRuntime | None:
    """Lets the model run with its modules on these devices; None, and no hooks, for one device.

    The weights have to be there already. A module without children runs as a whole on its device.
    One with children does so if all modules in it that have weights or no children agree.
    """
    homes = _homes(model, device_of_module)
    devices = frozenset(at for places in homes.values() for at in places.inside)
    if len(devices) <= 1:
        return None
    runtime = ModuleRuntime(devices, outputs)
    follow_checkpoints()
    for module, places in homes.items():
        device = next(iter(places.inside)) if len(places.inside) == 1 else None
        module.register_forward_pre_hook(
            Enter(runtime, places.path, device, places.own), prepend=True, with_kwargs=True
        )
        module.register_forward_hook(Leave(runtime), with_kwargs=True, always_call=True)
    return runtime


@dataclasses.dataclass(frozen=True)
class _Places:
    """A module's path, its own device, and the devices of all that has weights or no children."""

    path: str
    own: torch.device
    inside: frozenset[torch.device]


def _homes(
    model: nn.Module, device_of_module: Mapping[str, torch.device]
) -> dict[nn.Module, _Places]:
    paths = {module: path for path, module in model.named_modules()}
    homes: dict[nn.Module, _Places] = {}

    def visit(module: nn.Module) -> frozenset[torch.device]:
        if module not in homes:
            inside = frozenset[torch.device]().union(*map(visit, module.children()))
            own = device_at(paths[module], device_of_module)
            if not inside or _has_weights(module):
                inside |= {own}
            homes[module] = _Places(paths[module], own, inside)
        return homes[module].inside

    visit(model)
    return homes


def remove_hooks(model: nn.Module) -> None:
    """Takes the hooks off; those of the user stay."""
    for module in model.modules():
        for hooks, kind, flags in (
            (module._forward_pre_hooks, Enter, (module._forward_pre_hooks_with_kwargs,)),
            (
                module._forward_hooks,
                Leave,
                (module._forward_hooks_with_kwargs, module._forward_hooks_always_called),
            ),
        ):
            for number in [number for number, hook in hooks.items() if isinstance(hook, kind)]:
                for flagged in (hooks, *flags):
                    flagged.pop(number, None)


def _has_weights(module: nn.Module) -> bool:
    weights = (*module._parameters.values(), *module._buffers.values())
    return any(weight is not None for weight in weights)
