"""Figures of calibration: predicted uncertainty against observed errors."""

from __future__ import annotations

import torch
from matplotlib.axes import Axes
from matplotlib.ticker import PercentFormatter
from torch import Tensor

from bayesify.metrics import reliability
from bayesify.plots.statistics import binomial_interval, class_predictions, equal_count_bins, select_output
from bayesify.plots.style import BLUE, MUTED, REFERENCE, axes, label, legend
from bayesify.predictive import NumericPredictive, Predictive

__all__ = ["plot_coverage", "plot_rejection", "plot_reliability", "plot_uncertainty_error"]


def plot_coverage(predictive: Predictive, y: Tensor, ax: Axes | None = None, *, output: int = 0) -> Axes:
    """Fraction of targets inside the central intervals, at every level; the diagonal is ideal.

    The gray band is the pointwise 95 % range of a perfectly calibrated model on N rows (binomial).

    Args:
        predictive: of regression, N rows.
        y: targets, (N,) or (N, D).
        ax: Axes to draw on; a new figure (`ax.figure`) if None.
        output: index of the output.

    Returns:
        The Axes.

    Example:
        >>> from bayesify.predictive import GaussianPredictive
        >>> plot_coverage(GaussianPredictive(torch.zeros(1, 50), torch.tensor(1.0)), torch.randn(50)).get_xlabel()
        'interval level'
    """
    p, y = select_output(predictive, y, output)
    ax = axes(ax)
    grid = torch.linspace(0, 1, 41, dtype=torch.float64)
    band = torch.tensor([binomial_interval(len(y), level) for level in grid.tolist()])
    ax.fill_between(grid, band[:, 0], band[:, 1], color=MUTED, alpha=0.18, linewidth=0, label="calibrated, 95% range")
    ax.plot([0, 1], [0, 1], **REFERENCE, label="ideal")
    # y is inside the central interval of level |2 F(y) - 1| and every wider one; F(y) of counts is randomized
    smallest_level = (2 * p.pit(y) - 1).abs().sort().values
    levels = torch.linspace(0, 1, 201, dtype=torch.float64)
    ax.plot(levels, torch.searchsorted(smallest_level, levels, right=True) / len(y), color=BLUE, label="observed")
    _percent(ax, "xy")
    label(ax, "interval level", "targets inside the interval")
    legend(ax)
    return ax


def plot_reliability(predictive: Predictive, y: Tensor, ax: Axes | None = None, *, bins: int = 10, binning: str = "width") -> Axes:
    """Accuracy against confidence; the diagonal is ideal. Bars at the bottom show the number of rows in each bin.

    The gray ticks are the 95 % range of a perfectly calibrated model on the rows of the bin.

    Args:
        predictive: of classification, N rows.
        y: labels, (N,).
        ax: Axes to draw on; a new figure if None.
        bins: number of bins.
        binning: "width" or "mass", as in `bayesify.metrics.reliability`.

    Returns:
        The Axes.

    Example:
        >>> from bayesify.predictive import CategoricalPredictive
        >>> p = CategoricalPredictive.from_logits(torch.tensor([[[2.0, 0.0]]]).expand(1, 30, 2))
        >>> plot_reliability(p, torch.arange(30) % 2).get_xlabel()
        'confidence'
    """
    values = class_predictions(predictive, y)
    confidence, accuracy, count = reliability(values.probs, values.y, bins, binning)
    filled = count > 0
    confidence, accuracy, count = (x[filled].numpy() for x in (confidence, accuracy, count))
    ax = axes(ax)
    share = 0.2 * count / count.max()
    width = 0.8 / bins if binning == "width" else 0.01
    ax.bar(confidence, share, width=width, color=BLUE, alpha=0.22, linewidth=0)
    for x, height, rows in zip(confidence.tolist(), share.tolist(), count.tolist(), strict=True):
        ax.text(x, height + 0.012, f"{rows:,}", ha="center", va="bottom", color=MUTED, fontsize=7)
    band = [binomial_interval(n, c) for n, c in zip(count.tolist(), confidence.tolist(), strict=True)]
    low, high = ([ends[i] for ends in band] for i in (0, 1))
    ax.vlines(confidence, low, high, color=MUTED, alpha=0.35, linewidth=6, label="calibrated, 95% range")
    ax.plot([0, 1], [0, 1], **REFERENCE, label="ideal")
    ax.plot(confidence, accuracy, color=BLUE, marker="o", markersize=5, label="observed")
    _percent(ax, "xy")
    label(ax, "confidence", "accuracy")
    legend(ax)
    return ax


