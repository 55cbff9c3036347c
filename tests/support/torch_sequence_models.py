"""Recurrent networks, transformers and mixtures of experts of the tests, in our own words.

Every forward returns the loss.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence


class Gnmt(nn.Module):
    """Stacked LSTM cells, step by step, with residuals and attention over the encoder's outputs."""

    def __init__(self, vocabulary: int, width: int, layers: int) -> None:
        super().__init__()
        self.source = nn.Embedding(vocabulary, width)
        self.target = nn.Embedding(vocabulary, width)
        self.encoder = nn.ModuleList(nn.LSTMCell(width, width) for _ in range(layers))
        self.backward_cell = nn.LSTMCell(width, width)
        self.join = nn.Linear(2 * width, width)
        sizes = [2 * width] + [width] * (layers - 1)
        self.decoder = nn.ModuleList(nn.LSTMCell(size, width) for size in sizes)
        self.query = nn.Linear(width, width, bias=False)
        self.generator = nn.Linear(2 * width, vocabulary)

    def zero_states(self, like: Tensor, num: int) -> list[tuple[Tensor, Tensor]]:
        shape = (like.shape[0], like.shape[-1])
        make = [torch.zeros(shape, dtype=like.dtype, device=like.device) for _ in range(2 * num)]
        return list(zip(make[::2], make[1::2], strict=True))

    def encode(self, embedded: Tensor) -> Tensor:
        states = self.zero_states(embedded, len(self.encoder) + 1)
        reverse, backward_state = [], states.pop()
        for x in reversed(embedded.unbind(1)):
            backward_state = self.backward_cell(x, backward_state)
            reverse.append(backward_state[0])
        outputs = []
        for step, x in enumerate(embedded.unbind(1)):
            x = self.join(torch.cat([x, reverse[-1 - step]], -1))
            for i, cell in enumerate(self.encoder):
                states[i] = cell(x, states[i])
                x = states[i][0] if i < 1 else x + states[i][0]
            outputs.append(x)
        return torch.stack(outputs, 1)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        memory = self.encode(self.source(source))
        states = self.zero_states(memory, len(self.decoder))
        context, logits = torch.zeros_like(memory[:, 0]), []
        for x in self.target(target[:, :-1]).unbind(1):
            x = torch.cat([x, context], -1)
            for i, cell in enumerate(self.decoder):
                states[i] = cell(x, states[i])
                x = states[i][0]
            scores = (memory @ self.query(x).unsqueeze(-1)).softmax(1)
            context = (memory * scores).sum(1)
            logits.append(self.generator(torch.cat([x, context], -1)))
        return F.cross_entropy(torch.stack(logits, 1).flatten(0, 1), target[:, 1:].flatten())


class Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.o = (nn.Linear(width, width) for _ in range(4))

    def forward(self, x: Tensor, memory: Tensor, mask: Tensor | None = None) -> Tensor:
        def split(y: Tensor) -> Tensor:
            return y.unflatten(-1, (self.heads, -1)).transpose(1, 2)

        q, k, v = split(self.q(x)), split(self.k(memory)), split(self.v(memory))
        scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
        if mask is not None:
            scores = scores.masked_fill(mask, float("-inf"))
        return self.o((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))


class TransformerBlock(nn.Module):
    def __init__(self, width: int, heads: int, *, decoder: bool) -> None:
        super().__init__()
        self.attention = Attention(width, heads)
        self.cross = Attention(width, heads) if decoder else None
        self.feed = nn.Sequential(
            nn.Linear(width, 4 * width), nn.ReLU(), nn.Linear(4 * width, width)
        )
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(3 if decoder else 2))

    def forward(
        self, x: Tensor, memory: Tensor | None = None, mask: Tensor | None = None
    ) -> Tensor:
        x = self.norms[0](x + self.attention(x, x, mask))
        if self.cross is not None and memory is not None:
            x = self.norms[1](x + self.cross(x, memory))
        return self.norms[-1](x + self.feed(x))


class Transformer(nn.Module):
    """Encoder and decoder, one embedding for both and for the output; the mask is a buffer."""

    causal: Tensor

    def __init__(self, vocabulary: int, width: int, heads: int, layers: int, length: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.position = nn.Parameter(torch.randn(length, width) * 0.1)
        self.register_buffer("causal", torch.ones(length, length).triu(1).bool(), persistent=False)
        self.encoder = nn.ModuleList(
            TransformerBlock(width, heads, decoder=False) for _ in range(layers)
        )
        self.decoder = nn.ModuleList(
            TransformerBlock(width, heads, decoder=True) for _ in range(layers)
        )
        self.output = nn.Linear(width, vocabulary, bias=False)
        self.output.weight = self.embedding.weight

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        memory = self.embedding(source) + self.position[: source.shape[1]]
        for block in self.encoder:
            memory = block(memory)
        length = target.shape[1] - 1
        x = self.embedding(target[:, :-1]) + self.position[:length]
        for block in self.decoder:
            x = block(x, memory, self.causal[:length, :length])
        return F.cross_entropy(self.output(x).flatten(0, 1), target[:, 1:].flatten())


class PackedLstm(nn.Module):
    """Sequences of different lengths, packed: what runs depends on the lengths."""

    def __init__(self, vocabulary: int, width: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.lstm = nn.LSTM(width, width, num_layers=2, batch_first=True)
        self.output = nn.Linear(width, vocabulary)

    def forward(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        packed = pack_padded_sequence(
            self.embedding(tokens), lengths.cpu(), batch_first=True, enforce_sorted=False
        )
        hidden, _ = pad_packed_sequence(self.lstm(packed)[0], batch_first=True)
        targets = tokens[:, : hidden.shape[1]]
        kept = torch.arange(hidden.shape[1], device=targets.device) < lengths[:, None]
        return F.cross_entropy(self.output(hidden)[kept], targets[kept])


class Experts(nn.Module):
    """A mixture of experts that skips an expert to which no token goes."""

    def __init__(self, width: int, num_experts: int) -> None:
        super().__init__()
        self.router = nn.Linear(width, num_experts)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))
            for _ in range(num_experts)
        )

    def forward(self, x: Tensor) -> Tensor:
        weights, chosen = self.router(x).softmax(-1).topk(2, -1)
        out = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            rows, column = torch.where(chosen == number)
            if rows.numel() == 0:
                continue
            out = out.index_add(0, rows, expert(x[rows]) * weights[rows, column, None])
        return out


class MixtureOfExperts(nn.Module):
    def __init__(self, vocabulary: int, width: int, num_experts: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.layers = nn.ModuleList(Experts(width, num_experts) for _ in range(2))
        self.output = nn.Linear(width, vocabulary)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens).flatten(0, 1)
        for layer in self.layers:
            x = x + layer(x)
        return F.cross_entropy(self.output(x), tokens.flatten())


class Encoder(nn.Module):
    """torch's own TransformerEncoder, with a causal mask.

    Without `is_causal=True` it looks at the values of the mask, and torch.export refuses that.
    """

    def __init__(self, vocabulary: int, width: int, layers: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.output = nn.Linear(width, vocabulary)

    def forward(self, tokens: Tensor) -> Tensor:
        length = tokens.shape[1] - 1
        mask = torch.ones(length, length, dtype=torch.bool, device=tokens.device).triu(1)
        hidden = self.encoder(self.embedding(tokens[:, :-1]), mask=mask, is_causal=True)
        return F.cross_entropy(self.output(hidden).flatten(0, 1), tokens[:, 1:].flatten())
