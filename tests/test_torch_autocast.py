"""Autocast on simulated devices makes the casts of the CPU, also between placed modules."""

from collections.abc import Iterator
from queue import SimpleQueue

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import baechi
import torch_models
from baechi.errors import InputError
from baechi.torch.applying import apply_placement, status
from baechi.torch.placement_rule import ModulePlacement
from baechi.torch.planning import study
from baechi.torch.simdev import SimulatedDevices, resolve, simulated, to_host
from torch_placing import apply_modules, at_random, largest_difference, on

FIRST = resolve("simdev:0")


@pytest.fixture
def devices() -> Iterator[SimulatedDevices]:
    with simulated(3) as simulation:
        yield simulation


def autocast(dtype: torch.dtype = torch.bfloat16) -> torch.autocast:
    return torch.autocast("cpu", dtype)


@pytest.mark.parametrize("name", ["resnet", "packed-lstm", "bert", "gpt2", "t5", "mixtral"])
def test_the_first_loss_module_by_module_is_that_of_the_host(
    devices: SimulatedDevices, name: str
) -> None:
    case = torch_models.BY_NAME[name]
    plain, sample = case.build(), case.build()
    apply_modules(sample.model, at_random(sample.model, 3, seed=3))
    with autocast():
        expected, found = plain.loss(), sample.loss()
    assert (found.dtype, found.item()) == (expected.dtype, expected.item())
    expected.backward(), found.backward()
    gradients = [
        {name: to_host(p.grad) for name, p in each.model.named_parameters() if p.grad is not None}
        for each in (plain, sample)
    ]
    assert {g.dtype for g in gradients[1].values()} == {torch.float32}
    largest = max(float(g.abs().max()) for g in gradients[0].values())
    assert largest_difference(*gradients) < 1e-2 * largest  # sums of bfloat16 in another order


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_ops_cast_down_cast_up_or_take_the_widest(
    devices: SimulatedDevices, dtype: torch.dtype
) -> None:
    x = torch.rand(3, 3, device=FIRST)
    with autocast(dtype):
        product = x @ x
        assert product.dtype == torch.einsum("ij,jk", x, x).dtype == dtype
        assert nn.functional.mse_loss(product, product).dtype == torch.float32
        assert torch.cat([product, x]).dtype == torch.float32
        assert (x.double() @ x.double()).dtype == torch.float64
        assert x.exp().dtype == torch.float32
        with torch.autocast("cpu", enabled=False):
            assert (x @ x).dtype == torch.float32
    assert (x @ x).dtype == torch.float32


class _Casts(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        self.count += func is torch.ops.aten._to_copy.default
        return func(*args, **(kwargs or {}))


def test_a_weight_that_is_used_twice_is_cast_once(devices: SimulatedDevices) -> None:
    layer = nn.Linear(4, 4, bias=False)
    x = torch.rand(2, 4)
    counts = []
    for device in ("cpu", FIRST):
        moved, rows = layer.to(device), x.to(device)
        with _Casts() as casts, autocast():
            y: Tensor = moved(moved(rows))
        counts.append(casts.count)
        y.sum().backward()
        moved.zero_grad()
    assert counts[0] == counts[1] == 2


def test_a_dry_rehearsal_has_the_casts_too() -> None:
    with simulated(1, dry=True), autocast():
        x = torch.empty(4, 4, device=on(0))
        assert (x @ x).dtype == torch.bfloat16


@pytest.mark.parametrize("mode", ["training", "inference"])
@pytest.mark.parametrize("name", ["densenet", "gpt2"])
def test_a_plan_by_modules_under_autocast_predicts_what_its_rehearsal_takes(
    name: str, mode: str
) -> None:
    sample = torch_models.BY_NAME[name].build()
    call = sample.model, sample.args, sample.kwargs
    options = {"devices": "2x1MB", "mode": mode, "level": "module", "autocast": torch.bfloat16}
    plan = study(*call, **options, objective="most-headroom").plan
    wide = study(*call, **{**options, "autocast": None}, objective="most-headroom").plan
    found = baechi.rehearse(call[0], plan, *call[1:], steps=2)
    assert found.level == "module"
    assert all(peak > 0 for peak in found.peak_bytes)
    for predicted, peak in zip(plan.peak_bytes.values(), found.peak_bytes, strict=True):
        assert 0.95 * peak <= predicted <= 1.25 * peak  # locals of the model's code
    if mode == "training":
        assert sum(plan.peak_bytes.values()) < sum(wide.peak_bytes.values())
        with autocast():
            expected = torch_models.BY_NAME[name].build().loss()
        assert found.losses[0] == expected.item()


CALLS: SimpleQueue[str] = SimpleQueue()  # a list would be seen to change, and no graph made


class Counted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        CALLS.put("forward")
        return self.second(self.first(x).relu()).square().mean()


def test_a_model_that_fails_under_autocast_is_told_so_with_a_way_out() -> None:
    sample = torch_models.BY_NAME["moe-loop"].build()  # adds products to a sum of another type
    options = {"devices": "2x1MiB", "autocast": torch.bfloat16}
    with pytest.raises(InputError) as caught:
        baechi.plan(sample.model, sample.args, **options)
    text = str(caught.value)
    assert "under autocast to torch.bfloat16: RuntimeError: index_add_()" in text
    assert text.count("hint: ") == 1
    assert "without autocast" in text


def test_a_plan_under_autocast_is_confirmed_without_capturing_again() -> None:
    counts = []
    pins = {"first": "cuda:0", "second": "cuda:1"}
    for dtype in (None, torch.bfloat16):
        x = torch.rand(4, 8)
        plan = baechi.plan(Counted(), (x,), devices="2x1MiB", autocast=dtype, pin=pins)
        assert (plan.level, len(plan.confirmed)) == ("op", 2)
        counts.append(CALLS.qsize())
    assert counts[1] == 2 * counts[0]


class Recurrent(nn.Module):
    def __init__(self, kind: type[nn.Module]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = kind(8, 8), nn.Linear(8, 1)

    def forward(self, x: Tensor) -> Tensor:
        states = self.first(x)
        while isinstance(states, tuple):
            states = states[0]
        return self.second(states).square().mean()


@pytest.mark.parametrize("kind", [nn.GRU, nn.LSTM, nn.GRUCell, nn.LSTMCell, nn.RNNCell])
def test_recurrent_layers_keep_the_casts_that_autocast_makes_inside(
    devices: SimulatedDevices, kind: type[nn.Module]
) -> None:
    model, twin = Recurrent(kind), Recurrent(kind)
    x = torch.rand(4, 8) if kind.__name__.endswith("Cell") else torch.rand(5, 4, 8)
    placement = ModulePlacement({"": on(0), "second": on(1)})
    apply_placement(model, placement)
    with autocast():
        expected, found = twin(x), model(x)
    assert (found.dtype, found.item()) == (expected.dtype, expected.item())
    is_split = kind is not nn.RNNCell  # whose casts are those of its inputs
    assert status(model).level == ("module" if is_split else "op")
    assert any("casts inside" in reason for reason in status(model).reasons) == is_split