def plot_uncertainty_error(predictive: Predictive, y: Tensor, ax: Axes | None = None, *, bins: int = 10, output: int = 0) -> Axes:
    """Error against predicted uncertainty, in bins of equal size; the diagonal is ideal.

    Regression: RMSE against predicted standard deviation. Classification: error rate against 1 - confidence.

    Args:
        predictive: N rows.
        y: targets or labels.
        ax: Axes to draw on; a new figure if None.
        bins: maximum number of bins; each has five rows or more.
        output: index of the output.

    Returns:
        The Axes.

    Example:
        >>> from bayesify.predictive import GaussianPredictive
        >>> p = GaussianPredictive(torch.zeros(2, 30), torch.tensor(1.0))
        >>> plot_uncertainty_error(p, torch.randn(30)).get_xlabel()
        'predicted standard deviation'
    """
    ax = axes(ax)
    if isinstance(predictive, NumericPredictive):
        p, y = select_output(predictive, y, output)
        groups = equal_count_bins(p.std, bins)
        expected = torch.stack([p.variance[rows].mean().sqrt() for rows in groups])
        observed = torch.stack([(y - p.mean)[rows].square().mean().sqrt() for rows in groups])
        # two standard errors of the RMS of n normal errors
        spread = torch.stack([2 * f / (2 * len(rows)) ** 0.5 for f, rows in zip(observed, groups, strict=True)])
        labels = "predicted standard deviation", "root mean squared error"
    else:
        values = class_predictions(predictive, y)
        groups = equal_count_bins(-values.confidence, bins)
        expected = torch.stack([1 - values.confidence[rows].mean() for rows in groups])
        observed = torch.stack([1 - values.correct[rows].mean() for rows in groups])
        spread = torch.stack([2 * (f * (1 - f) / len(rows)).sqrt() for f, rows in zip(observed, groups, strict=True)])
        labels = "predicted error rate", "error rate"
        _percent(ax, "")
    top = 1.08 * max(expected.max().item(), (observed + spread).max().item(), 1e-12)
    ax.plot([0, top], [0, top], **REFERENCE, label="ideal")
    bars = torch.stack([torch.minimum(spread, observed), spread])
    ax.errorbar(expected, observed, yerr=bars, color=BLUE, fmt="o", markersize=5, elinewidth=1, label="bins, ± 2 standard errors")
    ax.set_xlim(0, 1.08 * max(expected.max().item(), 1e-12))
    ax.set_ylim(0, top)
    label(ax, *labels)
    legend(ax)
    return ax


def plot_rejection(predictive: Predictive, y: Tensor, ax: Axes | None = None, *, output: int = 0) -> Axes:
    """Error of the remaining rows after rejecting the most uncertain ones: RMSE (regression) or accuracy (classification).

    Args:
        predictive: N rows.
        y: targets or labels.
        ax: Axes to draw on; a new figure if None.
        output: index of the output.

    Returns:
        The Axes.

    Example:
        >>> from bayesify.predictive import GaussianPredictive
        >>> p = GaussianPredictive(torch.zeros(2, 30), torch.tensor(1.0))
        >>> plot_rejection(p, torch.randn(30)).get_ylabel()
        'root mean squared error'
    """
    ax = axes(ax)
    regression = isinstance(predictive, NumericPredictive)
    if regression:
        p, y = select_output(predictive, y, output)
        total, score = p.std, (y - p.mean).square()
    else:
        values = class_predictions(predictive, y)
        total, score = values.entropy, values.correct
    remaining = torch.arange(1, len(total) + 1, dtype=torch.float64)
    curve = score[total.argsort()].cumsum(0) / remaining
    curve = curve.sqrt() if regression else curve
    fewest = min(len(curve), max(10, len(curve) // 20))  # the mean of a few rows is mostly noise
    pick = torch.linspace(fewest - 1, len(curve) - 1, min(200, len(curve) - fewest + 1)).round().long()
    ax.axhline(curve[-1].item(), **REFERENCE, label="all rows")
    ax.plot(1 - remaining[pick] / len(curve), curve[pick], color=BLUE, marker="o" if len(pick) == 1 else "", label="remaining rows")
    ax.set_xlim(0, 1)
    ax.xaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    if regression:
        ax.set_ylim(0, 1.15 * max(curve[pick].max().item(), 1e-12))
    else:
        ax.yaxis.set_major_formatter(PercentFormatter(1))
        low = min(curve[pick].min().item(), 0.98)
        ax.set_ylim(max(0, low - 0.15 * (1 - low)), 1 + 0.1 * (1 - low))
    label(ax, "fraction of rows rejected, most uncertain first", "root mean squared error" if regression else "accuracy")
    legend(ax)
    return ax


def _percent(ax: Axes, limits: str) -> None:
    ax.xaxis.set_major_formatter(PercentFormatter(1, decimals=None))
    ax.yaxis.set_major_formatter(PercentFormatter(1, decimals=None))
    if "x" in limits:
        ax.set_xlim(0, 1)
    if "y" in limits:
        ax.set_ylim(0, 1.0)
