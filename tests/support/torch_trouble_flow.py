"""Models whose values flow where planners do not look: see torch_troubles."""

import dataclasses
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Block(nn.Module):
    """Attention and a wide layer, each added to its input; one after the other or side by side."""

    def __init__(self, width: int, *, parallel: bool = False) -> None:
        super().__init__()
        self.parallel = parallel
        self.attention_norm, self.wide_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.mix, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wide, self.narrow = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def attend(self, x: Tensor, past: tuple[Tensor, Tensor] | None = None) -> Tensor:
        query, key, value = self.mix(self.attention_norm(x)).chunk(3, -1)
        if past is not None:
            key, value = torch.cat([past[0], key], 1), torch.cat([past[1], value], 1)
        return self.out(F.scaled_dot_product_attention(query, key, value))

    def forward(self, x: Tensor, past: tuple[Tensor, Tensor] | None = None) -> Tensor:
        if self.parallel:
            return x + self.attend(x, past) + self.narrow(F.gelu(self.wide(self.wide_norm(x))))
        x = x + self.attend(x, past)
        return x + self.narrow(F.gelu(self.wide(self.wide_norm(x))))


class Blocks(nn.Module):
    """A language model of blocks that computes its loss from shifted labels."""

    def __init__(self, vocabulary: int, width: int, depth: int, *, parallel: bool = False) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList(Block(width, parallel=parallel) for _ in range(depth))
        self.head = nn.Linear(width, vocabulary)

    def forward(self, tokens: Tensor, labels: Tensor) -> Tensor:
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        scores = self.head(x)[:, :-1]
        return F.cross_entropy(scores.flatten(0, 1), labels[:, 1:].flatten())


class WithPast(nn.Module):
    """Keys and values of earlier tokens come by keyword, one pair per block, in one dict."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(width) for _ in range(depth))

    def forward(self, x: Tensor, *, past: dict[int, tuple[Tensor, Tensor]]) -> Tensor:
        for k, block in enumerate(self.blocks):
            x = block(x, past=past[k])
        return x.square().mean()


class Reused(nn.Module):
    """Two blocks that are called four times each, in turns."""

    def __init__(self, width: int, calls: int) -> None:
        super().__init__()
        self.block, self.other, self.calls = Block(width), nn.Linear(width, width), calls

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(self.calls):
            x = self.other(self.block(x)).tanh()
        return x.square().mean()


class Controlled(nn.Module):
    """A small U-Net to whose skips a second encoder adds its own outputs."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.down = nn.ModuleList([self.conv(3, width), self.conv(width, width)])
        self.control = nn.ModuleList([self.conv(3, width), self.conv(width, width)])
        self.up = nn.ModuleList([self.conv(2 * width, width), self.conv(2 * width, 3)])

    @staticmethod
    def conv(inputs: int, outputs: int) -> nn.Module:
        return nn.Sequential(nn.Conv2d(inputs, outputs, 3, padding=1), nn.SiLU())

    def forward(self, image: Tensor, hint: Tensor) -> Tensor:
        x, skips = image, []
        for down, control in zip(self.down, self.control, strict=True):
            x, hint = down(x), control(hint)
            skips.append(x + hint)
            x, hint = F.avg_pool2d(x, 2), F.avg_pool2d(hint, 2)
        for up in self.up:
            x = F.interpolate(x, scale_factor=2)
            x = up(torch.cat([x, skips.pop()], 1))
        return F.mse_loss(x, image)


class TwoStreams(nn.Module):
    """Text and image, each with weights of its own, attend to both together and part again."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.image = nn.ModuleList(nn.Linear(width, 3 * width) for _ in range(depth))
        self.text = nn.ModuleList(nn.Linear(width, 3 * width) for _ in range(depth))

    def forward(self, image: Tensor, text: Tensor) -> Tensor:
        for of_image, of_text in zip(self.image, self.text, strict=True):
            both = torch.cat([of_text(text), of_image(image)], 1)
            mixed = F.scaled_dot_product_attention(*both.chunk(3, -1))
            new_text, new_image = mixed.split([text.shape[1], image.shape[1]], 1)
            text, image = text + new_text, image + new_image
        return image.square().mean() + text.square().mean()


class LongSkips(nn.Module):
    """Every layer's output is kept and all of them meet at the end."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.last = nn.Linear((depth + 1) * width, width)

    def forward(self, x: Tensor) -> Tensor:
        kept = [x]
        for layer in self.layers:
            kept.append(layer(kept[-1]).relu())
        return self.last(torch.cat(kept, -1)).square().mean()


