"""What simulated devices count: bytes and peaks, transfers and their phases, virtual clocks."""

import gc

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from baechi.errors import InputError
from baechi.torch import simdev

torch.set_num_threads(1)
FIRST, SECOND = (simdev.resolve(f"simdev:{k}") for k in range(2))


def test_the_peak_of_a_training_step_is_what_one_adds_up_by_hand() -> None:
    with simdev.simulated(1) as devices:
        layer = nn.Linear(10, 30, bias=False).to(FIRST)  # 1200 bytes
        x = torch.randn(5, 10).to(FIRST)  # 200
        assert devices.current_bytes(0) == 1200 + 200
        y = layer(x)  # 600, and its sum 4
        loss = y.sum()
        assert devices.peak_bytes(0) == 1200 + 200 + 600 + 4
        del y  # a sum does not save what it has added up
        assert devices.current_bytes(0) == 1200 + 200 + 4
        devices.reset_peaks()
        loss.backward()  # begins with a gradient of 4, of which a view goes to the product
        assert devices.peak_bytes(0) == 1200 + 200 + 4 + 4 + 1200
        assert devices.current_bytes(0) == 1200 + 200 + 4 + 1200


def test_aliases_are_charged_once_and_until_the_last_one_dies() -> None:
    with simdev.simulated(1) as devices:
        x = torch.zeros(100, device=FIRST)
        row = x.view(10, 10)[3]
        row += 1
        assert devices.current_bytes(0) == 400
        del x
        assert devices.current_bytes(0) == 400
        del row
        assert devices.current_bytes(0) == 0


def test_nothing_waits_for_the_garbage_collector() -> None:
    gc.collect()
    gc.disable()
    try:
        with simdev.simulated(2) as devices:
            model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4)).to(FIRST)
            held = devices._books.current_bytes[0]
            model(torch.ones(2, 4, device=FIRST)).square().sum().backward()
            assert devices._books.current_bytes[0] == 2 * held  # weights and gradients
    finally:
        gc.enable()


def test_checkpointing_lowers_the_peak_and_keeps_the_gradients() -> None:
    peaks, gradients = [], []
    for through in (lambda block, x: block(x), lambda b, x: checkpoint(b, x, use_reentrant=False)):
        with simdev.simulated(1) as devices:
            torch.manual_seed(0)
            blocks = [nn.Sequential(*(nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.3), nn.Tanh())
                      for _ in range(4))).to(FIRST) for _ in range(4)]  # fmt: skip
            hidden = torch.randn(64, 8).to(FIRST).requires_grad_()
            first = hidden
            for block in blocks:
                hidden = through(block, hidden)
            hidden.sum().backward()
            peaks.append(devices.peak_bytes(0))
            gradients.append(first.grad.tolist())
    assert gradients[0] == gradients[1]
    assert peaks[1] < 0.6 * peaks[0]


def test_running_out_of_memory_in_a_backward_pass_arrives_typed() -> None:
    with simdev.simulated([4000 * 3 + 4 + 4]) as devices:
        x = torch.ones(1000, device=FIRST, requires_grad=True)
        loss = x.exp().exp().sum()  # holds three times 4000 bytes, and needs a fourth
        with pytest.raises(torch.OutOfMemoryError, match=r"simdev:0 out of memory in aten\.mul"):
            loss.backward()
        assert devices.peak_bytes(0) <= 4000 * 3 + 4 + 4


def test_transfers_are_logged_with_bytes_and_phase() -> None:
    with simdev.simulated(2) as devices:
        layer = nn.Linear(4, 2).to(SECOND)
        optimizer = torch.optim.SGD(layer.parameters(), 0.1)
        assert [(t.source, t.destination, t.phase) for t in devices.transfers] == [
            (simdev.HOST, 1, "other"),
            (simdev.HOST, 1, "other"),
        ]
        devices.clear_transfers()
        x = torch.ones(3, 4, device=FIRST, requires_grad=True)
        with devices.phase("forward"):
            loss = layer(x.to(SECOND)).sum()
        loss.backward()
        optimizer.step()
        loss.item()  # a number that the host reads is no transfer
        assert devices.transfers == [
            simdev.Transfer(0, 1, 48, "forward"),
            simdev.Transfer(1, 0, 48, "backward"),
        ]


