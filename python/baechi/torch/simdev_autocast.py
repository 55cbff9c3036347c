"""Autocast on simulated devices: the casts that ``torch.autocast("cpu", ...)`` makes on the CPU.

Torch decides about casts above autograd, by the kind of a tensor's device, and simulated devices
are of a kind that has none. So their tensors carry the mark of a kind that nobody uses, whose
kernels are here. Which operands an op casts, and to what, is asked of torch: the op runs once on
fake CPU tensors, for each combination of types.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch._C import DispatchKey, DispatchKeySet
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_flatten, tree_unflatten

__all__ = ["AUTOCAST_MARK", "autocast_of_meta", "autocasting", "autocasting_all"]

_KIND, _KEY = "ipu", DispatchKey.AutocastIPU  # type: ignore[attr-defined]
AUTOCAST_MARK = DispatchKeySet(_KEY)
"""Key set that a simulated tensor carries besides those of its device."""

# Weights are cast once in a block of autocast, as torch's own cache has it: the gradients of all
# uses are then added up in the lower precision. Values are held, so that no id comes again.
_CASTS: dict[tuple[int, int, torch.dtype], tuple[Tensor, Tensor]] = {}


@contextmanager
def autocasting() -> Iterator[None]:
    """Lets simulated tensors in this thread follow the autocast of the CPU."""
    _kernels()
    was = torch.is_autocast_enabled(_KIND)
    clear_cache = torch.clear_autocast_cache

    def clear_both() -> None:
        _CASTS.clear()
        clear_cache()

    torch.set_autocast_enabled(_KIND, True)
    torch.clear_autocast_cache = clear_both  # which the end of a block of autocast calls
    try:
        with autocast_of_meta():
            yield
    finally:
        torch.clear_autocast_cache = clear_cache
        torch.set_autocast_enabled(_KIND, was)
        _CASTS.clear()


@contextmanager
def autocast_of_meta() -> Iterator[None]:
    """Lets code name the kind of its tensors' device, "meta", for autocast: it means the CPU's."""

    def of_cpu(function: Callable[..., Any], place: int = 0) -> Callable[..., Any]:
        @functools.wraps(function)
        def called(*args: Any, **kwargs: Any) -> Any:
            if kwargs.get("device_type") == "meta":
                kwargs["device_type"] = "cpu"
            given = ["cpu" if at == place and x == "meta" else x for at, x in enumerate(args)]
            return function(*given, **kwargs)

        return called

    with contextlib.ExitStack() as stack:
        for name in ("is_autocast_enabled", "get_autocast_dtype"):
            stack.enter_context(mock.patch.object(torch, name, of_cpu(getattr(torch, name))))
        made = of_cpu(torch.autocast.__init__, place=1)
        stack.enter_context(mock.patch.object(torch.autocast, "__init__", made))
        yield


@contextmanager
def autocasting_all() -> Iterator[None]:
    """Lets tensors of any kind follow it, plain meta tensors too, that have no autocast either."""
    with autocasting(), torch._C._IncludeDispatchKeyGuard(_KEY):
        yield


@functools.cache
def _kernels() -> tuple[torch.library.Library, ...]:
    """One kernel for each op that has one for the CPU; they live as long as the process."""
    others = torch.library.Library("_", "IMPL", _KEY.name)  # type: ignore[no-untyped-call]
    others.fallback(torch.library.fallthrough_kernel)  # type: ignore[no-untyped-call]
    casting = torch.library.Library("aten", "IMPL", _KEY.name)  # type: ignore[no-untyped-call]
    for name in torch._C._dispatch_get_registrations_for_dispatch_key("AutocastCPU"):
        namespace, _, name = name.partition("::")
        if namespace == "aten":
            packet, _, overload = name.partition(".")
            op = getattr(getattr(torch.ops.aten, packet), overload or "default")
            casting.impl(name, _kernel(op), with_keyset=True)  # type: ignore[no-untyped-call]
    return others, casting


def _kernel(op: Any) -> Callable[..., Any]:
    def run(keys: DispatchKeySet, *args: Any, **kwargs: Any) -> Any:
        if not torch.is_autocast_enabled("cpu"):
            return op.redispatch(keys.remove(_KEY), *args, **kwargs)
        leaves, tree = tree_flatten((args, kwargs))
        targets = _targets(op, leaves, tree)
        leaves = [
            leaf if target is None else _cast(leaf, target)
            for leaf, target in zip(leaves, targets, strict=True)
        ]
        args, kwargs = tree_unflatten(leaves, tree)
        with torch._C._ExcludeDispatchKeyGuard(AUTOCAST_MARK):
            return op(*args, **kwargs)

    return run


def _cast(value: Tensor, dtype: torch.dtype) -> Tensor:
    is_weight = value.requires_grad and value.is_leaf and value.dtype == torch.float32
    if not is_weight or not torch.is_grad_enabled() or not torch.is_autocast_cache_enabled():
        return value.to(dtype)
    key = id(value), value._version, dtype
    if key not in _CASTS:
        _CASTS[key] = value, value.to(dtype)
    return _CASTS[key][1]


_KNOWN: dict[Any, tuple[torch.dtype | None, ...]] = {}


def _targets(op: Any, leaves: Sequence[Any], tree: Any) -> tuple[torch.dtype | None, ...]:
    """To what the op casts each of its arguments, None for those that it does not."""
    lower = torch.get_autocast_dtype("cpu")
    types = tuple(leaf.dtype if isinstance(leaf, Tensor) else type(leaf) for leaf in leaves)
    key = op, tree, types, lower
    if key not in _KNOWN:
        _KNOWN[key] = _asked(op, leaves, tree, lower)
    return _KNOWN[key]


def _asked(
    op: Any, leaves: Sequence[Any], tree: Any, lower: torch.dtype
) -> tuple[torch.dtype | None, ...]:
    unmarked = torch._C._ExcludeDispatchKeyGuard(AUTOCAST_MARK)
    with unmarked, _disable_current_modes(), FakeTensorMode(), torch.no_grad():
        given = [_fake(leaf) if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        args, kwargs = tree_unflatten(given, tree)
        noticed = _Casts(given)
        casting = torch.autocast("cpu", lower, cache_enabled=False)
        # The casts come first; what an op refuses then, it will refuse again.
        with contextlib.suppress(RuntimeError, NotImplementedError), casting, noticed:
            op(*args, **kwargs)
    return tuple(noticed.targets)


def _fake(value: Tensor) -> Tensor:
    shape, strides = value.shape, value.stride()
    return torch.empty_strided(shape, strides, dtype=value.dtype, device="cpu")


class _Casts(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes to what dtype each of some tensors is cast."""

    def __init__(self, given: Sequence[Any]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.given = given
        self.targets: list[torch.dtype | None] = [None] * len(given)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is torch.ops.aten._to_copy.default and kwargs.get("dtype") is not None:
            for at, value in enumerate(self.given):
                if value is args[0]:
                    self.targets[at] = kwargs["dtype"]
        return func(*args, **kwargs)
