"""An applied model runs a placed graph where it may, and its own modules anywhere else."""

import copy
import inspect
import pickle
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import torch_models
from baechi.errors import InputError
from baechi.torch.applying import apply_placement, remove_placement, status
from baechi.torch.placement_rule import ModulePlacement
from baechi.torch.simdev import SimulatedDevices, simulated, to_host
from torch_applied import WIDTH, Net, applied, batch, same
from torch_placements import program_of
from torch_placing import at_random, largest_difference, on, train


@pytest.fixture
def devices() -> Iterator[SimulatedDevices]:
    with simulated(3) as simulation:
        yield simulation


@pytest.mark.parametrize("case", torch_models.CASES, ids=lambda case: case.name)
def test_every_model_trains_as_on_the_host(case: torch_models.ModelCase) -> None:
    expected = train(case.build(dtype=torch.float64), steps=3)
    first = case.build().loss().item()
    with simulated(3):
        sample = case.build(dtype=torch.float64)
        placement = ModulePlacement(at_random(sample.model, 3, seed=4))
        apply_placement(sample.model, placement)
        found = train(sample, steps=3)
        assert status(sample.model).level == ("op" if case.exports else "module")
        assert found.losses == pytest.approx(expected.losses, rel=0, abs=1e-9)
        assert largest_difference(found.gradients, expected.gradients) < 1e-9
        assert largest_difference(found.buffers, expected.buffers) < 1e-9
        if case.exports:  # at module level another test does the same
            single = case.build()
            programs = [program_of(case.name, torch.float32)]
            assert apply_placement(single.model, placement, programs=programs)
            assert single.loss().item() == first


def test_it_is_the_same_object_of_a_class_of_the_same_name(devices: SimulatedDevices) -> None:
    model = Net()
    parameters = [id(p) for p in model.parameters()]
    assert applied(model) is model
    assert isinstance(model, Net)
    assert (type(model).__name__, type(model).__module__) == ("Net", Net.__module__)
    assert inspect.signature(model.forward) == inspect.signature(Net().forward)
    assert [id(p) for p in model.parameters()] == parameters


def test_remove_gives_the_user_s_class_and_the_weights_back(devices: SimulatedDevices) -> None:
    model, twin = Net(), Net()
    applied(model)
    model(batch())
    twin(batch())
    assert remove_placement(model) is model
    assert type(model) is Net
    assert all(torch.equal(v, twin.state_dict()[k]) for k, v in model.state_dict().items())
    assert torch.equal(model(batch()), twin(batch()))
    with pytest.raises(InputError, match="no plan is applied"):
        status(model)


def test_other_spellings_and_modes_have_right_results(devices: SimulatedDevices) -> None:
    model, twin = Net(), Net()
    applied(model)
    assert same(model, twin, batch())
    assert same(model, twin, x=batch())
    assert same(model, twin, batch(), shift=torch.ones(3, WIDTH))
    assert status(model).module_calls == 1  # the shift is another form
    model.eval(), twin.eval()
    with torch.no_grad():
        assert same(model, twin, batch())
    assert status(model).graph_calls == 3
    assert same(model, twin, batch())  # evaluation mode with gradients
    assert "evaluation mode with gradients" in next(reversed(status(model).reasons))


def test_another_batch_size_gets_a_graph_when_it_comes_again(devices: SimulatedDevices) -> None:
    model, twin = Net(), Net()
    applied(model)
    levels = []
    for size in (3, 5, 5, 3, 7):
        assert same(model, twin, batch(size))
        levels.append(status(model).level)
    assert levels == ["op", "module", "op", "op", "module"]
    assert status(model).num_graphs == 2


def test_there_are_eight_graphs_at_most(devices: SimulatedDevices) -> None:
    model = applied(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU()), {"": 0, "1": 1})
    for size in range(1, 11):
        model(batch(size))
        model(batch(size))
    assert status(model).num_graphs == 8
    assert status(model).reasons["there are 8 graphs already"] == 4


def test_a_changed_attribute_or_module_or_hook_is_noticed(devices: SimulatedDevices) -> None:
    model, twin = Net(), Net()
    applied(model)
    assert same(model, twin, batch())
    model.factor = twin.factor = 3.0
    assert same(model, twin, batch())
    assert list(status(model).reasons) == ['after the graph was made: "factor" is not what it was']
    assert same(model, twin, batch())
    assert (status(model).num_graphs, status(model).level) == (2, "op")
    seen = []
    handle = model.second.register_forward_hook(lambda *_: seen.append("hook"))
    assert same(model, twin, batch())
    assert seen == ["hook"]
    assert status(model).level == "module"
    handle.remove()
    assert same(model, twin, batch())
    assert status(model).level == "op"
    twin.second = nn.Linear(WIDTH, 2 * WIDTH).double().float()
    model.second = copy.deepcopy(twin.second).to(on(1))
    shift = torch.ones(2 * WIDTH)
    assert same(model, twin, batch(), shift=shift)


def test_replaced_weights_are_found(devices: SimulatedDevices) -> None:
    model, twin = Net(), Net()
    applied(model)
    model(batch()), twin(batch())
    state = {name: torch.full_like(value, 0.5) for name, value in twin.state_dict().items()}
    twin.load_state_dict(state)
    homes = {name: value.device for name, value in model.state_dict().items()}
    placed = {name: value.to(homes[name]) for name, value in state.items()}
    model.load_state_dict(placed, assign=True)
    assert same(model, twin, batch())
    assert status(model).graph_calls == 2


