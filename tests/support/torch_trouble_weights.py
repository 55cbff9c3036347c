"""Models whose weights, buffers and tensors lie where planners do not look: see torch_troubles."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class OwnParameters(nn.Module):
    """A scale and a shift of its own, beside a child."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.randn(width, width) / width)
        self.shift = nn.Parameter(torch.randn(width, width) / width)
        self.inner = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        return (self.inner(x @ self.scale).tanh() @ self.shift).square().mean()


class ScaledLayer(nn.Module):
    """A child with a one-element buffer beside it."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.inner = nn.Linear(width, width)
        self.register_buffer("layer_scalar", torch.full((1,), 0.5))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.layer_scalar * self.inner(x).relu()


class ScaledLayers(nn.Module):
    """Such layers, gates in a list of parameters, and a parameter without axes."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(ScaledLayer(width) for _ in range(depth))
        self.gates = nn.ParameterList(nn.Parameter(torch.ones(1)) for _ in range(depth))
        self.temperature = nn.Parameter(torch.tensor(0.5))

    def forward(self, x: Tensor) -> Tensor:
        for layer, gate in zip(self.layers, self.gates, strict=True):
            x = gate * layer(x)
        return (x * self.temperature.exp()).square().mean()


class IndexedPositions(nn.Module):
    """A parent's parameter of which every layer gets its own slice."""

    def __init__(self, width: int, depth: int, length: int) -> None:
        super().__init__()
        self.positions = nn.Parameter(torch.randn(depth, 1, length, width) / 10)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 2, 2 * width, dropout=0.0, batch_first=True)
            for _ in range(depth)
        )

    def forward(self, x: Tensor) -> Tensor:
        for k, layer in enumerate(self.layers):
            x = layer(x)
            if k < len(self.layers) - 1:
                x = x + self.positions[k]
        return x.square().mean()


class TwinLinears(nn.Module):
    """Two layers that share weight and bias."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first = nn.Linear(width, width)
        self.middle = nn.Linear(width, width)
        self.second = nn.Linear(width, width)
        self.second.weight, self.second.bias = self.first.weight, self.first.bias

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.middle(self.first(x)).relu()).square().mean()


class PrefixedTies(nn.Module):
    """Two ties whose names begin alike: proj with proj_out, proj_out2 with proj_in."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.proj_in = nn.Linear(width, width, bias=False)
        self.proj = nn.Linear(width, width, bias=False)
        self.proj_out = nn.Linear(width, width, bias=False)
        self.proj_out2 = nn.Linear(width, width, bias=False)
        self.proj_out.weight = self.proj.weight
        self.proj_out2.weight = self.proj_in.weight

    def forward(self, x: Tensor) -> Tensor:
        x = self.proj(self.proj_in(x)).tanh()
        return self.proj_out2(self.proj_out(x).tanh()).square().mean()


class SharedEmbedding(nn.Module):
    """One embedding module under two names, and no head that a tie could point to."""

    def __init__(self, vocabulary: int, width: int) -> None:
        super().__init__()
        self.shared = nn.Embedding(vocabulary, width)
        self.encoder = nn.ModuleDict({"embed": self.shared, "mix": nn.Linear(width, width)})
        self.decoder = nn.ModuleDict({"embed": self.shared, "mix": nn.Linear(width, width)})

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        memory = self.encoder["mix"](self.encoder["embed"](source)).tanh().mean(1, keepdim=True)
        return (self.decoder["mix"](self.decoder["embed"](target)) * memory).square().mean()


class TiedHead(nn.Module):
    """A language model whose head is its embedding, used once more to predict one further."""

    def __init__(self, vocabulary: int, width: int, *, predicts_further: bool) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.body = nn.Sequential(
            nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)
        )
        self.further = nn.Linear(2 * width, width) if predicts_further else None
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = self.body(self.embed(tokens[:, :-2]))
        loss = F.cross_entropy(self.head(hidden).flatten(0, 1), tokens[:, 1:-1].flatten())
        if self.further is not None:
            joined = torch.cat([hidden, self.embed(tokens[:, 1:-1])], -1)
            scores = self.head(self.further(joined))
            loss = loss + F.cross_entropy(scores.flatten(0, 1), tokens[:, 2:].flatten())
        return loss


