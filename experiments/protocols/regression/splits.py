"""The data of one split: standardised on its training rows, with what it takes to go back to the targets' own unit.

Shapes: N rows, I inputs.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

__all__ = ["Split", "hold_out", "make_split"]


class Split(NamedTuple):
    """Rows to train on and rows to judge by.

    Attributes:
        X, y: (N, I) and (N,), float32, standardised.
        X_test: (M, I), float32, standardised by the training rows.
        y_test: (M,), float64, in the targets' own unit.
        mean, std: of the training targets, in their unit.
    """

    X: Tensor
    y: Tensor
    X_test: Tensor
    y_test: Tensor
    mean: float
    std: float


def make_split(X: np.ndarray, y: np.ndarray, train: np.ndarray, test: np.ndarray) -> Split:
    """Standardise by the training rows: mean 0 and standard deviation 1 there; columns that are constant there are centred only.

    Raises:
        ValueError: training targets that are all the same.
    """
    inputs, targets = X[train], y[train]
    constant = inputs.min(0) == inputs.max(0)  # mean and standard deviation of equal numbers can be off by rounding
    center, scale = np.where(constant, inputs[0], inputs.mean(0)), np.where(constant, 1.0, inputs.std(0))
    mean, std = float(targets.mean()), float(targets.std())
    if targets.min() == targets.max():
        raise ValueError(f"all {len(targets)} training targets are {targets[0]}; there is nothing to learn")
    standard = (X - center) / scale
    return Split(
        X=torch.from_numpy(standard[train]).float(),
        y=torch.from_numpy((targets - mean) / std).float(),
        X_test=torch.from_numpy(standard[test]).float(),
        y_test=torch.from_numpy(y[test]).double(),
        mean=mean,
        std=std,
    )


def hold_out(train: np.ndarray, fraction: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Divide training rows at random into those to fit and those to choose by.

    Raises:
        ValueError: too few rows.
    """
    order = np.random.default_rng(seed).permutation(train)
    held_out = round(fraction * len(train))
    if not 0 < held_out < len(train):
        raise ValueError(f"a validation part of {fraction} of {len(train)} rows leaves nothing on one side; change choose.fraction")
    return order[held_out:], order[:held_out]
