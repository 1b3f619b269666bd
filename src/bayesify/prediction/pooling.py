"""Max pooling in predictions on a CPU.

PyTorch's kernel for contiguous images looks at one value at a time and keeps indices for a gradient. The maximum over blocks that
do not overlap is that of strided slices, which has the same values and is much faster.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial, reduce

import torch
import torch.nn.functional as F
from torch import Tensor, nn

__all__ = ["fast_pooling"]


@contextmanager
def fast_pooling(net: nn.Module) -> Iterator[None]:
    """Let the `nn.MaxPool2d` of a network use slices where no gradient is computed."""
    modules = [module for module in net.modules() if type(module) is nn.MaxPool2d and _has_blocks(module)]
    for module in modules:
        module.forward = partial(_pooled, module)
    try:
        yield
    finally:
        for module in modules:
            del module.forward


def _has_blocks(module: nn.MaxPool2d) -> bool:
    """Whether it pools over blocks that do not overlap, and nobody has replaced its `forward`."""
    plain = _pair(module.padding) == (0, 0) and _pair(module.dilation) == (1, 1) and not module.ceil_mode
    return plain and _pair(module.stride) == _pair(module.kernel_size) and not (module.return_indices or "forward" in vars(module))


def _pooled(module: nn.MaxPool2d, input: Tensor) -> Tensor:
    x = input
    height, width = _pair(module.kernel_size)
    rows, columns = x.shape[-2] // height, x.shape[-1] // width
    if x.device.type != "cpu" or not x.is_contiguous() or (x.requires_grad and torch.is_grad_enabled()) or not (rows and columns):
        return F.max_pool2d(x, module.kernel_size, module.stride)
    x = x[..., : rows * height, : columns * width]
    x = reduce(torch.maximum, [x[..., i::height, :] for i in range(height)])
    return reduce(torch.maximum, [x[..., i::width] for i in range(width)])


def _pair(size: int | tuple[int, int]) -> tuple[int, int]:
    return size if isinstance(size, tuple) else (size, size)
