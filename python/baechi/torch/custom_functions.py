"""Functions with a backward of their own run on one device, as torch's functions between modules.

No function mode sees the call of a ``torch.autograd.Function``, only what its forward calls. Its
backward would then meet tensors that were saved on several devices. So its operands are brought
together before the call, inside a placed model; elsewhere the call is what it was.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.overrides import _get_current_function_mode_stack

from baechi.torch.glue import GlueMode
from baechi.torch.operands import Mixed, common_device

__all__ = ["follow_custom_functions"]


def follow_custom_functions() -> None:
    """Lets custom functions take operands of several devices; a second call does nothing."""
    original: Any = vars(torch.autograd.Function)["apply"]  # a class method, in Python or in C
    if getattr(getattr(original, "__func__", None), "follows_devices", False):
        return

    def apply(cls: type[Any], *args: Any, **kwargs: Any) -> Any:
        """Runs the function; see `torch.autograd.Function`."""
        call = original.__get__(None, cls)
        is_torch_s = cls.__module__.startswith("torch.")  # these know what they do: checkpoints
        if not is_torch_s:
            modes = _get_current_function_mode_stack()  # type: ignore[no-untyped-call]
            for mode in reversed(modes):
                if isinstance(mode, GlueMode):
                    mode.state.frames[-1].unread.clear()  # it may read them unseen
                    if common_device((*args, *kwargs.values()), None) is Mixed.MIXED:
                        return mode.run_aligned(call, args, kwargs)
                    break
        return call(*args, **kwargs)

    apply.follows_devices = True  # type: ignore[attr-defined]
    torch.autograd.Function.apply = classmethod(apply)
