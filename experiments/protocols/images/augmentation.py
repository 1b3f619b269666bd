"""Augmentation of training images, sampled per image; for 32 x 32 images, `random_flip(random_crop(X, padding=4))`."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from bayesify.core.checks import check_integer
from bayesify.errors import ConfigurationError, DataError

__all__ = ["random_crop", "random_flip"]


def random_flip(images: Tensor, p: float = 0.5, *, generator: torch.Generator | None = None) -> Tensor:
    """Flip each image horizontally with probability p.

    Args:
        images: (B, C, H, W), of any dtype.
        p: probability, in [0, 1].
        generator: on the device of the images; PyTorch's default generator if None.

    Raises:
        TypeError: images are not a tensor.
        DataError: images of another shape.
        ConfigurationError: p is not in [0, 1].

    Example:
        >>> random_flip(torch.tensor([[[[1, 2, 3]]]]), p=1.0)
        tensor([[[[3, 2, 1]]]])
    """
    _check_images(images)
    if isinstance(p, bool) or not isinstance(p, int | float) or not 0 <= p <= 1:
        raise ConfigurationError(f"p must be a number in [0, 1], got {p!r}")
    flipped = torch.rand(images.shape[0], 1, 1, 1, device=images.device, generator=generator) < p
    return torch.where(flipped, images.flip(-1), images)


def random_crop(images: Tensor, padding: int = 4, *, generator: torch.Generator | None = None) -> Tensor:
    """Crop each image at random from its zero-padded version, to the original size.

    Each of the (2 padding + 1)² crops is equally likely.

    Args:
        images: (B, C, H, W), of any dtype.
        padding: pixels of zeros on every side.
        generator: on the device of the images; PyTorch's default generator if None.

    Raises:
        TypeError: images are not a tensor.
        DataError: images of another shape.
        ConfigurationError: padding is not a non-negative integer.

    Example:
        >>> random_crop(torch.ones(2, 3, 32, 32)).shape
        torch.Size([2, 3, 32, 32])
    """
    _check_images(images)
    check_integer("padding", padding, least=0)
    batch, channels, height, width = images.shape
    device = images.device
    top, left = torch.randint(2 * padding + 1, (2, batch, 1), device=device, generator=generator)
    rows = (top + torch.arange(height, device=device))[:, None, :, None]
    columns = (left + torch.arange(width, device=device))[:, None, None, :]
    image = torch.arange(batch, device=device)[:, None, None, None]
    channel = torch.arange(channels, device=device)[:, None, None]
    return F.pad(images, (padding,) * 4)[image, channel, rows, columns]


def _check_images(images: Tensor) -> None:
    if not isinstance(images, Tensor):
        raise TypeError(f"images must be a tensor, got {type(images).__name__}; use torch.as_tensor(images)")
    if images.ndim != 4:
        raise DataError(f"images must have the shape (B, C, H, W), got {tuple(images.shape)}; for a single image, use images[None]")