def test_what_is_made_of_the_applied_class_has_no_plan_and_runs(devices: SimulatedDevices) -> None:
    layers = nn.Sequential(nn.Linear(WIDTH, 8), nn.ReLU(), nn.Linear(8, 2))
    twin = copy.deepcopy(layers)
    applied(layers, {"": 0, "2": 1})
    assert torch.equal(to_host(layers[1:](layers[:1](batch()))), twin(batch()))  # slices are new
    with pytest.raises(InputError, match="no plan is applied"):
        status(layers[:2])


@pytest.mark.parametrize("way", ["deepcopy", "pickle"])
def test_copies_run_on_their_own(devices: SimulatedDevices, way: str) -> None:
    model, twin = Net(), Net()
    applied(model)
    assert same(model, twin, batch())
    if way == "deepcopy":
        other = copy.deepcopy(model)
    else:  # simulated weights are saved as those of the host, so they are placed again
        other = pickle.loads(pickle.dumps(model))
        assert isinstance(other, Net)
        remove_placement(other)
        applied(other)
    with torch.no_grad():
        for weight in model.parameters():
            weight.zero_()
    assert same(other, twin, batch())
    assert status(other).graph_calls == 1
    assert status(model).graph_calls == 1


def test_one_device_has_no_hooks_and_takes_inputs_from_anywhere(
    devices: SimulatedDevices,
) -> None:
    model, twin = Net(), Net()
    applied(model, {"": 1})
    assert not any(module._forward_pre_hooks for module in model.modules())
    assert same(model, twin, batch())
    assert same(model, twin, batch().to(on(1)).cpu(), shift=torch.ones(WIDTH))
    assert model(batch().to(on(1))).device == on(1)


def test_outputs_come_back_beside_the_inputs_at_both_levels(devices: SimulatedDevices) -> None:
    model = applied(Net(), outputs="inputs")
    assert {model(batch(size)).device.type for size in (3, 5)} == {"cpu"}
    assert status(model).graph_calls == status(model).module_calls == 1


def test_autocast_has_a_graph_of_its_own(devices: SimulatedDevices) -> None:
    model, twin = nn.Sequential(nn.Linear(WIDTH, 8), nn.Linear(8, 2)), None
    twin = copy.deepcopy(model)
    applied(model, {"": 0, "1": 1})
    model(batch())
    with torch.autocast("cpu", torch.bfloat16):
        found, expected = model(batch()), twin(batch())
    assert found.dtype == torch.bfloat16
    assert torch.equal(to_host(found), expected)
    assert status(model).num_graphs == 2


def test_an_interruption_leaves_nothing_behind(devices: SimulatedDevices) -> None:
    class Interrupted(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            raise KeyboardInterrupt

    model = applied(
        nn.Sequential(nn.Linear(WIDTH, 2), Interrupted()), {"": 0, "1": 1}, level="module"
    )
    before = torch.overrides._len_torch_function_stack()
    with pytest.raises(KeyboardInterrupt):
        model(batch())
    assert torch.overrides._len_torch_function_stack() == before


def test_another_plan_needs_the_first_one_removed(devices: SimulatedDevices) -> None:
    model = applied(Net())
    with pytest.raises(InputError, match="another plan is applied to the model already"):
        applied(model, {"": 1})
    with pytest.raises(InputError, match="another plan is applied to the model already"):
        applied(model, level="module")
    assert applied(model) is model


def test_an_unknown_level_is_named(devices: SimulatedDevices) -> None:
    with pytest.raises(InputError, match='level is "fast"'):
        applied(Net(), level="fast")


@pytest.mark.parametrize("level", ["module", "auto"])
def test_fifty_steps_with_a_scaler_and_clipping(devices: SimulatedDevices, level: str) -> None:
    def losses(model: nn.Module) -> list[float]:
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        scaler = torch.amp.GradScaler("cpu")
        found = []
        for _ in range(50):
            optimizer.zero_grad()
            loss = to_host(model(batch().double())).square().mean()
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            scaler.step(optimizer)
            scaler.update()
            found.append(loss.item())
        return found

    expected = losses(Net().double())
    model = applied(Net().double(), level=level)
    assert losses(model) == pytest.approx(expected, rel=0, abs=1e-9)
    assert status(model).level == ("op" if level == "auto" else "module")


def test_a_first_call_under_a_checkpoint_is_recomputed_as_it_was(
    devices: SimulatedDevices,
) -> None:
    model, twin = applied(Net()), Net()
    for _ in range(2):  # the first one makes the graph
        for each in (model, twin):
            each.zero_grad()
            to_host(checkpoint(each, batch(), use_reentrant=False)).sum().backward()
        for found, expected in zip(model.parameters(), twin.parameters(), strict=True):
            torch.testing.assert_close(to_host(found.grad), expected.grad, rtol=0, atol=0)
    assert status(model).level == "op"


class AskingForGradients(Net):
    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x)
        return self.second(y * 2 if self.first.weight.requires_grad else y)


def test_a_forward_that_asks_what_is_trained_is_asked_again(devices: SimulatedDevices) -> None:
    model, twin = applied(AskingForGradients()), AskingForGradients()
    assert same(model, twin, batch())
    for trained in (False, True):
        for each in (model, twin):
            each.first.requires_grad_(trained)
        assert same(model, twin, batch())
        assert same(model, twin, batch())


def test_another_forward_of_the_model_s_class_is_noticed(
    devices: SimulatedDevices, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, twin = applied(Net()), Net()
    assert same(model, twin, batch())
    monkeypatch.setattr(Net, "forward", lambda self, x: self.second(self.first(x)) * 7)
    assert same(model, twin, batch())
    assert any("Net.forward" in reason for reason in status(model).reasons)
