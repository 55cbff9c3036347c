"""Plans of models that read numbers are confirmed with numbers, on a copy."""

import functools

import pytest
import torch
from torch import Tensor, nn

import baechi
from baechi.torch import real_rehearsal
from baechi.torch.simdev import NoValuesError
from torch_models import BY_NAME


class Choosing(nn.Module):
    """Statistics, a dropout and a branch on numbers between two layers."""

    def __init__(self, dropped: float = 0.5) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.dropped = dropped
        self.first, self.norm = nn.Linear(16, 16), nn.BatchNorm1d(16)
        self.second, self.third = nn.Linear(16, 16), nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        y = nn.functional.dropout(self.norm(self.first(x)), self.dropped, self.training)
        return (self.second(y) if y.sum().item() > 0 else self.third(y)).square().sum()


@pytest.mark.parametrize("mode", ["training", "inference"])
@pytest.mark.parametrize("name", ["moe-loop", "packed-lstm"])
def test_the_confirmed_peaks_are_those_of_a_rehearsal_with_numbers(name: str, mode: str) -> None:
    sample = BY_NAME[name].build()
    plan = baechi.plan(
        sample.model,
        sample.args,
        sample.kwargs,
        devices="3x100KB",
        mode=mode,
        objective="most-headroom",
    )
    assert plan.level == "module"
    rehearsed = baechi.rehearse(sample.model, plan, sample.args, sample.kwargs, steps=2)
    assert plan.confirmed == rehearsed.peak_bytes
    assert sum(peak > 0 for peak in plan.confirmed) > 1
    was_read = any("rehearsed with numbers" in note for note in plan.notes)
    assert was_read == (name == "moe-loop")  # lengths of sequences are known without the weights


def test_confirming_with_numbers_leaves_model_inputs_and_random_state_alone() -> None:
    model, x = Choosing(), torch.randn(8, 16)
    model.first.weight.grad = torch.ones(16, 16)
    state = {name: value.clone() for name, value in model.state_dict().items()}
    inputs, random = x.clone(), torch.get_rng_state()
    plan = baechi.plan(model, (x,), devices="2x1MB", pin={"first": "cuda:1"})
    assert any("rehearsed with numbers" in note for note in plan.notes)
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    assert torch.equal(model.first.weight.grad, torch.ones(16, 16))
    assert model.second.weight.grad is None
    assert torch.equal(x, inputs)
    assert torch.equal(torch.get_rng_state(), random)


def test_a_dry_rehearsal_that_needs_numbers_takes_those_that_are_there() -> None:
    model, x = Choosing(0.0), torch.randn(8, 16)
    plan = baechi.plan(model, (x,), devices="2x1MB", optimizer="adam", confirm=False)
    found = baechi.rehearse(model, plan, (x,), steps=2, dry=True)
    assert not found.dry
    assert found.losses[0] == found.losses[1], "the first step moved weights"
    # A step that moves weights may take the other branch next.
    still = functools.partial(torch.optim.Adam, lr=0.0)
    real = baechi.rehearse(model, plan, (x,), steps=2, optimizer=still)
    assert (real.peak_bytes, real.losses) == (found.peak_bytes, found.losses)


def test_without_numbers_the_plan_says_why_and_how_to_get_it_rehearsed() -> None:
    sample = BY_NAME["moe-loop"].build()
    meta = [x.to("meta") for x in sample.args]
    plan = baechi.plan(sample.model, sample.args, sample.kwargs, devices="2x1MB")
    with pytest.raises(NoValuesError, match="the inputs are on meta: pass real ones"):
        baechi.rehearse(sample.model, plan, meta, sample.kwargs, dry=True)


def test_a_host_without_room_runs_no_step_with_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(real_rehearsal, "available_bytes", lambda: 1000)
    model, x = Choosing(), torch.randn(8, 16)
    plan = baechi.plan(model, (x,), devices="2x1MB")
    (note,) = [note for note in plan.notes if note.startswith("not rehearsed")]
    assert "1000 B are free on this host" in note
    assert plan.confirmed == ()


class Noisy(nn.Module):
    """Draws numbers from a generator of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(16, 16), nn.Linear(16, 16)
        self.source = torch.Generator().manual_seed(3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        noise = torch.rand(x.shape, generator=self.source).to(x.device)
        return self.second(self.first(x) + noise).sum()


def test_a_generator_of_the_model_stays_as_it_was_and_its_copy_draws_the_same() -> None:
    model, x = Noisy(), torch.randn(4, 16)
    before = model.source.get_state()
    plan = baechi.plan(model, (x,), devices="2x1MiB", pin={"first": "cuda:0", "second": "cuda:1"})
    assert (plan.level, len(plan.confirmed)) == ("module", 2)
    assert plan.reasons[0].startswith("forward uses a Generator, which a graph cannot take")
    rehearsed = baechi.rehearse(model, plan, (x,))
    assert model.source.get_state().equal(before)
    assert rehearsed.losses == (model(x).item(),)
