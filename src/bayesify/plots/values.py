"""What figures and reports read from a predictive distribution, whatever its kind: plain arrays, one number per row.

Shapes: S draws, N rows, K classes, D outputs.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from bayesify.core.checks import check_fraction, check_integer
from bayesify.predictive import BernoulliPredictive, CategoricalPredictive, GaussianPredictive, Predictive
from bayesify.predictive.base import align_targets

__all__ = ["Classes", "binomial_range", "classes", "equal_bins", "one_output", "uncertainty"]


class Classes(NamedTuple):
    """Predictions of a class as one list: probs (N, K), y (N,), entropy (N,) and mutual_information (N,) in nats."""

    probs: Tensor
    y: Tensor
    entropy: Tensor
    mutual_information: Tensor

    @property
    def confidence(self) -> Tensor:
        """The probability of the predicted class, (N,)."""
        return self.probs.amax(1).clamp_max(1)

    @property
    def prediction(self) -> Tensor:
        """The most probable class, (N,)."""
        return self.probs.argmax(1)

    @property
    def correct(self) -> Tensor:
        """Whether that class is right: (N,), 1 or 0."""
        return (self.prediction == self.y).to(self.probs.dtype)


def classes(predictive: Predictive, y: Tensor) -> Classes:
    """The predictions as one list; labels, or tokens that are not ignored, count as rows.

    Raises:
        TypeError: a predictive of numbers.
    """
    if not isinstance(predictive, CategoricalPredictive | BernoulliPredictive):
        raise TypeError(
            f"this needs a predictive of classes, got a {type(predictive).__name__}; see plot_predictions, plot_coverage"
        )
    log_probs = predictive.log_probs
    y = align_targets(torch.as_tensor(y), tuple(log_probs.shape[:-1])).flatten().long().cpu()
    kept = y != predictive.ignore_index if isinstance(predictive, CategoricalPredictive) else torch.ones_like(y, dtype=torch.bool)
    rows = (log_probs.exp().flatten(0, -2), predictive.entropy.flatten(), predictive.mutual_information.flatten())
    probs, entropy, information = (x.detach().double().cpu()[kept] for x in rows)
    if len(probs) == 0:
        raise ValueError("y must hold at least one label that is not ignored")
    return Classes(probs, y[kept], entropy, information)


def one_output(predictive: Predictive, y: Tensor | None = None, output: int = 0) -> tuple[GaussianPredictive, Tensor]:
    """One output of a predictive of numbers, with means (S, N), and its targets (N,), both in float64 (zeros without y).

    Raises:
        TypeError: a predictive of classes.
        ValueError: an output that is not there.
    """
    if not isinstance(predictive, GaussianPredictive):
        raise TypeError(
            f"this needs a predictive of numbers, got a {type(predictive).__name__}; see plot_reliability, plot_confusion"
        )
    means, stds = predictive.means.detach().double().cpu(), predictive.stds.detach().double().cpu()
    y = torch.zeros(means.shape[1:]) if y is None else align_targets(torch.as_tensor(y), means.shape[1:])
    y = y.detach().double().cpu()
    if means.dim() == 2:
        means, stds, y = means.unsqueeze(-1), stds.unsqueeze(-1), y.unsqueeze(-1)
    check_integer("output", output, least=0)
    if output >= means.shape[-1]:
        raise ValueError(f"output must be below {means.shape[-1]}, the number of outputs, got {output}")
    return GaussianPredictive(means[..., output], stds[..., min(output, stds.shape[-1] - 1)]), y[..., output]


def uncertainty(predictive: Predictive, output: int = 0) -> tuple[Tensor, Tensor, str]:
    """How unsure each row is, the part of it that is noise in the data, both (N,), and what they are called.

    Numbers: the standard deviation, split in the proportion of the variances. Classes: entropy in nats, the mean over the labels
    or tokens of a row.
    """
    if isinstance(predictive, GaussianPredictive):
        p, _ = one_output(predictive, output=output)
        return p.std, p.aleatoric / p.std, "predicted standard deviation"
    total, noise = (x.detach().double().cpu() for x in (predictive.entropy, predictive.aleatoric))
    total, noise = (x.flatten(1).mean(1) if x.dim() > 1 else x for x in (total, noise))
    return total, noise.minimum(total), "entropy (nats)"


def binomial_range(n: int, p: float, mass: float = 0.95) -> tuple[float, float]:
    r"""The share of n independent successes of probability p that comes up with probability `mass`: lower and upper end.

    The ends are the $(1 - \text{mass})/2$ and $(1 + \text{mass})/2$ quantiles of the binomial distribution, over n.

    Args:
        n: trials.
        p: probability of each, in [0, 1].
        mass: probability of the range, in [0, 1).

    Example:
        >>> binomial_range(20, 0.95)
        (0.85, 1.0)
    """
    check_integer("n", n)
    check_fraction("mass", mass)
    if not 0 <= p <= 1:
        raise ValueError(f"p must be in [0, 1], got {p!r}")
    k = torch.arange(n + 1, dtype=torch.float64)
    p_success, p_failure, trials = torch.tensor([p, 1 - p, n + 1], dtype=torch.float64)
    log_mass = torch.special.xlogy(k, p_success) + torch.special.xlogy(n - k, p_failure)
    log_mass += torch.lgamma(trials) - torch.lgamma(k + 1) - torch.lgamma(n - k + 1)
    cdf = log_mass.exp().cumsum(0)
    ends = torch.searchsorted(cdf, torch.tensor([(1 - mass) / 2, (1 + mass) / 2], dtype=torch.float64)).clamp_max(n)
    return ends[0].item() / n, ends[1].item() / n


def equal_bins(values: Tensor, bins: int) -> list[Tensor]:
    """Row numbers sorted by value, in at most `bins` groups of nearly equal size, each of five rows or more where there are ten."""
    return list(torch.tensor_split(values.argsort(), max(1, min(bins, len(values) // 5))))
