"""Fidelity: awkward models keep values, gradients and buffers, or it is said why they would not."""

import copy
import re
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import torch_corner_cases as corner_cases
import torch_public_models as public
from baechi.torch.capture import capture
from baechi.torch.placed_graph import PlacedProgram, is_placed, place_program
from baechi.torch.program import Program
from baechi.torch.simdev import simulated, to_host
from torch_changing_models import CHANGING
from torch_models import BY_NAME, loss_of
from torch_placements import move_to, random_placement, three

CPU = torch.device("cpu")


def program_of(model: nn.Module, args: Any, **options: Any) -> Program:
    taken = capture(model, args, training=True, **options)
    assert taken.reasons == ()
    assert taken.program is not None
    return taken.program


def placed_on_cpu(program: Program) -> PlacedProgram:
    nodes = program.graph_module.graph.nodes
    homes = {g.name: CPU for g in program.inputs if g.kind in ("parameter", "buffer")}
    return place_program(program, {n.name: CPU for n in nodes if is_placed(n)}, homes)


def outcome(run: Callable[[], Tensor], model: nn.Module) -> list[Tensor | None]:
    torch.manual_seed(4)
    out = run()
    if out.requires_grad:
        out.sum().backward()
    gradients = [weight.grad for weight in model.parameters()]
    return [out.detach(), *gradients, *model.buffers()]


@pytest.mark.parametrize(
    ("make", "inputs"), [case[1:] for case in corner_cases.FAITHFUL],
    ids=[case[0] for case in corner_cases.FAITHFUL],
)  # fmt: skip
def test_an_awkward_model_has_a_graph_with_the_same_numbers(
    make: Callable[[], nn.Module], inputs: Callable[[], Any]
) -> None:
    model, args = make(), inputs()
    program = program_of(model, args)
    plain, distributed = copy.deepcopy(model), copy.deepcopy(model)
    expected = outcome(lambda: plain(*args), plain)
    placed = placed_on_cpu(program)
    found = outcome(lambda: placed(model, args, {}), model)
    torch.testing.assert_close(found, expected, rtol=0, atol=0)
    with simulated(3):
        device_of, home_of = random_placement(program, 6, three())
        move_to(distributed, home_of)
        spread = place_program(program, device_of, home_of)
        out, *_ = outcome(lambda: spread(distributed, args, {}), distributed)
        assert torch.equal(to_host(out), expected[0])


@pytest.mark.parametrize(("make", "reason"), corner_cases.UNFAITHFUL + CHANGING)
def test_what_a_graph_would_lose_is_said_with_a_way_out(
    make: Callable[[], nn.Module], reason: str
) -> None:
    model = make()
    width = next(m.in_features for m in model.modules() if isinstance(m, nn.Linear))
    taken = capture(model, (torch.randn(6, width),), training=True)
    assert taken.level == "module"
    assert len(taken.reasons) == 1
    assert re.search(reason, taken.reasons[0])


@pytest.mark.parametrize("name", ["gpt2", "resnet", "unet", "transformer"])
def test_autocast_gives_what_eager_autocast_gives(name: str) -> None:
    sample, plain = BY_NAME[name].build(), BY_NAME[name].build()
    taken = capture(
        sample.model, sample.args, sample.kwargs, training=True, autocast=torch.bfloat16
    )
    assert taken.program is not None
    assert taken.level == "op"
    placed = placed_on_cpu(taken.program)
    with torch.autocast("cpu", torch.bfloat16):
        expected = plain.loss()
        found = loss_of(placed(sample.model, sample.args, sample.kwargs))
    outside = loss_of(placed(sample.model, sample.args, sample.kwargs))
    found.backward()
    expected.backward()
    assert torch.equal(found, expected)
    assert torch.equal(outside, expected)
    for weight, other in zip(sample.model.parameters(), plain.model.parameters(), strict=True):
        torch.testing.assert_close(weight.grad, other.grad, rtol=0, atol=0)


def test_a_cache_that_forward_returns_is_made_anew_and_one_that_it_is_given_is_not() -> None:
    sample = BY_NAME["llama"].build()
    sample.model.config.use_cache = True
    taken = capture(sample.model, (), sample.kwargs, training=True)
    assert taken.program is not None
    made = placed_on_cpu(taken.program)(sample.model, (), sample.kwargs).past_key_values
    assert made.get_seq_length() == 12
    assert made.layers[0].keys.grad_fn is not None
    given = capture(sample.model, (), sample.kwargs | {"past_key_values": made}, training=True)
    assert given.program is None
    assert 'past_key_values" is a DynamicCache' in given.reasons[0]


def test_experts_run_the_kernels_that_they_run_without_a_graph() -> None:
    model, inputs = public.mixtral()
    model.set_experts_implementation("grouped_mm")  # another one where it is exported
    program = program_of(model, (), kwargs=inputs)
    ops = [str(node.target) for node in program.graph_module.graph.nodes]
    assert any("grouped_mm" in op and "fallback" not in op for op in ops)
    expected = copy.deepcopy(model)(**inputs).loss
    found = placed_on_cpu(program)(model, (), inputs)
    assert torch.equal(found.loss, expected)


def test_containers_that_forward_fills_are_noticed() -> None:
    def filling(self: Any, x: Tensor, out: list[Tensor]) -> Tensor:
        out.append(x)
        return self.l(x)

    model = corner_cases.Running(filling, l=corner_cases.linear())
    taken = capture(model, (torch.randn(2, 8), []), training=True)
    assert "changes the containers that it is given" in taken.reasons[0]


def test_a_model_that_cannot_be_copied_is_planned_by_modules() -> None:
    model = corner_cases.linear()
    model.lock = threading.Lock()
    taken = capture(model, (torch.randn(2, 8),), training=True)
    assert taken.program is None
    assert "cannot be copied" in taken.reasons[0]


def test_a_call_without_tensors_has_nothing_to_record() -> None:
    model = corner_cases.Running(lambda self: self.l.weight.sum(), l=corner_cases.linear())
    assert "passes no tensor" in capture(model, (), training=True).reasons[0]
