"""Weights go from files straight to their devices, with ties, buffers and typed errors."""

import json
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import torch_public_models as public
from baechi.errors import InputError
from baechi.torch.loading import WeightsMismatchError, load_weights
from baechi.torch.parameters import named_weights, ties
from baechi.torch.simdev import simulated, to_host
from torch_placing import on


class Small(nn.Module):
    """Tied weights, a saved buffer and one that is not saved."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.norm = nn.Embedding(5, 4), nn.BatchNorm1d(4)
        self.head = nn.Linear(4, 5, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("angles", torch.arange(4.0), persistent=False)


def on_meta() -> Small:
    with torch.device("meta"):
        return Small()


def saved(model: nn.Module, path: Path) -> dict[str, torch.Tensor]:
    """Saves what a file has: each piece of memory once, and no buffer without persistence."""
    state = model.state_dict()
    once = {group[0][0] for group in ties(model)}
    weights = {name: weight for name, weight in state.items() if name in once}
    save_file(weights, path)
    return weights


def spread(model: nn.Module) -> dict[str, torch.device]:
    return {
        name: on(0 if name.startswith(("embed", "head")) else 1) for name, _ in named_weights(model)
    }


def test_a_model_on_meta_gets_its_memory_on_the_devices(tmp_path: Path) -> None:
    with simulated(2):
        source = Small()
        saved(source, tmp_path / "model.safetensors")
        model = on_meta()
        identities = [id(weight) for _, weight in named_weights(model)]
        load_weights(
            model,
            spread(model),
            tmp_path / "model.safetensors",
            buffers={"angles": source.angles},
        )
        assert [id(weight) for _, weight in named_weights(model)] == identities
        assert model.head.weight is model.embed.weight
        for (name, found), (_, wanted) in zip(
            named_weights(model), named_weights(source), strict=True
        ):
            assert found.device == spread(model)[name]
            assert torch.equal(to_host(found), wanted), name
        assert model.embed.weight.requires_grad


def test_a_model_on_the_host_keeps_the_buffers_that_no_file_holds(tmp_path: Path) -> None:
    with simulated(2):
        saved(Small(), tmp_path / "model.safetensors")
        model = Small()
        load_weights(model, spread(model), tmp_path / "model.safetensors")
        assert to_host(model.angles).tolist() == [0.0, 1.0, 2.0, 3.0]


def test_several_files_with_an_index(tmp_path: Path) -> None:
    with simulated(2):
        source = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
        for part in (0, 1):
            weights = {f"{part}.{name}": w for name, w in source[part].state_dict().items()}
            save_file(weights, tmp_path / f"part{part}.safetensors")
        index = {name: f"part{name[0]}.safetensors" for name in source.state_dict()}
        path = tmp_path / "model.safetensors.index.json"
        path.write_text(json.dumps({"metadata": {}, "weight_map": index}))
        with torch.device("meta"):
            model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
        load_weights(model, {name: on(int(name[0])) for name in index}, path)
        assert torch.equal(to_host(model[1].weight), source[1].weight)
        assert model[0].bias.device == on(0)
        (tmp_path / "part1.safetensors").unlink()
        with pytest.raises(InputError, match="cannot be read"):
            load_weights(model, {name: on(0) for name in index}, path)


def test_no_device_holds_more_than_its_share(tmp_path: Path) -> None:
    share = 4 * 64 * 64 * 4
    source = nn.Sequential(*(nn.Linear(64, 64, bias=False) for _ in range(8)))
    saved(source, tmp_path / "model.safetensors")
    with torch.device("meta"):
        model = nn.Sequential(*(nn.Linear(64, 64, bias=False) for _ in range(8)))
    with simulated([share, share]) as devices:
        where = {f"{k}.weight": on(k % 2) for k in range(8)}
        load_weights(model, where, tmp_path / "model.safetensors")
        assert [devices.peak_bytes(k) for k in range(2)] == [share, share]
        assert torch.equal(to_host(model[7].weight), source[7].weight)


class HostPeak(TorchDispatchMode):
    """The most bytes of host tensors that were alive at any op, of those that ops have seen."""

    def __init__(self) -> None:
        super().__init__()
        self.largest = 0
        self._seen: dict[int, weakref.ref[torch.UntypedStorage]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for value in tree_leaves((args, result)):
            if isinstance(value, torch.Tensor) and value.device.type == "cpu":
                storage = value.untyped_storage()
                self._seen[storage._cdata] = weakref.ref(storage)
        alive = [storage for storage in (seen() for seen in self._seen.values()) if storage]
        self.largest = max(self.largest, sum(storage.nbytes() for storage in alive))
        return result


def test_the_host_never_holds_more_than_one_tensor_and_its_cast(tmp_path: Path) -> None:
    save_file(
        {f"{k}.weight": torch.zeros(64, 64) for k in range(6)}, tmp_path / "model.safetensors"
    )
    with torch.device("meta"):
        model = nn.Sequential(*(nn.Linear(64, 64, bias=False) for _ in range(6)))
        model.to(torch.bfloat16)
    where = {f"{k}.weight": on(0) for k in range(6)}
    with simulated(1, dry=True) as devices, HostPeak() as host:
        load_weights(model, where, tmp_path / "model.safetensors")
        assert devices.current_bytes(0) == 6 * 64 * 64 * 2
        # What is read, its cast, and what the simulated device makes of that in host memory.
        assert host.largest == 64 * 64 * (4 + 2 + 2)


def test_everything_that_does_not_fit_is_named_and_nothing_is_loaded(tmp_path: Path) -> None:
    with simulated(2):
        model = Small()
        weights = saved(model, tmp_path / "model.safetensors")
        del weights["norm.running_var"]
        wrong = weights | {"extra": torch.zeros(1), "norm.bias": torch.zeros(3)}
        save_file(wrong, tmp_path / "wrong.safetensors")
        before = [weight.device for _, weight in named_weights(model)]
        with pytest.raises(WeightsMismatchError) as raised:
            load_weights(model, spread(model), tmp_path / "wrong.safetensors")
        assert raised.value.missing == ("norm.running_var",)
        assert raised.value.unexpected == ("extra",)
        assert raised.value.misshaped == (("norm.bias", (4,), (3,)),)
        assert [weight.device for _, weight in named_weights(model)] == before


def test_more_tensors_than_the_model_has_can_be_allowed(tmp_path: Path) -> None:
    with simulated(2):
        model = Small()
        weights = saved(model, tmp_path / "model.safetensors")
        save_file(weights | {"extra": torch.zeros(1)}, tmp_path / "more.safetensors")
        load_weights(model, spread(model), tmp_path / "more.safetensors", strict=False)
        assert model.embed.weight.device == on(0)


def test_a_buffer_on_meta_without_a_value_is_named(tmp_path: Path) -> None:
    saved(Small(), tmp_path / "model.safetensors")
    with pytest.raises(InputError, match=r'buffer "angles" is on meta .*\nhint: .*buffers='):
        load_weights(on_meta(), spread(on_meta()), tmp_path / "model.safetensors")


def test_a_plain_tensor_on_meta_is_named(tmp_path: Path) -> None:
    saved(Small(), tmp_path / "model.safetensors")
    model = on_meta()
    model.norm.mask = torch.zeros(1, device="meta")
    with pytest.raises(InputError, match='attribute "mask" of module "norm"'):
        load_weights(
            model, spread(model), tmp_path / "model.safetensors", buffers={"angles": torch.ones(4)}
        )


def test_rotary_angles_of_a_model_of_transformers_are_computed_anew(tmp_path: Path) -> None:
    source, inputs = public.llama()
    saved(source, tmp_path / "model.safetensors")
    with torch.device("meta"):
        model, _ = public.llama()
    names = [name for name, _ in named_weights(model)]
    load_weights(model, dict.fromkeys(names, torch.device("cpu")), tmp_path / "model.safetensors")
    assert torch.equal(model(**inputs).loss, source(**inputs).loss)


def test_a_file_that_is_none_is_named(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_text("nothing")
    with pytest.raises(InputError, match=r"model\.safetensors\" cannot be read"):
        load_weights(Small(), {}, path)


@pytest.mark.parametrize("kind", [nn.GRU, nn.LSTM])
def test_a_recurrent_layer_on_meta_gets_its_weights(kind: type[nn.Module], tmp_path: Path) -> None:
    made = kind(4, 4, 2)
    save_file(made.state_dict(), tmp_path / "layer.safetensors")
    with torch.device("meta"):
        layer = kind(4, 4, 2)
    with simulated(2):
        homes = {name: on(1) for name in made.state_dict()}
        load_weights(layer, homes, tmp_path / "layer.safetensors")
        x = torch.rand(3, 2, 4)
        assert torch.equal(to_host(layer(x.to(on(1)))[0]), made(x)[0])
