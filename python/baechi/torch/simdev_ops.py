"""How an op runs on simulated devices: devices checked, plain tensors computed, results charged."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._mode_utils import no_dispatch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

from baechi.torch.meta_kernels import MetaKernels
from baechi.torch.simdev_books import HOST, Books, OpContext, Phase, Transfer, name_of_index
from baechi.torch.simdev_calls import Call, at_rows, common_index, is_list_op, run_lists, traits_of
from baechi.torch.simdev_lowering import LOWERINGS
from baechi.torch.simdev_tensor import NoValuesError, SimTensor, sim_index
from baechi.torch.simdev_values import computed, keep, value_of
from baechi.torch.transforms import refuse_forward_mode
from baechi.torch.trees import tensors_in

__all__ = ["FromValues", "Simulation", "SimulationMode", "execute", "finish", "special"]

# An op whose results do not follow from running it on the plain tensors.
Special = Callable[["Simulation", Any, tuple[Any, ...], dict[str, Any]], Any]
_SPECIAL: dict[Any, Special] = {}


def special(*names: str) -> Callable[[Special], Special]:
    """Declares a function as the way in which these aten ops run."""

    def declare(function: Special) -> Special:
        for name in names:
            packet, _, overload = name.partition(".")
            _SPECIAL[getattr(getattr(torch.ops.aten, packet), overload or "default")] = function
        return function

    return declare


@dataclass(eq=False)
class Simulation:
    """What all tensors of one simulation share."""

    books: Books
    dry: bool
    torch_devices: tuple[torch.device, ...]
    phases: list[Phase] = field(default_factory=lambda: ["other"])
    without_values: MetaKernels = field(default_factory=MetaKernels)

    @property
    def inner_device(self) -> str:
        """Where inner tensors are."""
        return "meta" if self.dry else "cpu"

    @property
    def phase(self) -> Phase:
        """What the program is doing now; autograd's part needs no mark."""
        in_backward = torch._C._current_graph_task_id() != -1
        return "backward" if in_backward else self.phases[-1]

    def run(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Runs one op that has a simulated tensor or a simulated device among its arguments."""
        refuse_forward_mode()
        function, is_composite = _way_of(func)
        if function is not None:
            return function(self, func, args, kwargs)
        if is_composite:  # below autograd, as in inference mode; elsewhere torch took it apart
            with self.mode():
                return LOWERINGS.get(func, func.decompose)(*args, **kwargs)
        return execute(self, func, args, kwargs)

    def kernel(self, func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """Runs an op on inner tensors."""
        return self.without_values(func, args, kwargs) if self.dry else func(*args, **kwargs)

    def mode(self) -> AbstractContextManager[Any]:
        """Lets factories and copies from the host reach the simulated devices."""
        return SimulationMode(self)

    def index_of(self, device: Any) -> int | None:
        """The index of a simulated device that exists, None for another device.

        Raises:
            RuntimeError: there are not so many simulated devices.
        """
        index = sim_index(device)
        if index is not None and index >= len(self.torch_devices):
            raise RuntimeError(
                f"invalid device ordinal: {name_of_index(index)}, and there are "
                f"{len(self.torch_devices)} simulated devices"
            )
        return index

    def hold(self, inner: torch.Tensor, index: int, what: str) -> SimTensor:
        """Charges a plain tensor to a device and wraps it."""
        self.books.hold(index, (inner,), what)
        return SimTensor(inner, index, self)

    def log(
        self, source: int, destination: int, nbytes: int, read: Any = None, written: Any = None
    ) -> None:
        """Logs a transfer between inner tensors (None: the host's)."""
        self.books.transfer(Transfer(source, destination, nbytes, self.phase), read, written)

    def read(self, tensor: SimTensor, what: str) -> torch.Tensor:
        """The inner tensor of one whose values the host needs.

        Raises:
            NoValuesError: in a dry rehearsal.
        """
        if self.dry:
            value = value_of(tensor)
            if value is not None:
                return value
            raise NoValuesError(f"{what} of a tensor on {name_of_index(tensor._index)}")
        self.books.wait_for(tensor._inner)
        return tensor._inner


class SimulationMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Sees every op, so that ops without a simulated tensor can make one."""

    def __init__(self, simulation: Simulation) -> None:
        """Stands for one simulation."""
        super().__init__()  # type: ignore[no-untyped-call]
        self.simulation = simulation

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Runs an op on simulated devices, or leaves it alone where none of them is meant."""
        kwargs = kwargs or {}
        if SimTensor in types or self.simulation.index_of(kwargs.get("device")) is not None:
            return self.simulation.run(func, args, kwargs)
        try:
            return func(*args, **kwargs)
        except (NotImplementedError, RuntimeError) as error:
            # In a dry rehearsal the host's copy of a simulated tensor has no values either.
            if self.simulation.dry and any(t.is_meta for t in tensors_in([args, kwargs])):
                raise NoValuesError(str(func)) from error
            raise


class FromValues(TorchFunctionMode):
    """Lets ``torch.tensor(values, device=...)`` make a CPU tensor and copy it to the device.

    Torch would make an empty meta tensor, without asking the other mode.
    """

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Steps in for the functions that take values, or give those of the host's copies."""
        kwargs = kwargs or {}
        device = kwargs.get("device")
        if func in _TO_NUMPY and args[0].is_meta and not isinstance(args[0], SimTensor):
            raise NoValuesError(func.__name__)  # the host's copy, in a dry rehearsal
        if func not in _FROM_VALUES or sim_index(device) is None:
            return func(*args, **kwargs)
        if args and isinstance(args[0], torch.Tensor):
            return func(*args, **kwargs)
        requires_grad = kwargs.pop("requires_grad", False)
        plain = func(*args, **{**kwargs, "device": "cpu"})
        return plain.to(device).requires_grad_(requires_grad)


_FROM_VALUES = frozenset({torch.tensor, torch.as_tensor, torch.asarray})
_TO_NUMPY: set[Any] = {torch.Tensor.numpy, torch.Tensor.__array__}


def execute(
    simulation: Simulation, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Runs an op on the inner tensors, on the device where its operands are.

    Raises:
        RuntimeError: the operands are on several devices.
        torch.OutOfMemoryError: the results do not fit.
        NoValuesError: in a dry rehearsal, the shape of the result depends on values.
    """
    call = Call(simulation, func, args, kwargs)
    target = kwargs.get("device")
    if target is not None:
        index = simulation.index_of(target)
        call.kwargs["device"] = simulation.inner_device
    else:
        if is_list_op(func):
            return _execute_lists(simulation, func, args, kwargs, call)
        index = common_index(func, call)
    try:
        result = simulation.kernel(func, call.args, call.kwargs)
    except NotImplementedError as error:
        result = computed(func, args, kwargs) if simulation.dry else None
        if not simulation.dry:
            raise
        if result is None:
            raise NoValuesError(str(func)) from error
        result = tree_map_only(torch.Tensor, lambda value: value.to("meta"), result)
    if index is None:  # made on the host, in the likeness of a simulated tensor
        return result
    outer = finish(simulation, func, call, result, index)
    if simulation.dry:
        keep(func, args, kwargs, call, outer, traits_of(func)[2])
    return outer


def _execute_lists(
    simulation: Simulation, func: Any, args: tuple[Any, ...], kwargs: Any, call: Call
) -> Any:
    """A ``_foreach_`` op: one op per position, all positions of one device at once."""
    lists = [value for value in args if isinstance(value, list | tuple) and value]
    lists = [value for value in lists if isinstance(value[0], torch.Tensor)]
    indices = [tensor._index if isinstance(tensor, SimTensor) else HOST for tensor in lists[0]]
    if len(set(indices)) == 1:
        index = common_index(func, call)
        result = run_lists(simulation, func, call, len(indices))
        return finish(simulation, func, call, result, index)
    results: list[Any] = [None] * len(indices)
    for index in sorted(set(indices)):
        rows = [row for row, other in enumerate(indices) if other == index]
        picked = tuple(at_rows(value, rows, len(indices)) for value in args)
        if index == HOST:
            named = {n: at_rows(value, rows, len(indices)) for n, value in kwargs.items()}
            part = func(*picked, **named)
        else:
            part = execute(simulation, func, picked, kwargs)
        for row, value in zip(rows, part or [], strict=False):
            results[row] = value
    return None if results[0] is None else results


def finish(simulation: Simulation, func: Any, call: Call, result: Any, index: int) -> Any:
    """Charges what is new, advances the clock, and wraps the results."""
    books = simulation.books
    plain = list(tensors_in(result))
    outers = {id(tensor._inner): tensor for tensor in call.seen}
    books.hold(index, plain, str(func))
    changes_shape, is_view, writes = traits_of(func)
    if changes_shape:
        books.hold(index, (tensor._inner for tensor in call.seen), str(func))
        for tensor in call.seen:
            _follow(tensor)
    if books.has_clocks and not is_view:
        context = OpContext(func, index, call.args, call.kwargs, result, simulation.phase)
        inners = [tensor._inner for tensor in call.seen]
        written = [inners[place] for place in range(len(inners))] if writes == "all" else []
        if writes == "first":
            written = inners[:1]
        books.compute(context, inners, [*plain, *written])
    # A view of a normal tensor is a normal tensor, also in inference mode.
    is_normal = is_view and not all(tensor.is_inference() for tensor in call.seen)
    if is_normal and torch.is_inference_mode_enabled():
        with torch.inference_mode(False):
            return _wrap(simulation, outers, result, index)
    return _wrap(simulation, outers, result, index)


def _wrap(simulation: Simulation, outers: dict[int, SimTensor], value: Any, index: int) -> Any:
    # Not a closure that calls itself: that is a cycle, which would keep tensors until it is found.
    if isinstance(value, torch.Tensor):
        outer = outers.get(id(value))
        return SimTensor(value, index, simulation) if outer is None else outer
    if isinstance(value, list | tuple):
        return type(value)([_wrap(simulation, outers, item, index) for item in value])
    return value


def _follow(tensor: SimTensor) -> None:
    """Gives the wrapper the shape that an in-place op has given to the inner tensor."""
    inner = tensor._inner
    if (
        tensor.shape == inner.shape
        and tensor.stride() == inner.stride()
        and tensor.storage_offset() == inner.storage_offset()
    ):
        return
    in_tls = torch._C._meta_in_tls_dispatch_include()
    torch._C._set_meta_in_tls_dispatch_include(True)
    try:
        with no_dispatch():
            length = inner.untyped_storage().nbytes() // inner.element_size()
            torch.ops.aten.resize_.default(tensor, [length])
            torch.ops.aten.as_strided_.default(
                tensor, inner.size(), inner.stride(), inner.storage_offset()
            )
    finally:
        torch._C._set_meta_in_tls_dispatch_include(in_tls)


@functools.cache
def _way_of(func: Any) -> tuple[Special | None, bool]:
    """The function that runs this op, if it is a special one; whether torch takes it apart."""
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CPU")
    return _SPECIAL.get(func), not has_kernel and func._can_decompose()
