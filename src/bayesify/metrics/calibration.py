"""Calibration: accuracy compared with confidence, in bins of confidence.

Shapes: N rows, K classes. `probs` are (N, K), or (N,) as the probability of class 1 of two; labels y are (N,).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from bayesify.core.checks import check_choice, check_integer
from bayesify.errors import ConfigurationError
from bayesify.metrics.predictions import top_class
from bayesify.metrics.requirements import classification_metrics

__all__ = ["Reliability", "expected_calibration_error", "maximum_calibration_error", "reliability"]


class Reliability(NamedTuple):
    """Mean confidence, accuracy (both NaN for empty bins) and number of rows per bin of confidence, each (bins,)."""

    confidence: Tensor
    accuracy: Tensor
    count: Tensor  # pyright: ignore[reportIncompatibleMethodOverride]


def reliability(probs: Tensor, y: Tensor, bins: int = 15, binning: str = "width") -> Reliability:
    """Accuracy and mean confidence (probability of the predicted class) in bins of confidence.

    Args:
        probs, y: probabilities (N, K) or (N,) and labels (N,).
        bins: number of bins.
        binning: "width" for intervals [a, b) of equal width over [0, 1], the last one closed; "mass" for about equally many rows
            per bin, with rows of equal confidence in the same bin.

    Raises:
        ConfigurationError: `bins` is below 1, or another `binning`.
        TypeError, DataError: probabilities that are none, or labels that do not fit them.

    Source: Guo, Pleiss, Sun & Weinberger, *On calibration of modern neural networks* (2017), section 2.

    Example:
        >>> reliability(torch.tensor([0.9, 0.8, 0.6]), torch.tensor([1, 0, 1]), bins=2).count
        tensor([0, 3])
    """
    check_integer("bins", bins)
    check_choice("binning", binning, ("width", "mass"))
    confidence, correct = top_class(probs, y)
    if binning == "width":
        edges = torch.linspace(0, 1, bins + 1, dtype=confidence.dtype, device=confidence.device)
        index = torch.bucketize(confidence, edges[1:-1], right=True)
    else:
        smaller = torch.searchsorted(confidence.sort().values, confidence)  # rows of smaller confidence
        index = smaller * bins // len(confidence)
    count = torch.zeros(bins, dtype=torch.long, device=index.device).index_add(0, index, torch.ones_like(index))
    confidence, correct = (torch.zeros(bins, dtype=v.dtype, device=v.device).index_add(0, index, v) for v in (confidence, correct))
    return Reliability(confidence / count, correct / count, count)


def expected_calibration_error(probs: Tensor, y: Tensor, bins: int = 15, binning: str = "width") -> Tensor:
    r"""Mean gap between confidence and accuracy, $\sum_b \frac{n_b}{N} |\mathrm{acc}_b - \mathrm{conf}_b|$; see `reliability`.

    Source: Guo, Pleiss, Sun & Weinberger (2017), equation (3).

    Example:
        >>> expected_calibration_error(torch.tensor([0.9, 0.8]), torch.tensor([1, 0]), binning="mass", bins=1)
        tensor(0.3500)
    """
    if binning != "width":
        confidence, correct, count = reliability(probs, y, bins, binning)
        return ((correct - confidence).abs().nan_to_num() * count).sum() / count.sum()
    return confidence_gap(*top_class(probs, y), bins)


def confidence_gap(confidence: Tensor, correct: Tensor, bins: int = 15) -> Tensor:
    """`expected_calibration_error` of equal-width bins, from the probability (N,) of each predicted class and whether it is right.

    Example:
        >>> confidence_gap(torch.tensor([0.9, 0.8]), torch.tensor([1.0, 0.0]), bins=1)
        tensor(0.3500)
    """
    check_integer("bins", bins)
    # torchmetrics puts a confidence of exactly 1 into a bin beyond the last
    below_one = torch.nextafter(torch.ones_like(confidence), torch.zeros_like(confidence))
    return classification_metrics().binary_calibration_error(confidence.minimum(below_one), correct.long(), n_bins=bins, norm="l1")


def maximum_calibration_error(probs: Tensor, y: Tensor, bins: int = 15, binning: str = "width", least: int = 1) -> Tensor:
    r"""Largest gap between confidence and accuracy, $\max_b |\mathrm{acc}_b - \mathrm{conf}_b|$; see `reliability`.

    Bins of fewer than `least` rows, whose gaps are mostly noise, are left out (Chang et al., 2019, use 6).

    Raises:
        ConfigurationError: all bins have fewer than `least` rows.

    Source: Guo, Pleiss, Sun & Weinberger (2017), equation (5).

    Example:
        >>> maximum_calibration_error(torch.tensor([0.9, 0.8]), torch.tensor([1, 0]), binning="mass", bins=2)
        tensor(0.8000)
    """
    check_integer("least", least)
    confidence, correct, count = reliability(probs, y, bins, binning)
    gaps = (correct - confidence).abs()[count >= least]
    if len(gaps) == 0:
        raise ConfigurationError(
            f"no bin has least={least} rows, the largest has {int(count.max())}; use a smaller number or fewer bins"
        )
    return gaps.max()
