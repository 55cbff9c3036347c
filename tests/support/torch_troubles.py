"""Small models after public threads in which automatic placement went wrong.

The models are our own and keep only what makes the trouble; `elsewhere` is what was reported.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

import torch_trouble_flow as flow
import torch_trouble_weights as weights
from torch_models import Built, Sample, to_dtype
from torch_trouble_inputs import (
    classified,
    crossed,
    language,
    large_head,
    looked_up,
    mlp,
    on_rows,
    on_steps,
    replaced,
    tokens,
    with_past,
)


@dataclass(frozen=True)
class Trouble:
    """One model; `loss_of(model(*args, **kwargs))` is a scalar, as for the other test models.

    `exports`: torch.export takes it as it is.
    """

    name: str
    thread: str
    elsewhere: str
    make: Callable[[], Built]
    exports: bool = True

    @property
    def url(self) -> str:
        repository, number = self.thread.split("#")
        return f"https://github.com/{repository}/issues/{number}"

    def build(self, seed: int = 0, dtype: torch.dtype = torch.float32) -> Sample:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model, args, kwargs = self.make()
        cast = {key: cast_all(value, dtype) for key, value in kwargs.items()}
        return Sample(model.to(dtype).train(), tuple(cast_all(x, dtype) for x in args), cast)


def cast_all(value: Any, dtype: torch.dtype) -> Any:
    return torch.utils._pytree.tree_map(lambda leaf: to_dtype(leaf, dtype), value)


ACCELERATE, PYTORCH = "huggingface/accelerate", "pytorch/pytorch"
TRANSFORMERS, DIFFUSERS = "huggingface/transformers", "huggingface/diffusers"

TROUBLES = (
    Trouble(
        "own-parameters",
        f"{ACCELERATE}#1548",
        "a module with parameters of its own beside a child is planned wrongly",
        lambda: on_rows(weights.OwnParameters(16)),
    ),
    Trouble(
        "lopsided-mlp",
        f"{ACCELERATE}#1888",
        "three layers, one of them fat: all on one device, or the planner fails",
        lambda: on_rows(mlp(16, 16, 256, 8)),
    ),
    Trouble(
        "twin-linears",
        f"{ACCELERATE}#1510",
        "two layers that share weight and bias crash the planner",
        lambda: on_rows(weights.TwinLinears(16)),
    ),
    Trouble(
        "prefixed-ties",
        f"{ACCELERATE}#2324",
        "ties whose names share a prefix are grouped wrongly",
        lambda: on_rows(weights.PrefixedTies(16)),
    ),
    Trouble(
        "shared-embedding",
        "adapter-hub/adapters#470",
        "an encoder and decoder without a head: a tie points to a missing module",
        lambda: (weights.SharedEmbedding(40, 16), (tokens(), tokens(3, 5)), {}),
    ),
    Trouble(
        "tied-head",
        f"{PYTORCH}#51931",
        "a pipeline keeps two copies of a tied weight, and their gradients part",
        lambda: (weights.TiedHead(40, 16, predicts_further=False), (tokens(),), {}),
    ),
    Trouble(
        "embedding-at-both-ends",
        "pytorch/torchtitan#4486",
        "predicting several tokens needs the embedding on the first and the last device",
        lambda: (weights.TiedHead(40, 16, predicts_further=True), (tokens(),), {}),
    ),
    Trouble(
        "rotary-once",
        f"{PYTORCH}#126653",
        "one table of frequencies that every layer reads is not supported across stages",
        lambda: on_steps(weights.RotaryEverywhere(16, 3, once=True)),
    ),
    Trouble(
        "rotary-every-layer",
        f"{PYTORCH}#184361",
        "a rotary module that is called in every layer ends in a missing argument",
        lambda: on_steps(weights.RotaryEverywhere(16, 3, once=False)),
    ),
    Trouble(
        "looked-up-rotary",
        "TransformerLensOrg/TransformerLens#439",
        "indices on another device than the table that they index",
        looked_up,
    ),
    Trouble(
        "residual-blocks",
        f"{ACCELERATE}#661",
        "a block split inside its residual: tensors on two devices",
        lambda: language(flow.Blocks(40, 16, 3)),
    ),
    Trouble(
        "parallel-residuals",
        f"{ACCELERATE}#2071",
        "attention and wide layer side by side: tensors on two devices",
        lambda: language(flow.Blocks(40, 16, 3, parallel=True)),
    ),
    Trouble(
        "controlled-unet",
        f"{DIFFUSERS}#11690",
        "an addition between a U-Net and a second encoder that is no module and has no hook",
        lambda: (flow.Controlled(4), (torch.randn(2, 3, 8, 8), torch.randn(2, 3, 8, 8)), {}),
    ),
    Trouble(
        "two-streams",
        f"{DIFFUSERS}#9450",
        "no list of modules that must stay whole, so no device map at all",
        lambda: (flow.TwoStreams(16, 3), (torch.randn(2, 9, 16), torch.randn(2, 4, 16)), {}),
    ),
    Trouble(
        "indexed-positions",
        f"{TRANSFORMERS}#46886",
        "a parameter of the parent, one slice per layer, is on another device",
        lambda: on_steps(weights.IndexedPositions(16, 3, 8)),
    ),
    Trouble(
        "long-skips",
        f"{PYTORCH}#127964",
        "skips over several stages are not supported in training",
        lambda: on_rows(flow.LongSkips(16, 4)),
    ),
    Trouble(
        "branches",
        "kakaobrain/torchgpipe#6",
        "only chains can be split",
        lambda: on_rows(flow.Branches(8), 8),
    ),
    Trouble(
        "quantized-buffers",
        f"{ACCELERATE}#2398",
        "weights that are buffers are not counted and not placed",
        lambda: on_rows(weights.QuantizedLinears(16, 3)),
    ),
    Trouble(
        "unsaved-mask",
        f"{ACCELERATE}#1941",
        "buffers that the state dict leaves out cannot be brought back",
        lambda: on_steps(weights.UnsavedMask(16, 8)),
    ),
    Trouble(
        "plain-attribute",
        "unit8co/darts#3052",
        "a tensor that is an attribute and no buffer stays behind",
        lambda: on_steps(weights.PlainAttribute(16, 8)),
    ),
    Trouble(
        "layer-scalars",
        f"{ACCELERATE}#4014",
        "scalars beside a layer's children get no device when the layer is split",
        lambda: on_rows(weights.ScaledLayers(16, 3)),
    ),
    Trouble(
        "cached-mask",
        "unslothai/unsloth#8516",
        "a cache of masks without the device in its key",
        lambda: on_steps(weights.CachedMask(16, 3)),
    ),
    Trouble(
        "cross-attention-mask",
        f"{TRANSFORMERS}#46221",
        "a mask made where the encoder is, used where the decoder is",
        crossed,
    ),
    Trouble(
        "named-outputs",
        f"{ACCELERATE}#3088",
        "named tuples between modules break what moves tensors",
        lambda: on_rows(flow.NamedOutputs(16, 3)),
        exports=False,
    ),
    Trouble(
        "tensors-made-inside",
        f"{PYTORCH}#121761",
        "a traced graph keeps the device on which it was traced",
        lambda: (flow.MakesTensors(16, 20), (torch.randn(3, 5, 16),), {}),
    ),
    Trouble(
        "past-by-keyword", f"{ACCELERATE}#1394", "hooks move the cache again and again", with_past
    ),
    Trouble(
        "replaced-module",
        "intel/auto-round#1308",
        "a submodule put in place of another has no hook",
        replaced,
    ),
    Trouble(
        "in-place",
        "facebookresearch/fairscale#243",
        "profiling layers one by one fails where they overwrite their input",
        lambda: (flow.InPlace(4, 3), (torch.randn(2, 4, 8, 8),), {}),
    ),
    Trouble(
        "labels-at-the-end",
        f"{PYTORCH}#128115",
        "labels are needed on the last stage and cannot be fed there",
        classified,
    ),
    Trouble(
        "large-head",
        "deepspeedai/DeepSpeed#2974",
        "split by weights, the stage with the head holds far more activations",
        large_head,
    ),
    Trouble(
        "adapters",
        "huggingface/peft#1073",
        "adapters take memory on the first device, whatever device was asked for",
        lambda: on_rows(weights.adapted(16, 3)),
    ),
    Trouble(
        "reused-block",
        f"{ACCELERATE}#1851",
        "nobody knows which layers must stay whole",
        lambda: on_steps(flow.Reused(16, 4)),
    ),
    Trouble(
        "experts",
        f"{TRANSFORMERS}#48756",
        "experts fill every device to its limit, and a temporary runs out of memory",
        lambda: on_steps(flow.Experts(16, 4, 2)),
    ),
    Trouble(
        "branch-by-value",
        f"{PYTORCH}#173915",
        "control flow on a value cannot be exported",
        lambda: on_rows(flow.ByValue(16)),
        exports=False,
    ),
)
