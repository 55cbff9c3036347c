"""Applied models inside of torch.func, and what forward-mode derivatives meet."""

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor, nn
from torch.func import grad, vmap

import virtual_device
from baechi.errors import InputError, PlacementError
from baechi.torch.applying import status
from baechi.torch.simdev import SimulatedDevices, simulated, to_host
from baechi.torch.streams import uses_streams
from torch_applied import applied, batch
from torch_transformed import Branches, loss_of, tangents, weights_of


@pytest.fixture(autouse=True)
def devices() -> Iterator[SimulatedDevices]:
    with simulated(3) as simulation:
        yield simulation


def called(model: nn.Module) -> list[Tensor]:
    doubled = {name: 2 * weight for name, weight in weights_of(model).items()}
    return [loss_of(model, doubled, batch())]


def differentiated(model: nn.Module) -> list[Tensor]:
    return list(grad(lambda weights: loss_of(model, weights, batch()))(weights_of(model)).values())


def mapped(model: nn.Module) -> list[Tensor]:
    return [vmap(lambda x: model(x).square().mean())(torch.stack([batch(), batch() + 1]))]


def per_sample(model: nn.Module) -> list[Tensor]:
    one = grad(lambda weights, row: loss_of(model, weights, row[None]))
    return list(vmap(one, in_dims=(None, 0))(weights_of(model), batch()).values())


@pytest.mark.parametrize("level", ["auto", "module"])
@pytest.mark.parametrize("use", [called, differentiated, mapped, per_sample])
def test_an_applied_model_gives_what_it_gave_inside_of_torch_func(
    use: Callable[[nn.Module], list[Tensor]], level: str
) -> None:
    model, twin = Branches(), Branches()
    applied(model, level=level)
    for found, expected in zip(use(model), use(twin), strict=True):
        torch.testing.assert_close(to_host(found), expected)
    assert status(model).level == "module"
    assert torch.equal(to_host(model(batch())), twin(batch()))
    assert status(model).level == ("op" if level == "auto" else "module")


def test_level_op_names_torch_func() -> None:
    model = applied(Branches(), level="op")
    with pytest.raises(PlacementError, match=r"torch\.func"):
        mapped(model)


@pytest.mark.filterwarnings("ignore:.*torch.jit.script")  # torch's own
def test_simulated_devices_refuse_forward_mode_with_a_way_out() -> None:
    model = applied(Branches())
    with pytest.raises(InputError, match=r"no forward-mode derivatives.*\n.*functional\.jvp"):
        tangents(model, batch())


def test_side_streams_carry_no_tensors_of_torch_func() -> None:
    first, second = torch.device("cuda", 0), torch.device("cuda", 1)
    assert uses_streams(first, second)
    inside: list[bool] = []
    vmap(lambda x: (inside.append(uses_streams(first, second)), x)[1])(torch.ones(2))
    assert inside == [False]
    assert not uses_streams(first, torch.device("cpu"))


FORWARD_MODE = """
import json
import virtual_device
virtual_device.init(3)
import torch
from baechi.torch.applying import apply_placement
from baechi.torch.placement_rule import ModulePlacement
from torch_applied import batch
from torch_transformed import Branches, tangents

model, twin = Branches(), Branches()
at = [torch.device("vdev", index) for index in range(3)]
apply_placement(model, ModulePlacement({"": at[0], "second": at[1]}))
pairs = zip(tangents(model, batch()), tangents(twin, batch()))
print(json.dumps([abs(found.item() - expected.item()) for found, expected in pairs]))
"""


def test_other_devices_have_forward_mode_derivatives() -> None:
    assert max(virtual_device.run(FORWARD_MODE)) < 1e-5
