"""Fetching: the weights of a model, by name, at the cost of a few dictionary look-ups."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor, nn

from baechi.errors import PlanMismatchError
from baechi.torch.program import ProgramInput

__all__ = ["compile_fetch"]

_TABLES = {"parameter": "_parameters", "buffer": "_buffers", "constant": "__dict__"}


def compile_fetch(inputs: Sequence[ProgramInput]) -> Callable[[nn.Module], tuple[Tensor, ...]]:
    """A function that takes a model to the values of these inputs.

    It walks the modules at each call, each module once, so that whatever was replaced since the
    last call is found; it is compiled from text because a loop takes three times as long.
    """
    lines: list[str] = []
    modules = {"": "model"}

    def module(path: str) -> str:
        if path not in modules:
            parent, _, name = path.rpartition(".")
            owner = module(parent)
            modules[path] = f"m{len(modules)}"
            lines.append(f"    {modules[path]} = {owner}._modules[{name!r}]")
        return modules[path]

    def value(kind: str, qualified: str) -> str:
        path, _, name = qualified.rpartition(".")
        return f"{module(path)}.{_TABLES[kind]}[{name!r}]"

    values = [value(given.kind, given.name) for given in inputs]
    for given in inputs:
        for tie in given.ties:
            same = f"{value(given.kind, given.name)} is {value(given.kind, tie)}"
            lines.append(f"    {same} or untied({given.name!r}, {tie!r})")
    result = "".join(f"{value}, " for value in values)
    text = "\n".join(["def fetch(model):", *lines, f"    return ({result})"])
    space: dict[str, Any] = {"untied": _untied}
    exec(compile(text, "<fetch>", "exec"), space)  # the text is ours, and names in it are quoted
    fetch: Callable[[nn.Module], tuple[Tensor, ...]] = space["fetch"]
    return fetch


def _untied(first: str, second: str) -> None:
    raise PlanMismatchError(
        "the model's ties are not those of the plan",
        [f'weights "{first}" and "{second}" were one and are two now'],
        hint="tie them again (tie_weights() of transformers), or plan again",
    )
