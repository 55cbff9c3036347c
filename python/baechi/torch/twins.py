"""Twins: a copy of a model without its weights, on which forward is run to be seen.

The twin's tensors are fake tensors of the CPU whatever the model's are: then code that asks for a
tensor's device takes the same path for weights on meta and for real ones, and tensors that the
forward makes without naming a device fit the weights.
"""

from __future__ import annotations

import contextlib
import copy
import copyreg
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal
from unittest import mock

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.overrides import TorchFunctionMode

from baechi.torch.hook_copies import CannotRunHookError, Tolerant, copy_of_hook
from baechi.torch.trees import flatten

__all__ = [
    "Hooks",
    "Impostor",
    "a_hook_failed",
    "hidden_modules",
    "hooks_left_out",
    "hooks_of",
    "plain_tensors",
    "tensors_of",
    "twin_of",
    "twin_of_call",
]

_HOOKS = (
    "_forward_pre_hooks",
    "_forward_hooks",
    "_backward_pre_hooks",
    "_backward_hooks",
)


class Impostor:
    """Makes fake tensors of one mode; tensors that share storage get fakes that do."""

    def __init__(self) -> None:
        """A new mode."""
        self.shapes = ShapeEnv(tracked_fakes=[])
        self.mode = FakeTensorMode(shape_env=self.shapes, allow_non_fake_inputs=True, export=True)
        self._made: dict[int, torch.Tensor] = {}
        self._bases: dict[int, torch.Tensor] = {}
        # Both keep what they name alive, so ids stay theirs.
        self._originals: dict[int, torch.Tensor] = {}

    def __call__(self, tensor: torch.Tensor) -> torch.Tensor:
        """The one fake of this tensor."""
        if id(tensor) not in self._made:
            with self.mode, torch.no_grad():
                fake = self._fake(tensor)
            is_leaf = isinstance(tensor, nn.Parameter)
            made = nn.Parameter(fake, tensor.requires_grad) if is_leaf else fake
            if not is_leaf and tensor.requires_grad:
                made.requires_grad_()
            self._made[id(tensor)] = made
            self._originals[id(made)] = tensor
        return self._made[id(tensor)]

    def original(self, fake: Any) -> torch.Tensor | None:
        """The tensor that this one stands for."""
        return self._originals.get(id(fake))

    def _fake(self, tensor: torch.Tensor) -> torch.Tensor:
        if tensor.layout != torch.strided:
            raise TypeError(f"a tensor has the layout {tensor.layout}")
        options: dict[str, Any] = {"dtype": tensor.dtype, "device": "cpu"}
        key = _storage_of(tensor)
        if key is None:
            return torch.empty_strided(tensor.shape, tensor.stride(), **options)
        if key not in self._bases:
            num_elements = tensor.untyped_storage().nbytes() // tensor.element_size()
            self._bases[key] = torch.empty(num_elements, **options)
        base = self._bases[key]
        if base.dtype != tensor.dtype:
            base = torch.empty(
                tensor.untyped_storage().nbytes() // tensor.element_size(), **options
            )
        return base.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset()).detach()


def _storage_of(tensor: torch.Tensor) -> int | None:
    try:
        return int(tensor.untyped_storage()._cdata)
    except (NotImplementedError, RuntimeError):  # wrapper subclasses have none
        return None


Hooks = Literal["none", "tolerant", "all"]
"""Of the user's hooks a twin has none, those that do no harm for as long as they work, or all that
do no harm."""


class _Replacing(TorchFunctionMode):
    """Copies of tensors inside objects that we do not look into become twins as well.

    Without `convert` they become copies with numbers, also those that a forward has computed.
    """

    def __init__(self, convert: Callable[[torch.Tensor], torch.Tensor] | None) -> None:
        super().__init__()
        self.convert = convert

    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if func is torch.Tensor.__deepcopy__:
            if self.convert is not None:
                return self.convert(args[0])
            if not args[0].is_leaf:
                return args[0].detach().clone()
        return func(*args, **(kwargs or {}))


def twin_of(
    model: nn.Module,
    convert: Callable[[torch.Tensor], torch.Tensor] | None,
    hooks: Hooks = "none",
) -> nn.Module:
    """A copy of a model; running it changes nothing of the model or of what its hooks hold.

    Args:
        model: shares no module with the copy.
        convert: makes the copy's tensors of the model's; None for copies with numbers.
        hooks: which hooks of the user's the copy has. They are copies; those that cannot be
            copied, or whose copies would do harm, are left out.
    """
    memo: dict[int, Any] = {}
    tables: list[tuple[dict[int, Any], dict[int, Any]]] = []
    for module in model.modules():
        if convert is not None:
            memo |= {id(tensor): convert(tensor) for _, tensor in _tensors_of(module)}
        for kind in _HOOKS:
            table: dict[int, Any] = getattr(module, kind)
            memo[id(table)] = OrderedDict()
            tables.append((table, memo[id(table)]))
    with _Replacing(convert), _generators_copied():
        twin: nn.Module = copy.deepcopy(model, memo)
        for table, copied in tables:
            for number, hook in table.items():
                if _is_torchs(hook):
                    copied[number] = copy.deepcopy(hook, memo)
                elif hooks != "none":
                    copied[number] = _own_hook(hook, memo, hooks)
    return twin


