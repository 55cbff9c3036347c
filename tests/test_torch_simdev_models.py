"""Whole models on simulated devices: the bits of the CPU, and dry the bytes of the real run."""

from typing import Any

import pytest
import torch
from torch.utils._pytree import tree_map_only

import torch_models
from baechi.torch import simdev

DEVICE = simdev.resolve("simdev:0")


def train(case: torch_models.ModelCase, device: Any) -> tuple[list[torch.Tensor], list[Any]]:
    """Losses of two Adam steps, and the parameters after them."""
    sample = case.build()
    model = sample.model.to(device)
    args, kwargs = tree_map_only(
        torch.Tensor, lambda value: value.to(device), (sample.args, sample.kwargs)
    )
    optimizer = torch.optim.Adam(model.parameters(), foreach=False)
    losses = []
    for _ in range(2):
        optimizer.zero_grad()
        loss = torch_models.loss_of(model(*args, **kwargs))
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return losses, list(model.parameters())


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("case", torch_models.CASES, ids=lambda case: case.name)
def test_a_model_trains_with_the_bits_of_the_cpu_and_is_rehearsed_to_the_byte(
    case: torch_models.ModelCase,
) -> None:
    losses, parameters = train(case, "cpu")
    with simdev.simulated(1) as devices:
        placed_losses, placed = train(case, DEVICE)
        peak_bytes = devices.peak_bytes(0)
    assert [loss.item() for loss in placed_losses] == [loss.item() for loss in losses]
    assert all(torch.equal(a, b.cpu()) for a, b in zip(parameters, placed, strict=True))
    with simdev.simulated(1, dry=True) as devices:
        if case.name == "moe-loop":  # a router's choice is not known without values
            with pytest.raises(simdev.NoValuesError):
                train(case, DEVICE)
        else:
            train(case, DEVICE)
            assert devices.peak_bytes(0) == peak_bytes
