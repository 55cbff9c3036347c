"""Parts of a placed graph: where it is cut, and that the cut graph computes the same."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.fx import GraphModule

import torch_corners as corners
from baechi.torch.capture import capture
from baechi.torch.compiling import Compiling
from baechi.torch.graph_parts import compile_parts, parts_of
from baechi.torch.placed_graph import PlacedProgram, is_placed, place_program
from baechi.torch.program import Program
from torch_models import BY_NAME, CASES, loss_of
from torch_placements import program_of, random_placement

# Torch looks for gradients that inputs do not have, and hides its own warning from users only.
pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
# One device under three names: the graph is placed and cut as for three, and runs in this process.
NAMED = [torch.device("cpu", index) for index in range(3)]


def placed(model: nn.Module, x: Tensor, *, training: bool = True, **at: int) -> PlacedProgram:
    """Ops by node name on the devices 0, 1, ...; those not named, and weights, on 0."""
    made = capture(model, (x,), training=training).program
    assert made is not None
    nodes = [node for node in made.graph_module.graph.nodes if is_placed(node)]
    homes = {one.name: NAMED[0] for one in made.inputs if one.kind in ("parameter", "buffer")}
    return place_program(made, {n.name: NAMED[at.get(n.name, 0)] for n in nodes}, homes)


def parts(model: nn.Module, x: Tensor, *, training: bool = True, **at: int) -> list[list[str]]:
    graph = placed(model, x, training=training, **at).graph_module.graph
    return [[node.name for node in nodes] for nodes in parts_of(graph)]


def as_it_is(part: GraphModule) -> Callable[..., Any]:
    def run(*values: Any) -> Any:
        return part.forward(*values)

    return run


class Of(nn.Module):
    """A model of one function, with a buffer."""

    def __init__(self, function: Callable[[nn.Module, Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function
        self.count = nn.Buffer(torch.zeros(3))

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self, x)


X = torch.linspace(-1, 1, 3)


def test_a_part_ends_where_a_copy_leaves_or_arrives() -> None:
    model = Of(lambda _, x: x.exp().sin().cos().tan().abs())
    assert parts(model, X, cos=1, tan=1) == [["exp", "sin"], ["cos", "tan"], ["abs_1"]]


def test_branches_that_take_turns_are_one_part_each() -> None:
    def branches(_: nn.Module, x: Tensor) -> Tensor:
        one, other = x.exp(), x.sin()
        one, other = one.cos(), other.tan()
        return one.abs() + other.neg()

    found = parts(Of(branches), X, sin=1, tan=1, neg=1)
    assert sorted(found) == [["add"], ["exp", "cos", "abs_1"], ["sin", "tan", "neg"]]


def test_a_copy_of_a_weight_comes_before_it_is_changed_and_after() -> None:
    def counts(model: nn.Module, x: Tensor) -> Tensor:
        early = model.count.exp() + x.sin()
        model.count.add_(1)
        return early * model.count.cos() * x.tan()

    at = {"exp": 1, "cos": 1, "sin": 1, "tan": 1, "add": 1, "mul": 1, "mul_1": 1}
    assert parts(Of(counts), X, **at) == [
        ["add_"],
        ["exp", "sin", "add"],
        ["cos", "mul", "tan", "mul_1"],
    ]
    model, twin = Of(counts), Of(counts)
    one = placed(model, X, **at)
    compile_parts(one.graph_module, as_it_is)
    assert torch.equal(one(model, (X,), {}), twin(X))


def test_random_numbers_are_drawn_in_the_order_of_the_model() -> None:
    def noise(_: nn.Module, x: Tensor) -> Tensor:
        one, other = torch.rand_like(x), torch.rand_like(x).exp()
        return one + torch.rand_like(x) + other

    at = {"rand_like_1": 1, "exp": 1}
    expected = [["rand_like"], ["rand_like_1", "exp"], ["rand_like_2", "add"], ["add_1"]]
    assert parts(Of(noise), X, **at)[:2] == expected[:2]
    model = Of(noise)
    one = placed(model, X, **at)
    compile_parts(one.graph_module, as_it_is)
    torch.manual_seed(0)
    expected = model(X)
    torch.manual_seed(0)
    assert torch.equal(one(model, (X,), {}), expected)


def test_switching_gradients_ends_all_parts() -> None:
    def frozen(_: nn.Module, x: Tensor) -> Tensor:
        y = x.exp().sin()
        with torch.no_grad():
            z = y.cos().tan()
        return (y + z).abs()

    assert [len(part) for part in parts(Of(frozen), X)] == [2, 2, 2]


EXPORTABLE = [case.name for case in CASES if case.exports]


def run_in_parts(
    name: str, program: Program, seed: int, compiled: Callable[[GraphModule], Any]
) -> tuple[Tensor, dict[str, Tensor], dict[str, Tensor]]:
    sample = BY_NAME[name].build(dtype=torch.float64)
    one = place_program(program, *random_placement(program, seed, NAMED))
    compile_parts(one.graph_module, compiled)
    return results(sample.model, loss_of(one(sample.model, sample.args, sample.kwargs)))


def results(model: nn.Module, loss: Tensor) -> tuple[Tensor, dict[str, Tensor], dict[str, Tensor]]:
    loss.backward()
    gradients = {k: p.grad for k, p in model.named_parameters() if p.grad is not None}
    return loss.detach(), gradients, dict(model.named_buffers())


def agrees(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    # Some gradients are zero but for rounding: the largest of the model is what counts.
    largest = max(
        (float(v.double().abs().max()) for v in expected.values() if v.numel()), default=0
    )
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12 * largest)


@pytest.mark.parametrize("name", EXPORTABLE)
def test_models_cut_at_random_compute_the_same(name: str) -> None:
    sample = BY_NAME[name].build(dtype=torch.float64)
    loss, gradients, buffers = results(sample.model, sample.loss())
    found = run_in_parts(name, program_of(name, torch.float64), 5, as_it_is)
    assert torch.equal(found[0], loss)
    agrees(found[1], gradients)
    agrees(found[2], buffers)


@pytest.mark.parametrize("name", ["unet", "llama"])
def test_models_compiled_in_parts_compute_the_same(name: str) -> None:
    sample = BY_NAME[name].build(dtype=torch.float64)
    loss, gradients, buffers = results(sample.model, sample.loss())
    compiling = Compiling({"backend": "aot_eager"})
    found = run_in_parts(name, program_of(name, torch.float64), 5, compiling.part)
    assert compiling.num_parts > 5
    assert not compiling.reasons
    assert torch.equal(found[0], loss)
    agrees(found[1], gradients)
    agrees(found[2], buffers)


def test_regions_that_are_computed_again_are_compiled_as_a_whole() -> None:
    torch.manual_seed(0)
    model = corners.Checkpointed()
    x = torch.randn(2, 4)
    loss, gradients, _ = results(model, model(x))
    model.zero_grad()
    one = placed(model, x)
    compiling = Compiling({"backend": "aot_eager"})
    compile_parts(one.graph_module, compiling.part)
    found = results(model, one(model, (x,), {}))
    assert (compiling.num_parts, compiling.reasons) == (len(model.blocks) + 1, {})
    assert torch.equal(found[0], loss)
    agrees(found[1], gradients)
