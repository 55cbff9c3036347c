"""Applied models make the copies that the plan counted, and as many for every token."""

import random
from collections.abc import Sequence
from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn

import torch_counted
import torch_public_models as public
from baechi.torch.applying import apply_placement, status
from baechi.torch.placement_rule import ModulePlacement
from baechi.torch.planning import plan
from baechi.torch.program import Program
from baechi.torch.simdev import SimulatedDevices, simulated, to_host
from torch_applied import WIDTH, applied, batch
from torch_models import BY_NAME, CASES, ModelCase, Sample
from torch_placing import on

SHARES = {"cuda:0": 0.5, "cuda:1": 0.4, "cuda:2": 0.45}  # of what one device would need
RENAMED = {name: f"simdev:{index}" for index, name in enumerate(SHARES)}
Copies = tuple[int, int]
"""Number and bytes."""


def between_devices(devices: SimulatedDevices, sample: Sample) -> Copies:
    """The copies between devices in the second step of an applied model."""
    for _ in range(2):
        devices.clear_transfers()
        sample.loss().backward()
    between = [one for one in devices.transfers if min(one.source, one.destination) >= 0]
    return len(between), sum(one.nbytes for one in between)


def copies_of(
    case: ModelCase, placement: ModulePlacement, level: str, programs: Sequence[Program]
) -> Copies:
    with simulated(3) as devices:
        sample = case.build()
        apply_placement(sample.model, placement, level=level, programs=programs)
        return between_devices(devices, sample)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_step_copies_what_was_counted(case: ModelCase) -> None:
    levels, programs = torch_counted.levels_of(case)
    assert ("op" in levels) == case.exports
    for seed, places in enumerate((torch_counted.in_parts, torch_counted.scattered)):
        device_of = places(levels, random.Random(f"{case.name} {seed}"))
        counted = {}
        for name, level in levels.items():
            moved = [one for one in level.counted(device_of).moved if one.source >= 0]
            counted[name] = len(moved), sum(one.nbytes for one in moved)
        placement = ModulePlacement({"": on(0)} | {p: on(at) for p, at in device_of.items()})
        found = copies_of(case, placement, "module", ())
        for number, nbytes in counted.values():
            assert found[0] <= 1.1 * number
            assert found[1] <= 1.1 * nbytes
        if case.exports:
            assert copies_of(case, placement, "op", programs) == counted["op"]


@pytest.mark.parametrize("name", ["resnet", "t5"])
def test_a_step_copies_what_the_plan_says(name: str) -> None:
    sample = BY_NAME[name].build()
    given = sample.model, sample.args, sample.kwargs
    (alone,) = plan(*given, devices="1GiB", optimizer="sgd", confirm=False).devices
    sizes = {name: round(alone.peak_bytes * share) for name, share in SHARES.items()}
    made = plan(*given, devices=sizes, optimizer="sgd", confirm=False)
    assert made.copies > 0
    with simulated(3) as devices:
        made.apply(sample.model, devices=RENAMED, level="op")
        assert between_devices(devices, sample) == (made.copies, made.copied_bytes)


@pytest.mark.parametrize("name", ["packed-lstm", "gpt2"])  # of which the ledger counts others
def test_a_plan_by_modules_says_the_copies_that_its_rehearsal_made(name: str) -> None:
    sample = BY_NAME[name].build()
    given = sample.model, sample.args, sample.kwargs
    options = {"devices": "3x1GiB", "optimizer": "sgd", "level": "module"}
    options["objective"] = "most-headroom"
    made = plan(*given, **options)
    assert made.copies > 0
    with simulated(3) as devices:
        made.apply(sample.model, devices=RENAMED)
        assert between_devices(devices, sample) == (made.copies, made.copied_bytes)


def grown(devices: SimulatedDevices, model: nn.Module, num_tokens: int) -> tuple[Tensor, list[int]]:
    """The tokens, and the number of copies between one forward and the next."""
    marks: list[int] = []
    model.register_forward_hook(lambda *_: marks.append(len(devices.transfers)))
    given = torch.tensor([[5, 6, 7]])
    found = model.generate(given, max_new_tokens=num_tokens, do_sample=False, use_cache=True)
    return to_host(found), [after - before for before, after in pairwise(marks[1:])]


