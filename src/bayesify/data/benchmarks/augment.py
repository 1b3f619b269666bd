"""Augmentation of training images: batched, every image on its own, seeded through torch's generators; apply one after the other.

The usual recipe for 32x32 images: `random_flip(random_crop(X, padding=4))`.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from bayesify.core.checks import check_integer

__all__ = ["random_crop", "random_flip"]


def random_flip(images: Tensor, p: float = 0.5, *, generator: torch.Generator | None = None) -> Tensor:
    """Mirror each image, left to right, with probability p.

    Args:
        images: (B, C, H, W), of any dtype.
        p: in [0, 1].
        generator: on the device of the images; None is torch's own.

    Raises:
        TypeError: images are no tensor.
        ValueError: images of another shape, p outside [0, 1].

    Example:
        >>> random_flip(torch.tensor([[[[1, 2, 3]]]]), p=1.0)
        tensor([[[[3, 2, 1]]]])
    """
    _check_images(images)
    if isinstance(p, bool) or not isinstance(p, int | float) or not 0 <= p <= 1:
        raise ValueError(f"p must be a number in [0, 1], got {p!r}")
    mirrored = torch.rand(images.shape[0], 1, 1, 1, device=images.device, generator=generator) < p
    return torch.where(mirrored, images.flip(-1), images)


def random_crop(images: Tensor, padding: int = 4, *, generator: torch.Generator | None = None) -> Tensor:
    """Shift each image by up to `padding` pixels in both directions; zeros come in at the edges.

    That is, a window of the original size out of the image with `padding` zeros on every side; each of the (2 padding + 1)² windows
    is equally likely.

    Args:
        images: (B, C, H, W), of any dtype.
        padding: in pixels.
        generator: on the device of the images; None is torch's own.

    Raises:
        TypeError: images are no tensor.
        ValueError: images of another shape, padding that is no whole number, or negative.

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
        raise ValueError(f"images must have the shape (B, C, H, W), got {tuple(images.shape)}; give a single one as images[None]")
