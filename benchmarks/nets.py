"""The networks that the benchmarks time, written out to avoid a dependency on torchvision."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn

__all__ = ["WORKLOADS", "Workload", "resnet50", "sequence_classifier", "transformer"]


@dataclass(frozen=True)
class Workload:
    """A network, its input shape without the batch, the batch size and whether it runs channels-last."""

    build: Callable[[], nn.Module]
    shape: tuple[int, ...]
    batch: int
    channels_last: bool = False

    def inputs(self) -> Tensor:
        x = torch.randn(self.batch, *self.shape)
        return x.contiguous(memory_format=torch.channels_last) if self.channels_last else x

    def net(self) -> nn.Module:
        net = self.build()
        return net.to(memory_format=torch.channels_last) if self.channels_last else net  # pyright: ignore[reportCallIssue]


def mlp(*sizes: int) -> nn.Module:
    layers: list[nn.Module] = []
    for n_in, n_out in pairwise(sizes):
        layers += [nn.Linear(n_in, n_out), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def lenet5() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(1, 6, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()),
        *(nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10)),
    )


def alexnet_small() -> nn.Module:
    """AlexNet for 32 x 32 images with an 11 x 11 stem of stride 4."""
    return nn.Sequential(
        *(nn.Conv2d(3, 64, 11, stride=4, padding=5), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(64, 192, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(192, 384, 3, padding=1), nn.ReLU()),
        *(nn.Conv2d(384, 256, 3, padding=1), nn.ReLU()),
        *(nn.Conv2d(256, 256, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()),
        nn.Linear(256, 10),
    )


def shortcut(n_in: int, n_out: int, stride: int) -> nn.Module:
    """The identity if shapes allow it, else a 1 x 1 convolution with batch normalization."""
    if stride == 1 and n_in == n_out:
        return nn.Identity()
    return nn.Sequential(nn.Conv2d(n_in, n_out, 1, stride, bias=False), nn.BatchNorm2d(n_out))


class Block(nn.Module):
    """The basic residual block."""

    def __init__(self, n_in: int, n_out: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(n_in, n_out, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(n_out)
        self.conv2 = nn.Conv2d(n_out, n_out, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(n_out)
        self.shortcut = shortcut(n_in, n_out, stride)

    def forward(self, x: Tensor) -> Tensor:
        y = self.bn2(self.conv2(torch.relu(self.bn1(self.conv1(x)))))
        return torch.relu(y + self.shortcut(x))


def resnet18(width: int = 64) -> nn.Module:
    """ResNet-18 for 32 x 32 images."""
    layers: list[nn.Module] = [nn.Conv2d(3, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
    channels = width
    for stage in range(4):
        n_out = width * 2**stage
        layers += [Block(channels, n_out, 1 if stage == 0 else 2), Block(n_out, n_out, 1)]
        channels = n_out
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 10))


class Bottleneck(nn.Module):
    """The residual block of deeper networks: 1 x 1, 3 x 3, 1 x 1."""

    def __init__(self, n_in: int, width: int, stride: int) -> None:
        super().__init__()
        n_out = 4 * width
        self.branch = nn.Sequential(
            *(nn.Conv2d(n_in, width, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU()),
            *(nn.Conv2d(width, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU()),
            *(nn.Conv2d(width, n_out, 1, bias=False), nn.BatchNorm2d(n_out)),
        )
        self.shortcut = shortcut(n_in, n_out, stride)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.branch(x) + self.shortcut(x))


def resnet50() -> nn.Module:
    """ResNet-50 for 224 x 224 images and 1,000 classes."""
    layers: list[nn.Module] = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    channels = 64
    for stage, blocks in enumerate((3, 4, 6, 3)):
        for block in range(blocks):
            layers.append(Bottleneck(channels, 64 * 2**stage, 2 if stage and not block else 1))
            channels = 4 * 64 * 2**stage
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 1000))


class TransformerBlock(nn.Module):
    """Self-attention and a feed-forward network of four times the width."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.attention_in, self.attention_out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.heads = width // 128

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.attention_in(self.norms[0](x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.attention_out(mixed.transpose(1, 2).flatten(2))
        return x + self.down(nn.functional.gelu(self.up(self.norms[1](x))))


def transformer(blocks: int, width: int) -> nn.Module:
    """The blocks of a language model, without its token embedding."""
    return nn.Sequential(*(TransformerBlock(width) for _ in range(blocks)))


class MeanOverPositions(nn.Module):
    """The mean over the positions of a sequence, for a classifier."""

    def forward(self, x: Tensor) -> Tensor:
        return x.mean(1)


def sequence_classifier(blocks: int, width: int) -> nn.Module:
    """Transformer blocks, and one linear layer for 10 classes."""
    return nn.Sequential(transformer(blocks, width), MeanOverPositions(), nn.Linear(width, 10))


WORKLOADS: dict[str, Workload] = {
    "MLP 13-50-1": Workload(lambda: mlp(13, 50, 1), (13,), 32),
    "MLP 784-400-400-10": Workload(lambda: mlp(784, 400, 400, 10), (784,), 128),
    "LeNet5": Workload(lenet5, (1, 28, 28), 128),
    "AlexNet": Workload(alexnet_small, (3, 32, 32), 128),
    "ResNet18": Workload(resnet18, (3, 32, 32), 32, channels_last=True),
}
