"""Deterministic networks for small images.

Shapes: B batch, C channels, H height, W width, K classes.
"""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any, cast

import torch
from benchmarks.nets import alexnet_small, resnet18
from torch import Tensor, nn

from bayesify.core.checks import check_integer
from bayesify.errors import ConfigurationError

__all__ = ["NETS", "Shape", "check_net", "make_net"]

Shape = tuple[int, int, int]
"""C, H, W."""

_POOL = "pool"


def make_net(fields: Mapping[str, Any], shape: Shape, classes: int) -> nn.Module:
    """Build a network (B, C, H, W) -> (B, K) from its settings.

    Args:
        fields: `kind`, one of `NETS`, and its arguments: "mlp" `hidden`, a list of widths; "lenet" none; "preresnet" `depth`,
            6 n + 2 for n blocks in each of three stages, and `width`, the channels of the first stage; "strided" `size`, a factor
            of all widths; "convolutions" `channels`, a list in which "pool" stands for max pooling, and `hidden`; "vgg16" and
            "resnet18" `width`, the channels of the first stage; "alexnet" none.
        shape: (C, H, W) of the images.
        classes: K.

    Raises:
        ConfigurationError: unknown kind or fields, images that do not fit.

    Example:
        >>> make_net({"kind": "mlp", "hidden": [8]}, (1, 4, 4), classes=3)
        Sequential(
          (flatten): Flatten(start_dim=1, end_dim=-1)
          (fc1): Linear(in_features=16, out_features=8, bias=True)
          (relu1): ReLU()
          (fc2): Linear(in_features=8, out_features=3, bias=True)
        )
    """
    check_net(fields)
    own = {name: value for name, value in fields.items() if name != "kind"}
    return NETS[fields["kind"]][0](shape, classes, **own)


def check_net(fields: Mapping[str, Any]) -> None:
    """Raise a ValueError that says what is wrong with the settings of a net, if anything is."""
    kind = fields.get("kind")
    if kind not in NETS:
        raise ConfigurationError(f"kind of a net must be one of {', '.join(NETS)}, got {kind!r}")
    takes = NETS[kind][1]
    if set(fields) != {"kind", *takes}:
        raise ConfigurationError(f"a net of kind {kind} has the settings {', '.join(('kind', *takes))}, got {', '.join(fields)}")
    for name, example in (("hidden", "widths such as [400, 400]"), ("channels", 'channels such as [32, "pool", 64, "pool"]')):
        if name in takes and not isinstance(fields[name], list):
            raise ConfigurationError(f"{name} must be a list of {example}, got {fields[name]!r}")
    for name in takes:
        for number in fields[name] if isinstance(fields[name], list) else [fields[name]]:
            if name == "channels" and isinstance(number, str):
                if number != _POOL:
                    raise ConfigurationError(f'channels must be a list of whole numbers and "{_POOL}", got {number!r} in it')
            else:
                check_integer(name, number)
    if kind == "preresnet" and (fields["depth"] < 8 or (fields["depth"] - 2) % 6):
        raise ConfigurationError(f"depth of a preresnet must be 6 n + 2, such as 8 or 20, got {fields['depth']}")


def _mlp(shape: Shape, classes: int, hidden: list[int]) -> nn.Module:
    """Linear layers fc1, fc2 ... with ReLU in between."""
    channels, height, width = shape
    layers: OrderedDict[str, nn.Module] = OrderedDict(flatten=nn.Flatten())
    for number, sizes in enumerate(itertools.pairwise([channels * height * width, *hidden, classes]), start=1):
        layers[f"fc{number}"] = nn.Linear(*sizes)
        layers[f"relu{number}"] = nn.ReLU()
    layers.popitem()
    return nn.Sequential(layers)


