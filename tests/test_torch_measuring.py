import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import virtual_device
from baechi.device_table import device_table
from baechi.errors import InputError
from baechi.links import Link
from baechi.torch import detection, machine
from baechi.torch.costs import Costs, DeviceCosts
from baechi.torch.detection import cluster_of_machine
from baechi.torch.links import fit_link, measure_link
from baechi.torch.measuring import measure_calls, measure_costs
from baechi.torch.planning import plan
from baechi.torch.pricing import price
from baechi.torch.signatures import signature_of
from baechi.torch.work import work_of

aten = torch.ops.aten
torch.set_num_threads(1)


def small_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Dropout(0.5), nn.Linear(16, 4))


def the_device(costs: Costs) -> DeviceCosts:
    (device,) = costs.devices.values()
    return device


def op_names(costs: Costs) -> set[str]:
    return {signature.split(".default(")[0] for signature in the_device(costs).times_ns}


def test_a_training_step_has_times_of_forward_and_backward_ops() -> None:
    costs = measure_costs(small_model(), (torch.randn(32, 8),), training=True, repeats=2)
    assert {"aten.addmm", "aten.native_batch_norm_backward", "aten.mm"} <= op_names(costs)
    assert all(time_ns > 0 for time_ns in the_device(costs).times_ns.values())
    assert the_device(costs).kind == "cpu"
    assert the_device(costs).clock == "thread time"


def test_inference_has_no_backward_ops() -> None:
    model = small_model().eval()
    costs = measure_costs(model, (torch.randn(32, 8),), training=False, repeats=1)
    assert "aten.addmm" in op_names(costs)
    assert not any("backward" in name for name in op_names(costs))


def test_a_plan_says_which_ops_it_has_measured_prices_for() -> None:
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    given: Any = {"optimizer": "sgd", "loss": torch.Tensor.sum, "confirm": False}
    rows = (torch.randn(32, 8),)
    costs = measure_costs(model, rows, training=True, repeats=1)
    host = plan(model, rows, devices={"cpu": "1GiB"}, costs=costs, **given)
    assert set(host.prices) == {"measured"}
    assert not [note for note in host.notes if "not measured" in note]
    mixed = plan(model, rows, devices={"cpu": "1GiB", "cuda:0": "1GiB"}, costs=costs, **given)
    calls = sum(host.prices.values())
    assert dict(mixed.prices) == {"analytic": calls}
    (note,) = [note for note in mixed.notes if "not measured" in note]
    assert note.startswith(f"{calls} of {calls} calls were not measured on generic-gpu and have")
    times = dict(the_device(costs).times_ns)
    (relu,) = [signature for signature in times if "aten.relu" in signature]
    del times[relu]
    partial = dataclasses.replace(the_device(costs), times_ns=times)
    named = plan(model, rows, devices={"cpu": "1GiB"}, costs=Costs({"f": partial}), **given)
    assert dict(named.prices) == {"analytic": 1, "measured": calls - 1}
    assert (
        f"1 of {calls} calls were not measured on cpu and have analytic prices: 1 of "
        "aten.relu.default" in named.notes
    )
    unmeasured = plan(model, rows, devices={"cpu": "1GiB"}, **given)
    assert dict(unmeasured.prices) == {"analytic": calls}
    assert not [note for note in unmeasured.notes if "not measured" in note]


def test_measuring_leaves_the_model_and_the_random_state_as_they_were() -> None:
    model = small_model()
    model[0].weight.grad = torch.ones(16, 8)
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    random = torch.random.get_rng_state()
    measure_costs(model, (torch.randn(32, 8, generator=torch.Generator()),), training=True)
    assert all(torch.equal(buffer, buffers[name]) for name, buffer in model.named_buffers())
    assert torch.equal(model[0].weight.grad, torch.ones(16, 8))
    assert model[3].weight.grad is None
    assert torch.equal(torch.random.get_rng_state(), random)


def test_a_loss_can_be_given_and_a_keyword_input() -> None:
    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(8, 4)

        def forward(self, *, features: torch.Tensor) -> dict[str, torch.Tensor]:
            return {"score": self.layer(features)}

    def loss(output: Any) -> torch.Tensor:
        return output["score"].exp().sum()

    features = {"features": torch.randn(3, 8)}
    given = measure_costs(Named(), (), features, training=True, loss=loss, repeats=1)
    assert "aten.exp" in op_names(given)
    assert "aten.exp" not in op_names(measure_costs(Named(), (), features, training=True))


def test_a_model_on_the_meta_device_cannot_be_measured() -> None:
    with pytest.raises(InputError, match="the weights are on meta"):
        measure_costs(nn.Linear(2, 2, device="meta"), (), training=False)


def test_no_repeats_are_an_error() -> None:
    with pytest.raises(InputError, match="0 repeats give no median"):
        measure_costs(nn.Linear(2, 2), (torch.ones(1, 2),), training=False, repeats=0)


def meta_calls() -> list[Any]:
    x, w = torch.empty(16, 8, device="meta"), torch.empty(4, 8, device="meta")
    rows, indices = torch.empty(9, 3, device="meta"), torch.empty(5, dtype=torch.int64).to("meta")
    return [
        (aten.linear.default, (x, w), {}, torch.empty(16, 4, device="meta")),
        (aten.embedding.default, (rows, indices), {}, torch.empty(5, 3, device="meta")),
        (aten.zeros.default, ([4],), {"device": torch.device("meta")}, torch.empty(4).to("meta")),
    ]


