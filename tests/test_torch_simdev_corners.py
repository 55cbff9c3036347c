"""Hard corners of simulated devices: values, saved tensors, in-place changes, odd operands."""

import copy
import io
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from baechi.torch import simdev

torch.set_num_threads(1)
FIRST, SECOND = (simdev.resolve(f"simdev:{k}") for k in range(2))


def same_on_device(function: Callable[..., Tensor], *operands: Tensor) -> bool:
    """Whether values and gradients on a device are those of the CPU, to the last bit."""
    answers = []
    for device in ("cpu", FIRST):
        torch.manual_seed(7)
        leaves = [x.detach().to(device) for x in operands]
        leaves = [x.requires_grad_() if x.is_floating_point() else x for x in leaves]
        result = function(*leaves)
        if result.requires_grad:
            result.sum().backward()
        answers.append([result.cpu(), *(x.grad.cpu() for x in leaves if x.grad is not None)])
    return all(torch.equal(a, b) for a, b in zip(*answers, strict=True))


def test_tensors_are_made_from_values_on_a_device() -> None:
    with simdev.simulated(2):
        for make in (torch.tensor, torch.as_tensor, torch.asarray):
            made = make([1, 2], device=SECOND)
            assert (made.device, made.tolist()) == (SECOND, [1, 2])
        assert made.new_tensor([3.0]).tolist() == [3]
        with SECOND:
            assert torch.tensor(4.0).item() == 4
            assert nn.Linear(2, 2).weight.device == SECOND
        with pytest.raises(TypeError, match="can't convert simdev:1 device type tensor to numpy"):
            made.numpy()
        assert repr(made) == "tensor([1, 2], device='simdev:1')"
        assert not made.is_meta


def test_modules_move_without_losing_the_identity_of_parameters() -> None:
    with simdev.simulated(2) as devices:
        layer = nn.Linear(3, 2)
        weight, optimizer = layer.weight, torch.optim.Adam(layer.parameters())
        layer(torch.ones(1, 3)).sum().backward()
        layer.to(SECOND)
        optimizer.step()
        assert layer.weight is weight
        assert optimizer.state[weight]["exp_avg"].device == SECOND
        other = nn.Parameter(torch.zeros(2, 3))
        torch.utils.swap_tensors(weight, other)
        assert (weight.device.type, other.device) == ("cpu", SECOND)
        assert devices.current_bytes(0) == 0


def test_saved_tensors_are_plain_and_copied_modules_stay_on_their_device() -> None:
    with simdev.simulated(2) as devices:
        layer = nn.Linear(3, 2).to(SECOND)
        before = devices.current_bytes(1)
        twin = copy.deepcopy(layer)
        assert isinstance(twin.weight, nn.Parameter)
        assert (twin.weight.device, devices.current_bytes(1)) == (SECOND, 2 * before)
        file = io.BytesIO()
        torch.save(layer.state_dict(), file)
        file.seek(0)
        loaded = torch.load(file)
        assert type(loaded["weight"]) is Tensor
        twin.weight.data.zero_()
        twin.load_state_dict(loaded)  # with the warnings of this test suite as errors
        assert torch.equal(twin.weight.cpu(), layer.weight.cpu())


def test_data_of_a_parameter_is_replaced_with_its_values() -> None:
    with simdev.simulated(2):
        parameter = nn.Parameter(torch.ones(3, device=FIRST))
        parameter.data = torch.zeros(3, device=SECOND)
        assert (parameter.device, parameter.sum().item()) == (SECOND, 0)
        with pytest.raises(RuntimeError, match="incompatible tensor type"):
            parameter.data = torch.zeros(3)


def test_shapes_follow_ops_that_change_them_in_place() -> None:
    with simdev.simulated(1):
        x = torch.arange(6.0, device=FIRST).view(2, 3)
        x.t_().unsqueeze_(0)
        assert (x.shape, x.tolist()) == ((1, 3, 2), [[[0, 3], [1, 4], [2, 5]]])
        out = torch.empty(0, device=FIRST)
        torch.add(x, 1, out=out)
        assert out.tolist() == [[[1, 4], [2, 5], [3, 6]]]


def test_indices_may_be_on_the_host_but_not_on_another_device() -> None:
    with simdev.simulated(2) as devices:
        x = torch.arange(5, device=SECOND)
        devices.clear_transfers()
        assert x[torch.tensor([0, 3])].tolist() == [0, 3]
        assert [(t.source, t.nbytes) for t in devices.transfers] == [(simdev.HOST, 16)]
        with pytest.raises(RuntimeError, match="found at least two devices"):
            x[torch.tensor([0], device=FIRST)]


