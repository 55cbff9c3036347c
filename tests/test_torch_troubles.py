import re

import pytest
import torch

from torch_troubles import TROUBLES, Trouble

NAMES = [trouble.name for trouble in TROUBLES]


@pytest.mark.parametrize("trouble", TROUBLES, ids=NAMES)
def test_every_model_trains_a_step_on_one_device(trouble: Trouble) -> None:
    sample = trouble.build(dtype=torch.float64)
    loss = sample.loss()
    loss.backward()
    assert loss.shape == ()
    assert loss.isfinite()
    gradients = [p.grad for p in sample.model.parameters() if p.requires_grad]
    arrived = [gradient for gradient in gradients if gradient is not None]
    assert arrived
    assert all(gradient.isfinite().all() for gradient in arrived)
    assert any(gradient.abs().max() > 0 for gradient in arrived)


@pytest.mark.parametrize("trouble", TROUBLES, ids=NAMES)
def test_a_seed_gives_the_same_model_and_inputs(trouble: Trouble) -> None:
    assert torch.equal(trouble.build(3).loss(), trouble.build(3).loss())
    assert not torch.equal(trouble.build(3).loss(), trouble.build(4).loss())


def test_every_model_names_its_thread_and_what_went_wrong_there() -> None:
    assert len(set(NAMES)) == len(NAMES) >= 25
    assert len({trouble.thread for trouble in TROUBLES}) == len(TROUBLES)
    for trouble in TROUBLES:
        assert re.fullmatch(r"https://github.com/[\w.-]+/[\w.-]+/issues/[0-9]+", trouble.url)
        assert len(trouble.elsewhere) > 20
