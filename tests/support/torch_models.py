"""The models that tests of baechi.torch go through: small, all architectures, no dropout."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

import torch_public_models as public
import torch_sequence_models as sequences
import torch_vision_models as vision

# Tiny ops: a second thread only costs time, most of all on a busy machine.
torch.set_num_threads(1)


@dataclass(frozen=True)
class Sample:
    """A model in training mode and one batch; `loss_of(model(*args, **kwargs))` is a scalar."""

    model: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def loss(self) -> Tensor:
        return loss_of(self.model(*self.args, **self.kwargs))


@dataclass(frozen=True)
class ModelCase:
    """A model of the table.

    `exports`: torch.export takes it. `has_batch_norm`: float32 losses drift after the first step.
    """

    name: str
    make: Callable[[], tuple[nn.Module, tuple[Any, ...], dict[str, Any]]]
    exports: bool = True
    has_batch_norm: bool = False

    def build(self, seed: int = 0, dtype: torch.dtype = torch.float32) -> Sample:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model, args, kwargs = self.make()
        cast = {key: to_dtype(value, dtype) for key, value in kwargs.items()}
        return Sample(model.to(dtype).train(), tuple(to_dtype(x, dtype) for x in args), cast)


def to_dtype(value: Any, dtype: torch.dtype) -> Any:
    is_float = isinstance(value, Tensor) and value.is_floating_point()
    return value.to(dtype) if is_float else value


def loss_of(output: Any) -> Tensor:
    return output if isinstance(output, Tensor) else output.loss


Built = tuple[nn.Module, tuple[Any, ...], dict[str, Any]]


def images(model: nn.Module, batch: int, size: int, num_classes: int) -> Built:
    labels = torch.randint(0, num_classes, (batch,))
    return model, (torch.randn(batch, 3, size, size), labels), {}


def segmentation() -> Built:
    labels = torch.randint(0, 4, (2, 16, 16))
    return vision.UNet(4, 4), (torch.randn(2, 3, 16, 16), labels), {}


def translation(model: nn.Module, batch: int, length: int) -> Built:
    tokens = torch.randint(0, 50, (2, batch, length))
    return model, (tokens[0], tokens[1]), {}


def packed() -> Built:
    tokens, lengths = torch.randint(0, 50, (4, 7)), torch.tensor([7, 3, 5, 2])
    return sequences.PackedLstm(50, 16), (tokens, lengths), {}


def by_keyword(built: tuple[nn.Module, dict[str, Tensor]]) -> Built:
    return built[0], (), built[1]


CASES = (
    ModelCase(
        "inception", lambda: images(vision.InceptionV3(1, 5), 4, 107, 5), has_batch_norm=True
    ),
    ModelCase("resnet", lambda: images(vision.ResNet(4, 5), 4, 16, 5), has_batch_norm=True),
    ModelCase("unet", segmentation),
    ModelCase("densenet", lambda: images(vision.DenseNet(4, 4, 5), 4, 16, 5), has_batch_norm=True),
    ModelCase("gnmt", lambda: translation(sequences.Gnmt(50, 16, 3), 3, 5)),
    ModelCase("transformer", lambda: translation(sequences.Transformer(50, 16, 2, 2, 8), 3, 7)),
    ModelCase(
        "encoder", lambda: (sequences.Encoder(50, 16, 2), (torch.arange(24).view(3, 8),), {})
    ),
    ModelCase("packed-lstm", packed, exports=False),
    ModelCase(
        "moe-loop",
        lambda: (sequences.MixtureOfExperts(50, 16, 4), (torch.randint(0, 50, (3, 5)),), {}),
        exports=False,
    ),
    ModelCase("bert", lambda: by_keyword(public.bert())),
    ModelCase("gpt2", lambda: by_keyword(public.gpt2())),
    ModelCase("t5", lambda: by_keyword(public.t5())),
    ModelCase("llama", lambda: by_keyword(public.llama())),
    ModelCase("mixtral", lambda: by_keyword(public.mixtral())),
)
BY_NAME = {case.name: case for case in CASES}


def bert_base(batch: int = 4, length: int = 128) -> Sample:
    """BERT-base for masked language modeling, on meta."""
    with torch.device("meta"):
        model, inputs = public.bert_base(batch, length)
    return Sample(model.train(), (), inputs)


def llama_70b(batch: int = 1, length: int = 2048) -> Sample:
    """A model with the shape of Llama-70B in bfloat16, on meta."""
    model, inputs = public.llama_70b(batch, length)
    return Sample(model.train(), (), inputs)
