"""Checks of the values of targets."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from bayesify.errors import DataError

__all__ = ["check_binary", "check_counts", "check_labels", "check_numbers"]


def check_labels(y: Tensor, classes: int | None = None) -> None:
    """Raise TypeError or DataError unless y has class labels: integers from 0 to `classes` - 1."""
    if y.is_floating_point() or y.is_complex() or y.dtype == torch.bool:
        raise TypeError(f"y must have integer class labels, got {y.dtype}; use y.long() if they are whole numbers")
    invalid = (y < 0) if classes is None else (y < 0) | (y >= classes)
    if invalid.any():
        allowed = "of at least 0" if classes is None else f"from 0 to {classes - 1}, as the outputs have {classes} classes"
        raise DataError(f"y must have class labels {allowed}, got {y[invalid][0].item()} ({int(invalid.sum())} such labels)")


def check_binary(y: Tensor) -> None:
    """Raise DataError unless y has zeros and ones only."""
    invalid = (y != 0) & (y != 1)
    if invalid.any():
        raise DataError(f"y must have zeros and ones only, got {y[invalid][0].item()} ({int(invalid.sum())} such values)")


def check_counts(y: Tensor) -> None:
    """Raise DataError unless y has whole numbers of at least 0."""
    invalid = ~((y >= 0) & (y == y.round()) & (y < math.inf))
    if invalid.any():
        raise DataError(
            f"y must have counts, whole numbers of at least 0, got {y[invalid][0].item():g} ({int(invalid.sum())} such values of "
            f"{y.numel()}); Gaussian, HeteroscedasticGaussian and GaussianMixture take any number"
        )


def check_numbers(y: Tensor) -> None:
    """Raise DataError unless all targets are finite."""
    invalid = ~y.isfinite()
    if invalid.any():
        raise DataError(f"y must be finite, got {int(invalid.sum())} NaN or infinite of {y.numel()} values; drop these examples")