def _lenet(shape: Shape, classes: int) -> nn.Module:
    """LeNet-5 (LeCun et al., 1998) with ReLU and max pooling; smaller images are padded to its 32 x 32."""
    channels, height, width = shape
    if height != width or height % 2 or not 22 <= height <= 32:
        raise ConfigurationError(f"lenet takes square images of an even size from 22 to 32, got {height} x {width}")
    return nn.Sequential(
        OrderedDict(
            conv1=nn.Conv2d(channels, 6, 5, padding=(32 - height) // 2), relu1=nn.ReLU(), pool1=nn.MaxPool2d(2),
            conv2=nn.Conv2d(6, 16, 5), relu2=nn.ReLU(), pool2=nn.MaxPool2d(2), flatten=nn.Flatten(),
            fc1=nn.Linear(400, 120), relu3=nn.ReLU(), fc2=nn.Linear(120, 84), relu4=nn.ReLU(), fc3=nn.Linear(84, classes),
        )
    )  # fmt: skip


def _strided(shape: Shape, classes: int, size: int) -> nn.Module:
    """The net of Kingma, Salimans & Welling (2015), figure 1b; kernels, whose size they do not give, are 5 x 5."""
    channels, height, width = shape
    after = -(-height // 4) * -(-width // 4)
    return nn.Sequential(
        OrderedDict(
            conv1=nn.Conv2d(channels, 32 * size, 5, stride=2, padding=2), softplus1=nn.Softplus(),
            conv2=nn.Conv2d(32 * size, 64 * size, 5, stride=2, padding=2), softplus2=nn.Softplus(), flatten=nn.Flatten(),
            fc1=nn.Linear(64 * size * after, 128 * size), softplus3=nn.Softplus(),
            fc2=nn.Linear(128 * size, 128 * size), softplus4=nn.Softplus(), fc3=nn.Linear(128 * size, classes),
        )
    )  # fmt: skip


def _convolutions(shape: Shape, classes: int, channels: list[int | str], hidden: list[int]) -> nn.Module:
    """3 x 3 convolutions conv1, conv2 ... with ReLU, max pooling that halves the image, and linear layers fc1, fc2 ... on top."""
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    depth, height, width = shape
    convolutions, pools = itertools.count(1), itertools.count(1)
    for entry in channels:
        if isinstance(entry, str):
            layers[f"pool{next(pools)}"] = nn.MaxPool2d(2)
            height, width = height // 2, width // 2
        else:
            name = f"conv{next(convolutions)}"
            layers[name], layers[f"{name}_relu"] = nn.Conv2d(depth, entry, 3, padding=1), nn.ReLU()
            depth = entry
    if not height * width:
        times = channels.count(_POOL)
        raise ConfigurationError(f"channels pools images of {shape[1]} x {shape[2]} pixels {times} times, which leaves none")
    top = OrderedDict(cast(nn.Sequential, _mlp((depth, height, width), classes, hidden)).named_children())
    return nn.Sequential(layers | top).to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]


def _vgg16(shape: Shape, classes: int, width: int) -> nn.Module:
    """VGG16 for small images (Rossi, Marmin & Filippone, 2020, table 8), with batch normalization and a single linear layer."""
    channels, height, width_of_image = shape
    if min(height, width_of_image) < 32:
        raise ConfigurationError(f"vgg16 takes images of at least 32 x 32, got {height} x {width_of_image}")
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    numbers = itertools.count(1)
    for stage, (factor, convolutions) in enumerate(((1, 2), (2, 2), (4, 3), (8, 3), (8, 3)), start=1):
        for number in itertools.islice(numbers, convolutions):
            layers[f"conv{number}"] = _conv3(channels, factor * width)
            channels = factor * width
            layers[f"norm{number}"], layers[f"relu{number}"] = nn.BatchNorm2d(channels), nn.ReLU()
        layers[f"pool{stage}"] = nn.MaxPool2d(2)
    layers["flatten"] = nn.Flatten()
    layers["fc"] = nn.Linear(channels * (height // 32) * (width_of_image // 32), classes)
    return _fastest(nn.Sequential(layers), width)


def _alexnet(shape: Shape, classes: int) -> nn.Module:
    """AlexNet for small images, with a stem of 11 x 11, stride 4, and a single linear layer."""
    _check_benchmark_images("alexnet", shape, classes)
    return alexnet_small()


def _resnet18(shape: Shape, classes: int, width: int) -> nn.Module:
    """ResNet-18 for small images, with a stem of 3 x 3; its linear layer is fc."""
    _check_benchmark_images("resnet18", shape, classes)
    layers = OrderedDict(resnet18(width).named_children())
    layers["fc"] = layers.popitem()[1]
    return _fastest(nn.Sequential(layers), width)


def _check_benchmark_images(kind: str, shape: Shape, classes: int) -> None:
    """The networks of the benchmarks are those of CIFAR-10."""
    if shape != (3, 32, 32) or classes != 10:
        found = f"{' x '.join(map(str, shape))} and {classes} classes"
        raise ConfigurationError(f"{kind} takes images of 3 x 32 x 32 and 10 classes, got {found}; use another kind of net")


def _preresnet(shape: Shape, classes: int, depth: int, width: int) -> nn.Module:
    """Residual net with activations before the weights (He et al., *Identity mappings in deep residual networks*, 2016)."""
    blocks = (depth - 2) // 6
    layers: OrderedDict[str, nn.Module] = OrderedDict(conv=_conv3(shape[0], width))
    channels = width
    for stage, factor in enumerate((1, 2, 4), start=1):
        for block in range(blocks):
            stride = 2 if stage > 1 and block == 0 else 1
            layers[f"stage{stage}_block{block + 1}"] = _PreActivationBlock(channels, factor * width, stride)
            channels = factor * width
    layers.update(norm=nn.BatchNorm2d(channels), relu=nn.ReLU(), pool=nn.AdaptiveAvgPool2d(1), flatten=nn.Flatten())
    layers["fc"] = nn.Linear(channels, classes)
    return _fastest(nn.Sequential(layers), width)


def _fastest(net: nn.Module, width: int) -> nn.Module:
    """A residual net of this width in the memory format in which it is fastest."""
    # A third faster on a CPU. With other widths, the gradient of a strided 1 x 1 convolution corrupts memory: oneDNN 3.12, AVX2.
    return net.to(memory_format=torch.channels_last) if width % 8 == 0 else net  # pyright: ignore[reportCallIssue]


class _PreActivationBlock(nn.Module):
    """x + conv(relu(norm(conv(relu(norm(x)))))); a 1 x 1 convolution replaces x where size or channels change."""

    def __init__(self, channels: int, out_channels: int, stride: int) -> None:
        super().__init__()
        self.norm1, self.conv1 = nn.BatchNorm2d(channels), _conv3(channels, out_channels, stride)
        self.norm2, self.conv2 = nn.BatchNorm2d(out_channels), _conv3(out_channels, out_channels)
        same = stride == 1 and channels == out_channels
        self.shortcut = None if same else nn.Conv2d(channels, out_channels, 1, stride, bias=False)
        self.relu = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        y = self.relu(self.norm1(x))
        shortcut = x if self.shortcut is None else self.shortcut(y)
        return shortcut + self.conv2(self.relu(self.norm2(self.conv1(y))))


def _conv3(channels: int, out_channels: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(channels, out_channels, 3, stride, padding=1, bias=False)


NETS: dict[str, tuple[Callable[..., nn.Module], tuple[str, ...]]] = {
    "mlp": (_mlp, ("hidden",)),
    "lenet": (_lenet, ()),
    "preresnet": (_preresnet, ("depth", "width")),
    "strided": (_strided, ("size",)),
    "convolutions": (_convolutions, ("channels", "hidden")),
    "vgg16": (_vgg16, ("width",)),
    "alexnet": (_alexnet, ()),
    "resnet18": (_resnet18, ("width",)),
}
