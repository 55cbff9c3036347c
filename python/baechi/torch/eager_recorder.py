"""Eager recorder: makes a step of every op that a model's own code dispatches."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Any

import torch
from torch.utils.weak import WeakIdKeyDictionary

from baechi.torch.recorder import Recorder
from baechi.torch.stand_ins import Kernels
from baechi.torch.trace import Step, Value
from baechi.torch.trees import tensors_in
from baechi.torch.work import MathModes

__all__ = ["EagerRecorder"]

_NOT_OPS = ("aten.detach.default", "prim.device.default")


class EagerRecorder(Recorder):
    """Makes a step of every op that forward dispatches."""

    def __init__(self, modes: MathModes, kernels: Kernels) -> None:
        """Starts outside of any module."""
        super().__init__(modes, kernels.scratch_bytes)
        self.steps: list[Step] = []
        self.ends: list[int] = []  # autograd's next number when a step is dispatched
        self.values: list[Value] = []
        self.sources: list[tuple[int, int] | int | None] = []
        self.known: WeakIdKeyDictionary = WeakIdKeyDictionary()  # type: ignore[no-untyped-call]
        self.path: list[str] = [""]
        self.counts: Counter[tuple[str, str]] = Counter()
        self.is_forward = False
        self.made_on: dict[int, list[int]] = defaultdict(list)  # storage -> steps
        self.written: set[int] = set()

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Runs an op as a step of its own."""
        kwargs = kwargs or {}
        if self.silent or not self.is_forward or str(func) in _NOT_OPS:
            return super().__torch_dispatch__(func, types, args, kwargs)
        at = len(self.steps)
        reads = dict.fromkeys(self.value_of(t) for t in tensors_in((args, list(kwargs.values()))))
        self.ends.append(torch.autograd._get_sequence_nr())  # type: ignore[attr-defined]
        owner = self.begins(at)
        try:
            out = super().__torch_dispatch__(func, types, args, kwargs)
        except Exception:  # forward may go on without it
            self.ends.pop()
            raise
        self.owner = None
        name = func._schema.name.rpartition("::")[2]
        path = self.path[-1]
        key, kind = f"{path}:{name}:{self.counts[path, name]}", str(func).removesuffix(".default")
        self.counts[path, name] += 1
        step = Step(key, path, kind, tuple(reads), [], owner.born, owner.peak, owner.works, [])
        step.sequence, step.random = self.ends[-1], self.random
        self.steps.append(step)
        written = [
            a.alias_info is not None and a.alias_info.is_write for a in func._schema.arguments
        ]
        for argument, is_written in zip(args, written, strict=False):
            if is_written:
                self.written.update(self.storage_of(t) for t in tensors_in(argument))
        for number, tensor in enumerate(tensors_in(out)):
            source = (self.ends[-1] - 1, number) if torch.is_grad_enabled() else None
            step.makes.append(self.add_value(tensor, at, source))
            self.made_on[self.values[step.makes[-1]].storage].append(at)
        return out

    def value_of(self, tensor: torch.Tensor) -> int:
        """The value of a tensor; one that was never seen comes from outside."""
        found = self.known.get(tensor)  # type: ignore[no-untyped-call]
        if found is None:
            return self.add_value(tensor, -1, None, kind="constant", name="")
        value: int = found
        if tensor.grad_fn is not None:
            self.sources[value] = (tensor.grad_fn._sequence_nr(), tensor.output_nr)
        return value

    def add_value(
        self,
        tensor: torch.Tensor,
        step: int,
        source: tuple[int, int] | int | None,
        kind: str = "made",
        name: str = "",
    ) -> int:
        """A new value; `source` is where its gradient goes."""
        storage = self.storage_of(tensor, kind, name)
        was = self.storages[storage]
        if kind == "constant" and was.kind == "made" and not self._is_born(storage):
            was.kind = kind  # autograd saves operands before their op is dispatched
        self.values.append(Value(storage, tensor.numel() * tensor.element_size(), step))
        if step < 0:
            source = storage if tensor.requires_grad and tensor.is_leaf else None
        self.sources.append(source)
        self.known[tensor] = len(self.values) - 1
        return len(self.values) - 1

    def _is_born(self, storage: int) -> bool:
        return any(storage in step.born for step in self.steps)
