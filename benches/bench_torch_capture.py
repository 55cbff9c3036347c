"""From a model to its program, and a training step of the program beside the model's own."""

import pytest
import torch
import transformers

import torch_models
from baechi.torch.capture import capture
from baechi.torch.placed_graph import is_placed, place_program
from torch_models import BY_NAME, Sample

HOST = torch.device("cpu")


@pytest.mark.parametrize("name", ["bert_base", "llama_70b"])
def bench_capture(timed, request, name):
    """Capturing a training step with weights on meta."""
    is_small = request.config.getoption("benchmark_disable")
    sample = BY_NAME["llama"].build() if is_small else getattr(torch_models, name)()
    num_nodes = 0

    def run():
        nonlocal num_nodes
        taken = capture(sample.model, sample.args, sample.kwargs, training=True)
        num_nodes = len(taken.program.graph_module.graph.nodes)

    run()
    timed(f"capture of {name}", num_nodes, run, rounds=1 if is_small else 3)


def gpt2(layers: int, width: int, length: int) -> Sample:
    config = transformers.GPT2Config(
        vocab_size=2_000, n_embd=width, n_layer=layers, n_head=4, n_positions=length,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, use_cache=False,
    )  # fmt: skip
    tokens = torch.randint(2, 2_000, (2, length))
    model = transformers.GPT2LMHeadModel(config).train()
    return Sample(model, (), {"input_ids": tokens, "labels": tokens})


@pytest.mark.parametrize("way", ["plain", "placed"])
def bench_step(timed, scaled, way):
    """Forward and backward of some 150 ms, by the model and by its placed graph."""
    sample = gpt2(scaled(6, 1), 256, scaled(160, 8))
    model, kwargs = sample.model, sample.kwargs
    program = capture(model, (), kwargs, training=True).program
    names = [node.name for node in program.graph_module.graph.nodes if is_placed(node)]
    homes = {one.name: HOST for one in program.inputs if one.kind in ("parameter", "buffer")}
    placed = place_program(program, dict.fromkeys(names, HOST), homes)

    def run():
        model.zero_grad(set_to_none=True)
        output = model(**kwargs) if way == "plain" else placed(model, (), kwargs)
        output.loss.backward()

    timed(f"training step of GPT-2, {way}", len(names), run, rounds=15, series="GPT-2 step")