def test_calls_that_were_captured_without_weights_are_measured_with_made_up_operands() -> None:
    calls = meta_calls()
    costs = measure_calls(calls, "cpu", repeats=2)
    signatures = {signature_of(func, args, kwargs) for func, args, kwargs, _ in calls}
    assert set(the_device(costs).times_ns) == signatures


def test_what_cannot_be_run_is_left_out_and_keeps_its_analytic_price() -> None:
    probabilities = torch.empty(3, device="meta")
    impossible = (aten.multinomial.default, (probabilities, 5), {}, torch.empty(5, device="meta"))
    calls = [*meta_calls()[:1], impossible]
    prices = price(
        {signature_of(*call[:3]): work_of(*call) for call in calls},
        device_table().kind("cpu"),
        measure_calls(calls, repeats=1).for_kind("cpu"),
    )
    assert [each.source for each in prices.values()] == ["measured", "analytic"]


ON_A_DEVICE_THAT_COUNTS = """
import json
import torch
import virtual_device
virtual_device.init(2)
from baechi.torch.measuring import measure_calls, measure_costs

layer = torch.nn.GroupNorm(2, 4).to("vdev:1")
x = torch.randn(8, 4, 16, device="vdev:1")
costs = measure_costs(layer, (x,), training=True, repeats=2)
(measured,) = costs.devices.values()
scratch = {name.split("(")[0]: nbytes for name, nbytes in measured.scratch_bytes.items()}
called = measure_calls([(torch.ops.aten.native_group_norm.default,
    (x, None, None, 8, 4, 16, 2, 1e-5), {}, None)], "vdev:1", repeats=1)
found = list(called.scratch_for(measured.kind)[1].values())
print(json.dumps([measured.clock, measured.device_type, scratch, found, x.nbytes]))
"""


def test_scratch_is_what_a_call_held_beside_operands_and_results() -> None:
    clock, device_type, scratch, found, nbytes = virtual_device.run(ON_A_DEVICE_THAT_COUNTS)
    assert (clock, device_type) == ("events", "vdev")
    # The test-only device has no kernel of its own: it makes the normalized input first.
    assert nbytes <= scratch["aten.native_group_norm.default"] < 2 * nbytes
    assert nbytes <= found[0] < 2 * nbytes
    assert "aten.sum.default" not in scratch


SIZES = tuple(2**k for k in range(12, 28))


def copies(link: Link, sizes: Sequence[int] = SIZES) -> np.ndarray:
    return np.array([link.latency_ns + size * 10**9 / link.bytes_per_s for size in sizes])


@pytest.mark.parametrize("link", [Link("10us", "12GB/s"), Link("3us", "300GB/s"), Link(0, 10**9)])
def test_the_link_behind_exact_times_is_found(link: Link) -> None:
    found = fit_link(SIZES, copies(link))
    assert found.latency_ns == pytest.approx(link.latency_ns, abs=1)
    assert found.bytes_per_s == pytest.approx(link.bytes_per_s, rel=1e-6)


@pytest.mark.parametrize("seed", range(5))
def test_noise_and_interruptions_hardly_move_the_link(seed: int) -> None:
    random = np.random.default_rng(seed)
    times = copies(Link("10us", "12GB/s")) * random.uniform(0.98, 1.05, len(SIZES))
    times[random.integers(len(SIZES), size=2)] *= 6  # other work took the machine
    found = fit_link(SIZES, times)
    assert found.latency_ns == pytest.approx(10_000, rel=0.1)
    assert found.bytes_per_s == pytest.approx(12 * 10**9, rel=0.1)


@pytest.mark.parametrize(
    ("sizes", "times", "message"),
    [
        ([], [], "0 sizes and 0 times"),
        ([8, 8], [1, 2], "do not tell a link"),
        ([8, 16], [1], "2 sizes and 1 times"),
        ([8, 16], [0, 1], "do not tell a link"),
        ([10, 10**9], [10**6, 10], "larger copies were not slower"),
    ],
)
def test_times_that_tell_no_link_are_an_error(sizes: Any, times: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        fit_link(sizes, times)


def test_a_copy_in_host_memory_can_be_measured() -> None:
    link = measure_link("cpu", "cpu", (2**12, 2**16, 2**20, 2**23), repeats=5)
    assert 10**8 < link.bytes_per_s < 10**13


def test_this_machines_host_has_memory_and_a_fingerprint() -> None:
    host = machine.host()
    assert host.memory_bytes > 2**28
    assert host.kind == "cpu"
    assert len(machine.fingerprint(host)) == 16
    assert machine.fingerprint(host) == machine.fingerprint(machine.host())


def test_this_machine_is_described_as_a_cluster() -> None:
    cluster, notes = cluster_of_machine(with_cpu=True, reserve="1MiB")
    assert cluster.names[-1] == "cpu"
    assert cluster.reserve_bytes.tolist() == [2**20] * cluster.num_devices
    assert any(machine.host().title in note for note in notes)
    if not torch.accelerator.is_available():
        assert notes[0].startswith("this machine has no accelerator")
        assert cluster.num_devices == 1


def test_links_of_the_machine_are_measured_when_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    two = (
        machine.FoundDevice("cpu:0", "one", "cpu", 5),
        machine.FoundDevice("cpu:1", "", "cpu", 5),
    )
    monkeypatch.setattr(detection, "accelerators", lambda: two)
    cluster, notes = cluster_of_machine(measure=True)
    assert not cluster.links_assumed
    assert notes[-1] == "links measured"
    assert 10**8 < cluster.bytes_per_s[0, 1] < 10**13
