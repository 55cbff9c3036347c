"""Losses: the scalar that backward starts from."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeGuard

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from baechi.errors import BaechiError, InputError
from baechi.torch.trees import flatten, tensors_in

__all__ = ["LossArgument", "LossReadsNumbersError", "Reads", "loss_value"]

_MOVES = frozenset(("to", "copy_", "type_as", "backward"))  # they mix devices on purpose

_OF_OUTPUT = "it gets the model's output alone: loss=lambda output: criterion(output, target)"

LossArgument = Callable[[Any], torch.Tensor] | None


class LossReadsNumbersError(InputError):
    """A loss function failed on outputs on meta, which have no numbers."""


def loss_value(output: Any, loss: LossArgument = None) -> torch.Tensor:
    """The loss of a model's output.

    Args:
        output: what the model returned.
        loss: takes it to a scalar; labels that it brings along are copied to where the output is.
            None takes the output itself if it is one, else its ``.loss`` or ``["loss"]``, else the
            first of a tuple.

    Raises:
        InputError: there is none; the message names the outputs.
    """
    if loss is not None:
        found = _called(loss, output)
        if not _is_scalar(found):
            raise InputError(f"the loss function returned {_text(found)}, not a scalar tensor")
        return found
    candidates = [output]
    if hasattr(output, "loss"):
        candidates.append(output.loss)
    if isinstance(output, Mapping):
        candidates.append(output.get("loss"))
    if isinstance(output, tuple | list) and output:
        candidates.append(output[0])
    for candidate in candidates:
        if _is_scalar(candidate):
            return candidate
    tensors, tree = flatten(output)
    listed = ", ".join(
        f"{path or 'output'} {_text(tensor)}"
        for path, tensor in zip(tree.paths, tensors, strict=True)
    )
    raise InputError(
        f"the model returns no loss, but {listed or type(output).__name__}",
        hint="pass loss=, a function that takes the model's output to a scalar",
    )


class Reads(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Which of some tensors ops read while the mode is on, also by a view or an alias."""

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        """Has seen none of them."""
        super().__init__()  # type: ignore[no-untyped-call]
        self._unread = {tensor.untyped_storage()._cdata for tensor in tensors}

    def __contains__(self, tensor: torch.Tensor) -> bool:
        """Whether one of the tensors was read."""
        return tensor.untyped_storage()._cdata not in self._unread

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Notes the operands."""
        kwargs = kwargs or {}
        for tensor in tensors_in((args, list(kwargs.values()))):
            self._unread.discard(tensor.untyped_storage()._cdata)
        return func(*args, **kwargs)


class _WhereOutputsAre(TorchFunctionMode):
    """Copies tensors of other devices, such as labels, to the output that they meet in a call."""

    def __init__(self, devices: frozenset[torch.device]) -> None:
        super().__init__()
        self.devices = devices

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        tensors = [t for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)]
        found = {tensor.device: None for tensor in tensors}
        where = next((device for device in found if device in self.devices), None)
        if len(found) < 2 or where is None or getattr(func, "__name__", "") in _MOVES:
            return func(*args, **kwargs)

        def moved(tensor: torch.Tensor) -> torch.Tensor:
            return tensor if tensor.device in self.devices else tensor.to(where)

        args, kwargs = tree_map_only(torch.Tensor, moved, (args, kwargs))
        return func(*args, **kwargs)


def _called(loss: Callable[[Any], torch.Tensor], output: Any) -> Any:
    if not callable(loss):
        raise InputError(f"loss is a {type(loss).__name__}, not a function", hint=_OF_OUTPUT)
    devices = frozenset(tensor.device for tensor in flatten(output)[0])
    try:
        with _WhereOutputsAre(devices):
            return loss(output)
    except (BaechiError, torch.OutOfMemoryError):
        raise
    except Exception as error:  # whatever a user's function may raise
        lines = str(error).strip().splitlines() or [""]
        message = f"{type(error).__name__}: {lines[0]}"
        of_meta = any(device.type == "meta" and device.index is None for device in devices)
        if of_meta and ("meta" in lines[0].lower() or isinstance(error, NotImplementedError)):
            raise LossReadsNumbersError(
                f"the loss function needs numbers while planning: {message.split('. ')[0]}",
                hint="plan for module level, with real weights and inputs, or write it without "
                "branches and shapes that depend on values: (value * mask).sum() / mask.sum()",
            ) from error
        hint = _OF_OUTPUT
        if "device" in lines[0]:
            hint = (
                "outputs are on meta while planning, and on the device of the last layer later: "
                "move what the function closes over, as in labels.to(output.device)"
            )
        raise InputError(f"the loss function failed: {message}", hint=hint) from error


def _is_scalar(value: Any) -> TypeGuard[torch.Tensor]:
    return isinstance(value, torch.Tensor) and value.dim() == 0 and value.is_floating_point()


def _text(value: Any) -> str:
    if not isinstance(value, torch.Tensor):
        return type(value).__name__
    return f"{str(value.dtype).removeprefix('torch.')}[{','.join(map(str, value.shape))}]"
