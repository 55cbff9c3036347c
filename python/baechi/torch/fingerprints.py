"""Fingerprints: the parameters and buffers of a model by name, and the tensors of a call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from baechi.errors import InputError, PlanMismatchError
from baechi.torch.applied_class import refuse_applied
from baechi.torch.exporting import signature_of
from baechi.torch.parameters import named_weights
from baechi.torch.simdev_tensor import SimTensor
from baechi.torch.trees import flatten, tensors_in
from baechi.units import counted

__all__ = [
    "Described",
    "changes",
    "check",
    "describe",
    "describe_inputs",
    "refuse_layouts",
    "refuse_placed",
    "refuse_scripted",
    "refuse_unmade",
    "refuse_wrapped",
    "ties_of",
]

Described = Mapping[str, str]
"""Qualified name to what is there, such as "parameter float32[4,3]" or "same as wte.weight"."""


def refuse_wrapped(model: torch.nn.Module) -> None:
    """Raises InputError for a model in a wrapper: the names in it are not the model's."""
    if isinstance(getattr(model, "_orig_mod", None), torch.nn.Module):
        raise InputError(
            "the model was wrapped by torch.compile",
            hint="pass the model that was compiled, and compile its parts: plan.apply(model, "
            "compile=True)",
        )
    if isinstance(model, nn.DataParallel | nn.parallel.DistributedDataParallel):
        raise InputError(
            f"the model is in a {type(model).__name__}, which puts all of it on every device",
            hint="pass model.module",
        )


def refuse_placed(model: torch.nn.Module, inputs: Any) -> None:
    """Raises InputError for a model that a plan is applied to, and for simulated tensors."""
    refuse_applied(model)
    weights = {f'"{name}"': weight for name, weight in named_weights(model)}
    given = {f"input {at}": tensor for at, tensor in enumerate(tensors_in(inputs))}
    for name, tensor in (weights | given).items():
        if isinstance(tensor, SimTensor):
            raise InputError(
                f"{name} is on a simulated device",
                hint="plan and rehearse with weights and inputs on the CPU or on meta, and move "
                "them afterwards",
            )


def refuse_unmade(model: torch.nn.Module) -> None:
    """Raises InputError for parameters of lazy modules that have no shape yet."""
    names = [name for name, weight in named_weights(model) if is_lazy(weight)]
    if names:
        listed = ", ".join(f'"{name}"' for name in names[:5]) + (", ..." if names[5:] else "")
        raise InputError(
            f"{listed} have no shape yet, as lazy modules were not called",
            hint="call the model once with the inputs, before it is planned",
        )


def refuse_scripted(model: torch.nn.Module) -> None:
    """Raises InputError for what ``torch.jit`` made: it takes no hooks, and nobody sees inside."""
    paths = [
        path for path, module in model.named_modules() if isinstance(module, torch.jit.ScriptModule)
    ]
    if paths:
        raise InputError(
            f'module "{paths[0]}" is a {type(model.get_submodule(paths[0])).__name__}, which can '
            "be neither looked into nor placed",
            hint="pass the module as it was before torch.jit.script or torch.jit.trace",
        )


def refuse_layouts(tensors: Mapping[str, torch.Tensor]) -> None:
    """Raises InputError for tensors that are not dense: their bytes depend on their values.

    Args:
        tensors: inputs and weights by what to call them.
    """
    others = [
        f"{name} is {str(tensor.layout).removeprefix('torch.')}"
        for name, tensor in tensors.items()
        if tensor.layout != torch.strided or tensor.is_nested
    ]
    if others:
        raise InputError(
            f"only dense tensors can be planned, but {'; '.join(others)}",
            hint="pass tensor.to_dense(), or its indices and values for index_add or scatter",
        )


def describe(model: torch.nn.Module) -> dict[str, str]:
    """What a model holds: names, shapes, types, ties; no values and no devices."""
    found: dict[str, str] = {}
    first: dict[int, str] = {}
    for kind, tensors in (
        ("parameter", model.named_parameters(remove_duplicate=False)),
        ("buffer", model.named_buffers(remove_duplicate=False)),
    ):
        for name, tensor in tensors:
            known = first.setdefault(id(tensor), name)
            if known != name:
                found[name] = f"same as {known}"
                continue
            shape = ",".join(map(str, tensor.shape))
            frozen = " frozen" if kind == "parameter" and not tensor.requires_grad else ""
            found[name] = f"{kind} {str(tensor.dtype).removeprefix('torch.')}[{shape}]{frozen}"
    return found


def changes(planned: Described, model: Described) -> list[str]:
    """Every difference between the planned model and another one, in words."""
    found = [
        f'"{name}" was {planned[name]}, is {model[name]}'
        for name in planned
        if name in model and planned[name] != model[name]
    ]
    found += [f'"{name}" ({planned[name]}) is missing' for name in planned if name not in model]
    found += [f'"{name}" ({model[name]}) is new' for name in model if name not in planned]
    return found


def check(planned: Described, modules: Mapping[str, str], model: torch.nn.Module) -> None:
    """Compares a model with the planned one.

    Args:
        planned: what `describe` said of it.
        modules: the plan's devices by module path, perhaps written by hand.
        model: the one that is at hand.

    Raises:
        PlanMismatchError: names, shapes, types or ties differ, or a path leads nowhere.
        InputError: the model is in a wrapper.
    """
    refuse_wrapped(model)
    if found := changes(planned, describe(model)):
        count = counted(len(found), "difference", "differences")
        raise PlanMismatchError(
            f"the plan was made for another model ({count})",
            found,
            hint="plan the changed model again",
        )
    known = {name for name, _ in model.named_modules(remove_duplicate=False)}
    known.update(name for name, _ in named_weights(model))
    if strangers := [f'"{path}" on {home}' for path, home in modules.items() if path not in known]:
        raise PlanMismatchError(
            "the plan places modules that the model does not have",
            strangers,
            hint="correct the paths: they are those of model.named_modules()",
        )


def ties_of(model: torch.nn.Module) -> dict[str, tuple[str, ...]]:
    """Qualified name of each parameter and buffer to all the names of the same tensor."""
    names: dict[int, list[str]] = {}
    for name, tensor in (
        *model.named_parameters(remove_duplicate=False),
        *model.named_buffers(remove_duplicate=False),
    ):
        names.setdefault(id(tensor), []).append(name)
    return {name: tuple(group) for group in names.values() for name in group}


def describe_inputs(
    model: torch.nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[str, ...]:
    """The tensors of a call, such as "words: int64[32,40]"."""
    bound = signature_of(model).bind(*args, **kwargs)
    tensors, tree = flatten(dict(bound.arguments))
    return tuple(
        f"{path}: {str(t.dtype).removeprefix('torch.')}[{','.join(map(str, t.shape))}]"
        for path, t in zip(tree.paths, tensors, strict=True)
    )
