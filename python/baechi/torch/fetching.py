"""Fetching: the weights of a model, by name, at the cost of a few dictionary look-ups."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from baechi.errors import PlanMismatchError
from baechi.torch.program import ProgramInput
from baechi.torch.streams import cross_copy

__all__ = ["AttributesOnDevices", "compile_fetch"]

_TABLES = {"parameter": "_parameters", "buffer": "_buffers"}


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

    def held(path: str, keys: tuple[Any, ...]) -> str:
        return f"{module(path)}.__dict__" + "".join(f"[{key!r}]" for key in keys)

    values = [
        value(given.kind, given.name) if given.attribute is None else held(*given.attribute)
        for given in inputs
    ]
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


class AttributesOnDevices:
    """Plain tensor attributes of a model, each on the device that reads it.

    Nobody moves them with the weights, so this does, at the first call and whenever they are
    others or were changed since.
    """

    def __init__(self, inputs: Sequence[ProgramInput], homes: Sequence[torch.device]) -> None:
        """Has moved nothing yet."""
        self._fetch = compile_fetch(inputs)
        self._homes = tuple(homes)
        self._moved: dict[int, tuple[Tensor, int, Tensor]] = {}

    def __call__(self, model: nn.Module) -> tuple[Tensor, ...]:
        """Their values now."""
        return tuple(
            value if value.device == home else self._on(number, value, home)
            for number, (value, home) in enumerate(
                zip(self._fetch(model), self._homes, strict=True)
            )
        )

    def _on(self, number: int, value: Tensor, home: torch.device) -> Tensor:
        if value.requires_grad or value.is_inference():
            return cross_copy(value, home)
        kept = self._moved.get(number)
        if kept is None or kept[0] is not value or kept[1] != value._version:
            kept = self._moved[number] = (value, value._version, cross_copy(value, home))
        return kept[2]


def _untied(first: str, second: str) -> None:
    raise PlanMismatchError(
        "the model's ties are not those of the plan",
        [f'weights "{first}" and "{second}" were one and are two now'],
        hint="tie them again (tie_weights() of transformers), or plan again",
    )
