"""Figures about trust: does what the model says about its errors hold?"""

from __future__ import annotations

import torch
from matplotlib.axes import Axes
from matplotlib.ticker import PercentFormatter
from torch import Tensor

from bayesify.metrics import reliability
from bayesify.plots.style import BLUE, MUTED, axes, label, legend
from bayesify.plots.values import binomial_range, classes, equal_bins, one_output
from bayesify.predictive import GaussianPredictive, Predictive

__all__ = ["plot_coverage", "plot_rejection", "plot_reliability", "plot_uncertainty_error"]


def plot_coverage(predictive: Predictive, y: Tensor, ax: Axes | None = None, *, output: int = 0) -> Axes:
    """How many targets the central intervals hold, at every level; ideal is the diagonal.

    The grey band holds 95 % of what a perfectly calibrated model would show on so many rows (pointwise, binomial).

    Args:
        predictive: of numbers, N rows.
        y: targets, (N,) or (N, D).
        ax: where to draw; a new figure if None (`ax.figure`).
        output: which of D outputs.

    Returns:
        The Axes.

    Example:
        >>> from bayesify.predictive import GaussianPredictive
        >>> plot_coverage(GaussianPredictive(torch.zeros(1, 50), torch.tensor(1.0)), torch.randn(50)).get_xlabel()
        'level of the interval'
    """
    p, y = one_output(predictive, y, output)
    ax = axes(ax)
    grid = torch.linspace(0, 1, 41, dtype=torch.float64)
    band = torch.tensor([binomial_range(len(y), level) for level in grid.tolist()])
    ax.fill_between(grid, band[:, 0], band[:, 1], color=MUTED, alpha=0.18, linewidth=0, label="expected by chance")
    ax.plot([0, 1], [0, 1], color=MUTED, linewidth=1, linestyle=(0, (4, 3)), label="ideal")
    # y lies inside the central interval of level |2 F(y) - 1| and every wider one.
    needed = (2 * p.cdf(y) - 1).abs().sort().values
    levels = torch.linspace(0, 1, 201, dtype=torch.float64)
    ax.plot(levels, torch.searchsorted(needed, levels, right=True) / len(y), color=BLUE, label="this model")
    _percent(ax, "xy")
    label(ax, "level of the interval", "targets inside")
    legend(ax, loc="upper left")
    return ax


def plot_reliability(predictive: Predictive, y: Tensor, ax: Axes | None = None, *, bins: int = 10, binning: str = "width") -> Axes:
    """Confidence against accuracy; ideal is the diagonal. Bars at the bottom count the rows of each bin.

    The grey ticks hold 95 % of what a perfectly calibrated model would show on so many rows.

    Args:
        predictive: of classes, N rows.
        y: labels, (N,).
        ax: where to draw; a new figure if None.
        bins: the number of bins.
        binning: "width" or "mass", as in `bayesify.metrics.reliability`.

    Returns:
        The Axes.
    """
    values = classes(predictive, y)
    confidence, accuracy, count = reliability(values.probs, values.y, bins, binning)
    filled = count > 0
    confidence, accuracy, count = (x[filled].numpy() for x in (confidence, accuracy, count))
    ax = axes(ax)
    share = 0.2 * count / count.max()
    width = 0.8 / bins if binning == "width" else 0.01
    ax.bar(confidence, share, width=width, color=BLUE, alpha=0.22, linewidth=0)
    for x, height, rows in zip(confidence.tolist(), share.tolist(), count.tolist(), strict=True):
        ax.text(x, height + 0.012, f"{rows:,}", ha="center", va="bottom", color=MUTED, fontsize=7)
    band = [binomial_range(n, c) for n, c in zip(count.tolist(), confidence.tolist(), strict=True)]
    low, high = ([ends[i] for ends in band] for i in (0, 1))
    ax.vlines(confidence, low, high, color=MUTED, alpha=0.35, linewidth=6, label="expected by chance")
    ax.plot([0, 1], [0, 1], color=MUTED, linewidth=1, linestyle=(0, (4, 3)), label="ideal")
    ax.plot(confidence, accuracy, color=BLUE, marker="o", markersize=5, label="this model")
    _percent(ax, "xy")
    label(ax, "confidence", "predictions that were right")
    legend(ax, loc="upper left")
    return ax


