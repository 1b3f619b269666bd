"""The data of one split: standardised on its training rows, with all that depends on what the targets are, numbers or classes.

Shapes: N rows, I inputs, K classes.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod

import numpy as np
import torch
from torch import Tensor

from bayesify import Categorical, Gaussian
from bayesify.likelihoods import Likelihood
from bayesify.predictive import GaussianPredictive, Predictive
from experiments.protocols.tabular.setup import Setup

__all__ = ["Classes", "Numbers", "Split", "hold_out", "make_split"]


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Split(ABC):
    """Rows to train on and rows to judge by.

    Attributes:
        X, y: (N, I), float32, standardised, and (N,), as the likelihood takes them.
        X_test: (M, I), float32, standardised by the training rows.
        y_test: (M,), as they are.
    """

    X: Tensor
    y: Tensor
    X_test: Tensor
    y_test: Tensor

    @property
    @abstractmethod
    def outputs(self) -> int:
        """Of the network."""

    @abstractmethod
    def likelihood(self, setup: Setup) -> Likelihood:
        """To train with."""

    def judged(self, trained: Likelihood, setup: Setup) -> Likelihood:
        """To predict with."""
        return trained

    def as_they_are(self, p: Predictive) -> Predictive:
        """What a model believes, of targets like `y_test`."""
        return p


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Numbers(Split):
    """Targets that are numbers: y float32, standardised; y_test float64, in their own unit.

    Attributes:
        mean, std: of the training targets, in their unit.
    """

    mean: float
    std: float

    @property
    def outputs(self) -> int:
        return 1

    def likelihood(self, setup: Setup) -> Gaussian:
        if "learned" in setup.noise:
            return Gaussian(std=setup.noise["learned"], learn=True)
        return Gaussian(std=setup.noise.get("training", setup.noise["fixed"] / self.std))

    def judged(self, trained: Likelihood, setup: Setup) -> Likelihood:
        return Gaussian(std=setup.noise["fixed"] / self.std) if "training" in setup.noise else trained

    def as_they_are(self, p: Predictive) -> GaussianPredictive:
        assert isinstance(p, GaussianPredictive)
        # A large mean would swallow small deviations in single precision.
        return GaussianPredictive(p.means.double(), p.stds.double()).rescale(self.mean, self.std)


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Classes(Split):
    """Targets that are classes: y and y_test int64, 0 ... K-1.

    Attributes:
        classes: K.
    """

    classes: int

    @property
    def outputs(self) -> int:
        return self.classes

    def likelihood(self, setup: Setup) -> Categorical:
        return Categorical()


def make_split(X: np.ndarray, y: np.ndarray, train: np.ndarray, test: np.ndarray, classes: int | None = None) -> Split:
    """Standardise by the training rows: mean 0 and standard deviation 1 there; columns that are constant there are centred only.

    Args:
        X, y: all rows.
        train, test: row numbers.
        classes: K, where the targets are classes; None where they are numbers, which are standardised like the inputs.

    Raises:
        ValueError: training targets that are all the same.
    """
    inputs, targets = X[train], y[train]
    constant = inputs.min(0) == inputs.max(0)  # mean and standard deviation of equal numbers can be off by rounding
    center, scale = np.where(constant, inputs[0], inputs.mean(0)), np.where(constant, 1.0, inputs.std(0))
    if targets.min() == targets.max():
        raise ValueError(f"all {len(targets)} training targets are {targets[0]}; there is nothing to learn")
    standard = torch.from_numpy((X - center) / scale).float()
    X_train, X_test = standard[train], standard[test]
    if classes is not None:
        labels = torch.from_numpy(y).long()
        return Classes(X=X_train, y=labels[train], X_test=X_test, y_test=labels[test], classes=classes)
    mean, std = float(targets.mean()), float(targets.std())
    return Numbers(
        X=X_train,
        y=torch.from_numpy((targets - mean) / std).float(),
        X_test=X_test,
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