PLACES = {
    "gpt2": {"": 0, "transformer.h.1.attn": 1, "transformer.h.1.mlp": 2, "lm_head": 2},
    "llama": {"": 0, "model.layers.1.self_attn": 1, "model.layers.1.mlp": 2, "lm_head": 2},
}


@pytest.mark.parametrize("name", PLACES)
def test_a_growing_cache_costs_the_same_copies_for_every_token(name: str) -> None:
    make = {"gpt2": public.gpt2, "llama": public.llama}[name]
    with simulated(3) as devices, torch.no_grad():
        torch.manual_seed(0)
        plain = make()[0].eval()
        torch.manual_seed(0)
        model = make()[0].eval()
        places = dict(PLACES[name])
        if name == "gpt2":  # tied to the embedding
            del places["lm_head"]
        applied(model, places)
        expected, _ = grown(devices, plain, 9)
        found, counts = grown(devices, model, 9)
        assert torch.equal(found, expected)
        assert len(set(counts)) == 1
        assert counts[0] > 0


class _Blend(torch.autograd.Function):
    """Takes operands of two places; its backward is not that of what its forward computes."""

    @staticmethod
    def forward(ctx: object, x: Tensor, y: Tensor) -> Tensor:
        ctx.save_for_backward(x, y)
        return x * y

    @staticmethod
    def backward(ctx: object, gradient: Tensor) -> tuple[Tensor, Tensor]:
        x, y = ctx.saved_tensors
        return 3 * gradient * y, 5 * gradient * x


class Blended(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.a, self.b, self.c = (nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        return self.c(_Blend.apply(self.a(x), self.b(x)))


def test_a_custom_function_takes_operands_of_two_devices() -> None:
    with simulated(3):
        model, twin = Blended(), Blended()
        applied(model, {"": 0, "b": 1, "c": 2})
        for each in (model, twin):
            to_host(each(batch())).square().sum().backward()
        for found, expected in zip(model.parameters(), twin.parameters(), strict=True):
            torch.testing.assert_close(to_host(found.grad), expected.grad)
        assert status(model).level == "module"
        assert any("Blend" in reason for reason in status(model).reasons)


class Typed(nn.Module):
    """Asks a tensor for its type and device only, unless it is told to read it."""

    def __init__(self, *, has_weights: bool) -> None:
        super().__init__()
        weight = torch.ones(WIDTH)
        if has_weights:
            self.weight = nn.Parameter(weight)
        else:
            self.register_buffer("weight", weight)
        self.reads = False

    def forward(self, x: Tensor) -> Tensor:
        if self.reads:
            return self.weight * x.sum()
        return self.weight.to(x.device, x.dtype) * torch.arange(WIDTH, device=x.device)


class AskingOnly(nn.Module):
    def __init__(self, *, has_weights: bool) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.a, self.b = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.typed = Typed(has_weights=has_weights)

    def forward(self, x: Tensor) -> Tensor:
        y = self.a(x)
        start = torch.zeros(WIDTH, device=y.device)  # is first read beside b
        return self.b(y + self.typed(y)) + start


@pytest.mark.parametrize("has_weights", [False, True])
def test_what_a_module_only_asks_for_its_type_is_not_copied_again(has_weights: bool) -> None:
    with simulated(3) as devices:
        model, twin = (AskingOnly(has_weights=has_weights) for _ in range(2))
        applied(model, {"": 0, "typed": 1, "b": 2}, level="module")
        counts = []
        for step in range(4):
            model.typed.reads = twin.typed.reads = step == 3  # then it is copied after all
            devices.clear_transfers()
            assert torch.equal(to_host(model(batch())), twin(batch()))
            between = [one for one in devices.transfers if min(one.source, one.destination) >= 0]
            counts.append(len(between))
        # First y, the sum and the start, then typed and the sum, at last y as well. Beside weights
        # a kernel that torch does not know might read y, so it is y and the sum from the second on.
        assert counts == ([3, 2, 2, 2] if has_weights else [3, 2, 2, 3])
