"""Tensors of simulated devices: a tensor with a device index around a plain one with the values."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any, NoReturn

import torch

from baechi.errors import BaechiError
from baechi.torch.simdev_autocast import AUTOCAST_MARK
from baechi.torch.simdev_books import name_of_index

if TYPE_CHECKING:
    from baechi.torch.simdev_ops import Simulation

__all__ = ["NoValuesError", "SimTensor", "sim_index"]

_OWN_ATTRIBUTES = frozenset({"_inner", "_index", "_simulation", "_value"})


class NoValuesError(BaechiError):
    """A program asks for a value in a dry rehearsal, which has shapes and bytes only."""

    def __init__(self, what: str, why: str = "") -> None:
        """Names the op that asks, and why no values could be had."""
        super().__init__(
            f"{what} needs values, and a dry rehearsal has none" + (f"; {why}" if why else ""),
            hint="rehearse with real weights (dry=False), or take the step out of the rehearsal",
        )
        self.what = what


def sim_index(device: Any) -> int | None:
    """The index of a simulated device, None for any other device."""
    if device is None or device == "meta":
        return None
    found = torch.device(device)
    return found.index if found.type == "meta" else None


class SimTensor(torch.Tensor):
    """A tensor on a simulated device; torch sees ``torch.device("meta", index)``.

    The values are in ``_inner``, a CPU tensor (in a dry rehearsal a meta tensor). As the wrapper
    takes part in autograd and the inner one does not, gradients are those of any other device.
    """

    _inner: torch.Tensor
    _index: int
    _simulation: Simulation
    _value: torch.Tensor | None = None  # in a dry rehearsal, of small integers

    # Ops come to __torch_dispatch__; the wrapping of every Python call would only take time.
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @staticmethod
    def __new__(cls, inner: torch.Tensor, index: int, simulation: Simulation) -> SimTensor:
        """Wraps a plain tensor; the caller has charged its storage to the device."""
        outer: SimTensor = torch.Tensor._make_wrapper_subclass(
            cls,
            inner.size(),
            strides=inner.stride(),
            storage_offset=inner.storage_offset(),
            dtype=inner.dtype,
            layout=inner.layout,
            device=simulation.torch_devices[index],
            _extra_dispatch_keys=AUTOCAST_MARK,
        )
        outer._inner = inner
        outer._index = index
        outer._simulation = simulation
        if inner.is_conj():
            torch._C._set_conj(outer, True)
        if inner.is_neg():
            torch._C._set_neg(outer, True)
        return outer

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Runs an op outside of the simulation's mode, say after its ``with`` block."""
        return _simulation_of((args, kwargs)).run(func, args, kwargs or {})

    def __tensor_flatten__(self) -> tuple[list[str], tuple[int, Simulation]]:
        """Tells ``Module.to`` to swap parameters in place, which keeps their identity."""
        return ["_inner"], (self._index, self._simulation)

    @staticmethod
    def __tensor_unflatten__(
        inners: dict[str, torch.Tensor], context: tuple[int, Simulation], size: Any, stride: Any
    ) -> SimTensor:
        """The inverse of `__tensor_flatten__`."""
        return SimTensor(inners["_inner"], *context)

    @property
    def is_meta(self) -> bool:  # type: ignore[override]
        """False: there is more behind it than a shape, whatever the device is called."""
        return False

    @property
    def data(self) -> torch.Tensor:
        """The tensor without its history, as of any tensor."""
        return self.detach()

    @data.setter
    def data(self, other: torch.Tensor) -> None:
        if not isinstance(other, SimTensor):
            raise RuntimeError(
                f"incompatible tensor type: {name_of_index(self._index)} and {other.device}; "
                "use torch.utils.swap_tensors"
            )
        torch.Tensor.data.__set__(self, other)  # type: ignore[attr-defined]
        self._inner, self._index = other._inner, other._index
        self._simulation, self._value = other._simulation, other._value

    def untyped_storage(self) -> torch.UntypedStorage:
        """The storage that is charged, the same one for all views."""
        return self._inner.untyped_storage()

    def data_ptr(self) -> int:
        """The address of the values, 0 in a dry rehearsal."""
        return self._inner.data_ptr()

    def tolist(self) -> Any:
        """The values, read by the host."""
        return self._simulation.read(self, "tolist").tolist()

    def numpy(self, *, force: bool = False) -> Any:
        """As on an accelerator: only with ``force``, or after ``.cpu()``."""
        if not force:
            self._refuse_numpy()
        return self.detach().cpu().numpy()

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        """As on an accelerator: only after ``.cpu()``."""
        self._refuse_numpy()

    def new_tensor(
        self,
        data: Any,
        dtype: torch.dtype | None = None,
        device: Any = None,
        requires_grad: bool = False,
        pin_memory: bool = False,
    ) -> torch.Tensor:
        """A new tensor from values, on this device unless another is named."""
        plain = torch.tensor(data, dtype=dtype or self.dtype, device="cpu")
        moved = plain.to(self.device if device is None else device)
        return moved.requires_grad_(requires_grad)

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        """Values (in a dry rehearsal the shape), device, and what autograd knows."""
        where = f"device='{name_of_index(self._index)}'"
        if self._simulation.dry:
            where = f"..., size={tuple(self.shape)}, dtype={self.dtype}, {where}"
            text = f"tensor({where})"
        else:
            text = f"{repr(self._inner)[:-1]}, {where})"
        grad_fn = self.grad_fn
        if grad_fn is not None:
            return f"{text[:-1]}, grad_fn=<{grad_fn.name()}>)"
        return f"{text[:-1]}, requires_grad=True)" if self.requires_grad else text

    def __deepcopy__(self, memo: dict[int, Any]) -> torch.Tensor:
        """A copy on the same device, as of any other: of a parameter without its gradient."""
        if id(self) in memo:
            found: torch.Tensor = memo[id(self)]
            return found
        if not self.is_leaf:
            raise RuntimeError("only leaf tensors can be deep-copied; use .detach()")
        with torch.no_grad():
            twin = self.detach().clone()
        twin.requires_grad_(self.requires_grad)
        memo[id(self)] = twin
        for name, value in self.__dict__.items():
            if name not in _OWN_ATTRIBUTES:
                setattr(twin, name, copy.deepcopy(value, memo))
        if self.grad is not None and not getattr(self, "_is_param", False):
            twin.grad = copy.deepcopy(self.grad, memo)
        return twin

    def __reduce_ex__(self, protocol: Any) -> Any:
        """What is saved is a plain tensor or parameter: simulated devices do not outlive a run."""
        plain = self.detach().cpu()
        if getattr(self, "_is_param", False):
            plain = torch.nn.Parameter(plain, self.requires_grad)
        else:
            plain.requires_grad_(self.requires_grad)
        return plain.__reduce_ex__(protocol)  # type: ignore[no-untyped-call]

    def _refuse_numpy(self) -> NoReturn:
        raise TypeError(
            f"can't convert {name_of_index(self._index)} device type tensor to numpy. "
            "Use Tensor.cpu() to copy the tensor to host memory first."
        )


def _simulation_of(values: Any) -> Simulation:
    pending = [values]
    while pending:
        value = pending.pop()
        if isinstance(value, SimTensor):
            return value._simulation
        if isinstance(value, dict):
            pending.extend(value.values())
        elif isinstance(value, list | tuple):
            pending.extend(value)
    raise AssertionError("torch called an op of simulated devices without one of their tensors")