def plot_uncertainty_error(predictive: Predictive, y: Tensor, ax: Axes | None = None, *, bins: int = 10, output: int = 0) -> Axes:
    """Error against predicted uncertainty, in bins of equally many rows.

    Numbers: root mean squared error against the predicted standard deviation; on the diagonal they are equal. Classes: share of
    errors against the one predicted (1 - confidence).

    Args:
        predictive: N rows.
        y: targets or labels.
        ax: where to draw; a new figure if None.
        bins: the largest number of bins; each has five rows or more.
        output: which of D outputs.

    Returns:
        The Axes.
    """
    ax = axes(ax)
    if isinstance(predictive, GaussianPredictive):
        p, y = one_output(predictive, y, output)
        groups = equal_bins(p.std, bins)
        said = torch.stack([p.variance[rows].mean().sqrt() for rows in groups])
        found = torch.stack([(y - p.mean)[rows].square().mean().sqrt() for rows in groups])
        # The standard error of a root mean square of n normal errors.
        spread = torch.stack([2 * f / (2 * len(rows)) ** 0.5 for f, rows in zip(found, groups, strict=True)])
        texts = "predicted standard deviation", "root mean squared error"
    else:
        values = classes(predictive, y)
        groups = equal_bins(-values.confidence, bins)
        said = torch.stack([1 - values.confidence[rows].mean() for rows in groups])
        found = torch.stack([1 - values.correct[rows].mean() for rows in groups])
        spread = torch.stack([2 * (f * (1 - f) / len(rows)).sqrt() for f, rows in zip(found, groups, strict=True)])
        texts = "predicted share of errors", "share of errors"
        _percent(ax, "")
    top = 1.08 * max(said.max().item(), (found + spread).max().item(), 1e-12)
    ax.plot([0, top], [0, top], color=MUTED, linewidth=1, linestyle=(0, (4, 3)), label="ideal")
    bars = torch.stack([torch.minimum(spread, found), spread])
    ax.errorbar(said, found, yerr=bars, color=BLUE, fmt="o", markersize=5, elinewidth=1, label="bins of rows, ± 2 standard errors")
    ax.set_xlim(0, 1.08 * max(said.max().item(), 1e-12))
    ax.set_ylim(0, top)
    label(ax, *texts)
    legend(ax, loc="upper left")
    return ax


def plot_rejection(predictive: Predictive, y: Tensor, ax: Axes | None = None, *, output: int = 0) -> Axes:
    """The error of the rows that are kept when the least certain ones are handed to somebody else.

    Numbers: root mean squared error. Classes: accuracy. A useful uncertainty makes the curve better to the right.

    Args:
        predictive: N rows.
        y: targets or labels.
        ax: where to draw; a new figure if None.
        output: which of D outputs.

    Returns:
        The Axes.
    """
    ax = axes(ax)
    numbers = isinstance(predictive, GaussianPredictive)
    if numbers:
        p, y = one_output(predictive, y, output)
        doubt, score = p.std, (y - p.mean).square()
    else:
        values = classes(predictive, y)
        doubt, score = values.entropy, values.correct
    kept = torch.arange(1, len(doubt) + 1, dtype=torch.float64)
    curve = score[doubt.argsort()].cumsum(0) / kept
    curve = curve.sqrt() if numbers else curve
    fewest = min(len(curve), max(10, len(curve) // 20))  # the mean of a few rows is mostly chance
    pick = torch.linspace(fewest - 1, len(curve) - 1, min(200, len(curve) - fewest + 1)).round().long()
    ax.axhline(curve[-1].item(), color=MUTED, linewidth=1, linestyle=(0, (4, 3)), label="all rows")
    ax.plot(
        1 - kept[pick] / len(curve), curve[pick], color=BLUE, marker="o" if len(pick) == 1 else "", label="the rows that are kept"
    )
    ax.set_xlim(0, 1)
    ax.xaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    if numbers:
        ax.set_ylim(0, 1.15 * max(curve[pick].max().item(), 1e-12))
    else:
        ax.yaxis.set_major_formatter(PercentFormatter(1))
        low = min(curve[pick].min().item(), 0.98)
        ax.set_ylim(max(0, low - 0.15 * (1 - low)), 1 + 0.1 * (1 - low))
    label(ax, "share of rows set aside, least certain first", "root mean squared error" if numbers else "accuracy")
    legend(ax, loc="lower left" if numbers else "lower right")
    return ax


def _percent(ax: Axes, limits: str) -> None:
    ax.xaxis.set_major_formatter(PercentFormatter(1, decimals=None))
    ax.yaxis.set_major_formatter(PercentFormatter(1, decimals=None))
    if "x" in limits:
        ax.set_xlim(0, 1)
    if "y" in limits:
        ax.set_ylim(0, 1.0)
