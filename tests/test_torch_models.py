"""The table of test models is what it says: each trains in both precisions, from its seed alone."""

import pytest
import torch

from torch_models import CASES, ModelCase


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_model_gives_the_same_finite_loss_from_the_same_seed(case: ModelCase) -> None:
    state = torch.get_rng_state()
    losses = [case.build(seed=1).loss(), case.build(seed=1).loss()]
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(*losses)
    assert losses[0].shape == ()
    assert losses[0].isfinite()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_model_has_gradients_in_float64(case: ModelCase) -> None:
    sample = case.build(dtype=torch.float64)
    sample.loss().backward()
    with_gradients = [p for p in sample.model.parameters() if p.grad is not None]
    assert len(with_gradients) > 0.7 * len(list(sample.model.parameters()))