MISMATCHES: dict[str, Callable[[Tensor, Tensor], object]] = {
    "convolution": lambda a, b: F.conv2d(a.view(1, 1, 2, 2), b.view(1, 1, 2, 2)),
    "embedding": lambda a, b: F.embedding(a.long(), b),
    "concatenation": lambda a, b: torch.cat([a, b]),
    "foreach": lambda a, b: torch._foreach_mul_([a, b], [b, a]),
    "loss": F.mse_loss,
    "out": lambda a, b: torch.add(a, a, out=b),
    "attention": lambda a, b: F.scaled_dot_product_attention(a[None], b[None], b[None]),
    "gradient": lambda a, b: setattr(a, "grad", b),
}


@pytest.mark.parametrize("name", MISMATCHES)
def test_a_mismatch_is_found_in(name: str) -> None:
    with simdev.simulated(2):
        a, b = torch.ones(2, 2, device=FIRST), torch.ones(2, 2, device=SECOND)
        with pytest.raises(RuntimeError, match="device"):
            MISMATCHES[name](a, b)


def test_lists_of_optimizers_may_span_devices() -> None:
    with simdev.simulated(2):
        many = [torch.ones(1, device=FIRST), torch.ones(1), torch.ones(1, device=SECOND)]
        torch._foreach_mul_(many, 3)
        sums = torch._foreach_add(many, 1)
        assert [x.device for x in sums] == [x.device for x in many]
        assert [x.item() for x in sums] == [4, 4, 4]
        parameters = [nn.Parameter(x) for x in many]
        for parameter in parameters:
            parameter.grad = parameter.detach() * 2
        assert nn.utils.clip_grad_norm_(parameters, 1.0).item() == pytest.approx(108**0.5)


SAME: dict[str, tuple[Callable[..., Tensor], ...]] = {
    "dropout": (lambda x: F.dropout(x, 0.1), lambda x: F.dropout(x, 0.5), F.dropout2d),
    "attention": (
        lambda x: F.scaled_dot_product_attention(x, x, x, is_causal=True),
        lambda x: F.scaled_dot_product_attention(x, x, x, x[0, :, :1] > 0),
        lambda x: F.scaled_dot_product_attention(x, x, x, dropout_p=0.2),
    ),
    "complex numbers": (
        lambda x: torch.fft.fft(x).conj().imag,
        lambda x: torch.view_as_real(torch.complex(x, x).conj() * 2j),
    ),
    "weight norm": (
        lambda x: torch._weight_norm(x, x.sum((1, 2, 3), keepdim=True), 0),
        lambda x: torch._weight_norm(x, x.sum((0, 2, 3), keepdim=True), 1),
    ),
    "convolutions": (
        lambda x: F.conv2d(x, x[:, :, :2, :2]),
        lambda x: F.conv_transpose2d(x, x.transpose(0, 1)[:, :2, :3, :3].contiguous()[:4]),
    ),
    "norms": (
        lambda x: F.batch_norm(x, None, None, training=True),
        lambda x: F.layer_norm(x, x.shape[2:]),
        lambda x: F.group_norm(x, 2),
        lambda x: F.rms_norm(x, x.shape[3:]),
    ),
    "activations": (F.silu, F.gelu, F.mish, F.hardswish, F.softplus, lambda x: F.glu(x, 1)),
    "pooling": (
        lambda x: F.max_pool2d(x, 2),
        lambda x: F.avg_pool2d(x, 2),
        lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"),
    ),
    "indexing": (
        lambda x: x[x > 0],
        lambda x: x.index_put((x > 1,), x.new_zeros(())),
        lambda x: torch.sort(x).values,
    ),
}


@pytest.mark.parametrize("name", SAME)
def test_the_bits_are_those_of_the_cpu_in(name: str) -> None:
    torch.manual_seed(0)
    x = torch.randn(4, 4, 6, 6)
    with simdev.simulated(1):
        assert [same_on_device(function, x) for function in SAME[name]] == [True] * len(SAME[name])


def test_integers_are_counted_as_on_an_accelerator() -> None:
    with simdev.simulated(1):
        x = torch.tensor([1, 2, 2, 5], dtype=torch.int32, device=FIRST)
        assert torch.histc(x, bins=4, min=0, max=7).tolist() == [1, 2, 1, 0]


