"""Models with habits that planning has to see through, and those that it refuses by name."""

import types
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import baechi
from baechi.errors import InputError
from baechi.torch.simdev import simulated, to_host

TWO = {"cuda:0": "simdev:0", "cuda:1": "simdev:1"}


def squared(output: Tensor) -> Tensor:
    return output.square().mean()


def rows() -> Tensor:
    return torch.randn(8, 16, generator=torch.Generator().manual_seed(0))


class TwoLayers(nn.Module):
    """What the others are made of; `between` is the habit."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(16, 16), nn.Linear(16, 16)

    def between(self, hidden: Tensor) -> Tensor:
        return hidden

    def forward(self, x: Tensor) -> Any:
        return self.second(self.between(torch.relu(self.first(x))))


class ReadsNumbersOfCopies(TwoLayers):
    def between(self, hidden: Tensor) -> Tensor:
        scale = max(hidden.detach().cpu()[0].tolist())
        return hidden * (1 + scale) * float(np.ptp(hidden.detach().cpu().numpy()))


class Draws(TwoLayers):
    def between(self, hidden: Tensor) -> Tensor:
        return hidden if torch.rand(()).item() < 2 else -hidden


class NamesItsDeviceForAutocast(TwoLayers):
    def between(self, hidden: Tensor) -> Tensor:
        assert not torch.is_autocast_enabled(hidden.device.type)
        with torch.autocast(hidden.device.type, dtype=torch.bfloat16):
            hidden = self.first(hidden)
        return hidden.float()


class MakesItsTable(TwoLayers):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("table", torch.zeros(0), persistent=False)

    def between(self, hidden: Tensor) -> Tensor:
        if len(self.table) < len(hidden):
            self.table = torch.arange(len(hidden), device=hidden.device).unsqueeze(1).sin()
        return hidden + self.table


class TakesGradientsOfInputs(TwoLayers):
    def forward(self, x: Tensor) -> Tensor:
        x = x.detach().requires_grad_()
        with torch.enable_grad():
            (slope,) = torch.autograd.grad(super().forward(x).sum(), x, create_graph=True)
        return super().forward(x) + slope


class Maps(TwoLayers):
    def between(self, hidden: Tensor) -> Tensor:
        return torch.vmap(lambda row: row * row.sum())(hidden)


@pytest.mark.parametrize(
    "kind",
    [
        ReadsNumbersOfCopies,
        Draws,
        NamesItsDeviceForAutocast,
        MakesItsTable,
        TakesGradientsOfInputs,
        Maps,
    ],
)
def test_a_planned_step_has_the_loss_and_gradients_of_the_model(kind: type[TwoLayers]) -> None:
    random_state = torch.get_rng_state()
    model, twin, x = kind(), kind(), rows()
    torch.set_rng_state(random_state)
    pins = {"first": "cuda:0", "second": "cuda:1"}
    plan = baechi.plan(model, (x,), devices="2x1MiB", optimizer="sgd", loss=squared, pin=pins)
    assert torch.equal(torch.get_rng_state(), random_state)
    expected = squared(twin(x))
    expected.backward()
    with simulated(["1MiB", "1MiB"]):
        placed = plan.apply(model, devices=TWO)
        loss = squared(placed(x))
        loss.backward()
        assert to_host(loss.detach()) == expected
        for one, other in zip(placed.parameters(), twin.parameters(), strict=True):
            assert one.grad is not None
            assert other.grad is not None
            torch.testing.assert_close(to_host(one.grad), other.grad)


def test_a_buffer_that_grows_is_no_affair_of_a_graph() -> None:
    plan = baechi.plan(MakesItsTable(), (rows(),), devices="2x1MiB", loss=squared)
    assert plan.level == "module"
    assert 'gives "table" another shape' in plan.reasons[0]


def test_code_on_one_device_may_name_its_device_for_autocast() -> None:
    model, x = NamesItsDeviceForAutocast(), rows()
    plan = baechi.plan(model, (x,), devices="1MiB", loss=squared)
    assert baechi.rehearse(model, plan, (x,)).losses == (squared(model(x)).item(),)


def test_an_input_that_takes_a_gradient_gets_none_from_planning() -> None:
    x = rows().requires_grad_()
    model = TwoLayers()
    plan = baechi.plan(model, (x,), devices="2x1MiB", loss=squared, pin={"first": "cuda:1"})
    baechi.rehearse(model, plan, (x,), steps=2)
    assert x.grad is None


class History:
    """A cache that holds its tensors out of sight."""

    def __init__(self) -> None:
        self.past = [torch.ones(8, 16)]


class Remembers(TwoLayers):
    def forward(self, x: Tensor, cache: Any) -> Tensor:
        past = cache.past if isinstance(cache, History) else cache
        past.append(self.first(x))
        return self.second(torch.stack(past).mean(0))


@pytest.mark.parametrize("make", [History, lambda: History().past])
def test_caches_stay_as_they_are_and_are_no_weights(make: Callable[[], Any]) -> None:
    model, x, cache = Remembers(), rows(), make()
    devices = {"cuda:0": "1MiB", "cuda:1": "1MiB"}
    pins = {"first": "cuda:0", "second": "cuda:1"}
    plan = baechi.plan(model, (x, cache), devices=devices, mode="inference", pin=pins)
    baechi.rehearse(model, plan, (x, cache), steps=2)
    past = cache.past if isinstance(cache, History) else cache
    assert len(past) == 1
    assert torch.equal(past[0], torch.ones(8, 16))
    assert not any(device.by_class.get("buffer") for device in plan.devices)


class Answers(TwoLayers):
    def forward(self, x: Tensor) -> Any:
        return types.SimpleNamespace(loss=squared(super().forward(x)))


def test_outputs_may_be_plain_namespaces() -> None:
    model, x = Answers(), rows()
    plan = baechi.plan(model, (x,), devices="2x1MiB")
    assert baechi.rehearse(model, plan, (x,)).losses == (model(x).loss.item(),)


@pytest.mark.parametrize("mode", ["training", "inference"])
@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_peaks_of_recurrent_layers_are_predicted(kind: type[nn.RNNBase], mode: str) -> None:
    model = nn.Sequential(nn.Embedding(50, 32), kind(32, 48, num_layers=2, dropout=0.1))
    words = torch.arange(60).view(12, 5) % 50
    options = {"devices": "2x4MiB", "optimizer": "adam" if mode == "training" else None}
    plan = baechi.plan(
        model, (words,), mode=mode, loss=lambda out: squared(out[0]), pin={"1": "cuda:1"}, **options
    )
    for device, measured in zip(plan.devices, plan.confirmed, strict=True):
        assert device.peak_bytes == pytest.approx(measured, rel=0.01)


class Multiplies(nn.Linear):
    def forward(self, x: Tensor, graph: Tensor) -> Tensor:
        return graph @ super().forward(x)


def sparse_input() -> tuple[nn.Module, tuple[Any, ...]]:
    return Multiplies(16, 4), (rows(), torch.eye(8).to_sparse())


def scripted() -> tuple[nn.Module, tuple[Any, ...]]:
    layer = torch.jit.trace(nn.Linear(16, 4), rows())
    return nn.Sequential(nn.Linear(16, 16), layer), (rows(),)


def lazy() -> tuple[nn.Module, tuple[Any, ...]]:
    return nn.Sequential(nn.LazyLinear(4), nn.LazyLinear(4)), (rows(),)


def parallel() -> tuple[nn.Module, tuple[Any, ...]]:
    return nn.DataParallel(nn.Linear(16, 4)), (rows(),)


def bare() -> tuple[nn.Module, Any]:
    return nn.Linear(16, 4), rows()


def failing() -> tuple[nn.Module, tuple[Any, ...]]:
    return nn.Sequential(nn.Linear(16, 16), nn.Linear(8, 4)), (rows(),)


@pytest.mark.filterwarnings("ignore:.*torch.jit.trace:FutureWarning")
@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: (nn.Embedding(20, 4, sparse=True), (torch.arange(4),)), "gradients of .* sparse"),
        (sparse_input, r'input "graph" is sparse_coo.*\n.*to_dense'),
        (scripted, 'module "1" is a .* before torch.jit'),
        (lazy, '"0.weight", .* have no shape yet'),
        (parallel, "DataParallel.*pass model.module"),
        (bare, r"args is a Tensor, .*args=\(x,\)"),
        (failing, "the model fails in a step on the CPU: RuntimeError: .*shapes"),
    ],
)
def test_what_cannot_be_planned_is_named_with_a_way_out(
    make: Callable[[], tuple[nn.Module, tuple[Any, ...]]], said: str
) -> None:
    model, args = make()
    with pytest.raises(InputError, match=f"(?s){said}"):
        baechi.plan(model, args, devices="2x1MiB", loss=squared)


def test_pins_to_two_devices_are_not_compared_with_one_device() -> None:
    pins = {"first": "cuda:0", "second": "cuda:1"}
    pinned = baechi.plan(TwoLayers(), (rows(),), devices="2x1MiB", mode="inference", pin=pins)
    assert [other.name for other in pinned.compared] == ["even split", "weights-only split"]


def test_a_loss_that_takes_a_target_is_told_what_it_gets() -> None:
    said = r"loss function failed: TypeError: .*target'\nhint: .*criterion\(output, target\)"
    with pytest.raises(InputError, match=said):
        baechi.plan(TwoLayers(), (rows(),), devices="2x1MiB", loss=nn.MSELoss())


def test_a_loss_may_read_numbers_where_the_model_does() -> None:
    def positive(output: Tensor) -> Tensor:
        return output[output > 0].sum()

    plan = baechi.plan(MakesItsTable(), (rows(),), devices="2x1MiB", loss=positive)
    assert any("one real step" in note for note in plan.notes)


def test_arguments_that_do_not_fit_are_answered_with_the_signature() -> None:
    with pytest.raises(InputError, match=r"hint: it is forward\(x: "):
        baechi.plan(TwoLayers(), (rows(), rows()), devices="2x1MiB")


class Both(TwoLayers):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.first(x), self.second(x)


def test_a_loss_is_where_the_outputs_are_that_it_reads() -> None:
    plan = baechi.plan(
        Both(),
        (rows(),),
        devices="2x1MiB",
        pin={"first": "cuda:0", "second": "cuda:1"},
        loss=lambda outputs: squared(outputs[1]),
        confirm=False,
    )
    assert plan.level == "op"
    assert plan.copies == 0
