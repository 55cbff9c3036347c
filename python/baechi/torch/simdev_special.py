"""Ops that cross the border of a simulated device, or that the CPU runs otherwise than a GPU."""

from __future__ import annotations

from typing import Any

import torch

from baechi.errors import InputError
from baechi.torch.simdev_books import HOST, name_of_index
from baechi.torch.simdev_ops import Simulation, execute, special
from baechi.torch.simdev_tensor import NoValuesError, SimTensor
from baechi.torch.simdev_values import forget, meta_indices, remember, value_of

__all__: list[str] = []


@special("_to_copy")
def _copy_to(simulation: Simulation, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """``.to``, ``.cpu``, ``.float``: a new tensor, elsewhere if a device is named."""
    source = args[0]
    device = kwargs.get("device")
    if device is None:
        device = source.device
    options = {name: value for name, value in kwargs.items() if value is not None}
    options.pop("pin_memory", None)
    options["device"] = simulation.inner_device
    index = simulation.index_of(device)
    if index is not None and not isinstance(source, SimTensor):
        _need_values(simulation, source, index)
    inner, origin = _inner_of(source)
    is_gradient = torch._C._current_graph_task_id() >= 0
    if simulation.dry and is_gradient and torch.device(device).type == "cpu":
        raise NoValuesError("the gradient of a tensor on the host")
    if origin == index and index is not None:
        return execute(simulation, func, args, kwargs)
    result = func(inner, **options)
    value = None
    if simulation.dry and value_of(source) is not None:
        value = func(value_of(source), **{**options, "device": "cpu"})
    if index is None:
        simulation.log(origin, HOST, result.nbytes, inner)
        return result if value is None else value
    outer = simulation.hold(result, index, str(func))
    remember(outer, value)
    simulation.log(origin, index, result.nbytes, inner, result)
    return outer


@special("copy_")
def _copy_into(simulation: Simulation, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """``x.copy_(y)``: the one op whose operands may be on two devices."""
    destination, source = args[0], args[1]
    inner, origin = _inner_of(source)
    if not isinstance(destination, SimTensor):
        if not simulation.dry:
            func(destination, inner)
        simulation.log(origin, HOST, inner.nbytes, inner)
        return destination
    index = destination._index
    if origin == index:
        return execute(simulation, func, args, kwargs)
    if not isinstance(source, SimTensor):
        _need_values(simulation, source, index)
        inner = source.to("meta") if simulation.dry else source
    func(destination._inner, inner)
    forget(destination)
    nbytes = inner.numel() * destination.element_size()
    simulation.log(origin, index, nbytes, inner, destination._inner)
    return destination


@special("_local_scalar_dense")
def _read_number(simulation: Simulation, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """``.item()``: the host waits and reads one number, which is not logged as a transfer."""
    return func(simulation.read(args[0], "item"))


@special(
    "index.Tensor",
    "_unsafe_index.Tensor",
    "index_put",
    "index_put_",
    "_index_put_impl_",
    "_unsafe_index_put",
)
def _index(simulation: Simulation, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Indices may be on the host, as on an accelerator: the op copies them for itself."""
    indexed = args[0]
    if isinstance(indexed, SimTensor):
        where = indexed._index
        indices = [
            _copy_to(simulation, torch.ops.aten._to_copy.default, (i,), {"device": indexed.device})
            if isinstance(i, torch.Tensor) and not isinstance(i, SimTensor)
            else i
            for i in args[1]
        ]
        assert all(i is None or isinstance(i, SimTensor) for i in indices), where
        if simulation.dry:
            indices = meta_indices(simulation, indices)
        args = (indexed, indices, *args[2:])
    return execute(simulation, func, args, kwargs)


@special("_pack_padded_sequence")
def _pack(simulation: Simulation, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Lengths are on the host, and so are the sizes of the batches that come out."""
    padded, lengths = args[0], args[1]
    if isinstance(lengths, SimTensor):
        raise RuntimeError("'lengths' argument should be a 1D CPU int64 tensor")
    if simulation.dry:  # the shape of the result is the sum of the lengths
        if lengths.is_meta:
            raise NoValuesError(str(func))
        steps = torch.arange(padded.shape[1 if args[2] else 0])
        batch_sizes = (lengths.unsqueeze(0) > steps.unsqueeze(1)).sum(1)
        data = padded._inner.new_empty(int(lengths.sum()), *padded.shape[2:])
    else:
        data, batch_sizes = func(padded._inner, *args[1:], **kwargs)
    return simulation.hold(data, padded._index, str(func)), batch_sizes


@special("histc")
def _histogram(simulation: Simulation, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """An accelerator counts integers, too; the CPU counts only floats, and meta neither."""
    values = args[0]
    if simulation.dry:
        bins = args[1] if len(args) > 1 else kwargs.get("bins", 100)
        empty = torch.empty(bins, dtype=values.dtype, device="meta")
        return simulation.hold(empty, values._index, str(func))
    if values.dtype.is_floating_point:
        return execute(simulation, func, args, kwargs)
    counts = func(values._inner.double(), *args[1:], **kwargs).to(values.dtype)
    return simulation.hold(counts, values._index, str(func))


@special("_grouped_mm")
def _grouped_product(simulation: Simulation, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """The CPU multiplies any floats; the shape rule for meta tensors insists on bfloat16."""
    left, right = args[0], args[1]
    if not simulation.dry or left.dtype == torch.bfloat16:
        return execute(simulation, func, args, kwargs)
    rest = [t for t in (*args[2:4], *kwargs.values()) if isinstance(t, torch.Tensor)]
    halves = [t._inner.to(torch.bfloat16) for t in (left, right)]
    inners = [t._inner if isinstance(t, SimTensor) else t.to("meta") for t in rest]
    shape = func(*halves, *inners)
    out = torch.empty_strided(shape.size(), shape.stride(), dtype=left.dtype, device="meta")
    return simulation.hold(out, left._index, str(func))


@special("mse_loss", "smooth_l1_loss", "soft_margin_loss", "binary_cross_entropy")
def _loss(simulation: Simulation, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Devices shrink the elementwise loss to one number and keep its storage; meta does not."""
    loss = execute(simulation, func, args, kwargs)
    if not simulation.dry or loss.dim() > 0:
        return loss
    index = loss._index
    shape = (args[0]._inner + args[1]._inner).shape
    inner = torch.empty(shape, dtype=loss.dtype, device="meta").resize_(())
    del loss
    return simulation.hold(inner, index, str(func))


@special("record_stream")
def _record_stream(simulation: Simulation, func: Any, args: Any, kwargs: dict[str, Any]) -> None:
    """Memory of simulated devices is free when it is released: there is nothing to record."""


def _inner_of(tensor: torch.Tensor) -> tuple[torch.Tensor, int]:
    if isinstance(tensor, SimTensor):
        return tensor._inner, tensor._index
    return tensor, HOST


def _need_values(simulation: Simulation, source: torch.Tensor, index: int) -> None:
    if not simulation.dry and source.is_meta:
        raise InputError(
            f"a meta tensor of shape {tuple(source.shape)} has no values to put on "
            f"{name_of_index(index)}",
            hint="load the weights first, or simulate with dry=True",
        )
