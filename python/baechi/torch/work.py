"""What one call of an op does: its operations, bytes moved, type and kernels."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Final

import torch
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_map

from baechi.torch.flops import flops_of, has_formula, named_arguments, op_class, op_name
from baechi.torch.trees import tensors_in

__all__ = ["MathModes", "Work", "work_of"]


@dataclasses.dataclass(frozen=True, slots=True)
class Work:
    """What one call of an op does.

    Attributes:
        op: the op's name, e.g. "aten.mm.default".
        op_class: which efficiency of the device table holds.
        flops: operations of matrix products, a multiply-add being two.
        bytes_moved: bytes read and written.
        dtype: the type of the products, as the device table writes it.
        num_kernels: how often a kernel is launched.
        is_view: nothing runs.
        parts: the calls that it is made of, if not one kernel; their prices are added up.
    """

    op: str
    op_class: str
    flops: int
    bytes_moved: int
    dtype: str
    num_kernels: int = 1
    is_view: bool = False
    parts: tuple[Work, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class MathModes:
    """Settings that change in which type products are computed.

    Attributes:
        autocast: the type of autocast, for graphs that were captured without its casts.
        matmul_tf32, convolution_tf32: whether float32 products use TF32 where there is any.
    """

    autocast: torch.dtype | None = None
    matmul_tf32: bool = False
    convolution_tf32: bool = True

    @classmethod
    def of_this_process(cls, autocast: torch.dtype | None = None) -> MathModes:
        """The settings of PyTorch as they stand."""
        precision = torch.get_float32_matmul_precision()
        return cls(autocast, precision != "highest", bool(torch.backends.cudnn.allow_tf32))


def work_of(
    func: torch._ops.OpOverload,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    out: Any,
    modes: MathModes | None = None,
) -> Work:
    """What one call does. Tensors may be on the meta device or fakes; only their shapes are read.

    An op that is made of others, such as ``matmul``, is taken apart unless it is one kernel on
    accelerators, as linear layers, attention and recurrent layers are.

    Args:
        func: the op.
        args: what it is called with.
        kwargs: the same by name.
        out: what it returns.
        modes: settings of the types; by default no autocast, and TF32 for convolutions alone.
    """
    modes = MathModes() if modes is None else modes
    if _is_made_of_others(func) and not _runs_nothing(func, named_arguments(func, args, kwargs)):
        parts = _parts(func, args, kwargs, modes)
        if parts is not None:
            return _joined(func, parts)
    return _work_of_one(func, args, kwargs, out, modes)


def _work_of_one(
    func: torch._ops.OpOverload,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    out: Any,
    modes: MathModes,
) -> Work:
    named = named_arguments(func, args, kwargs)
    if _runs_nothing(func, named):
        return Work(str(func), "other", 0, 0, "fp32", 0, is_view=True)
    flops = flops_of(func, args, kwargs, out)
    return Work(
        op=str(func),
        op_class=op_class(func),
        flops=flops,
        bytes_moved=_bytes_moved(func, named, out),
        dtype=_dtype(func, named, out, modes),
        num_kernels=_num_kernels(func, named),
    )


def _runs_nothing(func: torch._ops.OpOverload, named: Mapping[str, Any]) -> bool:
    name = op_name(func)
    if name in _ALLOCATES_ONLY or name == "_unsafe_view":
        return True
    if name == "dropout":
        return not named["train"] or named["p"] == 0
    if not any(isinstance(r.type, torch.TensorType | torch.ListType) for r in func._schema.returns):
        return not any(_is_written(argument) for argument in func._schema.arguments)
    return bool(func.is_view) and not _is_made_of_others(func)


def _is_made_of_others(func: torch._ops.OpOverload) -> bool:
    key = torch._C.DispatchKey.CompositeImplicitAutograd
    one_kernel = has_formula(func) or op_name(func) == "dropout"
    return not one_kernel and bool(func.has_kernel_for_dispatch_key(key))


class _Parts(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Collects the works of the ops that reach the device."""

    def __init__(self, modes: MathModes) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.modes = modes
        self.works: list[Work] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        # What arrives here is not taken apart again: some ops arrive as themselves.
        self.works.append(_work_of_one(func, args, kwargs or {}, out, self.modes))
        return out


