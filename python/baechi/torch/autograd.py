"""Autograd: the functions behind a traced loss, what each keeps, and what it passes on."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from unittest import mock

import torch

from baechi.errors import InputError
from baechi.torch.recorder import Owner, Recorder
from baechi.torch.trace import Edge, Function, Incoming, Saved, Step

__all__ = ["Keeper", "run_backward"]

ACCUMULATION = 2**64 - 1
"""The sequence number of an accumulation into a parameter's ``.grad``."""


class Keeper:
    """Notes, while the forward pass runs, which storage each autograd function saves.

    A function has its number before it saves anything, so the last number given out is its own.
    """

    def __init__(self, recorder: Recorder) -> None:
        """Knows storages by the recorder's numbers."""
        self.recorder = recorder
        self.kept: list[tuple[int, int, int]] = []  # sequence number, storage, bytes

    def pack(self, tensor: torch.Tensor) -> torch.Tensor:
        """The hook for ``saved_tensors_hooks``."""
        recorder = self.recorder
        silent, recorder.silent = recorder.silent, True
        try:
            alias = tensor.detach()  # the tensor itself would make a cycle
        finally:
            recorder.silent = silent
        sequence = torch.autograd._get_sequence_nr() - 1  # type: ignore[attr-defined]
        nbytes = tensor.numel() * tensor.element_size()
        # What was made has been seen by now: the rest comes from outside.
        self.kept.append((sequence, recorder.storage_of(tensor, "constant"), nbytes))
        return alias

    @staticmethod
    def unpack(tensor: torch.Tensor) -> torch.Tensor:
        """Gives it back."""
        return tensor

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Sees what is saved, but for what ``torch.func`` does, which refuses to be watched."""
        graph, known = torch.autograd.graph, torch._C._autograd
        disabled = graph.disable_saved_tensors_hooks

        @contextlib.contextmanager
        def aside(message: str) -> Iterator[None]:
            top = known._top_saved_tensors_default_hooks(False)  # of this thread
            is_ours = top is not None and top[0] == self.pack
            if is_ours:
                known._pop_saved_tensors_default_hooks()
            try:
                with disabled(message):
                    yield
            finally:
                if is_ours:
                    known._push_saved_tensors_default_hooks(self.pack, self.unpack)

        with (
            mock.patch.object(graph, "disable_saved_tensors_hooks", aside),
            graph.saved_tensors_hooks(self.pack, self.unpack),
        ):
            yield


def _nodes(root: Any) -> list[Any]:
    """All functions that the root leads to, the root first."""
    found: dict[Any, None] = {}
    waiting = [root]
    while waiting:
        node = waiting.pop()
        if node in found:
            continue
        found[node] = None
        waiting.extend(n for n, _ in reversed(node.next_functions) if n is not None)
    return list(found)


def run_backward(
    recorder: Recorder,
    keeper: Keeper,
    loss: torch.Tensor,
    steps: Sequence[Step],
    step_of: Callable[[int], int],
) -> list[Function]:
    """Runs backward under the recorder, and describes every function of it.

    Args:
        recorder: sees what backward allocates.
        keeper: what the forward pass saved.
        loss: a scalar with a gradient.
        steps: the forward pass.
        step_of: the step that made the function of a sequence number.

    Returns:
        The functions, the one of the loss first. What they save is added to their steps.
    """
    nodes = [node for node in _nodes(loss.grad_fn) if not _is_other_leaf(node, recorder)]
    numbers = {node: at for at, node in enumerate(nodes)}
    functions: list[Function] = []
    for node in nodes:
        sequence = node._sequence_nr()
        parameter, step = -1, -1
        if hasattr(node, "variable"):
            parameter = recorder.storage_of(node.variable)
        else:
            step = step_of(sequence)
        functions.append(Function(node.name(), step, parameter, sequence, [], [], 0, []))
    _refuse_sparse(nodes, functions, steps)
    handles = [
        handle
        for node, at in numbers.items()
        for handle in _watch(node, at, numbers, functions, recorder)
    ]
    by_sequence = {f.sequence: at for at, f in enumerate(functions) if f.sequence != ACCUMULATION}
    for sequence, storage, nbytes in keeper.kept:
        at = by_sequence.get(sequence)
        if at is not None:
            steps[functions[at].step].saved.append(Saved(at, storage, nbytes))
    del nodes, numbers
    with recorder:
        loss.backward()  # type: ignore[no-untyped-call]
    for handle in handles:
        handle.remove()
    for at, function in enumerate(functions):
        owner = recorder.owners.get(at, Owner())
        function.born, function.born_peak = list(owner.born), owner.peak
        function.works = owner.works
    return functions


def _is_other_leaf(node: Any, recorder: Recorder) -> bool:
    """Whether a gradient ends in a tensor that is no parameter: such as an input, on the host."""
    leaf = getattr(node, "variable", None)
    return leaf is not None and recorder.storages[recorder.storage_of(leaf)].kind != "parameter"


def _refuse_sparse(
    nodes: Sequence[Any], functions: Sequence[Function], steps: Sequence[Step]
) -> None:
    """Raises where a gradient would have as many values as its input has different indices."""
    paths = dict.fromkeys(
        steps[function.step].path
        for node, function in zip(nodes, functions, strict=True)
        if getattr(node, "_saved_sparse", False)
    )
    if paths:
        listed = ", ".join(f'"{path}"' for path in paths)
        raise InputError(
            f"gradients of {listed} are sparse (sparse=True): how many bytes they take depends "
            "on the values of the indices, so it cannot be planned",
            hint="make the embedding with sparse=False, or freeze it",
        )


def _watch(
    node: Any, at: int, numbers: dict[Any, int], functions: list[Function], recorder: Recorder
) -> list[Any]:
    """Hooks that tell the recorder whose turn it is and note where gradients come from."""
    after = [(numbers[n], k) if n in numbers else None for n, k in node.next_functions]

    def before(_taken: Any) -> None:
        recorder.enters(at)

    def passed(given: Any, taken: Any) -> None:
        owner = recorder.owner
        ids = [None if t is None else recorder.storage_of(t) for t in taken]
        for target, tensor in zip(after, given, strict=False):
            if target is None or tensor is None:
                continue
            storage = recorder.storage_of(tensor)
            if storage in ids:
                incoming = Incoming("taken", ids.index(storage))
            elif owner is not None and storage in owner.born:
                incoming = Incoming("made", storage)
            else:
                incoming = Incoming("other", storage)
            nbytes = tensor.numel() * tensor.element_size()
            functions[at].edges.append(Edge(*target, nbytes, incoming))
        recorder.leaves()

    handles = [node.register_prehook(before)]
    if functions[at].parameter < 0:
        handles.append(node.register_hook(passed))
    return handles