def test_programs_may_branch_on_small_integers_in_a_dry_rehearsal() -> None:
    with simdev.simulated(2, dry=True):
        mask = torch.tensor([[1, 1, 0], [1, 1, 1]]).to(FIRST)
        assert not mask.bool().all()
        lengths = mask.sum(1).to(SECOND)
        assert lengths.tolist() == lengths.cpu().tolist() == [2, 3]
        assert torch.randn(2, 3, device=FIRST)[mask.bool()].shape == (5,)
        row = mask[0]
        mask += 1
        assert row.tolist() == [2, 2, 1]
        picked = torch.arange(3, device=FIRST)
        torch.zeros(3, device=FIRST).index_add_(0, picked, torch.ones(3, device=FIRST))
        assert picked.tolist() == [0, 1, 2]
        row.copy_(torch.randn(3, device=FIRST).argsort())  # from here on nobody knows
        for unknown in (row, mask, mask[1], torch.randint(9, (3,), device=FIRST)):
            with pytest.raises(simdev.NoValuesError, match="needs values"):
                unknown.tolist()


def test_gradients_are_scaled_across_devices() -> None:
    with simdev.simulated(2):
        first, second = nn.Linear(3, 2).to(FIRST), nn.Linear(2, 1).to(SECOND)
        optimizer = torch.optim.SGD([*first.parameters(), *second.parameters()], 0.1)
        scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
        loss = second(first(torch.ones(1, 3, device=FIRST)).to(SECOND)).sum()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        assert second.bias.grad.tolist() == [1]
        scaler.step(optimizer)
        scaler.update()


def test_nothing_is_left_behind_also_after_an_error() -> None:
    class Stop(Exception):
        pass

    hooks = torch.nn.modules.module._global_forward_hooks
    before = len(hooks)
    kept = []

    def program() -> None:
        with simdev.simulated(1):
            kept.append(torch.ones(3, device=FIRST))
            raise Stop

    with pytest.raises(Stop):
        program()
    assert len(hooks) == before
    assert type(torch.ones(1, device=FIRST)) is Tensor  # a plain meta tensor again
    leaf = torch.ones(2, device="meta", requires_grad=True)
    assert "MulBackward" in F.dropout(leaf).grad_fn.name()
    assert (kept[0] + 1).tolist() == [2, 2, 2]  # what was computed may still be read
    with simdev.simulated(1), pytest.raises(RuntimeError, match="devices that are gone"):
        kept[0] + torch.ones(3, device=FIRST)


def test_inference_mode_takes_the_same_kernels() -> None:
    with simdev.simulated(1), torch.inference_mode():
        torch.manual_seed(0)
        layer = nn.MultiheadAttention(8, 2, batch_first=True)
        x = torch.randn(2, 3, 8)
        expected = layer.train()(x, x, x)[0]
        placed = layer.to(FIRST)(*[x.to(FIRST)] * 3)[0]
        assert torch.equal(placed.cpu(), expected)


RECURRENT: dict[str, Callable[[], nn.Module]] = {
    "lstm": lambda: nn.LSTM(3, 4, num_layers=2, dropout=0.5, bidirectional=True),
    "lstm without biases": lambda: nn.LSTM(3, 4, bias=False),
    "lstm in float64": lambda: nn.LSTM(3, 4, num_layers=2).double(),
    "lstm with a projection": lambda: nn.LSTM(3, 4, proj_size=2, bidirectional=True),
    "gru": lambda: nn.GRU(3, 4, num_layers=2, dropout=0.5, bidirectional=True),
    "rnn": lambda: nn.RNN(3, 4, nonlinearity="relu"),
}


def recurrent_step(layer: nn.Module, lengths: Tensor | None, device: object) -> list[Tensor]:
    torch.manual_seed(1)
    layer.to(device)
    x = torch.randn(5, 4, 3, dtype=next(layer.parameters()).dtype).to(device).requires_grad_()
    if lengths is None:
        output, _ = layer(x)
    else:
        packed, _ = layer(pack_padded_sequence(x, lengths, enforce_sorted=False))
        output = pad_packed_sequence(packed)[0]
    output.square().sum().backward()
    return [t.detach().cpu() for t in (output, x.grad, *(p.grad for p in layer.parameters()))]


@pytest.mark.filterwarnings("ignore:LSTM with projections:UserWarning")
@pytest.mark.parametrize("lengths", [None, torch.tensor([5, 2, 4, 1])], ids=["whole", "packed"])
@pytest.mark.parametrize("name", RECURRENT)
def test_recurrent_layers_have_the_bits_of_the_cpu_and_dry_their_bytes(
    name: str, lengths: Tensor | None
) -> None:
    torch.manual_seed(0)
    layer = RECURRENT[name]()
    expected = recurrent_step(copy.deepcopy(layer), lengths, "cpu")
    peaks = []
    for dry in (False, True):
        with simdev.simulated(1, dry=dry) as devices:
            found = recurrent_step(copy.deepcopy(layer), lengths, FIRST)
            peaks.append(devices.peak_bytes(0))
            assert dry or all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
    assert peaks[0] == peaks[1]
