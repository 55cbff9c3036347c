"""Guards: whether a model is still what its program was captured from, checked at each call.

A graph holds the numbers, settings and functions that forward read as they were, the modules'
types, and calls no hooks. The check compares flat lists, whose loops run in C: a loop in Python
takes ten times as long.
"""

from __future__ import annotations

import operator
from collections.abc import Callable

from torch import nn
from torch.nn.modules import module as torch_modules
from torch.nn.modules.module import _has_any_global_hook

from baechi.torch.attributes import Reading, differences, state_of
from baechi.torch.code_reading import Code, read_state

__all__ = ["Guard", "has_global_hooks"]

_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def has_global_hooks() -> bool:
    """Whether hooks for the modules of all models are registered, other than ours."""
    if not _has_any_global_hook():  # type: ignore[no-untyped-call]
        return False
    hooks = (hook for kind in _HOOKS for hook in getattr(torch_modules, f"_global{kind}").values())
    return any(not str(getattr(hook, "__module__", "")).startswith("baechi.") for hook in hooks)


class Guard:
    """What of a model, and of what its code mentions, is not as it was when this was made.

    Weights and modes are not compared, and neither is which modules there are.
    """

    def __init__(self, model: nn.Module) -> None:
        """Reads the model; the hooks that are there now are accepted."""
        self._model = model
        names, modules = zip(*model.named_modules(), strict=True)
        # The model's own class is a subclass that a plan made, and its own hooks are called.
        self._names, self._modules = names[1:], modules[1:]
        self._types = list(map(type, self._modules))
        hooks = [vars(module)[kind] for module in self._modules for kind in _HOOKS]
        self._no_hooks = [table for table in hooks if not table]
        self._hooks = [(table, len(table)) for table in hooks if table]
        self._take(*self._read())

    def _read(self) -> tuple[Reading, Code]:
        code = Code(self._model)
        return read_state(self._model, code), code

    def _take(self, reading: Reading, code: Code) -> None:
        """Makes flat lists of what was read."""
        self._reading = reading
        self._tables = [*map(vars, self._model.modules()), *code.class_tables]
        self._owners = [owner for owner, _, _ in reading.slots]
        self._keys = [key for _, key, _ in reading.slots]
        self._values = [value for _, _, value in reading.slots]
        self._cells = [cell for cell, _ in reading.cells]
        self._variables = [value for _, value in reading.cells]
        self._held = [held for held, _ in reading.held]
        self._contents = [content for _, content in reading.held]
        self._num_attributes = list(map(len, self._tables))

    def difference(self) -> str | None:
        """What is not as it was, or None."""
        if self._types != list(map(type, self._modules)):
            return self._named("has another type", lambda at, m: type(m) is not self._types[at])
        if any(self._no_hooks) or any(len(table) != number for table, number in self._hooks):
            known = {id(table): number for table, number in self._hooks}
            tables = [[vars(module)[kind] for kind in _HOOKS] for module in self._modules]
            return self._named(
                "has other hooks",
                lambda at, _: any(len(t) != known.get(id(t), 0) for t in tables[at]),
            )
        if self._is_as_read():
            return None
        reading, code = self._read()
        for name in differences(self._reading, reading, same_tensors=False):
            return f'"{name}" is not what it was'
        self._take(reading, code)  # other objects with the same values
        return None

    def _named(self, said: str, is_so: Callable[[int, nn.Module], bool]) -> str:
        found = (self._names[at] for at, module in enumerate(self._modules) if is_so(at, module))
        return f'module "{next(found)}" {said}'

    def _is_as_read(self) -> bool:
        """Whether all objects are the same and hold the same, which takes no look at names."""
        try:
            now = map(operator.getitem, self._owners, self._keys)
            return (
                self._num_attributes == list(map(len, self._tables))
                and all(map(operator.is_, now, self._values))
                and all(map(operator.is_, [c.cell_contents for c in self._cells], self._variables))
                and self._held == self._contents
                and all(len(large) == length for large, length in self._reading.lengths)
                and all(state_of(array) == state for array, state in self._reading.arrays)
            )
        except Exception:  # something is gone, or has no plain equality, such as a tensor
            return False
