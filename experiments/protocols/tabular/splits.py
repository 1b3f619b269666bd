"""Data of one split, standardized by its training rows, for regression and classification.

Shapes: N rows, I inputs, K classes.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod

import numpy as np
import torch
from torch import Tensor

from bayesify import Categorical, EvidentialCategorical, EvidentialGaussian, Gaussian, HeteroscedasticGaussian
from bayesify.errors import DataError
from bayesify.likelihoods import Likelihood
from bayesify.predictive import GaussianPredictive, Predictive, StudentTPredictive
from experiments.protocols.tabular.settings import Setup

__all__ = ["ClassificationSplit", "RegressionSplit", "Split", "hold_out", "make_split"]


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Split(ABC):
    """Training and test rows.

    Attributes:
        X, y: (N, I), float32, standardized, and (N,), as the likelihood takes them.
        X_test: (M, I), float32, standardized by the training rows.
        y_test: (M,), not standardized.
    """

    X: Tensor
    y: Tensor
    X_test: Tensor
    y_test: Tensor

    @abstractmethod
    def outputs(self, setup: Setup) -> int:
        """Number of outputs of the network."""

    @abstractmethod
    def likelihood(self, setup: Setup) -> Likelihood:
        """The likelihood in training."""

    def test_likelihood(self, trained: Likelihood, setup: Setup) -> Likelihood:
        """The likelihood in prediction."""
        return trained

    def in_target_unit(self, p: Predictive) -> Predictive:
        """The predictive distribution in the unit of `y_test`."""
        return p


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class RegressionSplit(Split):
    """Regression: y float32, standardized; y_test float64.

    Attributes:
        mean, std: of the training targets, not standardized.
    """

    mean: float
    std: float

    def outputs(self, setup: Setup) -> int:
        if setup.likelihood == "evidential":
            return 4
        return 2 if "heteroscedastic" in setup.noise else 1

    def likelihood(self, setup: Setup) -> Likelihood:
        if setup.likelihood == "evidential":
            return EvidentialGaussian()
        if "heteroscedastic" in setup.noise:
            return HeteroscedasticGaussian()
        if "learned" in setup.noise:
            return Gaussian(std=setup.noise["learned"], learn=True)
        return Gaussian(std=setup.noise.get("training", setup.noise["fixed"] / self.std))

    def test_likelihood(self, trained: Likelihood, setup: Setup) -> Likelihood:
        return Gaussian(std=setup.noise["fixed"] / self.std) if "training" in setup.noise else trained

    def in_target_unit(self, p: Predictive) -> Predictive:
        assert isinstance(p, GaussianPredictive | StudentTPredictive)
        # In single precision a large mean would absorb small deviations.
        return p.double().rescale(self.mean, self.std)


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class ClassificationSplit(Split):
    """Classification: y and y_test int64, 0 ... K-1.

    Attributes:
        classes: K.
    """

    classes: int

    def outputs(self, setup: Setup) -> int:
        return self.classes

    def likelihood(self, setup: Setup) -> Likelihood:
        return EvidentialCategorical() if setup.likelihood == "evidential" else Categorical()


def make_split(X: np.ndarray, y: np.ndarray, train: np.ndarray, test: np.ndarray, classes: int | None = None) -> Split:
    """Standardize rows by the training rows; columns that are constant there are only centered.

    Args:
        X, y: all rows.
        train, test: row indices.
        classes: K for classification; None for regression, whose targets are standardized, too.

    Raises:
        DataError: equal training targets.
    """
    inputs, targets = X[train], y[train]
    constant = inputs.min(0) == inputs.max(0)  # mean and standard deviation of equal numbers can be off by rounding
    center, scale = np.where(constant, inputs[0], inputs.mean(0)), np.where(constant, 1.0, inputs.std(0))
    if targets.min() == targets.max():
        raise DataError(f"all {len(targets)} training targets are {targets[0]}; training needs different ones")
    standard = torch.from_numpy((X - center) / scale).float()
    X_train, X_test = standard[train], standard[test]
    if classes is not None:
        labels = torch.from_numpy(y).long()
        return ClassificationSplit(X=X_train, y=labels[train], X_test=X_test, y_test=labels[test], classes=classes)
    mean, std = float(targets.mean()), float(targets.std())
    return RegressionSplit(
        X=X_train,
        y=torch.from_numpy((targets - mean) / std).float(),
        X_test=X_test,
        y_test=torch.from_numpy(y[test]).double(),
        mean=mean,
        std=std,
    )


def hold_out(train: np.ndarray, fraction: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Split training rows at random into training and validation rows.

    Raises:
        DataError: too few rows.
    """
    order = np.random.default_rng(seed).permutation(train)
    held_out = round(fraction * len(train))
    if not 0 < held_out < len(train):
        raise DataError(f"choose.fraction={fraction} of {len(train)} rows leaves one part empty; change it")
    return order[held_out:], order[:held_out]
