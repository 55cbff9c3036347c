"""Moving the weights of a model to their devices, and back, without changing their identity.

Parameters and buffers keep being the same objects (`torch.utils.swap_tensors`), so an optimizer
made before goes on working; its state moves with them if it is given. Tensors that share memory
share it afterwards as well. Gradients, hooks and attributes of tensors come along.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from baechi.errors import InputError, PlacementError

__all__ = [
    "MovedWeights",
    "move_back",
    "move_weights",
    "named_weights",
    "replace_tied",
    "ties",
    "weight_devices",
    "without_weak_references",
]


@dataclass(frozen=True)
class MovedWeights:
    """Where the weights of a model were before they were moved."""

    device_of: Mapping[str, torch.device]


def named_weights(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """All parameters and buffers with all their names, tied ones once per name."""
    yield from model.named_parameters(remove_duplicate=False)
    yield from model.named_buffers(remove_duplicate=False)


def ties(model: nn.Module) -> list[list[tuple[str, Tensor]]]:
    """The weights by the memory that they share, in the order of their first names."""
    groups: dict[int, list[tuple[str, Tensor]]] = {}
    for name, weight in named_weights(model):
        groups.setdefault(_memory_of(weight), []).append((name, weight))
    return list(groups.values())


def weight_devices(
    model: nn.Module, homes: Mapping[nn.Module, torch.device]
) -> dict[str, torch.device]:
    """The device of each weight: that of its module, of tied ones the first one's.

    Args:
        model: the model.
        homes: the device of every module of it.
    """
    device_of: dict[str, torch.device] = {}
    for path, module in model.named_modules(remove_duplicate=False):
        for group in (module._parameters, module._buffers):
            for name, weight in group.items():
                if weight is not None:
                    device_of[f"{path}.{name}" if path else name] = homes[module]
    for tied in ties(model):
        for name, _ in tied:
            device_of[name] = device_of[tied[0][0]]
    return device_of


def move_weights(
    model: nn.Module,
    device_of: Mapping[str, torch.device],
    *,
    optimizers: Sequence[Optimizer] = (),
) -> MovedWeights:
    """Moves parameters, buffers, their gradients and the optimizers' state; returns where from.

    Args:
        model: its weights are moved; they keep their identity.
        device_of: a device for every parameter and buffer, by name.
        optimizers: those whose state moves with the parameters.

    Raises:
        InputError: another optimizer has state for one of the parameters, or a weight has no
            device.
        PlacementError: a weight cannot be moved now; nothing has been moved then.
    """
    before = {name: weight.device for name, weight in named_weights(model)}
    missing = [name for name in before if name not in device_of]
    if missing:
        raise InputError(f'weight "{missing[0]}" has no device ({len(missing)} have none)')
    groups = ties(model)
    moving = [group for group in groups if group[0][1].device != device_of[group[0][0]]]
    weights = {id(weight): weight for group in moving for _, weight in group}
    _refuse_forgotten_optimizers(weights, optimizers)
    with without_weak_references(model):
        _refuse_held(moving)
        _move_all(moving, device_of, before)
    for optimizer in optimizers:
        _move_state(optimizer, weights)
    return MovedWeights(before)


def move_back(
    model: nn.Module, moved: MovedWeights, *, optimizers: Sequence[Optimizer] = ()
) -> None:
    """Moves all weights to where they were; weights that are new since then stay."""
    device_of = {name: weight.device for name, weight in named_weights(model)}
    move_weights(model, {**device_of, **moved.device_of}, optimizers=optimizers)


def _memory_of(weight: Tensor) -> int:
    return int(weight.untyped_storage()._cdata)


def _move_all(
    groups: Sequence[Sequence[tuple[str, Tensor]]],
    device_of: Mapping[str, torch.device],
    before: Mapping[str, torch.device],
) -> None:
    """Moves all groups, or none: those that were moved go back if a later one fails."""
    done: list[Sequence[tuple[str, Tensor]]] = []
    try:
        for group in groups:
            done.append(group)
            _move_group(group, device_of[group[0][0]])
    except Exception:
        for group in done:
            if group[0][1].device != before[group[0][0]]:
                _move_group(group, before[group[0][0]])
        raise


def _move_group(group: Sequence[tuple[str, Tensor]], device: torch.device) -> None:
    """Moves the weights that share one piece of memory."""
    values = [weight.detach() for weight in {id(weight): weight for _, weight in group}.values()]
    if len(values) == 1 or all(same_layout(value, values[0]) for value in values):
        moved = values[0].to(device)
        copies = [moved, *(moved.view_as(moved) for _ in values[1:])]
    else:
        copies = _move_views(values, device)
    _replace_all(group, copies)


def replace_tied(
    group: Sequence[tuple[str, Tensor]], values: Sequence[Tensor | None], device: torch.device
) -> None:
    """Gives weights that share one piece of memory new values, on the device.

    Args:
        group: names and weights, as `ties` has them.
        values: one for each weight, on the host; None for one that is tied to another's.
        device: where they go.
    """
    weights = [weight.detach() for weight in {id(weight): weight for _, weight in group}.values()]
    if len(weights) == 1 or all(same_layout(weight, weights[0]) for weight in weights):
        placed = next(value for value in values if value is not None).to(device, copy=True)
        copies = [placed, *(placed.view_as(placed) for _ in weights[1:])]
    else:
        copies = _move_views(weights, device)
        for copy, value in zip(copies, values, strict=True):
            if value is not None:
                copy.copy_(value)
    _replace_all(group, copies)


def _replace_all(group: Sequence[tuple[str, Tensor]], copies: Sequence[Tensor]) -> None:
    names = {id(weight): name for name, weight in reversed(group)}
    weights = {id(weight): weight for _, weight in group}
    for weight, copy in zip(weights.values(), copies, strict=True):
        _replace(names[id(weight)], weight, copy)


def same_layout(one: Tensor, other: Tensor) -> bool:
    """Whether two views of one memory are the same view."""
    return _layout(one) == _layout(other)


def _layout(weight: Tensor) -> tuple[Any, ...]:
    return weight.dtype, weight.size(), weight.stride(), weight.storage_offset()


def _move_views(values: Sequence[Tensor], device: torch.device) -> list[Tensor]:
    """The same views of one flat copy of the memory that the values share."""
    first = values[0]
    num_elements = first.untyped_storage().nbytes() // first.element_size()
    if first.device == torch.device("meta"):  # nothing to copy
        flat = torch.empty(num_elements, dtype=first.dtype, device=device)
    else:
        flat = first.as_strided((num_elements,), (1,), 0).to(device)
    return [
        (flat if value.dtype == flat.dtype else flat.view(value.dtype)).as_strided(
            value.size(), value.stride(), value.storage_offset()
        )
        for value in values
    ]


def _replace(name: str, weight: Tensor, value: Tensor) -> None:
    """Gives the weight another value, device and all; it stays the same object."""
    fresh: Tensor = value
    if isinstance(weight, nn.Parameter):
        fresh = nn.Parameter(value, requires_grad=weight.requires_grad)
    elif weight.requires_grad and weight.is_leaf:
        fresh = value.requires_grad_()
    if weight.grad is not None:
        fresh.grad = weight.grad.to(value.device)
    for hooks in ("_backward_hooks", "_post_accumulate_grad_hooks"):
        registered = getattr(weight, hooks, None)
        if registered:  # the same dict, so that the user's handles still remove their hooks
            setattr(fresh, hooks, registered)
    bare = weight.detach()  # what a tensor of its kind has of itself, without the user's additions
    if type(value) is Tensor is type(bare) and type(fresh) is not type(weight):
        fresh.__class__ = type(weight)
    own = {"_is_param", *vars(bare)}
    vars(fresh).update((key, added) for key, added in vars(weight).items() if key not in own)
    del bare
    try:
        torch.utils.swap_tensors(weight, fresh)  # type: ignore[no-untyped-call]
    except RuntimeError as error:
        raise _cannot_move(name, str(error).splitlines()[0]) from error


def _refuse_held(groups: Sequence[Sequence[tuple[str, Tensor]]]) -> None:
    """Raises if a weight cannot be swapped, before any of them is."""
    for group in groups:
        for name, weight in group:
            if weakref.getweakrefs(weight):
                raise _cannot_move(name, "something holds a weak reference to it")
            if weight._use_count() > 1 and not (weight._use_count() == 2 and weight.is_leaf):
                raise _cannot_move(name, "a graph of autograd or another tensor still uses it")
            if not weight.is_leaf:
                raise _cannot_move(name, "it was computed from other tensors")


def _cannot_move(name: str, reason: str) -> PlacementError:
    return PlacementError(
        f'weight "{name}" cannot be moved: {reason}',
        hint="drop losses and outputs of earlier steps and what refers to the weight, then apply"
        " again",
    )


@contextmanager
def without_weak_references(model: nn.Module) -> Iterator[None]:
    """Recurrent layers refer weakly to their weights: they forget and find them again."""
    layers = [module for module in model.modules() if isinstance(module, nn.RNNBase)]
    for layer in layers:
        layer._flat_weight_refs = []
    try:
        yield
    finally:
        for layer in layers:
            layer._init_flat_weights()


def _refuse_forgotten_optimizers(weights: Mapping[int, Tensor], given: Sequence[Optimizer]) -> None:
    """Raises if an optimizer that was not given has state for a weight that moves.

    Its state would stay behind and its next step fail. It is found among all living objects; one
    without state needs nothing, because the parameters keep their identity.
    """
    if not weights:
        return
    known = {id(optimizer) for optimizer in given}
    for thing in gc.get_objects():
        if not issubclass(type(thing), Optimizer) or id(thing) in known:
            continue
        held = [key for key, state in thing.state.items() if state and id(key) in weights]
        if held:
            raise InputError(
                f"{type(thing).__name__} has state for {len(held)} parameters that would move,"
                " and was not given",
                hint="pass it, so that its state moves as well: optimizer=optimizer",
            )


def _move_state(optimizer: Optimizer, weights: Mapping[int, Tensor]) -> None:
    """Moves the state of the parameters that have moved to where they are.

    A step count stays on the host, where optimizers keep it unless they are capturable or fused.
    """
    for group in optimizer.param_groups:
        on_device = bool(group.get("capturable")) or bool(group.get("fused"))
        for parameter in group["params"]:
            if id(parameter) not in weights:
                continue
            state: dict[Any, Any] = optimizer.state.get(parameter, {})
            for key, value in state.items():
                if isinstance(value, Tensor) and (key != "step" or on_device):
                    state[key] = value.to(parameter.device)
