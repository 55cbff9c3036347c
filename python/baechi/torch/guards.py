"""Guards: whether a model is still what its program was captured from, checked at each call.

A graph holds the numbers and strings that forward read from modules as they were, the modules'
types and modes, and calls no hooks. The check is compiled from text: a loop takes ten times as
long.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

__all__ = ["changed_attributes", "compile_guard", "plain_attributes"]

# The mode, and a note of what kind the hooks are.
_TORCHS = ("training", "_is_full_backward_hook")
_PLAIN = (bool, int, float, complex, str, bytes, type(None))
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def plain_attributes(model: nn.Module) -> dict[tuple[str, str], Any]:
    """Attributes of modules that are numbers, strings or tuples of such, by path and name."""
    return {
        (path, name): value
        for path, module in model.named_modules()
        for name, value in module.__dict__.items()
        if _is_plain(value) and name not in _TORCHS
    }


def _hooks_differ(module: nn.Module, kind: str) -> str:
    num_hooks = len(module.__dict__[kind])
    return f"len(d[{kind!r}]) != {num_hooks}" if num_hooks else f"d[{kind!r}]"


def _is_plain(value: Any) -> bool:
    if type(value) is tuple:
        return all(map(_is_plain, value))
    return type(value) in _PLAIN


def changed_attributes(before: dict[tuple[str, str], Any], model: nn.Module) -> list[str]:
    """Names of plain attributes that have another value than before, or are new."""
    after = plain_attributes(model)
    return [
        f"{path}.{name}".lstrip(".")
        for path, name in {**before, **after}
        if before.get((path, name), _MISSING) != after.get((path, name), _MISSING)
    ]


_MISSING = object()


def compile_guard(model: nn.Module) -> Callable[[nn.Module], str | None]:
    """A function that says what of a model is not as it is in this one now, or None.

    Modes are not compared: who keeps several programs chooses one by them.
    """
    space: dict[str, Any] = {}
    lines = ["def guard(model):"]
    here_of: dict[str, str] = {}
    attributes: dict[str, dict[str, Any]] = {}
    for (path, name), value in plain_attributes(model).items():
        attributes.setdefault(path, {})[name] = value
    for number, (path, module) in enumerate(model.named_modules()):
        here, what = f"m{number}", f'module "{path}"' if path else "the model"
        parent, _, child = path.rpartition(".")
        found = f"{here_of[parent]}._modules[{child!r}]" if path else "model"
        here_of[path] = here
        lines += [f"    {here} = {found}", f"    d = {here}.__dict__"]
        checks: dict[str, list[str]] = {}
        if path:
            # The model's own type may be a subclass that a plan made, its own hooks are called.
            space[f"T{number}"] = type(module)
            checks["was replaced"] = [f"{here}.__class__ is not T{number}"]
            checks["has other hooks"] = [_hooks_differ(module, kind) for kind in _HOOKS]
        for name, value in attributes.get(path, {}).items():
            constant = f"c{len(space)}"
            space[constant] = value
            checks.setdefault("has other attributes", []).append(f"d[{name!r}] != {constant}")
        for said, terms in checks.items():
            lines += [f"    if {' or '.join(terms)}: return {f'{what} {said}'!r}"]
    lines += ["    return None"]
    body = "\n".join(lines)
    exec(compile(body, "<guard>", "exec"), space)  # the text is ours, and names in it are quoted
    compiled: Callable[[nn.Module], str | None] = space["guard"]

    def guard(now: nn.Module) -> str | None:
        try:
            return compiled(now)
        except (KeyError, AttributeError) as error:
            return f"{error} is gone"

    return guard
