"""Captures: the program of a model, what it keeps, and why some models have none."""

import copy
from typing import Any

import pytest
import torch
from torch import nn
from torch.fx import Node

import torch_corners as corners
import torch_placements
from baechi.errors import InputError
from baechi.torch.capture import capture
from baechi.torch.program import Capture, Program
from torch_models import BY_NAME, CASES, ModelCase
from torch_placements import captured


def program_of(model: nn.Module, *args: Any, training: bool = True, **kwargs: Any) -> Program:
    taken = capture(model, args, kwargs, training=training)
    assert taken.reasons == ()
    assert taken.program is not None
    return taken.program


def text_of(program: Program) -> str:
    return "\n".join(
        [str(program.graph_module.code), str(program.keys), str(program.colocated)]
        + [f"{given.kind} {given.name} {given.index}" for given in program.inputs]
    )


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_model_has_a_program_exactly_if_it_exports(case: ModelCase) -> None:
    taken = captured(case.name, torch.float32)
    assert (taken.program is not None) == case.exports
    assert taken.level == ("op" if case.exports else "module")
    assert (taken.reasons == ()) == case.exports


@pytest.mark.parametrize("name", ["resnet", "gnmt", "llama", "mixtral"])
def test_weights_on_meta_give_the_same_program(name: str) -> None:
    real = BY_NAME[name].build()
    on_meta = copy.deepcopy(real.model).to("meta")
    other = capture(on_meta, real.args, real.kwargs, training=True)
    assert other.program is not None
    assert text_of(other.program) == text_of(torch_placements.program_of(name, torch.float32))


def test_capturing_changes_nothing_of_the_model() -> None:
    model = corners.Awkward().train()
    args, kwargs = corners.awkward_call()
    before = copy.deepcopy(model.state_dict()) | {"mean": model.mean.clone()}
    attributes = set(model.__dict__)
    state = torch.get_rng_state()
    program_of(model, *args, **kwargs)
    after = model.state_dict() | {"mean": model.mean}
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert set(model.__dict__) == attributes
    assert torch.equal(torch.get_rng_state(), state)
    assert all(module.training for module in model.modules())
    assert all(parameter.grad is None for parameter in model.parameters())


def test_each_value_of_the_model_comes_once_under_its_first_name() -> None:
    args, kwargs = corners.awkward_call()
    program = program_of(corners.Awkward(), *args, **kwargs)
    named = {(given.kind, given.name) for given in program.inputs}
    assert len(named) == len(program.inputs)
    assert {name for kind, name in named if kind == "parameter"} == {
        "scale",
        "first.weight",
        "first.bias",
        "frozen.weight",
        "frozen.bias",
    }
    assert {name for kind, name in named if kind == "buffer"} == {"mean", "steps"}
    assert {name for kind, name in named if kind == "user"} == {"x", "more.extra.0"}
    attributes = [given.name for given in program.inputs if given.attribute is not None]
    assert attributes == ["plain"]


def test_one_call_has_one_program_however_it_is_spelled() -> None:
    model = nn.Bilinear(2, 3, 4)
    x, y = torch.randn(5, 2), torch.randn(5, 3)
    program = program_of(model, x, y)
    assert program.bind((x,), {"input2": y}) == [x, y]
    assert program.bind((), {"input2": y, "input1": x}) == [x, y]


def test_a_call_of_another_structure_is_refused() -> None:
    args, kwargs = corners.awkward_call()
    program = program_of(corners.Awkward(), *args, **kwargs)
    with pytest.raises(InputError, match=r"other values 2.*the plan was made for.*3"):
        program.bind(args, kwargs | {"times": 2})


def test_the_output_has_the_models_own_structure() -> None:
    args, kwargs = corners.awkward_call()
    program = program_of(corners.Awkward(), *args, **kwargs)
    loss, y, x = torch.randn(()), torch.randn(3, 4), torch.randn(3, 4)
    scores = program.rebuild([loss, y, x])
    assert isinstance(scores, corners.Scores)
    assert scores.loss is loss
    assert scores.parts == [y, x]
    assert scores.note == "3 times"


