"""What people do with a model goes on working while its modules are on several devices."""

import copy
import io
import pickle
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import torch_public_models as public
from baechi.torch.module_hooks import Enter, remove_hooks
from baechi.torch.parameters import move_back
from baechi.torch.simdev import simulated, to_host
from torch_placing import apply_modules, on, place

WIDTH = 4
PLACES = {"": 0, "1": 1, "2": 2}


def make() -> nn.Sequential:
    torch.manual_seed(3)
    layers = (nn.Linear(WIDTH, 8), nn.BatchNorm1d(8), nn.Linear(8, 2))
    return nn.Sequential(*layers).double()


def batch(size: int = 6) -> Tensor:
    generator = torch.Generator().manual_seed(size)
    return torch.randn(size, WIDTH, generator=generator, dtype=torch.float64)


def test_the_same_object_with_the_same_state_dict_keys() -> None:
    with simulated(3):
        model = make()
        keys, parameters = list(model.state_dict()), [id(p) for p in model.parameters()]
        place(model, PLACES)
        assert list(model.state_dict()) == keys
        assert [id(p) for p in model.parameters()] == parameters
        assert [p.device for p in model.parameters()] == [on(k // 2) for k in range(6)]


@pytest.mark.parametrize("assign", [False, True])
def test_a_state_dict_can_be_loaded(assign: bool) -> None:
    with simulated(3):
        model, other = make(), make()
        with torch.no_grad():
            other[2].weight.fill_(0.5)
        expected = other(batch())
        place(model, PLACES)
        state = other.state_dict()
        if assign:
            state = {
                name: value.to(model.state_dict()[name].device) for name, value in state.items()
            }
        model.load_state_dict(state, assign=assign)
        assert torch.equal(to_host(model(batch())), expected)


def test_weights_are_saved_as_safetensors_of_the_host(tmp_path: Path) -> None:
    with simulated(3):
        model = make()
        expected = {name: value.clone() for name, value in model.state_dict().items()}
        place(model, PLACES)
        save_file(
            {name: to_host(value) for name, value in model.state_dict().items()},
            tmp_path / "model.safetensors",
        )
        loaded = load_file(tmp_path / "model.safetensors")
        assert all(torch.equal(loaded[name], value) for name, value in expected.items())


def copies() -> dict[str, Any]:
    return {
        "deepcopy": copy.deepcopy,
        "deepcopy of a deepcopy": lambda model: copy.deepcopy(copy.deepcopy(model)),
    }


@pytest.mark.parametrize("way", copies())
def test_a_copy_runs_on_its_own(way: str) -> None:
    with simulated(3):
        model = make()
        place(model, PLACES)
        twin = copies()[way](model)
        expected = to_host(model(batch())).detach()
        with torch.no_grad():
            for weight in model.parameters():
                weight.zero_()
        assert torch.equal(to_host(twin(batch())), expected)
        assert twin[1].weight.device == on(1)
        assert hooks_of(twin)[0].runtime is not hooks_of(model)[0].runtime
        assert len({id(hook.runtime) for hook in hooks_of(twin)}) == 1


def hooks_of(model: nn.Module) -> list[Enter]:
    hooks = (hook for module in model.modules() for hook in module._forward_pre_hooks.values())
    return [hook for hook in hooks if isinstance(hook, Enter)]


def test_pickle_keeps_the_hooks_and_simulated_weights_come_back_on_the_host() -> None:
    with simulated(3):
        model = make()
        expected = model(batch()).detach()
        model[1].running_mean.zero_(), model[1].running_var.fill_(1)
        place(model, PLACES)
        twin = pickle.loads(pickle.dumps(model))
        assert len(hooks_of(twin)) == len(hooks_of(model)) == 4
        apply_modules_again(twin)
        assert torch.equal(to_host(twin(batch())), expected)
        buffer = io.BytesIO()
        torch.save(model.state_dict(), buffer)
        buffer.seek(0)
        assert {v.device.type for v in torch.load(buffer).values()} == {"cpu"}


def apply_modules_again(model: nn.Module) -> None:
    remove_hooks(model)
    assert hooks_of(model) == []
    place(model, PLACES)


def test_remove_gives_back_the_model_as_it_was() -> None:
    with simulated(3):
        model = make()
        optimizer = torch.optim.Adam(model.parameters())
        before = {name: value.clone() for name, value in model.state_dict().items()}
        applied = apply_modules(model, {path: on(k) for path, k in PLACES.items()})
        remove_hooks(model)
        move_back(model, applied.moved, optimizers=[optimizer])
        assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
        assert all(value.device.type == "cpu" for value in model.state_dict().values())
        assert hooks_of(model) == []
        assert not any(
            module._forward_hooks
            or module._forward_hooks_with_kwargs
            or module._forward_hooks_always_called
            or module._forward_pre_hooks_with_kwargs
            for module in model.modules()
        )


def test_other_batch_sizes_and_eval_mode() -> None:
    with simulated(3):
        model, twin = make(), make()
        place(model, PLACES)
        for size in (6, 3, 11):
            assert torch.equal(to_host(model(batch(size))), twin(batch(size)))
        model.eval(), twin.eval()
        assert torch.equal(to_host(model(batch(1))), twin(batch(1)))


def test_hooks_of_the_user_fire_once() -> None:
    with simulated(3):
        model = make()
        seen: list[str] = []
        model[1].register_forward_hook(lambda *_: seen.append("before apply"))
        place(model, PLACES)
        model[1].register_forward_pre_hook(lambda *_: seen.append("pre"))
        model[1].register_forward_hook(lambda *_: seen.append("post"))
        model[1].register_full_backward_hook(lambda *_: seen.append("backward"))
        model(batch()).sum().backward()
        assert seen == ["pre", "before apply", "post", "backward"]


def losses(model: nn.Module, steps: int, *, accumulate: int = 1, clip: bool = False) -> list[float]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, foreach=False)
    found = []
    for _ in range(steps):
        optimizer.zero_grad()
        for part in range(accumulate):
            loss = model(batch(6 + part)).square().mean() / accumulate
            loss.backward()
            found.append(loss.item())
        if clip:
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
    return found


@pytest.mark.parametrize("options", [{"accumulate": 3}, {"clip": True}])
def test_accumulation_and_clipping(options: dict[str, Any]) -> None:
    with simulated(3):
        expected = losses(make(), 8, **options)
        model = make()
        place(model, PLACES)
        assert losses(model, 8, **options) == pytest.approx(expected, rel=0, abs=1e-9)


def test_a_growing_cache_costs_the_same_copies_for_every_token() -> None:
    with simulated(3) as devices, torch.no_grad():
        model = public.llama()[0].eval()
        tokens = torch.tensor([[5, 6, 7]])
        expected = model.generate(tokens, max_new_tokens=9, do_sample=False, use_cache=True)
        place(model, {"": 0, "model.layers.1": 1, "model.norm": 2, "lm_head": 2})
        marks: list[int] = []
        model.register_forward_hook(lambda *_: marks.append(len(devices.transfers)))
        devices.clear_transfers()
        found = model.generate(tokens, max_new_tokens=9, do_sample=False, use_cache=True)
        assert torch.equal(to_host(found), expected)
        per_token = [after - before for before, after in pairwise(marks[1:])]
        assert len(per_token) == 7
        assert len(set(per_token)) == 1
