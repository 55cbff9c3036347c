"""What `make demo` runs: a GPT-2 that no single device can hold is planned, placed and trained.

The devices are simulated in this machine's memory. They compute what a CPU computes and refuse to
hold more than their limits, so that no GPU is needed.
"""

import copy
from dataclasses import dataclass
from pathlib import Path

import torch
import transformers
from torch import Tensor, nn

import baechi
from baechi.tables import WIDTH, Column, as_table, hanging, plain_text
from baechi.torch import ModelPlan
from baechi.torch.simdev import SimulatedDevices, resolve, simulated

ROOT = Path(__file__).parent.parent
PLAN_FILE = ROOT / "target" / "demo-plan.json"
REPORT_FILE = ROOT / "target" / "demo.html"
LIMITS = {"cuda:0": "56MiB", "cuda:1": "64MiB", "cuda:2": "88MiB"}
SIMULATED = {name: f"simdev:{at}" for at, name in enumerate(LIMITS)}
NUM_STEPS = 5
VOCABULARY, BATCH, LENGTH = 4000, 8, 64


def main() -> None:
    torch.set_num_threads(1)
    model, batch = make_model(), make_batch()
    heading(
        f"GPT-2 with {model.config.n_layer} layers and {model.num_parameters():,} parameters, "
        f"{BATCH} x {LENGTH} tokens, in training",
        "with AdamW, on three devices of 56, 64 and 88 MiB. No single one can hold that.",
    )
    plan = baechi.plan(model, kwargs=batch, devices=LIMITS, optimizer=make_optimizer(model))
    print(plan)
    save(plan)

    heading("Simulated devices enforce these limits. Training on the largest one alone:")
    paragraph(refusal(copy.deepcopy(model), batch))

    heading("Training on all three, as planned, and without a plan in the CPU's own memory:")
    unplaced = train(copy.deepcopy(model), batch)
    with simulated(list(LIMITS.values())) as devices:
        placed = train(plan.apply(model, devices=SIMULATED), batch, devices)
    show_losses(placed, unplaced)
    show_peaks(plan, placed)
    print("\n`make demo-graphs` compares algorithms on larger graphs; README.md says how to go on.")


def save(plan: ModelPlan) -> None:
    PLAN_FILE.parent.mkdir(exist_ok=True)
    plan.save(PLAN_FILE)
    plan.report(REPORT_FILE)
    print(f"\nThe plan, to load and apply elsewhere: {PLAN_FILE.relative_to(ROOT)}")
    print(f"Report to open in a browser: {REPORT_FILE.relative_to(ROOT)}")


def make_model() -> transformers.GPT2LMHeadModel:
    """Random weights: nothing is fetched."""
    transformers.logging.set_verbosity_error()
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=VOCABULARY, n_positions=LENGTH, n_embd=256, n_layer=6, n_head=4
    )
    config.use_cache = False
    config.resid_pdrop = config.embd_pdrop = config.attn_pdrop = 0.0
    return transformers.GPT2LMHeadModel(config)


def make_batch() -> dict[str, Tensor]:
    torch.manual_seed(1)
    tokens = torch.randint(VOCABULARY, (BATCH, LENGTH))
    return {"input_ids": tokens, "labels": tokens}


def make_optimizer(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=True)


@dataclass(frozen=True)
class Trained:
    """Losses and copies between devices of each step, and the most that each device held."""

    losses: list[float]
    copies: list[int]
    peak_bytes: list[int]


def train(
    model: nn.Module, batch: dict[str, Tensor], devices: SimulatedDevices | None = None
) -> Trained:
    optimizer = make_optimizer(model)
    losses, copies = [], []
    for _ in range(NUM_STEPS):
        losses.append(step(model, batch, optimizer))
        if devices:
            copies.append(sum(min(t.source, t.destination) >= 0 for t in devices.transfers))
            devices.clear_transfers()
    peaks = [devices.peak_bytes(at) for at in range(len(devices))] if devices else []
    return Trained(losses, copies, peaks)


def step(model: nn.Module, batch: dict[str, Tensor], optimizer: torch.optim.Optimizer) -> float:
    """Nothing here knows whether the model is placed."""
    optimizer.zero_grad()
    output = model(**batch)
    output.loss.backward()
    optimizer.step()
    return output.loss.item()


def refusal(model: nn.Module, batch: dict[str, Tensor]) -> str:
    """What PyTorch says when the model is trained on one device."""
    with simulated([max(LIMITS.values())]):
        alone = resolve("simdev:0")
        try:
            train(model.to(alone), {name: x.to(alone) for name, x in batch.items()})
        except torch.OutOfMemoryError as error:
            return f"torch.OutOfMemoryError: {error}"
    raise AssertionError("the model fits on one device")


def show_losses(placed: Trained, unplaced: Trained) -> None:
    steps = range(NUM_STEPS)
    table(
        Column(heading="step", cells=[str(at + 1) for at in steps]),
        Column(heading="loss, placed", cells=[f"{loss:.6f}" for loss in placed.losses]),
        Column(heading="not placed", cells=[f"{loss:.6f}" for loss in unplaced.losses]),
        Column(heading="copies", cells=[str(copies) for copies in placed.copies]),
    )
    apart = max(abs(a - b) for a, b in zip(placed.losses, unplaced.losses, strict=True))
    assert apart <= 1e-6 * max(unplaced.losses), f"losses differ by {apart}"
    how = "equal to the last bit" if apart == 0 else f"equal within {apart:.0e}"
    print(f"\nThe losses are {how}.\n")


def show_peaks(plan: ModelPlan, placed: Trained) -> None:
    table(
        Column(heading="device", cells=list(LIMITS), is_text=True),
        Column(heading="predicted peak, bytes", cells=[f"{d.peak_bytes:,}" for d in plan.devices]),
        Column(heading="measured peak", cells=[f"{peak:,}" for peak in placed.peak_bytes]),
        Column(heading="limit", cells=[f"{d.cap_bytes:,}" for d in plan.devices]),
    )


def table(*columns: Column) -> None:
    print(plain_text([as_table(columns)]))


def paragraph(text: str) -> None:
    print(plain_text([hanging(text, WIDTH)]))


def heading(*lines: str) -> None:
    print("", *lines, "", sep="\n")


if __name__ == "__main__":
    main()
