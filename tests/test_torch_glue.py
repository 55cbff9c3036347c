"""Functions between placed modules: where they run, which copies they make, what they refuse."""

import dataclasses
import threading

import pytest
import torch
from torch import Tensor, nn

from baechi.torch.simdev import SimulatedDevices, simulated, to_host
from torch_placing import agrees, apply_modules, on, place

WIDTH = 4


def copies_to_devices(devices: SimulatedDevices) -> list[tuple[int, int]]:
    return [(t.source, t.destination) for t in devices.transfers if t.destination >= 0]


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.inner = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.inner(self.norm(x))


def test_a_residual_add_runs_where_a_copy_of_its_operand_is() -> None:
    with simulated(2) as devices, torch.no_grad():
        model = nn.Sequential(nn.Linear(WIDTH, WIDTH), Residual())
        place(model, {"": 0, "1": 1, "1.norm": 1, "1.inner": 1})
        devices.clear_transfers()
        assert model(torch.ones(1, WIDTH)).device == on(1)
        assert copies_to_devices(devices) == [(-1, 0), (0, 1)]


def test_the_device_with_most_bytes_runs_a_call_and_the_first_operand_wins_a_tie() -> None:
    class Joined(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            return torch.cat([self.a(x), self.b(y)])

    with simulated(2):
        model = Joined()
        place(model, {"": 0, "b": 1})
        small, large = torch.ones(1, WIDTH), torch.ones(2, WIDTH)
        assert model(small, large).device == on(1)
        assert model(large, small).device == on(0)
        assert model(small, small).device == on(0)


def test_a_value_crosses_once_per_device() -> None:
    class Branches(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.parts = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(6))

        def forward(self, x: Tensor) -> Tensor:
            return sum(part(x) for part in self.parts) + x.mean()

    with simulated(3) as devices:
        model = Branches()
        place(model, {f"parts.{k}": k % 3 for k in range(6)} | {"": 0})
        devices.clear_transfers()
        model(torch.ones(1, WIDTH)).sum()
        from_host = [pair for pair in copies_to_devices(devices) if pair[0] == -1]
        assert from_host == [(-1, 0), (-1, 1), (-1, 2), (-1, 0)]  # the mean is another value


def test_a_copy_is_dropped_after_its_last_use_once_uses_are_known() -> None:
    class Chain(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(WIDTH, 1000)
            self.second = nn.Linear(1000, 1)
            self.rest = nn.Sequential(*(nn.Linear(1, 1) for _ in range(3)))

        def forward(self, x: Tensor) -> Tensor:
            wide = self.first(x)
            return self.rest(self.second(wide)) + wide.sum()

    with simulated(2) as devices, torch.no_grad():
        model = Chain()
        applied = place(model, {"": 1, "first": 0})
        held = []
        model.rest.register_forward_hook(lambda *_: held.append(devices.current_bytes(1)))
        for _ in range(2):
            model(torch.ones(8, WIDTH))
        assert held[0] - held[1] == 8 * 1000 * 4
        assert applied.runtime is not None
        uses = applied.runtime.use_counts["", True, False]
        assert len(uses) == applied.runtime.num_copies


class Positions(nn.Module):
    """Parameters and a plain tensor beside children, and a call with keywords only."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.full((WIDTH,), 3.0))
        self.register_buffer("shift", torch.ones(WIDTH))
        self.mask = torch.tensor([1.0, 0.0, 1.0, 1.0])
        self.a, self.b = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, *, x: Tensor, options: dict[str, Tensor]) -> Tensor:
        y = self.a(x) * self.scale + self.shift
        return self.b(y) * self.mask + options["bias"][0]


def test_weights_beside_children_plain_tensors_and_keywords() -> None:
    with simulated(3):
        inputs = {"x": torch.randn(2, WIDTH), "options": {"bias": torch.randn(2, WIDTH)}}
        agrees(Positions(), {"": 1, "a": 0, "b": 2}, **inputs)


def test_a_call_with_a_weight_of_its_module_runs_where_the_weight_is() -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(1))
            self.a = nn.Linear(WIDTH, WIDTH)

        def forward(self, x: Tensor) -> Tensor:
            return self.a(x) * self.scale

    with simulated(2):
        model = Scaled()
        place(model, {"": 1, "a": 0})
        assert model(torch.ones(5, WIDTH)).device == on(1)


def test_a_module_called_twice_and_one_with_two_names() -> None:
    class Reused(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
            self.again = self.a

        def forward(self, x: Tensor) -> Tensor:
            return self.again(self.b(self.a(self.a(x))))

    with simulated(2):
        agrees(Reused(), {"": 0, "b": 1, "again": 1}, torch.randn(2, WIDTH))


def test_a_tied_weight_has_one_home_and_gets_both_gradients() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.middle = nn.Embedding(7, WIDTH), nn.Linear(WIDTH, WIDTH)
            self.head = nn.Linear(WIDTH, 7, bias=False)
            self.head.weight = self.embed.weight

        def forward(self, tokens: Tensor) -> Tensor:
            return self.head(self.middle(self.embed(tokens)))

    with simulated(3):
        model = Tied()
        agrees(model, {"": 0, "embed": 0, "middle": 1, "head": 2}, torch.tensor([[1, 2, 3]]))
        assert model.head.weight is model.embed.weight
        assert model.head.weight.device == on(0)


@dataclasses.dataclass(frozen=True)
class Pair:
    first: Tensor
    second: Tensor


def test_dataclasses_tuples_and_dicts_go_in_and_out() -> None:
    class Splits(nn.Module):
        def forward(self, pair: Pair, more: tuple[Tensor, dict[str, Tensor]]) -> Pair:
            return Pair(pair.first + pair.second, more[0] * more[1]["x"])

    class Whole(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.splits = nn.Linear(WIDTH, WIDTH), Splits()

        def forward(self, x: Tensor) -> Tensor:
            y = self.a(x)
            pair = self.splits(Pair(y, x), (y, {"x": y}))
            return pair.first - pair.second

    with simulated(2):
        agrees(Whole(), {"": 0, "splits": 1}, torch.randn(2, WIDTH))


def test_lengths_stay_on_the_host() -> None:
    class Packed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.lstm = nn.Embedding(9, WIDTH), nn.LSTM(WIDTH, WIDTH, batch_first=True)

        def forward(self, tokens: Tensor, lengths: Tensor) -> Tensor:
            packed = nn.utils.rnn.pack_padded_sequence(
                self.embed(tokens), lengths, batch_first=True, enforce_sorted=False
            )
            padded, _ = nn.utils.rnn.pad_packed_sequence(self.lstm(packed)[0], batch_first=True)
            return padded

    with simulated(2):
        agrees(Packed(), {"": 0, "lstm": 1}, torch.arange(8).view(2, 4), torch.tensor([2, 4]))


def test_outputs_come_back_beside_the_inputs_if_wanted() -> None:
    with simulated(2):
        model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 1))
        apply_modules(model, {"0": on(0), "1": on(1), "": on(0)}, outputs="inputs")
        assert model(torch.ones(1, WIDTH)).device == torch.device("cpu")
        assert model(torch.ones(1, WIDTH, device=on(0))).device == on(0)


def test_a_part_can_be_called_alone() -> None:
    with simulated(2):
        model = nn.Sequential(nn.Linear(WIDTH, WIDTH), Residual())
        x = torch.randn(2, WIDTH)
        expected = model[1](x).detach()
        place(model, {"": 0, "1.inner": 1})
        assert torch.equal(to_host(model[1](x)), expected)


def test_an_exception_leaves_nothing_behind() -> None:
    class Fails(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            raise ValueError("on purpose")

    with simulated(2):
        model = nn.Sequential(nn.Linear(WIDTH, WIDTH), Fails())
        applied = place(model, {"0": 0, "1": 1, "": 0})
        before = torch.overrides._len_torch_function_stack()
        with pytest.raises(ValueError, match="on purpose"):
            model(torch.ones(1, WIDTH))
        assert applied.runtime is not None
        assert applied.runtime.state.frames == []
        assert torch.overrides._len_torch_function_stack() == before


def test_threads_do_not_see_each_other() -> None:
    with simulated(2):
        model = nn.Sequential(*(Residual() for _ in range(4)))
        x = torch.randn(3, WIDTH)
        expected = model(x).detach()
        place(model, {f"{k}.inner": k % 2 for k in range(4)} | {"": 0})
        x = x.to(on(0))  # a thread of its own does not simulate, so nothing may start on the host
        placed: list[Tensor] = []

        def run() -> None:
            for _ in range(5):
                placed.append(model(x).detach())

        threads = [threading.Thread(target=run) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(placed) == 15
        assert all(torch.equal(to_host(value), expected) for value in placed)


def test_a_part_on_one_device_can_be_called_alone_too() -> None:
    with simulated(2):
        model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH))
        x = torch.randn(2, WIDTH)
        expected = model[1](x).detach()
        place(model, {"": 0, "1": 1})
        assert torch.equal(to_host(model[1](x)), expected)
