"""Simulated devices: real numbers, strict devices, bytes, caps, transfers and clocks."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import baechi
from baechi.torch import simdev

torch.set_num_threads(1)
FIRST, SECOND = (simdev.resolve(f"simdev:{k}") for k in range(2))

OPTIMIZERS = {
    "sgd with momentum": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9),
    "adam": lambda p: torch.optim.Adam(p, foreach=False),
    "adam, foreach": lambda p: torch.optim.Adam(p, foreach=True),
    "adamw": torch.optim.AdamW,
    "adagrad": torch.optim.Adagrad,
    "rmsprop": torch.optim.RMSprop,
}


def two_layers() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.Linear(16, 4))


def train(model: nn.Sequential, optimizer: torch.optim.Optimizer, devices=None) -> list:
    """Three steps, with a cut between the layers where there are devices."""
    first, second = devices or ("cpu", "cpu")
    torch.manual_seed(1)
    x, y = torch.randn(5, 8), torch.randn(5, 4)
    losses = []
    for _ in range(3):
        optimizer.zero_grad()
        hidden = F.dropout(F.relu(model[0](x.to(first))), 0.1)
        loss = F.mse_loss(model[1](hidden.to(second)), y.to(second))
        loss.backward()
        optimizer.step()
        losses.append(simdev.to_host(loss.detach()))
    return losses


def place(model: nn.Sequential) -> nn.Sequential:
    model[0].to(FIRST)
    model[1].to(SECOND)
    return model


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_training_on_two_devices_gives_the_bits_of_plain_training(name: str) -> None:
    plain = two_layers()
    losses = train(plain, OPTIMIZERS[name](plain.parameters()))
    with simdev.simulated(2):
        placed = place(two_layers())
        placed_losses = train(placed, OPTIMIZERS[name](placed.parameters()), (FIRST, SECOND))
        assert placed_losses == losses
        for parameter, other in zip(plain.parameters(), placed.parameters(), strict=True):
            assert torch.equal(parameter, other.cpu())


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_dry_rehearsal_has_the_bytes_and_transfers_of_the_real_one(name: str) -> None:
    seen = []
    for dry in (False, True):
        with simdev.simulated(2, dry=dry) as devices:
            model = place(two_layers())
            train(model, OPTIMIZERS[name](model.parameters()), (FIRST, SECOND))
            seen.append([*map(devices.peak_bytes, range(2)), devices.transfers])
    assert seen[0] == seen[1]


def test_operands_on_two_devices_are_an_error() -> None:
    with simdev.simulated(2):
        a, b = torch.ones(3, device=FIRST), torch.ones(3, device=SECOND)
        message = "Expected all tensors to be on the same device, but found at least two devices"
        for other in (b, torch.ones(3)):
            with pytest.raises(RuntimeError, match=message):
                a + other
        assert (a + torch.tensor(2.0)).tolist() == [3, 3, 3]  # a number may be on the host


def test_bytes_over_a_cap_are_an_error_that_names_them() -> None:
    with simdev.simulated([None, 100]) as devices:
        kept = torch.ones(10, device=SECOND)
        message = r"simdev:1 out of memory.*\(80 bytes\).*\(40 bytes\).*\(100 bytes\)"
        with pytest.raises(torch.OutOfMemoryError, match=message):
            torch.ones(20, device=SECOND)
        assert devices.current_bytes(1) == 40
        del kept
        assert devices.current_bytes(1) == 0


def test_a_view_of_a_parameter_is_no_inference_tensor_and_what_is_computed_of_it_is() -> None:
    with simdev.simulated(1):
        weight = nn.Parameter(torch.arange(3.0).to(simdev.resolve("simdev:0")))
        with torch.inference_mode():
            view, total = weight.expand(2, 3), weight + 1
            assert (view.is_inference(), total.is_inference()) == (False, True)
            assert simdev.to_host(view * total).sum().item() == 16


def test_a_copied_parameter_has_no_gradient() -> None:
    with simdev.simulated(1):
        layer = nn.Linear(2, 2).to(simdev.resolve("simdev:0"))
        layer(torch.ones(1, 2).to(layer.weight.device)).sum().backward()
        assert layer.weight.grad is not None
        assert copy.deepcopy(layer).weight.grad is None


@pytest.fixture(name="attention")
def attention_between_layers() -> nn.Sequential:
    torch.manual_seed(0)
    middle = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
    return nn.Sequential(nn.Linear(16, 16), middle, nn.Linear(16, 16))


PINNED = {"devices": "2x1MiB", "mode": "inference", "pin": {"0": "cuda:0", "2": "cuda:1"}}


def test_a_model_may_be_planned_and_rehearsed_while_devices_are_simulated(
    attention: nn.Sequential,
) -> None:
    x = torch.randn(2, 4, 16)
    expected = attention(x).detach()
    outside = baechi.plan(attention, (x,), **PINNED)
    with simdev.simulated(["1MiB", "1MiB"]) as devices:
        plan = baechi.plan(attention, (x,), **PINNED)
        assert plan == outside
        assert baechi.rehearse(attention, plan, (x,)).copies == plan.copies > 0
        assert plan.fits((x,))
        assert (devices.transfers, devices.peak_bytes(0)) == ([], 0)
        plan.apply(attention, devices={"cuda:0": "simdev:0", "cuda:1": "simdev:1"})
        assert simdev.to_host(attention(x)).equal(expected)
        assert devices.transfers


def test_what_is_on_simulated_devices_already_cannot_be_planned_or_rehearsed(
    attention: nn.Sequential,
) -> None:
    x = torch.randn(2, 4, 16)
    plan = baechi.plan(attention, (x,), **PINNED)
    with simdev.simulated(2):
        with pytest.raises(baechi.InputError, match="input 0 is on a simulated device"):
            baechi.plan(attention, (x.to(FIRST),), **PINNED)
        moved = copy.deepcopy(attention).to(SECOND)
        with pytest.raises(baechi.InputError, match=r'"0\.weight" is on a simulated device'):
            baechi.rehearse(moved, plan, (x,))
        plan.apply(attention, devices={"cuda:0": "simdev:0", "cuda:1": "simdev:1"})
        for call in (lambda: plan.fits((x,)), lambda: baechi.plan(attention, (x,), **PINNED)):
            with pytest.raises(baechi.InputError, match="applied to the model already"):
                call()
