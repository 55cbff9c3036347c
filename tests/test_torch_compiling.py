"""Compiled parts of an applied model: same numbers, same object, and as it is where that fails."""

import copy
import pickle
import shutil
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from baechi import plan
from baechi.errors import InputError
from baechi.torch.applying import apply_placement, remove_placement, status
from baechi.torch.placement_rule import ModulePlacement
from baechi.torch.simdev import simulated
from torch_applied import WIDTH, Net, applied, batch, same

# Torch looks for gradients that inputs do not have, and hides its own warning from users only.
pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
HOST, META = torch.device("cpu"), torch.device("meta")
AOT = {"backend": "aot_eager"}


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 8), nn.Linear(8, WIDTH)
        self.norm = nn.BatchNorm1d(WIDTH)

    def forward(self, x: Tensor, scales: dict[str, Tensor]) -> Tensor:
        return x + self.norm(self.down(torch.relu(self.up(x * scales["in"]))))


class Blocks(nn.Module):
    """Blocks on one device in a model on two: nothing runs on the other, which need not exist."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.other = nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x, {"in": x.new_full((), 0.5)})
        return x


def compiled(model: nn.Module, *, level: str = "auto", compile: Any = AOT) -> nn.Module:
    placement = ModulePlacement({"": HOST, "other": META})
    return apply_placement(model, placement, level=level, compile=compile)


def losses(model: nn.Module, steps: int = 3) -> list[float]:
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    found = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = model(batch(5).to(next(model.parameters()))).square().mean()
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return found


@pytest.mark.parametrize(("level", "num_parts"), [("auto", 1), ("module", 2)])
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_a_compiled_model_trains_as_it_did(level: str, num_parts: int, backend: str) -> None:
    expected = Blocks().double()
    model = compiled(Blocks().double(), level=level, compile={"backend": backend})
    identities, keys = [id(p) for p in model.parameters()], list(model.state_dict())
    assert losses(model) == pytest.approx(losses(expected), rel=1e-9)
    assert [id(p) for p in model.parameters()] == identities
    assert list(model.state_dict()) == keys
    torch.testing.assert_close(dict(model.named_buffers()), dict(expected.named_buffers()))
    model.eval(), expected.eval()
    with torch.no_grad():
        torch.testing.assert_close(model(batch(5).double()), expected(batch(5).double()))
    found = status(model)
    assert found.level == ("op" if level == "auto" else "module")
    assert found.uncompiled == {}
    assert found.compiled_parts == num_parts * (2 if level == "auto" else 1)  # a graph per mode
    remove_placement(model)
    assert not any("forward" in vars(module) for module in model.modules())
    assert type(model) is Blocks


def test_a_model_on_one_device_is_compiled_as_a_whole() -> None:
    model = apply_placement(Blocks(), ModulePlacement({"": HOST}), compile=AOT)
    assert losses(model) == losses(Blocks())
    assert (status(model).compiled_parts, status(model).uncompiled) == (1, {})


def test_many_modules_of_a_class_are_all_compiled() -> None:
    model = Blocks()
    model.blocks = nn.ModuleList(copy.deepcopy(model.blocks[0]) for _ in range(12))
    compiled(model, level="module", compile={"backend": "eager"})
    model(batch())
    assert (status(model).compiled_parts, status(model).uncompiled) == (12, {})


@pytest.mark.parametrize("way", ["deepcopy", "pickle"])
@pytest.mark.parametrize("level", ["auto", "module"])
def test_copies_of_a_compiled_model_are_compiled_themselves(way: str, level: str) -> None:
    model = compiled(Blocks(), level=level)
    model(batch(5))
    other = copy.deepcopy(model) if way == "deepcopy" else pickle.loads(pickle.dumps(model))
    with torch.no_grad():
        for weight in model.parameters():
            weight.zero_()
    assert losses(other, 1) == losses(Blocks(), 1)
    assert status(other).compiled_parts == status(model).compiled_parts > 0


@pytest.mark.parametrize("level", ["auto", "module"])
def test_hooks_of_the_user_are_called_once(level: str) -> None:
    model, seen = compiled(Blocks(), level=level), []
    model.register_forward_hook(lambda *_: seen.append("whole"))
    model.blocks[0].register_forward_hook(lambda *_: seen.append("block"))
    assert same(model, Blocks(), batch())
    assert sorted(seen) == ["block", "whole"]


@pytest.mark.parametrize("level", ["auto", "module"])
def test_a_part_that_does_not_compile_runs_as_it_is(level: str) -> None:
    def backend(*_: Any) -> Any:
        raise ValueError("no kernels today")

    model = compiled(Blocks(), level=level, compile={"backend": backend})
    assert losses(model) == losses(Blocks())
    found = status(model)
    assert found.compiled_parts == 0
    assert sum(found.uncompiled.values()) == (1 if level == "auto" else 2)
    assert "no kernels today" in next(iter(found.uncompiled))


@pytest.mark.parametrize("places", [{"": HOST}, {"": HOST, "other": META}])
def test_where_a_module_does_not_compile_its_modules_do(places: dict[str, torch.device]) -> None:
    class Breaks(Blocks):
        def forward(self, x: Tensor) -> Tensor:
            torch._dynamo.graph_break()
            return super().forward(x)

    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.other = Breaks(), nn.Identity()

        def forward(self, x: Tensor) -> Tensor:
            return self.inner(x)

    model = apply_placement(Outer(), ModulePlacement(places), level="module", compile=AOT)
    assert losses(model) == losses(Blocks())
    found = status(model)
    assert found.compiled_parts == 2
    assert sum(found.uncompiled.values()) == (1 if len(places) == 2 else 2)
    remove_placement(model)
    assert not any("forward" in vars(module) for module in model.modules())


def test_a_module_with_operands_elsewhere_runs_as_it_is() -> None:
    class Reads(Blocks):
        def forward(self, x: Tensor) -> Tensor:
            return self.blocks[0](x, {"in": torch.ones(WIDTH).to(META)})

    model = compiled(Reads(), level="module")
    with pytest.raises(RuntimeError):  # numbers cannot come from meta; on devices they would
        model(batch())
    assert status(model).uncompiled == {
        "a module is given a list or dict with tensors of another device": 1
    }


def test_simulated_devices_run_op_by_op() -> None:
    with simulated(3):
        model = applied(Net(), compile=True)
        assert same(model, Net(), batch())
        assert status(model).compiled_parts == 0
        assert list(status(model).uncompiled) == ["simulated devices run op by op"]


@pytest.mark.parametrize(
    ("compile", "said"),
    [
        ("inductor", "compile is a str"),
        ({"fullgraph": False}, "fullgraph"),
        ({"backend": "no such"}, "no such"),
        ({"speed": "high"}, "speed"),
    ],
)
def test_options_that_torch_refuses_are_named(compile: Any, said: str) -> None:
    model = Blocks()
    with pytest.raises(InputError, match=said):
        compiled(model, compile=compile)
    assert type(model) is Blocks


@pytest.mark.parametrize("compile", [False, AOT])
@pytest.mark.parametrize("level", ["auto", "module"])
def test_what_the_user_compiles_goes_around_the_plan(level: str, compile: Any) -> None:
    model = compiled(Blocks(), level=level, compile=compile)
    whole = torch.compile(model, backend="aot_eager")

    def step(x: Tensor) -> Tensor:
        return model(2 * x).square().sum()

    assert torch.equal(whole(batch()), Blocks()(batch()))
    assert torch.equal(
        torch.compile(step, backend="aot_eager")(batch()), Blocks()(2 * batch()).square().sum()
    )
    calls = status(model)
    assert calls.graph_calls + calls.module_calls == 2
    model.blocks[0].compile(backend="aot_eager")
    assert torch.equal(model(batch()), Blocks()(batch()))


def test_a_model_that_torch_has_compiled_is_refused() -> None:
    model = torch.compile(Blocks())
    with pytest.raises(InputError, match=r"wrapped by torch\.compile"):
        plan(model, (batch(),), devices="2x1MiB", mode="inference")
    made = plan(Blocks(), (batch(),), devices="2x1MiB", mode="inference")
    with pytest.raises(InputError, match=r"wrapped by torch\.compile"):
        made.apply(model)


def test_inductor_compiles_parts() -> None:
    if shutil.which("g++") is None:
        pytest.skip("inductor needs a C++ compiler (g++)")
    model = Blocks()
    model.blocks = model.blocks[:1]
    twin = copy.deepcopy(model)
    compiled(model, compile=True)
    assert losses(model, 1) == pytest.approx(losses(twin, 1), rel=1e-5)
    assert (status(model).compiled_parts, status(model).uncompiled) == (1, {})