def test_calls_of_modules_are_the_forward_phase_and_steps_the_optimizers() -> None:
    class Moves(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.to(SECOND)

    with simdev.simulated(2) as devices:
        x = torch.ones(2, device=FIRST)
        nn.Sequential(Moves())(x)
        x.to(SECOND)
        optimizer = torch.optim.SGD([nn.Parameter(x)], 0.1)
        optimizer.step(lambda: x.to(SECOND).sum())
        with pytest.raises(TypeError):
            Moves()(x, x)
        x.to(SECOND)
        phases = [transfer.phase for transfer in devices.transfers]
        assert phases == ["forward", "other", "optimizer", "other"]


def test_clocks_overlap_devices_and_wait_for_what_arrives() -> None:
    def link_ns(source: int, destination: int, nbytes: int) -> int:
        return 0 if source == simdev.HOST else 10 * nbytes

    with simdev.simulated(2, cost_ns=lambda op: 100, link_ns=link_ns) as devices:
        x = torch.ones(1).to(FIRST)
        y = torch.ones(1).to(SECOND)
        a = x + 1  # 0 to 100 on the first
        y = y * 2  # 0 to 100 on the second, at the same time
        moved = a.to(SECOND)  # 4 bytes, 100 to 140
        x = x * 3  # 100 to 200: a transfer does not stop its source
        y = y * 2  # 100 to 200: nor its destination
        assert (devices.clock_ns(0), devices.clock_ns(1)) == (200, 200)
        late = (x + 1).to(SECOND)  # ends at 300, arrives at 340
        z = y + moved  # 200 to 300
        assert devices.clock_ns(1) == 300
        assert devices.clock_ns(0) == 300
        z = z + late  # 340 to 440
        z.view(1)  # takes no time
        assert devices.clock_ns(1) == 440
        z.item()  # the host waits until 440, and gives no op before
        x + 1
        assert devices.clock_ns(0) == 540


def test_transfers_over_one_link_queue_up() -> None:
    with simdev.simulated(3, cost_ns=lambda op: 1, link_ns=lambda *_: 100) as devices:
        x, y = torch.ones(1, device=FIRST), torch.ones(1, device=FIRST)
        a, b = x.to(SECOND), y.to(SECOND)  # 1 to 101, 101 to 201
        c = x.to(simdev.resolve("simdev:2"))  # another link: 1 to 101
        a + 1, c + 1
        assert (devices.clock_ns(1), devices.clock_ns(2)) == (102, 102)
        b + 1
        assert devices.clock_ns(1) == 202


def test_the_price_of_an_op_may_follow_from_its_shapes() -> None:
    asked = []

    def cost_ns(op: simdev.OpContext) -> int:
        asked.append((str(op.op), op.device, op.phase, op.outputs.shape))
        return op.outputs.numel()

    with simdev.simulated(2, dry=True, cost_ns=cost_ns) as devices:
        x = torch.ones(3, 4, device=SECOND)
        x.t() @ x
        assert devices.clock_ns(1) == 12 + 16
    assert asked[1] == ("aten.mm.default", 1, "other", torch.Size([4, 4]))


def test_a_model_larger_than_the_memory_of_the_host_is_rehearsed_dry() -> None:
    with torch.device("meta"):
        model = nn.Sequential(*(nn.Linear(2**18, 2**18, bias=False) for _ in range(4)))
    with simdev.simulated(["3TiB", "3TiB"], dry=True) as devices:
        model[:2].to(FIRST)
        model[2:].to(SECOND)
        hidden = model[:2](torch.empty(1, 2**18, device="meta").to(FIRST))
        model[2:](hidden.to(SECOND)).sum().backward()
        assert devices.current_bytes(0) == 2 * 2 * 2**38 + 2**20
        with pytest.raises(simdev.NoValuesError, match=r"item.*simdev:1"):
            model[3].weight[0, 0].item()


def test_bad_devices_are_refused() -> None:
    with pytest.raises(InputError, match="without a device"), simdev.simulated(0):
        pass
    with (
        simdev.simulated(2),
        pytest.raises(InputError, match="inside another"),
        simdev.simulated(1),
    ):
        pass
    with simdev.simulated(2), pytest.raises(RuntimeError, match="there are 2 simulated devices"):
        torch.ones(2, device=simdev.resolve("simdev:2"))
    with pytest.raises(InputError, match='no device "simdev"'):
        simdev.resolve("simdev")
    with simdev.simulated(1), pytest.raises(InputError, match="no values to put on simdev:0"):
        torch.ones(2, device="meta").to(FIRST)


def test_autocast_without_effect_is_said() -> None:
    with simdev.simulated(1), torch.autocast("cpu", dtype=torch.bfloat16):
        x = torch.ones(2, 2, device=FIRST)
        with pytest.warns(UserWarning, match="no effect on simulated devices"):
            product = x @ x
        assert product.dtype == torch.float32