def test_views_and_ops_in_place_share_a_device_with_what_they_change() -> None:
    class Changing(nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            z = x * 2
            z[0].add_(y[0])
            first, second = z.chunk(2, 1)
            return first.exp() + second

    program = program_of(Changing(), torch.randn(2, 4), torch.randn(2, 4), training=False)
    groups = [{program.keys[name] for name in group} for group in program.colocated]
    assert groups == [{":mul:0", ":select:0", ":add_:0", ":chunk:0", ":getitem:0", ":getitem:1"}]


def test_statistics_stay_with_the_op_that_updates_them() -> None:
    program = program_of(nn.BatchNorm1d(3), torch.randn(4, 3))
    group = next(group for group in program.colocated if any("mean" in name for name in group))
    assert any("running_var" in name for name in group)
    assert any("batch_norm" in name for name in group)


def test_an_input_that_forward_changes_is_named() -> None:
    class Counting(nn.Module):
        def forward(self, x: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
            seen[0].add_(1)
            return x * seen

    program = program_of(Counting(), torch.randn(3), torch.zeros(3), training=False)
    assert program.mutated == ("seen",)
    changed = next(group for group in program.colocated if len(group) == 3)
    assert [program.keys.get(name) for name in changed] == [None, ":select:0", ":add_:0"]


def test_keys_count_ops_within_a_module() -> None:
    program = program_of(
        nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2)), torch.ones(1, 2)
    )
    assert list(program.keys.values()) == ["0:linear:0", "1:relu:0", "2:linear:0"]


def test_a_module_that_is_called_twice_has_one_path() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(2, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.linear(self.linear(x))

    program = program_of(Twice(), torch.ones(1, 2))
    assert list(program.keys.values()) == ["linear:linear:0", "linear:linear:1"]


def test_the_mode_is_the_one_asked_for_and_modules_of_their_own_mode_keep_it() -> None:
    model = nn.Sequential(nn.Dropout(0.5), nn.BatchNorm1d(3)).train()
    model[1].eval()
    assert program_of(model, torch.ones(2, 3)).training_flags == (True, True, False)
    assert program_of(model, torch.ones(2, 3), training=False).training_flags == (False,) * 3
    assert program_of(model.eval(), torch.ones(2, 3)).training_flags == (True,) * 3


def test_attention_is_one_op_and_dropout_keeps_a_mask_of_bools() -> None:
    encoder = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    keys = program_of(encoder, torch.randn(2, 5, 8)).keys.values()
    assert sum(key.endswith(":attention:0") for key in keys) == 1
    assert not any("softmax" in key for key in keys)
    program = program_of(nn.Dropout(0.3), torch.randn(4, 4))
    both = next(node for node in program.graph_module.graph.nodes if "native" in node.name)
    assert [value.dtype for value in both.meta["val"]] == [torch.float32, torch.bool]


def test_values_are_recorded_on_meta_with_who_needs_gradients() -> None:
    program = program_of(nn.Linear(2, 3), torch.randn(4, 2))
    linear = next(n for n in program.graph_module.graph.nodes if n.op == "call_function")
    assert linear.meta["val"].device.type == "meta"
    assert linear.meta["val"].shape == (4, 3)
    assert linear.meta["val"].requires_grad


def test_checkpointed_regions_are_runs_of_nodes() -> None:
    program = program_of(corners.Checkpointed(), torch.randn(2, 4))
    order = [node.name for node in program.graph_module.graph.nodes]
    assert len(program.checkpointed) == 3
    for number, region in enumerate(program.checkpointed):
        start = order.index(region.nodes[0])
        assert tuple(order[start : start + len(region.nodes)]) == region.nodes
        assert {program.module_paths[name] for name in region.nodes} == {
            f"blocks.{number}.{child}" for child in range(3)
        }


def modules_only(model: nn.Module, *args: Any, **kwargs: Any) -> Capture:
    taken = capture(model, args, kwargs, training=True)
    assert taken.level == "module"
    return taken


def test_hooks_of_submodules_are_named_and_not_called() -> None:
    model = nn.Sequential(nn.Linear(4, 4))
    model[0].register_forward_hook(lambda *_: pytest.fail("called"))
    assert modules_only(model, torch.randn(2, 4)).reasons == (
        'module "0" has hooks, which a graph would not call: remove them for a graph',
    )


def test_a_hook_that_computes_a_weight_is_part_of_the_model() -> None:
    with pytest.warns(FutureWarning):
        model = nn.Sequential(torch.nn.utils.weight_norm(nn.Linear(4, 4)))
    names = [given.name for given in program_of(model, torch.randn(2, 4)).inputs]
    assert {"0.weight_g", "0.weight_v"} <= set(names)


def test_autocast_becomes_casts_of_the_program() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    taken = capture(model, (torch.randn(2, 4),), training=True, autocast=torch.bfloat16)
    assert taken.program is not None
    assert taken.reasons == ()
    nodes: list[Node] = list(taken.program.graph_module.graph.nodes)
    ops = [taken.program.keys[n.name] for n in nodes if n.op == "call_function"]
    assert ops == ["0:_to_copy:0", "0:_to_copy:1", "0:_to_copy:2", "0:linear:0", "1:relu:0"]
    assert nodes[-2].meta["val"].dtype == torch.bfloat16


def test_a_forward_that_is_called_wrongly_is_an_input_error() -> None:
    with pytest.raises(InputError, match="forward cannot be called like that"):
        capture(nn.Linear(2, 2), (), training=True)
