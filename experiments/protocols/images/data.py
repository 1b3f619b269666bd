"""Parts of image sets: training, validation and test rows, out-of-distribution images.

Shapes: N rows, C channels, H height, W width.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from bayesify.datasets import Images, load_images
from bayesify.errors import DataError
from experiments.protocols.images.corruption import SEVERITIES, corrupt
from experiments.protocols.images.settings import Setup

__all__ = ["Part", "Scaling", "TestParts", "TrainParts", "as_gray", "corrupted", "load_test", "load_train"]

Part = tuple[Tensor, Tensor]
"""Scaled pixels (N, C, H, W) and labels (N,)."""


class Scaling(NamedTuple):
    """Scales pixels in [0, 1]: color images are standardized with mean and standard deviation of training images (C, 1, 1)."""

    mean: Tensor
    std: Tensor

    def __call__(self, pixels: Tensor) -> Tensor:
        return pixels if len(self.mean) == 1 else (pixels - self.mean) / self.std


class TrainParts(NamedTuple):
    """Training and validation data."""

    train: Part
    validation: Part
    scaling: Scaling
    classes: int
    note: str


class TestParts(NamedTuple):
    """Test data, and out-of-distribution images by set."""

    __test__ = False  # pytest takes it for a test

    test: Part
    ood: dict[str, Tensor]
    note: str


def load_train(setup: Setup, data_dir: Path | None) -> TrainParts:
    """The published training set, its last rows for validation. Test images are not read.

    Raises:
        DataError: too few rows for training and validation.
    """
    images = load_images(setup.dataset, "train", data_dir)
    rows = len(images.y) - setup.validation
    count = rows if setup.train_rows is None else setup.train_rows
    if not 0 < count <= rows:
        required = f"{setup.validation} rows for validation and {count if setup.train_rows else 'some'} to train on"
        raise DataError(f"{setup.dataset} has {len(images.y)} training images, too few for {required}")
    pixels = _scaled(images, slice(count))
    scaling = _scaling(pixels)
    train = scaling(pixels), images.y[:count]
    validation = scaling(_scaled(images, slice(rows, None))), images.y[rows:]
    return TrainParts(train, validation, scaling, len(images.classes), images.note)


def load_test(setup: Setup, scaling: Scaling, data_dir: Path | None) -> TestParts:
    """The test part and the sets of `setup.ood`, scaled as the training images; beside gray images, color ones become gray.

    Raises:
        DataError: out-of-distribution images of another shape.
    """
    test = load_images(setup.dataset, "test", data_dir)
    shape, ood = test.X.shape[1:], {}
    for name in setup.ood:
        pixels = _scaled(load_images(name, "test", data_dir), slice(setup.ood_rows))
        if shape[0] == 1 and pixels.shape[1] == 3:
            pixels = as_gray(pixels, (shape[1], shape[2]))
        if pixels.shape[1:] != shape:
            shapes = f"{tuple(pixels.shape[1:])}, those of {setup.dataset} {tuple(shape)}"
            raise DataError(f"ood must name sets with images of the same shape, but those of {name} have {shapes}")
        ood[name] = scaling(pixels)
    rows = slice(setup.test_rows)
    return TestParts((scaling(_scaled(test, rows)), test.y[rows]), ood, test.note)


def as_gray(pixels: Tensor, size: tuple[int, int]) -> Tensor:
    """The luma (ITU-R BT.601) of color images (N, 3, H, W), resized: (N, 1, *size)."""
    luma = (pixels * torch.tensor([0.299, 0.587, 0.114])[:, None, None]).sum(1, keepdim=True)
    return F.interpolate(luma, size, mode="bilinear", antialias=True).clamp(0, 1)


def corrupted(setup: Setup, scaling: Scaling, data_dir: Path | None) -> Iterator[tuple[str, Tensor]]:
    """The first `setup.subset` test images in every corruption, scaled as the training images, as "CORRUPTION/SEVERITY"."""
    images = load_images(setup.dataset, "test", data_dir)
    for name in setup.corruptions:
        for severity in SEVERITIES:
            changed = dataclasses.replace(images, X=corrupt(images.X[: setup.subset], name, severity))
            yield f"{name}/{severity}", scaling(changed.scaled())


def _scaled(images: Images, rows: slice) -> Tensor:
    """The pixels of some rows (N, C, H, W) in [0, 1]; the others are not converted."""
    return dataclasses.replace(images, X=images.X[rows]).scaled()


def _scaling(pixels: Tensor) -> Scaling:
    """Channel by channel in double precision: a mean over millions of pixels in single precision drifts."""
    per_channel = [pixels[:, channel].flatten() for channel in range(pixels.shape[1])]
    means = [float(values.mean(dtype=torch.float64)) for values in per_channel]
    squares = [float((values - mean).square().mean(dtype=torch.float64)) for values, mean in zip(per_channel, means, strict=True)]
    stds = [math.sqrt(square) or 1.0 for square in squares]  # a channel of one color stays at 0
    return Scaling(torch.tensor(means)[:, None, None], torch.tensor(stds)[:, None, None])
