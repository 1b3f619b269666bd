"""Common corruptions of small images, for measuring robustness with `bayesify.metrics.robustness`.

After Hendrycks & Dietterich, *Benchmarking neural network robustness to common corruptions and perturbations* (2019): 12 of their
15 corruptions (all but frost, snow and fog), at their five severities for 32 x 32 images (CIFAR-10-C), gray or color. The
implementation uses NumPy, SciPy and Pillow, and its pixels differ from the published files. Compare models with each other, not
with published error rates.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from PIL import Image
from scipy import ndimage
from torch import Tensor

from bayesify.core.checks import check_choice
from bayesify.errors import DataError

__all__ = ["CORRUPTIONS", "SEVERITIES", "corrupt"]

SEVERITIES: tuple[int, ...] = (1, 2, 3, 4, 5)


def corrupt(images: Tensor, corruption: str, severity: int, *, seed: int = 0) -> Tensor:
    """Corrupt images; random corruptions are sampled independently per image.

    Args:
        images: (N, C, H, W), uint8, C = 1 (gray) or 3 (RGB).
        corruption: one of `CORRUPTIONS`.
        severity: 1 (weakest) to 5.
        seed: seed of random corruptions.

    Returns:
        uint8, shaped like `images`.

    Raises:
        TypeError: images are not a uint8 tensor.
        DataError: images of another shape.
        ConfigurationError: an unknown corruption or severity.

    Example:
        >>> images = torch.full((2, 3, 32, 32), 128, dtype=torch.uint8)
        >>> corrupt(images, "gaussian_noise", severity=3).float().std() > 15
        tensor(True)
    """
    if not isinstance(images, Tensor) or images.dtype != torch.uint8:
        kind = images.dtype if isinstance(images, Tensor) else type(images).__name__
        raise TypeError(f"images must be a tensor of uint8, got {kind}; for values in [0, 1], use (255 * images).round().byte()")
    if images.ndim != 4 or images.shape[1] not in (1, 3) or min(images.shape[2:]) < 8:
        raise DataError(f"images must be (N, 1 or 3, H, W) of at least 8 x 8 pixels, got {tuple(images.shape)}")
    check_choice("corruption", corruption, CORRUPTIONS)
    check_choice("severity", severity, SEVERITIES)
    change, settings = _CORRUPTIONS[corruption]
    x = images.cpu().numpy().astype(np.float64) / 255
    y = change(x, settings[severity - 1], np.random.default_rng(seed)) if len(x) else x
    return torch.from_numpy(np.rint(255 * np.clip(y, 0, 1)).astype(np.uint8)).to(images.device)


def _gaussian_noise(x: np.ndarray, std: float, rng: np.random.Generator) -> np.ndarray:
    return x + std * rng.standard_normal(x.shape)


def _shot_noise(x: np.ndarray, photons: float, rng: np.random.Generator) -> np.ndarray:
    return rng.poisson(x * photons) / photons


def _impulse_noise(x: np.ndarray, share: float, rng: np.random.Generator) -> np.ndarray:
    u = rng.random(x.shape)
    return np.where(u < share / 2, 0.0, np.where(u >= 1 - share / 2, 1.0, x))


def _defocus_blur(x: np.ndarray, setting: tuple[float, float], rng: np.random.Generator) -> np.ndarray:
    radius, smoothing = setting
    line = np.arange(-4, 5)
    disk = (line[:, None] ** 2 + line**2 <= radius**2).astype(np.float64)
    kernel = ndimage.gaussian_filter(disk / disk.sum(), smoothing, radius=1)
    return ndimage.convolve(x, kernel[None, None], mode="mirror")


def _glass_blur(x: np.ndarray, setting: tuple[float, int, int], rng: np.random.Generator) -> np.ndarray:
    """Swap each pixel in turn with a random neighbor, between two Gaussian blurs."""
    std, reach, rounds = setting
    x = ndimage.gaussian_filter(x, std, axes=(2, 3))
    images, (height, width) = np.arange(len(x)), x.shape[2:]
    for _ in range(rounds):
        for row in range(reach, height - reach):
            for column in range(reach, width - reach):
                down, right = rng.integers(-reach, reach + 1, (2, len(x)))
                pixel = x[:, :, row, column].copy()
                x[:, :, row, column] = x[images, :, row + down, column + right]
                x[images, :, row + down, column + right] = pixel
    return ndimage.gaussian_filter(x, std, axes=(2, 3))


def _motion_blur(x: np.ndarray, setting: tuple[int, float], rng: np.random.Generator) -> np.ndarray:
    """Average along a random direction per image, with half-Gaussian weights."""
    radius, std = setting
    angle = np.deg2rad(rng.uniform(-45, 45, len(x)))
    steps = np.arange(2 * radius + 1)
    weights = np.exp(-0.5 * (steps / std) ** 2)
    weights /= weights.sum()
    images, channels = np.arange(len(x))[:, None, None, None], np.arange(x.shape[1])[:, None, None]
    y = np.zeros_like(x)
    for step, weight in zip(steps, weights, strict=True):
        rows, columns = (
            np.clip(np.arange(size) + np.rint(step * part)[:, None].astype(int), 0, size - 1)
            for size, part in zip(x.shape[2:], (np.sin(angle), np.cos(angle)), strict=True)
        )
        y += weight * x[images, channels, rows[:, None, :, None], columns[:, None, None, :]]
    return y


def _zoom_blur(x: np.ndarray, factors: int, rng: np.random.Generator) -> np.ndarray:
    """Average the image and its magnifications by 0, 1, 2 ... % about the center."""
    center, total = (np.array(x.shape[2:]) - 1) / 2, x.copy()
    for factor in 1 + 0.01 * np.arange(factors):
        offset = (0, 0, *(center * (1 - 1 / factor)))
        total += ndimage.affine_transform(x, np.array([1, 1, 1 / factor, 1 / factor]), offset, order=1, mode="nearest")
    return total / (factors + 1)


def _brightness(x: np.ndarray, shift: float, rng: np.random.Generator) -> np.ndarray:
    """Increase V of HSV by scaling all channels of a pixel alike; black becomes gray."""
    value = x.max(1, keepdims=True)
    brighter = np.minimum(value + shift, 1)
    return np.where(value > 0, x * brighter / np.where(value > 0, value, 1), brighter)


def _contrast(x: np.ndarray, share: float, rng: np.random.Generator) -> np.ndarray:
    mean = x.mean((2, 3), keepdims=True)
    return mean + share * (x - mean)


def _elastic_transform(x: np.ndarray, setting: tuple[float, float, float], rng: np.random.Generator) -> np.ndarray:
    """Apply a random affine map and a smooth random displacement field; settings are fractions of the image size."""
    size = min(x.shape[2:])
    strength, smoothness, reach = (size * value for value in setting)
    grid = np.stack(np.meshgrid(*map(np.arange, x.shape[2:]), indexing="ij")).astype(np.float64)
    center, arm = np.array(x.shape[2:]) // 2, size // 3
    corners = center + arm * np.array([[1, 1], [1, -1], [-1, -1]])
    plane = np.column_stack([corners, np.ones(3)])
    y = np.empty_like(x)
    for image in range(len(x)):
        affine = np.linalg.solve(plane, corners + rng.uniform(-reach, reach, (3, 2)))  # (3, 2)
        positions = np.einsum("dhw,de->ehw", grid, affine[:2]) + affine[2][:, None, None]
        positions += strength * ndimage.gaussian_filter(rng.uniform(-1, 1, grid.shape), smoothness, axes=(1, 2), truncate=3)
        for channel in range(x.shape[1]):
            y[image, channel] = ndimage.map_coordinates(x[image, channel], positions, order=1, mode="mirror")
    return y


def _pixelate(x: np.ndarray, share: float, rng: np.random.Generator) -> np.ndarray:
    box = Image.Resampling.BOX
    height, width = x.shape[2:]
    small = (int(width * share), int(height * share))
    return _by_pillow(x, lambda image: image.resize(small, box).resize((width, height), box))


def _jpeg_compression(x: np.ndarray, quality: int, rng: np.random.Generator) -> np.ndarray:
    def compress(image: Any) -> Any:
        file = io.BytesIO()
        image.save(file, "JPEG", quality=quality)
        return Image.open(file)

    return _by_pillow(x, compress)


def _by_pillow(x: np.ndarray, change: Callable) -> np.ndarray:
    pixels = np.rint(255 * x).astype(np.uint8).transpose(0, 2, 3, 1)
    changed = [np.asarray(change(Image.fromarray(image[..., 0] if x.shape[1] == 1 else image))) for image in pixels]
    return np.stack(changed).reshape(pixels.shape).transpose(0, 3, 1, 2) / 255.0


# Function, and its settings at severities 1 to 5.
_CORRUPTIONS: dict[str, tuple[Callable[..., np.ndarray], tuple]] = {
    "gaussian_noise": (_gaussian_noise, (0.04, 0.06, 0.08, 0.09, 0.1)),
    "shot_noise": (_shot_noise, (500, 250, 100, 75, 50)),
    "impulse_noise": (_impulse_noise, (0.01, 0.02, 0.03, 0.05, 0.07)),
    "defocus_blur": (_defocus_blur, ((0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1, 0.2), (1.5, 0.1))),
    "glass_blur": (_glass_blur, ((0.05, 1, 1), (0.25, 1, 1), (0.4, 1, 1), (0.25, 1, 2), (0.4, 1, 2))),
    "motion_blur": (_motion_blur, ((6, 1), (6, 1.5), (6, 2), (8, 2), (9, 2.5))),
    "zoom_blur": (_zoom_blur, (6, 11, 16, 21, 26)),
    "brightness": (_brightness, (0.05, 0.1, 0.15, 0.2, 0.3)),
    "contrast": (_contrast, (0.75, 0.5, 0.4, 0.3, 0.15)),
    "elastic_transform": (
        _elastic_transform,
        ((0, 0, 0.08), (0.05, 0.2, 0.07), (0.08, 0.06, 0.06), (0.1, 0.04, 0.05), (0.1, 0.03, 0.03)),
    ),
    "pixelate": (_pixelate, (0.95, 0.9, 0.85, 0.75, 0.65)),
    "jpeg_compression": (_jpeg_compression, (80, 65, 58, 50, 40)),
}

CORRUPTIONS: tuple[str, ...] = tuple(_CORRUPTIONS)
