"""Maps of modules as accelerate takes them."""

import pytest
import torch
from accelerate import dispatch_model
from accelerate.utils import check_device_map

import baechi
from torch_models import BY_NAME


@pytest.mark.parametrize("name", ["gpt2", "t5", "unet"])
def test_accelerate_finds_a_device_for_every_tensor(name: str) -> None:
    sample = BY_NAME[name].build()
    plan = baechi.plan(
        sample.model,
        sample.args,
        sample.kwargs,
        devices="2x1GiB",
        objective="most-headroom",
        confirm=False,
    )
    assert len(set(plan.device_map.values())) == 2
    check_device_map(sample.model, plan.device_map)


def test_accelerate_dispatches_by_the_map_of_a_plan() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Linear(8, 2))
    x = torch.randn(3, 4)
    expected = model(x)
    plan = baechi.plan(model, (x,), devices={"cpu": "1GiB"}, mode="inference", confirm=False)
    dispatched = dispatch_model(model, plan.device_map, main_device="cpu", force_hooks=True)
    assert torch.equal(dispatched(x), expected)
    assert dispatched.hf_device_map == plan.device_map