class Branches(nn.Module):
    """A chain two of whose members have branches inside, the second with a choice by name."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.stem = nn.Linear(width, width)
        self.branches = nn.ModuleDict({name: nn.Linear(width, width) for name in ("a", "b", "c")})
        self.join = nn.Bilinear(width, width, width)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        parts = {name: branch(x).tanh() for name, branch in self.branches.items()}
        return (self.join(parts["a"], parts["b"]) + parts["c"]).square().mean()


class InPlace(nn.Module):
    """A residual added in place, and an activation that overwrites the sum."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Conv2d(width, width, 3, padding=1) for _ in range(depth))
        self.activation = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            out = layer(x)
            out += x
            x = self.activation(out)
        return x.square().mean()


class Experts(nn.Module):
    """Tokens go to the experts that a router picks, and come back by index_add_."""

    def __init__(self, width: int, num_experts: int, picks: int) -> None:
        super().__init__()
        self.router, self.picks = nn.Linear(width, num_experts, bias=False), picks
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 2 * width), nn.SiLU(), nn.Linear(2 * width, width))
            for _ in range(num_experts)
        )

    def forward(self, x: Tensor) -> Tensor:
        tokens = x.flatten(0, 1)
        shares, chosen = self.router(tokens).softmax(-1).topk(self.picks, -1)
        result = torch.zeros_like(tokens)
        for k, expert in enumerate(self.experts):
            rows, pick = torch.where(chosen == k)
            result.index_add_(0, rows, expert(tokens[rows]) * shares[rows, pick, None])
        return (tokens + result).square().mean()


class CrossAttention(nn.Module):
    """A mask made from the encoder's output, used where the decoder is."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.encoder = nn.Linear(width, width)
        self.decoder = nn.Linear(width, width)
        self.cross = nn.MultiheadAttention(width, 2, batch_first=True)

    def forward(self, source: Tensor, target: Tensor, lengths: Tensor) -> Tensor:
        memory = self.encoder(source).tanh()
        steps = torch.arange(memory.shape[1], device=memory.device)
        padding = steps >= lengths.to(memory.device)[:, None]
        x = self.decoder(target)
        mixed, _ = self.cross(x, memory, memory, key_padding_mask=padding, need_weights=False)
        return (x + mixed).square().mean()


class Pair(NamedTuple):
    """What the two halves hand on."""

    hidden: Tensor
    gate: Tensor


@dataclasses.dataclass
class Scores:
    """An output with a loss in it."""

    loss: Tensor
    scores: Tensor


class NamedOutputs(nn.Module):
    """Modules that hand on a named tuple, and a dataclass as the output."""

    class Half(nn.Module):
        """Makes the pair."""

        def __init__(self, width: int) -> None:
            super().__init__()
            self.hidden, self.gate = nn.Linear(width, width), nn.Linear(width, width)

        def forward(self, pair: Pair) -> Pair:
            return Pair(self.hidden(pair.hidden) * pair.gate, self.gate(pair.gate).sigmoid())

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.halves = nn.ModuleList(self.Half(width) for _ in range(depth))

    def forward(self, x: Tensor) -> Scores:
        pair = Pair(x, torch.ones_like(x))
        for half in self.halves:
            pair = half(pair)
        return Scores(pair.hidden.square().mean(), pair.hidden)


class MakesTensors(nn.Module):
    """Positions, zeros and a constant, all made inside forward."""

    def __init__(self, width: int, longest: int) -> None:
        super().__init__()
        self.positions = nn.Embedding(longest, width)
        self.step = nn.GRUCell(width, width)

    def forward(self, x: Tensor) -> Tensor:
        normalizer = torch.tensor(x.shape[-1] ** 0.5, dtype=x.dtype, device=x.device)
        x = (x + self.positions(torch.arange(x.shape[1], device=x.device))) * normalizer
        state = torch.zeros(x.shape[0], x.shape[-1], dtype=x.dtype, device=x.device)
        for k in range(x.shape[1]):
            state = self.step(x[:, k], state)
        return state.square().mean()


class ByValue(nn.Module):
    """Which branch runs, and by how much it counts, depends on values."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.usual, self.rare = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        largest = x.detach().abs().max().item()
        branch = self.usual if largest < 100 else self.rare
        return (branch(x) / largest).square().mean()


class LossOutside(nn.Module):
    """A criterion with weights of its own is a module of the model, beside the network."""

    def __init__(self, network: nn.Module, weights: Tensor) -> None:
        super().__init__()
        self.network = network
        self.criterion = nn.CrossEntropyLoss(weight=weights)

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        return self.criterion(self.network(x), labels)
