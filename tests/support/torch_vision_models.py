"""Convolutional networks of the tests: whole architectures with few channels.

Every forward takes images and labels and returns the loss.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class ConvNorm(nn.Sequential):
    def __init__(self, inputs: int, outputs: int, **options: object) -> None:
        super().__init__(
            nn.Conv2d(inputs, outputs, bias=False, **options),
            nn.BatchNorm2d(outputs, eps=1e-3),
            nn.ReLU(inplace=True),
        )


class Concat(nn.Module):
    """Branches on one input, side by side along the channels."""

    def __init__(self, *branches: nn.Module) -> None:
        super().__init__()
        self.branches = nn.ModuleList(branches)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([branch(x) for branch in self.branches], 1)


def around(inputs: int, outputs: int, height: int, width: int) -> ConvNorm:
    """A convolution that keeps the size of the image."""
    padding = (height // 2, width // 2)
    return ConvNorm(inputs, outputs, kernel_size=(height, width), padding=padding)


def block_a(c: int, inputs: int, pooled: int) -> Concat:
    return Concat(
        around(inputs, 4 * c, 1, 1),
        nn.Sequential(around(inputs, 3 * c, 1, 1), around(3 * c, 4 * c, 5, 5)),
        nn.Sequential(
            around(inputs, 4 * c, 1, 1), around(4 * c, 6 * c, 3, 3), around(6 * c, 6 * c, 3, 3)
        ),
        nn.Sequential(nn.AvgPool2d(3, 1, 1), around(inputs, pooled, 1, 1)),
    )


def block_b(c: int, inputs: int) -> Concat:
    return Concat(
        ConvNorm(inputs, 24 * c, kernel_size=3, stride=2),
        nn.Sequential(
            around(inputs, 4 * c, 1, 1),
            around(4 * c, 6 * c, 3, 3),
            ConvNorm(6 * c, 6 * c, kernel_size=3, stride=2),
        ),
        nn.MaxPool2d(3, 2),
    )


def block_c(c: int, inputs: int, inner: int) -> Concat:
    outputs = 12 * c
    return Concat(
        around(inputs, outputs, 1, 1),
        nn.Sequential(
            around(inputs, inner, 1, 1), around(inner, inner, 1, 7), around(inner, outputs, 7, 1)
        ),
        nn.Sequential(
            around(inputs, inner, 1, 1),
            around(inner, inner, 7, 1),
            around(inner, inner, 1, 7),
            around(inner, inner, 7, 1),
            around(inner, outputs, 1, 7),
        ),
        nn.Sequential(nn.AvgPool2d(3, 1, 1), around(inputs, outputs, 1, 1)),
    )


def block_d(c: int, inputs: int) -> Concat:
    return Concat(
        nn.Sequential(
            around(inputs, 12 * c, 1, 1), ConvNorm(12 * c, 20 * c, kernel_size=3, stride=2)
        ),
        nn.Sequential(
            around(inputs, 12 * c, 1, 1),
            around(12 * c, 12 * c, 1, 7),
            around(12 * c, 12 * c, 7, 1),
            ConvNorm(12 * c, 12 * c, kernel_size=3, stride=2),
        ),
        nn.MaxPool2d(3, 2),
    )


def block_e(c: int, inputs: int) -> Concat:
    def split() -> Concat:
        return Concat(around(24 * c, 24 * c, 1, 3), around(24 * c, 24 * c, 3, 1))

    return Concat(
        around(inputs, 20 * c, 1, 1),
        nn.Sequential(around(inputs, 24 * c, 1, 1), split()),
        nn.Sequential(around(inputs, 28 * c, 1, 1), around(28 * c, 24 * c, 3, 3), split()),
        nn.Sequential(nn.AvgPool2d(3, 1, 1), around(inputs, 12 * c, 1, 1)),
    )


class InceptionV3(nn.Module):
    """Inception-V3 with its auxiliary head; `c` = 16 gives the published widths."""

    def __init__(self, c: int, num_classes: int) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            ConvNorm(3, 2 * c, kernel_size=3, stride=2),
            ConvNorm(2 * c, 2 * c, kernel_size=3),
            around(2 * c, 4 * c, 3, 3),
            nn.MaxPool2d(3, 2),
            around(4 * c, 5 * c, 1, 1),
            ConvNorm(5 * c, 12 * c, kernel_size=3),
            nn.MaxPool2d(3, 2),
        )
        self.wide = nn.Sequential(
            block_a(c, 12 * c, 2 * c),
            block_a(c, 16 * c, 4 * c),
            block_a(c, 18 * c, 4 * c),
            block_b(c, 18 * c),
            block_c(c, 48 * c, 8 * c),
            block_c(c, 48 * c, 10 * c),
            block_c(c, 48 * c, 10 * c),
            block_c(c, 48 * c, 12 * c),
        )
        self.auxiliary = nn.Sequential(
            nn.AdaptiveAvgPool2d(5),
            around(48 * c, 8 * c, 1, 1),
            ConvNorm(8 * c, 48 * c, kernel_size=5),
            nn.Flatten(),
            nn.Linear(48 * c, num_classes),
        )
        self.deep = nn.Sequential(block_d(c, 48 * c), block_e(c, 80 * c), block_e(c, 128 * c))
        self.classifier = nn.Linear(128 * c, num_classes)

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        middle = self.wide(self.stem(images))
        pooled = F.adaptive_avg_pool2d(self.deep(middle), 1).flatten(1)
        loss = F.cross_entropy(self.classifier(pooled), labels)
        return loss + 0.4 * F.cross_entropy(self.auxiliary(middle), labels)


class Residual(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.first = ConvNorm(inputs, outputs, kernel_size=3, stride=stride, padding=1)
        self.second = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(outputs)
        same = stride == 1 and inputs == outputs
        self.shortcut = None if same else nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        kept = x if self.shortcut is None else self.shortcut(x)
        out = self.norm(self.second(self.first(x)))
        out += kept  # in place, as in the published code
        return F.relu(out, inplace=True)


class ResNet(nn.Module):
    def __init__(self, width: int, num_classes: int) -> None:
        super().__init__()
        self.stem = ConvNorm(3, width, kernel_size=3, padding=1)
        self.blocks = nn.Sequential(
            *(Residual(width, width, 1) for _ in range(2)),
            Residual(width, 2 * width, 2),
            Residual(2 * width, 2 * width, 1),
            Residual(2 * width, 4 * width, 2),
            Residual(4 * width, 4 * width, 1),
        )
        self.classifier = nn.Linear(4 * width, num_classes)

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        features = self.blocks(self.stem(images))
        return F.cross_entropy(self.classifier(features.mean((2, 3))), labels)


class DoubleConv(nn.Sequential):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(
            nn.Conv2d(inputs, outputs, 3, padding=1),
            nn.GroupNorm(2, outputs),
            nn.SiLU(),
            nn.Conv2d(outputs, outputs, 3, padding=1),
            nn.GroupNorm(2, outputs),
            nn.SiLU(),
        )


class UNet(nn.Module):
    """Labels are an image of class numbers."""

    def __init__(self, width: int, num_classes: int) -> None:
        super().__init__()
        widths = [width, 2 * width, 4 * width]
        self.down = nn.ModuleList(map(DoubleConv, [3, *widths[:-1]], widths))
        self.bottom = DoubleConv(4 * width, 8 * width)
        self.lift = nn.ModuleList(nn.ConvTranspose2d(2 * w, w, 2, 2) for w in widths[::-1])
        self.up = nn.ModuleList(DoubleConv(2 * w, w) for w in widths[::-1])
        self.head = nn.Conv2d(width, num_classes, 1)

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        x, skipped = images, []
        for block in self.down:
            x = block(x)
            skipped.append(x)
            x = F.max_pool2d(x, 2)
        x = self.bottom(x)
        for lift, block in zip(self.lift, self.up, strict=True):
            x = block(torch.cat([skipped.pop(), lift(x)], 1))
        return F.cross_entropy(self.head(x), labels)


class DenseLayer(nn.Module):
    def __init__(self, inputs: int, growth: int) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(inputs)
        self.conv = nn.Conv2d(inputs, growth, 3, padding=1, bias=False)

    def forward(self, earlier: list[Tensor]) -> Tensor:
        return self.conv(F.relu(self.norm(torch.cat(earlier, 1))))


class DenseNet(nn.Module):
    """Every layer reads all layers before it in its block."""

    def __init__(self, growth: int, layers: int, num_classes: int) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, growth, 3, padding=1)
        blocks, norms, width = [], [], growth
        for _ in range(2):
            sizes = [width + growth * i for i in range(layers)]
            blocks.append(nn.ModuleList(DenseLayer(size, growth) for size in sizes))
            width += growth * layers
            norms.append(ConvNorm(width, width // 2, kernel_size=1))
            width //= 2
        self.blocks, self.transitions = nn.ModuleList(blocks), nn.ModuleList(norms)
        self.classifier = nn.Linear(width, num_classes)

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        x = self.stem(images)
        for block, transition in zip(self.blocks, self.transitions, strict=True):
            outputs = [x]
            for layer in block:
                outputs.append(layer(outputs))
            x = F.avg_pool2d(transition(torch.cat(outputs, 1)), 2)
        return F.cross_entropy(self.classifier(x.mean((2, 3))), labels)
