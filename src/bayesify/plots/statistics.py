"""Statistics of predictive distributions for figures and reports: float64 tensors on the CPU with one value per row.

Shapes: S draws, N rows, K classes, D outputs.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from bayesify.core.checks import check_fraction, check_integer
from bayesify.errors import ConfigurationError, DataError
from bayesify.predictive import BernoulliPredictive, CategoricalPredictive, NumericPredictive, Predictive
from bayesify.predictive.base import align_targets

__all__ = ["ClassPredictions", "binomial_interval", "class_predictions", "equal_count_bins", "row_uncertainty", "select_output"]


class ClassPredictions(NamedTuple):
    """Predictions and labels of N rows: probs (N, K), y (N,), entropy (N,) and mutual_information (N,) in nats."""

    probs: Tensor
    y: Tensor
    entropy: Tensor
    mutual_information: Tensor

    @property
    def confidence(self) -> Tensor:
        """Probability of the predicted class, (N,)."""
        return self.probs.amax(1).clamp_max(1)

    @property
    def prediction(self) -> Tensor:
        """Most probable class, (N,)."""
        return self.probs.argmax(1)

    @property
    def correct(self) -> Tensor:
        """1 for correct predictions, 0 for others, (N,)."""
        return (self.prediction == self.y).to(self.probs.dtype)


def class_predictions(predictive: Predictive, y: Tensor) -> ClassPredictions:
    """Flatten predictions and labels; rows are labels, or tokens that are not ignored.

    Raises:
        TypeError: a regression predictive.
        DataError: no rows, or labels of another shape.
    """
    if not isinstance(predictive, CategoricalPredictive | BernoulliPredictive):
        raise TypeError(
            f"predictive must be of classification, got {type(predictive).__name__}; see plot_predictions and plot_coverage"
        )
    log_probs = predictive.log_probs
    y = align_targets(torch.as_tensor(y), tuple(log_probs.shape[:-1])).flatten().long().cpu()
    rows = y != predictive.ignore_index if isinstance(predictive, CategoricalPredictive) else torch.ones_like(y, dtype=torch.bool)
    values = (log_probs.exp().flatten(0, -2), predictive.entropy.flatten(), predictive.mutual_information.flatten())
    probs, entropy, information = (x.detach().double().cpu()[rows] for x in values)
    if len(probs) == 0:
        raise DataError("y must have at least one label that is not ignored")
    return ClassPredictions(probs, y[rows], entropy, information)


def select_output(predictive: Predictive, y: Tensor | None = None, output: int = 0) -> tuple[NumericPredictive, Tensor]:
    """Select one output of a regression predictive, with mean (N,), and its targets (N,); zeros without y.

    Raises:
        TypeError: a classification predictive.
        ConfigurationError: `output` is not an index of an output.
        DataError: targets of another shape.
    """
    if not isinstance(predictive, NumericPredictive):
        raise TypeError(
            f"predictive must be of regression, got {type(predictive).__name__}; see plot_reliability and plot_confusion"
        )
    p = predictive.detach().to("cpu").double()
    y = torch.zeros(p.mean.shape) if y is None else align_targets(torch.as_tensor(y), tuple(p.mean.shape))
    y = y.detach().double().cpu()
    check_integer("output", output, least=0)
    outputs = 1 if p.mean.dim() == 1 else p.mean.shape[-1]
    if output >= outputs:
        raise ConfigurationError(f"output must be below {outputs}, the number of outputs, got {output}")
    return (p, y) if p.mean.dim() == 1 else (p.output(output), y[..., output])


def row_uncertainty(predictive: Predictive, output: int = 0) -> tuple[Tensor, Tensor, str]:
    """Total uncertainty of each row, its aleatoric part, both (N,), and the name of the quantity.

    Regression: the standard deviation, split in proportion to the variances. Classification: the entropy in nats, averaged over the
    labels or tokens of a row.
    """
    if isinstance(predictive, NumericPredictive):
        p, _ = select_output(predictive, output=output)
        return p.std, p.aleatoric / p.std, "predicted standard deviation"
    total, aleatoric = (x.detach().double().cpu() for x in (predictive.entropy, predictive.aleatoric))
    total, aleatoric = (x.flatten(1).mean(1) if x.dim() > 1 else x for x in (total, aleatoric))
    return total, aleatoric.minimum(total), "entropy (nats)"


def binomial_interval(n: int, p: float, mass: float = 0.95) -> tuple[float, float]:
    r"""Central interval of the success fraction in n trials: binomial quantiles at $(1 \mp \text{mass})/2$, divided by n.

    Args:
        n: number of trials.
        p: success probability, in [0, 1].
        mass: probability of the interval, in [0, 1).

    Example:
        >>> binomial_interval(20, 0.95)
        (0.85, 1.0)
    """
    check_integer("n", n)
    check_fraction("mass", mass)
    if not 0 <= p <= 1:
        raise ConfigurationError(f"p must be in [0, 1], got {p!r}")
    k = torch.arange(n + 1, dtype=torch.float64)
    p_success, p_failure, trials = torch.tensor([p, 1 - p, n + 1], dtype=torch.float64)
    log_mass = torch.special.xlogy(k, p_success) + torch.special.xlogy(n - k, p_failure)
    log_mass += torch.lgamma(trials) - torch.lgamma(k + 1) - torch.lgamma(n - k + 1)
    cdf = log_mass.exp().cumsum(0)
    ends = torch.searchsorted(cdf, torch.tensor([(1 - mass) / 2, (1 + mass) / 2], dtype=torch.float64)).clamp_max(n)
    return ends[0].item() / n, ends[1].item() / n


def equal_count_bins(values: Tensor, bins: int) -> list[Tensor]:
    """Split row indices, sorted by value, into at most `bins` groups of nearly equal size, of five rows or more."""
    return list(torch.tensor_split(values.argsort(), max(1, min(bins, len(values) // 5))))