class QuantizedLinears(nn.Module):
    """Weights as integer buffers, and trained scales."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.depth = depth
        for k in range(depth):
            codes = torch.randint(-127, 128, (width, width), dtype=torch.int8)
            self.register_buffer(f"codes{k}", codes)
        self.scales = nn.Parameter(torch.full((depth, width, 1), 1 / (64 * width**0.5)))

    def forward(self, x: Tensor) -> Tensor:
        for k in range(self.depth):
            weight = getattr(self, f"codes{k}").to(x.dtype) * self.scales[k]
            x = x + F.linear(x, weight).tanh()
        return x.square().mean()


class UnsavedMask(nn.Module):
    """Attention with a mask that the state dict does not hold."""

    def __init__(self, width: int, length: int) -> None:
        super().__init__()
        self.register_buffer("causal", torch.ones(length, length).tril().bool(), persistent=False)
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        scores = self.query(x) @ self.key(x).transpose(1, 2) / x.shape[-1] ** 0.5
        mixed = scores.masked_fill(~self.causal, float("-inf")).softmax(-1) @ self.value(x)
        return mixed.square().mean()


class PlainAttribute(nn.Module):
    """A tensor that is an attribute, neither parameter nor buffer."""

    def __init__(self, width: int, length: int) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(width, width), nn.Linear(width, width)
        self.weights_of_positions = torch.linspace(1, 2, length)[:, None]

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x).tanh() * self.weights_of_positions
        return self.second(x.to(self.second.weight.dtype)).square().mean()


class Rotary(nn.Module):
    """Sines and cosines from frequencies that are computed once and not saved."""

    def __init__(self, width: int) -> None:
        super().__init__()
        frequencies = 1 / 100 ** (torch.arange(0, width, 2) / width)
        self.register_buffer("inv_freq", frequencies, persistent=False)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        angles = torch.arange(x.shape[1], device=x.device)[:, None] * self.inv_freq
        return angles.cos().to(x.dtype), angles.sin().to(x.dtype)


class RotaryEverywhere(nn.Module):
    """One rotary module called by every layer, or once for all of them."""

    def __init__(self, width: int, depth: int, *, once: bool) -> None:
        super().__init__()
        self.rotary, self.once = Rotary(width), once
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))

    def forward(self, x: Tensor) -> Tensor:
        turn = self.rotary(x)
        for layer in self.layers:
            cos, sin = turn if self.once else self.rotary(x)
            even, odd = layer(x).unflatten(-1, (-1, 2)).unbind(-1)
            turned = torch.stack([even * cos - odd * sin, even * sin + odd * cos], -1)
            x = x + turned.flatten(-2).tanh()
        return x.square().mean()


class LookedUpRotary(nn.Module):
    """Tables of sines that are indexed by positions, which come with the batch."""

    def __init__(self, width: int, longest: int) -> None:
        super().__init__()
        angles = torch.arange(longest)[:, None] / torch.arange(1, width + 1)
        self.register_buffer("sines", angles.sin())
        self.register_buffer("cosines", angles.cos())
        self.first, self.second = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        x = self.first(x) * self.cosines[positions] + x.flip(-1) * self.sines[positions]
        return (self.second(x) * self.sines[positions]).square().mean()


class CachedMask(nn.Module):
    """Masks kept in a plain dict by their length alone."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.masks: dict[int, Tensor] = {}
        self.layers = nn.ModuleList(
            nn.MultiheadAttention(width, 2, batch_first=True) for _ in range(depth)
        )

    def mask_of(self, x: Tensor) -> Tensor:
        length = x.shape[1]
        if length not in self.masks:
            ones = torch.ones(length, length, dtype=torch.bool, device=x.device)
            self.masks[length] = ones.triu(1)
        return self.masks[length]

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            mask = self.mask_of(x).to(x.device)
            x = x + layer(x, x, x, attn_mask=mask, need_weights=False)[0]
        return x.square().mean()


class LowRank(nn.Module):
    """A frozen layer and a trained correction, which hands all else on to the layer."""

    def __init__(self, base: nn.Linear, rank: int) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down = nn.Linear(base.in_features, rank, bias=False)
        self.up = nn.Linear(rank, base.out_features, bias=False)
        nn.init.normal_(self.up.weight, std=0.1)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("base"), name)

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + self.up(self.down(x))


def adapted(width: int, depth: int) -> nn.Module:
    """Adapters put into a model that was there before, with a frozen norm between them."""
    model = MeanSquare(
        *(
            layer
            for _ in range(depth)
            for layer in (nn.Linear(width, width), nn.LayerNorm(width), nn.GELU())
        )
    )
    model.requires_grad_(False)
    for k, layer in enumerate(model):
        if isinstance(layer, nn.Linear):
            model[k] = LowRank(layer, 2)
    return model


class MeanSquare(nn.Sequential):
    """A chain whose loss is the mean square of what comes out."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).square().mean()
