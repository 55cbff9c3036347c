"""The class of an applied model: the user's own with another forward, under the same name."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import nn

from baechi.errors import InputError
from baechi.torch.compiling import outside

__all__ = [
    "STATE",
    "applied_class",
    "change_class",
    "hand_down",
    "original_class",
    "refuse_applied",
]

STATE = "_baechi_application"
_ORIGINAL = "_baechi_original_class"
# The attributes of each class that was made here.
_OWN: dict[type, frozenset[str]] = {}


@functools.cache
def applied_class(original: type[Any]) -> type[nn.Module]:
    """A subclass whose forward asks the `Application` that the model holds."""

    @functools.wraps(original.forward)
    def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        application = self.__dict__.get(STATE)
        if application is None:  # another object of this class, such as a slice of a Sequential
            return original.forward(self, *args, **kwargs)
        call = application.call
        if torch.compiler.is_compiling():
            call = outside(call)
        return call(self, args, kwargs)

    def reduce_ex(self: nn.Module, protocol: Any) -> tuple[Any, ...]:
        """Copies and pickles by the user's class, because this one has no place to be found at."""
        base: Any = original
        function, args, *rest = base.__reduce_ex__(self, protocol)
        plain = tuple(original if value is type(self) else value for value in args)
        return _make, (original, function, plain), *rest

    names = ("__module__", "__qualname__", "__doc__")
    attributes = {name: getattr(original, name) for name in names}
    attributes |= {"forward": forward, "__reduce_ex__": reduce_ex, _ORIGINAL: original}
    attributes["hf_device_map"] = property(_device_map)
    made: type[nn.Module] = type(original.__name__, (original,), attributes)
    _OWN[made] = frozenset(vars(made))
    return made


def hand_down(model: nn.Module) -> None:
    """Gives the user's class what somebody has set on the class of an applied model since."""
    made = type(model)
    for name in vars(made).keys() - _OWN.get(made, vars(made).keys()):
        setattr(original_class(model), name, vars(made)[name])
        delattr(made, name)


def _device_map(self: nn.Module) -> Any:
    """What tells accelerate, and the Trainer of transformers, to leave the model where it is."""
    application = self.__dict__.get(STATE)
    found = None if application is None else application.device_map()
    if found is None:
        found = self.__dict__.get("hf_device_map")
    if found is None:
        raise AttributeError(f"{type(self).__name__!r} object has no attribute 'hf_device_map'")
    return found


def refuse_applied(model: nn.Module) -> None:
    """Raises InputError for a model that runs as a plan says."""
    if STATE in vars(model):
        raise InputError(
            "a plan is applied to the model already", hint="remove it first: plan.remove(model)"
        )


def original_class(model: nn.Module) -> type[nn.Module]:
    """The user's class of a model, applied or not."""
    found: type[nn.Module] = getattr(type(model), _ORIGINAL, type(model))
    return found


def change_class(model: nn.Module, cls: type[nn.Module]) -> None:
    """Gives the model another class.

    Raises:
        InputError: its class is of a kind that allows no other.
    """
    try:
        model.__class__ = cls
    except TypeError as error:
        raise InputError(
            f"{type(model).__name__} cannot be given a forward: {error}",
            hint="wrap the model in a torch.nn.Module of your own",
        ) from error


def _make(original: type[nn.Module], function: Any, args: tuple[Any, ...]) -> nn.Module:
    model: nn.Module = function(*args)
    change_class(model, applied_class(original))  # type: ignore[arg-type]
    return model
