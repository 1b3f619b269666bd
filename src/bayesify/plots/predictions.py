"""Figures of predictions: against targets, along one input, by kind of uncertainty, and by feature."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from matplotlib.axes import Axes
from torch import Tensor

from bayesify.core.checks import check_fraction
from bayesify.errors import DataError
from bayesify.plots.statistics import class_predictions, equal_count_bins, row_uncertainty, select_output
from bayesify.plots.style import BLUE, INK, MUTED, ORANGE, REFERENCE, axes, date_axis, label, legend, shorten
from bayesify.predictive import Predictive

if TYPE_CHECKING:
    from pandas import Series

__all__ = ["plot_bands", "plot_confusion", "plot_feature", "plot_predictions", "plot_uncertainty"]

MAX_VECTOR_POINTS = 2000  # more points are rasterized, to limit the size of the file


def plot_predictions(
    predictive: Predictive, y: Tensor, ax: Axes | None = None, *, level: float = 0.95, output: int = 0, name: str = "target"
) -> Axes:
    """Predicted against true values; targets outside their interval are orange. Intervals are drawn for up to 300 rows.

    Args:
        predictive: of regression, N rows.
        y: targets, (N,) or (N, D).
        ax: Axes to draw on; a new figure if None.
        level: level of the intervals.
        output: index of the output.
        name: name of the target.

    Returns:
        The Axes.

    Raises:
        ConfigurationError: `level` is not in [0, 1), or there is no such output.
        TypeError: a predictive distribution of classes.

    Example:
        >>> from bayesify.predictive import GaussianPredictive
        >>> p = GaussianPredictive(torch.zeros(2, 30), torch.tensor(1.0))
        >>> plot_predictions(p, torch.randn(30)).get_ylabel()
        'predicted target'
    """
    check_fraction("level", level)
    p, y = select_output(predictive, y, output)
    ax = axes(ax)
    mean = p.mean
    lower, upper = p.interval(level)
    inside = (lower <= y) & (y <= upper)
    ends = [min(mean.min().item(), y.min().item()), max(mean.max().item(), y.max().item())]
    ax.plot(ends, ends, **REFERENCE)
    raster, size = len(y) > MAX_VECTOR_POINTS, 14 if len(y) <= 300 else 6
    for rows, color, text in ((inside, BLUE, f"inside the {level:.0%} interval"), (~inside, ORANGE, "outside")):
        if not rows.any():
            continue
        if len(y) <= 300:
            ax.vlines(y[rows], lower[rows], upper[rows], color=color, alpha=0.35, linewidth=1)
        alpha = 0.85 if len(y) <= 300 else 0.4
        ax.scatter(y[rows], mean[rows], s=size, color=color, alpha=alpha, linewidths=0, rasterized=raster, label=text)
    label(ax, f"true {name}", f"predicted {name}")
    legend(ax)
    return ax


def plot_bands(
    predictive: Predictive,
    x: Tensor,
    ax: Axes | None = None,
    *,
    level: float = 0.95,
    output: int = 0,
    data: tuple[Tensor, Tensor] | None = None,
) -> Axes:
    """Mean and intervals along one input: epistemic uncertainty is dark, aleatoric uncertainty adds the light band.

    Args:
        predictive: of regression, at the N inputs x.
        x: (N,) or (N, 1).
        ax: Axes to draw on; a new figure if None.
        level: level of both bands. The outer band is the interval of the mixture, the inner one the interval of the draws' means.
        output: index of the output.
        data: (x, y) of points to show.

    Returns:
        The Axes.

    Raises:
        ConfigurationError: `level` is not in [0, 1), or there is no such output.
        TypeError: a predictive distribution of classes.

    Example:
        >>> from bayesify.predictive import GaussianPredictive
        >>> p = GaussianPredictive(torch.zeros(2, 30), torch.tensor(1.0))
        >>> plot_bands(p, torch.linspace(-1, 1, 30)).get_xlabel()
        'x'
    """
    check_fraction("level", level)
    p, _ = select_output(predictive, output=output)
    ax = axes(ax, (6.4, 3.6))
    x = torch.as_tensor(x).detach().double().cpu().flatten()
    order = x.argsort()
    tails = torch.tensor([(1 - level) / 2, (1 + level) / 2], dtype=torch.float64)
    epistemic = p.draw_means.quantile(tails, 0)
    bands = ((p.interval(level), 0.16, "with aleatoric uncertainty"), (epistemic, 0.3, "epistemic uncertainty"))
    for (low, high), alpha, text in bands:
        ax.fill_between(x[order], low[order], high[order], color=BLUE, alpha=alpha, linewidth=0, label=text)
    ax.plot(x[order], p.mean[order], color=BLUE, label="mean")
    if data is not None:
        ax.scatter(
            *(torch.as_tensor(v).detach().cpu().flatten() for v in data), s=9, color=INK, alpha=0.7, linewidths=0, label="data"
        )
    label(ax, "x", "y")
    legend(ax)
    return ax


def plot_confusion(predictive: Predictive, y: Tensor, ax: Axes | None = None, *, names: Sequence[object] | None = None) -> Axes:
    """Confusion matrix: rows are true classes, columns predicted ones; shades show fractions of the row.

    Args:
        predictive: of classification, N rows.
        y: labels, (N,).
        ax: Axes to draw on; a new figure if None.
        names: names of the K classes; names and counts are shown for up to 12 classes.

    Returns:
        The Axes.

    Example:
        >>> from bayesify.predictive import CategoricalPredictive
        >>> p = CategoricalPredictive.from_logits(torch.tensor([[[2.0, 0.0]]]).expand(1, 30, 2))
        >>> plot_confusion(p, torch.arange(30) % 2, names=["no", "yes"]).get_xlabel()
        'predicted class'
    """
    values = class_predictions(predictive, y)
    k = values.probs.shape[1]
    table = torch.bincount(values.y * k + values.prediction, minlength=k * k).view(k, k)
    ax = axes(ax, (4.6, 4.0))
    ax.grid(False)
    ax.spines[["left", "bottom"]].set_visible(False)
    share = table / table.sum(1, keepdim=True).clamp_min(1)
    # one color with varying opacity works on light and dark backgrounds
    red, green, blue = (int(BLUE[i : i + 2], 16) / 255 for i in (1, 3, 5))
    image = torch.stack([torch.full_like(share, red), torch.full_like(share, green), torch.full_like(share, blue), share], -1)
    ax.imshow(image.numpy(), aspect="auto", interpolation="nearest")
    if k <= 12:
        for true in range(k):
            for predicted in range(k):
                count = int(table[true, predicted])
                color = "#ffffff" if share[true, predicted] > 0.5 else INK if count else MUTED
                ax.text(predicted, true, f"{count:,}" if count else "·", ha="center", va="center", color=color, fontsize=8)
        texts = [shorten(name, 14) for name in (range(k) if names is None else names)]
        long = max(map(len, texts)) > 4
        ax.set_xticks(range(k), texts, rotation=45 if long else 0, ha="right" if long else "center", parse_math=False)
        ax.set_yticks(range(k), texts, parse_math=False)
    label(ax, "predicted class", "true class")
    return ax


def plot_uncertainty(predictive: Predictive, ax: Axes | None = None, *, output: int = 0) -> Axes:
    """Uncertainty of all rows in ascending order, split into aleatoric and epistemic.

    Regression: the standard deviation, split in proportion to the variances. Classification: the entropy in nats.

    Args:
        predictive: N rows.
        ax: Axes to draw on; a new figure if None.
        output: index of the output.

    Returns:
        The Axes.

    Example:
        >>> from bayesify.predictive import GaussianPredictive
        >>> p = GaussianPredictive(torch.zeros(2, 30), torch.tensor(1.0))
        >>> plot_uncertainty(p).get_ylabel()
        'predicted standard deviation'
    """
    total, noise, name = row_uncertainty(predictive, output)
    order = total.argsort()
    pick = torch.linspace(0, len(total) - 1, min(400, len(total))).round().long()
    total, noise = total[order][pick], noise[order][pick]
    position = (pick + 0.5) / len(order) if len(pick) > 1 else torch.tensor([0.0, 1.0])
    total, noise = (v if len(pick) > 1 else v.repeat(2) for v in (total, noise))
    ax = axes(ax)
    ax.fill_between(100 * position, 0, noise, color=MUTED, alpha=0.45, linewidth=0, label="aleatoric")
    ax.fill_between(100 * position, noise, total, color=ORANGE, alpha=0.75, linewidth=0, label="epistemic")
    ax.set_xlim(0, 100)
    ax.set_ylim(0, max(1.05 * total.max().item(), 1e-12))
    ax.xaxis.set_major_formatter("{x:.0f}%")
    label(ax, "rows by increasing uncertainty", name)
    legend(ax)
    return ax


def plot_feature(predictive: Predictive, feature: Series, ax: Axes | None = None, *, output: int = 0) -> Axes:
    """Uncertainty against one feature: rows with binned medians, or means of the ten most frequent categories.

    Args:
        predictive: N rows.
        feature: a pandas Series of N values; missing values are ignored.
        ax: Axes to draw on; a new figure if None.
        output: index of the output.

    Returns:
        The Axes.

    Raises:
        DataError: another number of values than rows.

    Example:
        >>> import pandas
        >>> from bayesify.predictive import GaussianPredictive
        >>> p = GaussianPredictive(torch.zeros(2, 30), torch.tensor(1.0))
        >>> plot_feature(p, pandas.Series(range(30), name="area")).get_xlabel()
        'area'
    """
    from pandas.api.types import is_bool_dtype, is_datetime64_any_dtype, is_numeric_dtype

    total, _, name = row_uncertainty(predictive, output)
    if len(feature) != len(total):
        raise DataError(f"feature must have {len(total)} values, one per row, got {len(feature)}")
    ax = axes(ax)
    values, total = feature.dropna(), total[torch.tensor(feature.notna().to_numpy(dtype=bool))]
    if (is_numeric_dtype(values) and not is_bool_dtype(values)) or is_datetime64_any_dtype(values):
        points = values.to_numpy() if is_datetime64_any_dtype(values) else values.to_numpy(dtype=float)
        alpha = 0.6 if len(points) <= 300 else 0.3
        ax.scatter(points, total, s=9, color=BLUE, alpha=alpha, linewidths=0, rasterized=len(points) > MAX_VECTOR_POINTS)
        groups = equal_count_bins(torch.tensor(values.rank().to_numpy(dtype=float)), 10) if len(values) >= 30 else []
        medians = [(values.iloc[rows.numpy()].median(), total[rows].median().item()) for rows in groups]
        if medians:
            ax.plot([x for x, _ in medians], [d for _, d in medians], color=ORANGE, label="median")
            legend(ax)
        ax.set_ylim(bottom=0)
        if is_datetime64_any_dtype(values):
            date_axis(ax)
        label(ax, str(feature.name), name)
    else:
        texts = values.astype(str)
        counts = texts.value_counts().head(10)
        means = [total[torch.tensor((texts == category).to_numpy())].mean().item() for category in counts.index]
        order = sorted(range(len(means)), key=means.__getitem__)
        ax.barh(range(len(order)), [means[i] for i in order], color=BLUE, alpha=0.75, height=0.65)
        ticks = [f"{shorten(counts.index[i], 18)} ({counts.iloc[i]:,})" for i in order]
        ax.set_yticks(range(len(order)), ticks, parse_math=False)
        ax.grid(visible=False, axis="y")
        label(ax, f"mean {name}", str(feature.name))
    return ax