def _parts(
    func: torch._ops.OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any], modes: MathModes
) -> tuple[Work, ...] | None:
    """Runs the op on the meta device to see what it is made of; None where it needs values."""

    def on_meta(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            shape, stride = tuple(map(int, value.shape)), tuple(map(int, value.stride()))
            return torch.empty_strided(shape, stride, dtype=value.dtype, device="meta")
        return torch.device("meta") if isinstance(value, torch.device) else value

    with _disable_current_modes(), torch.no_grad():
        try:
            meta_args, meta_kwargs = tree_map(on_meta, (tuple(args), dict(kwargs)))
            with _Parts(modes) as parts:
                func(*meta_args, **meta_kwargs)
        except (RuntimeError, NotImplementedError, ValueError, TypeError):
            return None
    return tuple(work for work in parts.works if not work.is_view)


def _joined(func: torch._ops.OpOverload, parts: tuple[Work, ...]) -> Work:
    if not parts:
        return Work(str(func), "other", 0, 0, "fp32", 0, is_view=True)
    heaviest = max(parts, key=lambda work: work.flops)
    return Work(
        op=str(func),
        op_class=heaviest.op_class,
        flops=sum(work.flops for work in parts),
        bytes_moved=sum(work.bytes_moved for work in parts),
        dtype=heaviest.dtype,
        num_kernels=sum(work.num_kernels for work in parts),
        parts=parts if len(parts) > 1 else (),
    )


def _bytes_moved(func: torch._ops.OpOverload, named: Mapping[str, Any], out: Any) -> int:
    """Operands and results, each once; looking up rows reads those rows alone."""
    name = op_name(func)
    written = sum(map(_tensor_bytes, tensors_in(out)))
    if not written:  # lists that are written in place are not returned
        names = [argument.name for argument in func._schema.arguments if _is_written(argument)]
        written = sum(map(_tensor_bytes, tensors_in([named[key] for key in names])))
    operands = dict(named)
    first = next(iter(operands), "")
    if name in _LOOKS_UP:
        del operands[first]
        return 2 * written + sum(map(_tensor_bytes, tensors_in(operands)))
    if name in _WRITES_ROWS:
        del operands[first]
        return 3 * sum(map(_tensor_bytes, tensors_in(operands)))
    if name in _OVERWRITES:
        del operands[first]
    mask = written // max(1, out.element_size()) if name == "dropout" else 0
    return written + mask + sum(map(_tensor_bytes, tensors_in(operands)))


def _tensor_bytes(tensor: torch.Tensor) -> int:
    """Bytes that are touched: an expanded axis is read once."""
    if tensor.layout is not torch.strided:
        return int(tensor.numel()) * tensor.element_size()
    num_bytes = tensor.element_size()
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        num_bytes *= int(size) if int(stride) or int(size) == 0 else 1
    return num_bytes


def _dtype(
    func: torch._ops.OpOverload, named: Mapping[str, Any], out: Any, modes: MathModes
) -> str:
    tensors = [*tensors_in(named), *tensors_in(out)]
    dtype = next((t.dtype for t in tensors if t.is_floating_point() or t.is_complex()), None)
    dtype = dtype or next((tensor.dtype for tensor in tensors), torch.float32)
    if not has_formula(func):
        return _DTYPE_NAMES.get(dtype, "fp32")
    if op_name(func) == "_int_mm":
        return "int8"
    if dtype == torch.float32:
        if modes.autocast is not None:
            return _DTYPE_NAMES.get(modes.autocast, "fp32")
        is_convolution = op_class(func) in ("convolution", "recurrent")
        if modes.convolution_tf32 if is_convolution else modes.matmul_tf32:
            return "tf32"
    return _DTYPE_NAMES.get(dtype, "fp32")


def _num_kernels(func: torch._ops.OpOverload, named: Mapping[str, Any]) -> int:
    name = op_name(func)
    if op_class(func) == "recurrent" and not name.endswith("_cell"):
        inputs = named.get("input", named.get("data"))
        steps = 1 if inputs is None or inputs.dim() < 3 else int(max(inputs.shape[:2]))
        layers = named.get("num_layers")
        return (layers if isinstance(layers, int) else 1) * (steps + 1)
    return _KERNELS.get(name, 1)


def _is_written(argument: Any) -> bool:
    return argument.alias_info is not None and bool(argument.alias_info.is_write)


_DTYPE_NAMES: Final = {
    torch.float64: "fp64",
    torch.complex128: "fp64",
    torch.float32: "fp32",
    torch.complex64: "fp32",
    torch.bfloat16: "bf16",
    torch.float16: "fp16",
    torch.float8_e4m3fn: "fp8",
    torch.float8_e5m2: "fp8",
}
_ALLOCATES_ONLY: Final = frozenset(
    ("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "lift_fresh")
)
_LOOKS_UP: Final = frozenset(
    ("embedding", "index_select", "gather", "index", "take", "embedding_bag", "_embedding_bag")
)
_WRITES_ROWS: Final = frozenset(
    ("index_put_", "_index_put_impl_", "index_add_", "index_copy_", "scatter_", "scatter_add_")
)
_OVERWRITES: Final = frozenset(
    ("copy_", "zero_", "fill_", "normal_", "uniform_", "bernoulli_", "exponential_", "random_")
)
_KERNELS: Final = {
    "convolution_backward": 2,
    "native_layer_norm_backward": 2,
    "lstm_cell": 3,
    "gru_cell": 3,
    "rnn_tanh_cell": 3,
    "rnn_relu_cell": 3,
}