@contextlib.contextmanager
def _generators_copied() -> Iterator[None]:
    """The state of a generator is a tensor, which must not be replaced in its copies."""

    def reduce(generator: torch.Generator) -> tuple[Any, ...]:
        return generator.clone_state, ()

    with mock.patch.dict(copyreg.dispatch_table, {torch.Generator: reduce}):
        yield


def _own_hook(hook: Any, memo: dict[int, Any], hooks: Hooks) -> Any:
    try:
        own = copy_of_hook(hook, memo)
    except CannotRunHookError as error:
        return Tolerant(None, str(error))
    return own if hooks == "all" else Tolerant(own)


def hooks_left_out(twin: nn.Module) -> list[str]:
    """Why hooks of a twin did not run, or not to their end."""
    return [
        f'a hook of module "{path}" is not counted: {hook.failure}'
        for path, hook in _tolerant(twin)
        if hook.failure
    ]


def a_hook_failed(twin: nn.Module) -> bool:
    """Whether a hook was run, and failed."""
    return any(hook.hook is not None and hook.failure for _, hook in _tolerant(twin))


def _tolerant(twin: nn.Module) -> Iterator[tuple[str, Tolerant]]:
    for path, module in twin.named_modules():
        for kind in _HOOKS:
            for hook in getattr(module, kind).values():
                if isinstance(hook, Tolerant):
                    yield path, hook


def twin_of_call(
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    convert: Callable[[torch.Tensor], torch.Tensor],
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """A copy of a call whose tensors, also those in objects, are what `convert` makes of them.

    The model may change its containers and objects, such as caches; an object that cannot be copied
    stays what it is.
    """
    call = tuple(args), dict(kwargs)
    try:
        with _Replacing(convert), _generators_copied():
            return copy.deepcopy(call)
    except Exception:  # whatever an object's __deepcopy__ may raise
        tensors, tree = flatten(call)
        copied: tuple[tuple[Any, ...], dict[str, Any]] = tree.rebuild(list(map(convert, tensors)))
        return copied


def tensors_of(model: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Parameters, buffers, and tensors that mere attributes hold, by what leads to them."""
    for path, module in model.named_modules():
        for keys, tensor in _tensors_of(module):
            yield ".".join([*filter(None, [path]), *map(str, keys)]), tensor


def _tensors_of(module: nn.Module) -> Iterator[tuple[tuple[Any, ...], torch.Tensor]]:
    for registered in (module._parameters, module._buffers):
        yield from (((name,), tensor) for name, tensor in registered.items() if tensor is not None)
    for keys, value in _attributes_of(module):
        if isinstance(value, torch.Tensor):
            yield keys, value


def _attributes_of(module: nn.Module) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """What a module's attributes hold, also in lists and dicts, with the keys that lead there."""
    registered = ("_parameters", "_buffers", "_modules", *_HOOKS)
    for name, value in module.__dict__.items():
        if name not in registered:
            yield from _held_in((name,), value)


def _held_in(keys: tuple[Any, ...], value: Any) -> Iterator[tuple[tuple[Any, ...], Any]]:
    if isinstance(value, list | tuple | dict) and len(keys) < 4:
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for key, item in items:
            yield from _held_in((*keys, key), item)
    else:
        yield keys, value


def plain_tensors(model: nn.Module) -> dict[int, tuple[str, tuple[Any, ...]]]:
    """Tensors that mere attributes of modules hold, neither parameters nor buffers.

    By id: the path of the module, and the keys that lead from its attributes to the tensor.
    """
    found: dict[int, tuple[str, tuple[Any, ...]]] = {}
    for path, module in model.named_modules():
        for keys, value in _attributes_of(module):
            if isinstance(value, torch.Tensor):
                found.setdefault(id(value), (path, keys))
    return found


def hidden_modules(model: nn.Module) -> list[str]:
    """Names of modules in plain lists and dicts, which their owner's parameters leave out."""
    known = set(model.modules())
    return [
        ".".join([*filter(None, [path]), *map(str, keys)])
        for path, module in model.named_modules()
        for keys, value in _attributes_of(module)
        if isinstance(value, nn.Module) and value not in known
    ]


def _is_torchs(hook: Any) -> bool:
    # Old-style weight and spectral norm compute the weight in a hook: part of the model's function.
    origin = getattr(hook, "__module__", None) or type(hook).__module__
    return str(origin).startswith("torch.nn.utils.")


def hooks_of(model: nn.Module) -> list[str]:
    """Paths of submodules with hooks of the user's; the model's own run around a graph."""
    return [
        path
        for path, module in model.named_modules()
        if path
        and any(not _is_torchs(hook) for kind in _HOOKS for hook in getattr(module, kind).values())
    ]
