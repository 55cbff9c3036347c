"""Models of torch_troubles with their inputs."""

import itertools

import torch
from torch import Tensor, nn

import torch_trouble_flow as flow
import torch_trouble_weights as weights
from torch_models import Built


def tokens(batch: int = 3, length: int = 8, vocabulary: int = 40) -> Tensor:
    return torch.randint(0, vocabulary, (batch, length))


def on_rows(model: nn.Module, width: int = 16) -> Built:
    return model, (torch.randn(6, width),), {}


def on_steps(model: nn.Module, width: int = 16) -> Built:
    return model, (torch.randn(3, 8, width),), {}


def language(model: nn.Module) -> Built:
    batch = tokens()
    return model, (batch,), {"labels": batch}


def mlp(*widths: int) -> nn.Module:
    layers = [
        layer
        for inputs, outputs in itertools.pairwise(widths)
        for layer in (nn.Linear(inputs, outputs), nn.ReLU())
    ]
    return weights.MeanSquare(*layers)


def with_past() -> Built:
    past = {k: (torch.randn(3, 5, 16), torch.randn(3, 5, 16)) for k in range(3)}
    return flow.WithPast(16, 3), (torch.randn(3, 1, 16),), {"past": past}


def large_head() -> Built:
    model = nn.Sequential(nn.Embedding(40, 8), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 400))
    flattened = nn.Sequential(model, nn.Flatten(0, 1))
    return flow.LossOutside(flattened, torch.ones(400)), (tokens(), tokens().flatten()), {}


def classified() -> Built:
    network = nn.Sequential(nn.Linear(16, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 5))
    labels = torch.randint(0, 5, (6,))
    return flow.LossOutside(network, torch.rand(5)), (torch.randn(6, 16),), {"labels": labels}


def crossed() -> Built:
    lengths = torch.tensor([8, 5, 2])
    inputs = torch.randn(3, 8, 16), torch.randn(3, 6, 16)
    return flow.CrossAttention(16), (*inputs, lengths), {}


def looked_up() -> Built:
    positions = torch.arange(8).repeat(3, 1) + torch.tensor([[0], [4], [9]])
    return weights.LookedUpRotary(16, 20), (torch.randn(3, 8, 16), positions), {}


def replaced() -> Built:
    model = flow.LongSkips(16, 4)
    model.layers[2] = nn.Sequential(nn.Linear(16, 4), nn.Linear(4, 16))
    return on_rows(model)
