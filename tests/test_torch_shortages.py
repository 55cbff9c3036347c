"""Models that do not fit: the error says what would do, and that does."""

from collections.abc import Mapping
from typing import Any

import pytest
import torch

import baechi
from baechi.torch import ModelPlan
from torch_small_models import Tied, rows, stack, total

TOKENS = torch.arange(24).view(4, 6)


def planned(devices: Mapping[str, int], *, tied: bool = False) -> ModelPlan:
    options: dict[str, Any] = {"devices": devices, "optimizer": "adam"}
    if tied:
        return baechi.plan(Tied(), (TOKENS,), **options)
    return baechi.plan(stack(16, 64, 32, 8), (rows(),), loss=total, **options)


@pytest.mark.parametrize("tied", [False, True])
def test_a_device_one_byte_too_small_is_refused_and_one_byte_more_fits(tied: bool) -> None:
    roomy = planned({"cuda:0": 2**30}, tied=tied)
    needed = max(roomy.devices[0].peak_bytes, roomy.confirmed[0])
    assert planned({"cuda:0": needed}, tied=tied).is_within_limits
    with pytest.raises(baechi.OutOfMemoryError, match="1 bytes too few") as caught:
        planned({"cuda:0": needed - 1}, tied=tied)
    assert caught.value.enough == {"cuda:0": needed}


@pytest.mark.parametrize("tied", [False, True])
def test_the_sizes_that_an_error_gives_do(tied: bool) -> None:
    with pytest.raises(baechi.OutOfMemoryError) as caught:
        planned({"cuda:0": 9000, "cuda:1": 5000}, tied=tied)
    enough = caught.value.enough
    assert str(dict(enough)).replace("'", '"') in (caught.value.hint or "")
    assert planned(enough, tied=tied).is_within_limits


def test_pinned_modules_that_do_not_fit_name_the_size_of_their_device() -> None:
    options: dict[str, Any] = {"pin": {"*": "cuda:1"}, "loss": total, "optimizer": "adam"}
    model, devices = stack(16, 64, 8), {"cuda:0": 2**20, "cuda:1": 1000}
    with pytest.raises(baechi.OutOfMemoryError) as caught:
        baechi.plan(model, (rows(),), devices=devices, **options)
    assert caught.value.device == "cuda:1"
    assert caught.value.enough["cuda:0"] == 2**20
    assert baechi.plan(model, (rows(),), devices=caught.value.enough, **options).is_within_limits


ADAM = 4  # times the weights: weights, gradients, two moments
LAYERS = {"0": 16 * 64 + 64, "2": 64 * 32 + 32, "4": 32 * 8 + 8}  # numbers in stack(16, 64, 32, 8)


@pytest.mark.parametrize(
    ("devices", "pin", "proof"),
    [
        ({"cuda:0": 4 * ADAM * sum(LAYERS.values()) - 1}, {}, "all devices together have"),
        (
            {f"cuda:{k}": 4 * ADAM * LAYERS["2"] - 1 for k in range(3)},
            {},
            '"2" take 32.5 KiB, and no device has more than 32.5 KiB',
        ),
        (
            {"cuda:0": 2**20, "cuda:1": 4 * ADAM * (LAYERS["2"] + LAYERS["4"]) - 1},
            {"2": "cuda:1", "4": "cuda:1"},
            "of what is pinned to cuda:1 take 36.6 KiB, and it has 36.6 KiB",
        ),
        ({f"cuda:{k}": 4 * ADAM * LAYERS["2"] + 1 for k in range(3)}, {}, None),
    ],
)
def test_what_no_search_can_place_is_said_to_be_proved(
    devices: dict[str, int], pin: dict[str, str], proof: str | None
) -> None:
    options: dict[str, Any] = {"loss": total, "optimizer": "adam", "pin": pin}
    with pytest.raises(baechi.OutOfMemoryError) as caught:
        baechi.plan(stack(16, 64, 32, 8), (rows(),), devices=devices, **options)
    assert caught.value.proved_infeasible is (proof is not None)
    said = "no placement was found that fits" if proof is None else "proved infeasible: "
    assert said in str(caught.value)
    assert (proof or "") in str(caught.value)
