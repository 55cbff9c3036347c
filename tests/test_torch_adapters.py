"""Frozen bases in integers with trained adapters of low rank: plans, peaks and gradients."""

import dataclasses
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import baechi
from baechi.torch.confirming import confirmed
from baechi.torch.planning import study

RANK = 8


class Quantized(nn.Module):
    """A frozen linear layer in int8 with scales per row, and an adapter beside it."""

    def __init__(self, inputs: int, outputs: int, kind: str) -> None:
        super().__init__()
        base = torch.randint(-9, 9, (outputs, inputs), dtype=torch.int8)
        scale = torch.full((outputs, 1), 0.01)
        if kind == "buffers":
            self.register_buffer("base", base)
            self.register_buffer("scale", scale)
        else:
            self.base = nn.Parameter(base, requires_grad=False)
            self.scale = nn.Parameter(scale, requires_grad=False)
        self.down = nn.Linear(inputs, RANK, bias=False)
        self.up = nn.Linear(RANK, outputs, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x: Tensor) -> Tensor:
        base = self.base.to(x.dtype) * self.scale
        return F.linear(x, base) + self.up(self.down(x))


class Block(nn.Module):
    def __init__(self, width: int, heads: int, kind: str) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.after = nn.RMSNorm(width), nn.RMSNorm(width)
        self.q, self.k, self.v, self.o = (Quantized(width, width, kind) for _ in range(4))
        self.gate, self.up = (Quantized(width, 2 * width, kind) for _ in range(2))
        self.down = Quantized(2 * width, width, kind)
        for norm in (self.before, self.after):
            norm.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        y = self.before(x)
        q, k, v = (
            layer(y).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for layer in (self.q, self.k, self.v)
        )
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o(mixed.transpose(1, 2).flatten(2))
        y = self.after(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Adapted(nn.Module):
    """Like a Llama with a frozen embedding and output, and adapters in every layer."""

    def __init__(self, *, kind: str, layers: int, width: int, vocabulary: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width).requires_grad_(False)
        self.blocks = nn.ModuleList(Block(width, 4, kind) for _ in range(layers))
        self.norm = nn.RMSNorm(width).requires_grad_(False)
        self.head = nn.Linear(width, vocabulary, bias=False).requires_grad_(False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens[:, :-1])
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1), tokens[:, 1:].flatten())


def adapter_bytes(model: nn.Module) -> int:
    return sum(p.nbytes for p in model.parameters() if p.requires_grad)


@pytest.mark.parametrize(
    ("kind", "layers", "devices"), [("buffers", 24, "2x1100MB"), ("parameters", 4, "2x220MB")]
)
def test_a_base_on_meta_is_planned_with_gradients_of_adapters_alone(
    kind: str, layers: int, devices: str
) -> None:
    with torch.device("meta"):
        model = Adapted(kind=kind, layers=layers, width=1024, vocabulary=8000)
    tokens = torch.empty(2, 129, dtype=torch.int64, device="meta")
    planned = study(model, (tokens,), devices=devices, optimizer="adamw")
    trace, task = planned.task.trace, planned.task
    reached = {f.parameter for f in trace.functions if f.parameter >= 0}
    names = {trace.storages[at].name for at in reached}
    assert names == {name for name, p in model.named_parameters() if p.requires_grad}
    assert sum(nbytes for _, nbytes, _ in task.parameters) == adapter_bytes(model)
    plan = confirmed(planned, model, (tokens,), {}).plan
    assert plan.is_within_limits
    assert len({*plan.modules.values()}) == 2
    for device, seen in zip(plan.devices, plan.confirmed, strict=True):
        assert abs(device.peak_bytes - seen) <= 0.01 * seen
        held = device.by_class
        assert held["optimizer"] + held["gradient"] < 0.2 * (held["weight"] + held["buffer"])


@pytest.mark.parametrize("kind", ["buffers", "parameters"])
def test_a_small_one_trains_as_planned_and_its_base_gets_no_gradients(kind: str) -> None:
    torch.manual_seed(0)
    model = Adapted(kind=kind, layers=2, width=32, vocabulary=50)
    tokens = torch.randint(0, 50, (2, 9))
    call: dict[str, Any] = {"devices": "2x1MB", "optimizer": "adam", "objective": "most-headroom"}
    plan = baechi.plan(model, (tokens,), **call)
    assert plan.level == "op"
    assert all(plan.confirmed)
    rehearsed = baechi.rehearse(model, plan, (tokens,), steps=3)
    assert rehearsed.peak_bytes == plan.confirmed
    optimizer = torch.optim.Adam(p for p in model.parameters() if p.requires_grad)
    losses = []
    for _ in range(3):
        optimizer.zero_grad()
        loss = model(tokens)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert rehearsed.losses == pytest.approx(losses, rel=1e-6)
    assert rehearsed.losses[0] == losses[0]
    for device, peak in zip(plan.devices, dataclasses.astuple(rehearsed)[2], strict=True):
        assert abs(device.peak_bytes - peak) <= max(512, 0.01 * peak)
