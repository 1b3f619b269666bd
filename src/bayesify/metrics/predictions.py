"""Scores of class probabilities, predictive means and intervals, each a mean over rows.

Shapes: N rows, K classes. `probs` are (N, K), or (N,) as the probability of class 1 of two; labels y are (N,).
"""

from __future__ import annotations

import torch
from torch import Tensor

from bayesify.errors import DataError
from bayesify.predictive import NumericPredictive
from bayesify.predictive.base import align_targets
from bayesify.predictive.targets import check_labels

__all__ = ["accuracy", "brier", "checked_probs", "coverage", "crps", "interval_width", "nll", "rmse", "top_class"]

_ROUNDING = 0.01  # of sums of probabilities: those of bfloat16 have three digits


def nll(probs: Tensor, y: Tensor) -> Tensor:
    """Negative log probability of the labels, in nats; unlike `predictive.log_prob` infinite where probabilities round to 0.

    Example:
        >>> nll(torch.tensor([[0.5, 0.5], [0.1, 0.9]]), torch.tensor([0, 1]))
        tensor(0.3993)
    """
    probs, y = checked_probs(probs, y)
    return -probs.gather(1, y.unsqueeze(1)).log().mean()


def brier(probs: Tensor, y: Tensor) -> Tensor:
    r"""Brier score, $\sum_k (p_k - 1[y = k])^2$ in [0, 2]; for two classes twice the one-class form.

    Source: Brier, *Verification of forecasts expressed in terms of probability* (1950), equation (2).

    Example:
        >>> brier(torch.tensor([[0.5, 0.5], [0.0, 1.0]]), torch.tensor([0, 1]))
        tensor(0.2500)
    """
    probs, y = checked_probs(probs, y)
    return (probs - torch.nn.functional.one_hot(y, probs.shape[1])).square().sum(1).mean()


def accuracy(probs: Tensor, y: Tensor) -> Tensor:
    """Share of rows whose most probable class is correct.

    Example:
        >>> accuracy(torch.tensor([0.9, 0.9]), torch.tensor([0, 1]))
        tensor(0.5000)
    """
    return top_class(probs, y)[1].mean()


def rmse(mean: Tensor, y: Tensor) -> Tensor:
    """Root of the mean squared error of the predictive mean, over rows and outputs, in the unit of y.

    Raises:
        DataError: no rows, NaN or infinity, or shapes that differ.

    Example:
        >>> rmse(torch.tensor([1.0, 1.0]), torch.tensor([1.0, 3.0]))
        tensor(1.4142)
    """
    y = align_targets(y, mean.shape).to(mean.dtype)
    _check_finite(mean=mean, y=y)
    return (mean - y).square().mean().sqrt()


def coverage(lower: Tensor, upper: Tensor, y: Tensor) -> Tensor:
    """Share of targets inside their interval, ends included; 0.95 is ideal for 95 % intervals.

    Raises:
        DataError: no intervals, NaN, `lower` above `upper`, or shapes that differ.

    Example:
        >>> coverage(torch.zeros(2), torch.ones(2), torch.tensor([0.5, 1.5]))
        tensor(0.5000)
    """
    _check_interval(lower, upper)
    y = align_targets(y, lower.shape)
    _check_finite(y=y)
    return _floating((lower <= y) & (y <= upper), lower.dtype).mean()


def interval_width(lower: Tensor, upper: Tensor) -> Tensor:
    """Mean width of the intervals, in the unit of y; at equal coverage, narrower is better.

    Raises:
        DataError: no intervals, NaN, `lower` above `upper`, or shapes that differ.

    Example:
        >>> interval_width(torch.zeros(2), torch.tensor([1.0, 2.0]))
        tensor(1.5000)
    """
    _check_interval(lower, upper)
    return (_floating(upper, upper.dtype) - _floating(lower, lower.dtype)).mean()


def crps(predictive: NumericPredictive, y: Tensor) -> Tensor:
    """Continuous ranked probability score in the unit of y: the mean of `NumericPredictive.crps` over rows and outputs.

    Example:
        >>> from bayesify.predictive import GaussianPredictive
        >>> crps(GaussianPredictive(torch.zeros(1, 1), torch.tensor(1.0)), torch.zeros(1))
        tensor(0.2337)
    """
    return predictive.crps(y).mean()


def _check_finite(**values: Tensor) -> None:
    for name, x in values.items():
        if x.numel() == 0:
            raise DataError(f"{name} must have at least one value, got shape {tuple(x.shape)}")
        if not x.isfinite().all():
            raise DataError(f"{name} must be finite, got {int((~x.isfinite()).sum())} NaN or infinite of {x.numel()} values")


def _floating(x: Tensor, dtype: torch.dtype) -> Tensor:
    """`x` in a dtype, or in float32 if that has no fractions."""
    return x.to(dtype if dtype.is_floating_point else torch.float32)


def _check_interval(lower: Tensor, upper: Tensor) -> None:
    """Ends may be infinite, but not NaN."""
    if lower.numel() == 0:
        raise DataError(f"lower must have at least one value, got shape {tuple(lower.shape)}")
    if lower.shape != upper.shape:
        raise DataError(f"lower and upper must have the same shape, got {tuple(lower.shape)} and {tuple(upper.shape)}")
    if wrong := int((~(lower <= upper)).sum()):
        raise DataError(f"lower must not be above upper, and neither NaN, got {wrong} such of {lower.numel()} intervals")


def checked_probs(probs: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Probabilities (N, K) and labels (N,), checked."""
    probs = torch.stack([1 - probs, probs], 1) if probs.dim() == 1 else probs
    if probs.dim() != 2 or y.shape != probs.shape[:1] or len(y) == 0:
        raise DataError(f"probs must be (N, K) or (N,) and y (N,), N at least 1, got {tuple(probs.shape)} and {tuple(y.shape)}")
    if not ((probs >= 0) & (probs <= 1 + 1e-4)).all():
        raise DataError(
            "probs must be in [0, 1] and not NaN; apply softmax(-1) or sigmoid() to logits and average over draws first"
        )
    error = (probs.sum(1, dtype=torch.float64) - 1).abs().max()
    if error > _ROUNDING:
        raise DataError(f"probs must sum to 1 in every row, got sums that differ by up to {float(error):.3g}; apply softmax(-1)")
    y = y.long() if y.dtype == torch.bool else y
    check_labels(y, probs.shape[1])
    return probs, y.long()


def top_class(probs: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Probability of the predicted class, at most 1, and whether that class is correct (1 or 0), each (N,)."""
    probs, y = checked_probs(probs, y)
    highest, predicted = probs.max(1)
    return highest.clamp_max(1), (predicted == y).to(probs.dtype)
