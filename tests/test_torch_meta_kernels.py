"""Kernels on meta tensors: calls of one form give tensors like those of the first."""

import gc
import threading
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.fx import Graph, GraphModule
from torch.utils._python_dispatch import TorchDispatchMode

import torch_models
from baechi.torch.capture import capture
from baechi.torch.garbage import collected_rarely, old_objects_spared
from baechi.torch.meta_kernels import MetaKernels, form_of
from baechi.torch.planning import study
from baechi.torch.simdev import resolve, simulated
from baechi.torch.trees import tensors_in

aten = torch.ops.aten


def meta(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.empty(*shape, dtype=dtype, device="meta")


def transposed() -> Tensor:
    return meta(3, 4).t()


CALLS: dict[str, Any] = {
    "broadcast": lambda: (aten.mul.Tensor, (meta(2, 3), meta(3)), {}),
    "strided": lambda: (aten.relu.default, (transposed(),), {}),
    "promoted": lambda: (aten.mul.Tensor, (meta(2, dtype=torch.int64), 2.5), {}),
    "several": lambda: (aten.native_layer_norm.default, (meta(2, 4), [4], meta(4), None, 1e-5), {}),
    "list": lambda: (aten._foreach_sqrt.default, ([meta(2), meta(3)],), {}),
    "factory": lambda: (aten.full.default, ([2, 3], 1), {"device": torch.device("meta")}),
    "in place": lambda: (aten.add_.Tensor, (meta(2, 3), meta(3)), {}),
    "list in place": lambda: (aten._foreach_mul_.Scalar, ([meta(2), meta(3)], 2.0), {}),
    "view": lambda: (aten.view.default, (meta(2, 3), [6]), {}),
    "shape in place": lambda: (aten.unsqueeze_.default, (meta(2, 3), 0), {}),
    "view by stealth": lambda: (aten._unsafe_view.default, (meta(2, 3), [6]), {}),
}


def described(result: Any, args: Any) -> list[Any]:
    """Forms of the results, and which tensors share memory with which operand."""
    storages = [tensor.untyped_storage()._cdata for tensor in tensors_in(args)]
    return [
        (
            tuple(one.shape),
            one.stride(),
            one.dtype,
            one.untyped_storage().nbytes(),
            [key == one.untyped_storage()._cdata for key in storages],
            [one is operand for operand in tensors_in(args)],
        )
        for one in tensors_in(result)
    ]


@pytest.mark.parametrize("name", CALLS)
def test_the_second_call_of_a_form_gives_what_the_op_gives(name: str) -> None:
    kernels = MetaKernels()
    op, args, kwargs = CALLS[name]()
    expected = described(op(*args, **kwargs), args)
    for _ in range(3):
        op, args, kwargs = CALLS[name]()
        result = kernels(op, args, kwargs)
        assert described(result, args) == expected


class Counting(TorchDispatchMode):
    """Counts the calls of one op."""

    def __init__(self, op: Any) -> None:
        super().__init__()
        self.op, self.count = op, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += func is self.op
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    ("name", "runs"),
    [("broadcast", 1), ("in place", 1), ("several", 1), ("view", 3), ("view by stealth", 3)],
)
def test_an_op_that_makes_tensors_runs_once_for_each_form(name: str, runs: int) -> None:
    kernels = MetaKernels()
    with Counting(CALLS[name]()[0]) as counting:
        for _ in range(3):
            kernels(*CALLS[name]())
    assert counting.count == runs


def test_numbers_of_different_types_make_different_forms() -> None:
    kernels, x = MetaKernels(), meta(2, dtype=torch.int64)
    found = [kernels(aten.mul.Tensor, (x, number), {}).dtype for number in (1, 1.0, True)]
    assert found == [torch.int64, torch.float32, torch.int64]
    assert kernels.num_forms == 3


def test_tensors_with_values_are_computed_every_time() -> None:
    kernels = MetaKernels()
    for value in (1.0, 2.0):
        assert kernels(aten.neg.default, (torch.tensor(value),), {}).item() == -value
    assert form_of(aten.neg.default, (torch.tensor(1.0),), {}) is None


def test_a_call_that_is_refused_is_refused_again() -> None:
    kernels = MetaKernels()
    for _ in range(2):
        with pytest.raises(RuntimeError):
            kernels(aten.mm.default, (meta(2, 3), meta(2, 3)), {})


def test_lists_without_values_hold_what_lists_with_values_hold() -> None:
    peaks = []
    for dry in (False, True):
        with simulated(2, dry=dry) as devices:
            there = [resolve(f"simdev:{at}") for at in (0, 1)]
            some = [torch.ones(n, device=there[n % 2]) for n in (3, 4, 5, 3, 4)]
            roots = torch._foreach_sqrt(torch._foreach_add(some, 1.0))
            torch._foreach_addcdiv_(some, roots, roots, [1.0, 2.0, 3.0, 4.0, 5.0])
            peaks.append([devices.peak_bytes(at) for at in (0, 1)])
    assert peaks[0] == peaks[1]


def test_capturing_makes_no_python_code_until_a_graph_is_called(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[str] = []
    make_code = Graph.python_code

    def noted(graph: Graph, *args: Any, **kwargs: Any) -> Any:
        made.append(threading.current_thread().name)
        return make_code(graph, *args, **kwargs)

    monkeypatch.setattr(Graph, "python_code", noted)
    sample = torch_models.BY_NAME["encoder"].build()
    program = capture(sample.model, sample.args, training=True).program
    assert program is not None
    assert made == []
    assert "return" in program.graph_module.code
    assert len(made) == 1


class Meddling(torch.nn.Module):
    """Another thread makes a graph module while this one is captured."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        found: list[str] = []

        def make() -> None:
            graph = Graph()
            graph.output(graph.placeholder("x"))
            found.append(GraphModule(torch.nn.Module(), graph).code)

        thread = threading.Thread(target=make)
        thread.start()
        thread.join()
        assert "return x" in found[0]
        return self.linear(x)


def test_graphs_of_other_threads_have_their_code_at_once() -> None:
    assert capture(Meddling(), (torch.ones(2, 2),), training=True).level == "op"


def test_planning_leaves_the_collector_as_it_was() -> None:
    thresholds, are_frozen = gc.get_threshold(), gc.get_freeze_count() > 0
    study(torch.nn.Linear(2, 2), (torch.ones(2, 2),), devices="1MiB", loss=torch.sum)
    assert (gc.get_threshold(), gc.get_freeze_count() > 0) == (thresholds, are_frozen)


def test_objects_that_the_caller_has_frozen_stay_frozen() -> None:
    were_frozen = gc.get_freeze_count() > 0
    gc.freeze()
    try:
        with old_objects_spared():
            assert gc.get_freeze_count() > 0
        assert gc.get_freeze_count() > 0
    finally:
        if not were_frozen:
            gc.unfreeze()


def test_a_collector_that_is_off_stays_off() -> None:
    before = gc.get_threshold()
    gc.set_threshold(0)
    try:
        with collected_rarely():
            assert gc.get_threshold()[0] == 0
    finally:
        gc.set_threshold(*before)
