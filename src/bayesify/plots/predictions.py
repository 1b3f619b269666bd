"""Figures about predictions: against the truth, along one input, split into kinds of uncertainty, by feature."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from matplotlib.axes import Axes
from torch import Tensor

from bayesify.core.checks import check_fraction
from bayesify.plots.style import BLUE, INK, MUTED, ORANGE, axes, label, legend, shorten
from bayesify.plots.values import classes, equal_bins, one_output, uncertainty
from bayesify.predictive import Predictive

if TYPE_CHECKING:
    from pandas import Series

__all__ = ["plot_bands", "plot_confusion", "plot_feature", "plot_predictions", "plot_uncertainty"]

MANY = 2000  # points above which they become one picture, so that the file stays small


def plot_predictions(
    predictive: Predictive, y: Tensor, ax: Axes | None = None, *, level: float = 0.95, output: int = 0, name: str = "target"
) -> Axes:
    """True values against predicted ones; up to 300 rows with their intervals, the ones that missed in orange.

    Args:
        predictive: of numbers, N rows.
        y: targets, (N,) or (N, D).
        ax: where to draw; a new figure if None.
        level: of the intervals.
        output: which of D outputs.
        name: what the target is called.

    Returns:
        The Axes.
    """
    check_fraction("level", level)
    p, y = one_output(predictive, y, output)
    ax = axes(ax)
    mean = p.mean
    lower, upper = p.interval(level)
    inside = (lower <= y) & (y <= upper)
    ends = [min(mean.min().item(), y.min().item()), max(mean.max().item(), y.max().item())]
    ax.plot(ends, ends, color=MUTED, linewidth=1, linestyle=(0, (4, 3)))
    raster, size = len(y) > MANY, 14 if len(y) <= 300 else 6
    for chosen, color, text in ((inside, BLUE, f"inside the {level:.0%} interval"), (~inside, ORANGE, "outside")):
        if not chosen.any():
            continue
        if len(y) <= 300:
            ax.vlines(y[chosen], lower[chosen], upper[chosen], color=color, alpha=0.35, linewidth=1)
        alpha = 0.85 if len(y) <= 300 else 0.4
        ax.scatter(y[chosen], mean[chosen], s=size, color=color, alpha=alpha, linewidths=0, rasterized=raster, label=text)
    label(ax, f"true {name}", f"predicted {name}")
    legend(ax, loc="upper left")
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
    """Mean and intervals along one input: the dark band is the model's doubt (epistemic), the light one adds the noise in the data.

    Args:
        predictive: of numbers, at the N inputs x.
        x: (N,) or (N, 1).
        ax: where to draw; a new figure if None.
        level: of both bands. The outer one is the interval of the mixture, the inner one that of the draws' means.
        output: which of D outputs.
        data: (x, y) of points to show.

    Returns:
        The Axes.
    """
    check_fraction("level", level)
    p, _ = one_output(predictive, output=output)
    ax = axes(ax, (6.4, 3.6))
    x = torch.as_tensor(x).detach().double().cpu().flatten()
    order = x.argsort()
    tails = torch.tensor([(1 - level) / 2, (1 + level) / 2], dtype=torch.float64)
    inner, outer = p.means.quantile(tails, 0), p.interval(level)
    ax.fill_between(x[order], outer[0][order], outer[1][order], color=BLUE, alpha=0.16, linewidth=0, label="with noise in the data")
    ax.fill_between(x[order], inner[0][order], inner[1][order], color=BLUE, alpha=0.3, linewidth=0, label="the model's doubt")
    ax.plot(x[order], p.mean[order], color=BLUE, label="mean")
    if data is not None:
        ax.scatter(
            *(torch.as_tensor(v).detach().cpu().flatten() for v in data), s=9, color=INK, alpha=0.7, linewidths=0, label="data"
        )
    label(ax, "x", "y")
    legend(ax)
    return ax


def plot_confusion(predictive: Predictive, y: Tensor, ax: Axes | None = None, *, names: Sequence[object] | None = None) -> Axes:
    """How often each true class was predicted as which one: rows are true classes, shades their shares, numbers counts.

    Args:
        predictive: of classes, N rows.
        y: labels, (N,).
        ax: where to draw; a new figure if None.
        names: of the K classes; shown, like the counts, for up to 12 of them.

    Returns:
        The Axes.
    """
    values = classes(predictive, y)
    k = values.probs.shape[1]
    table = torch.bincount(values.y * k + values.prediction, minlength=k * k).view(k, k)
    ax = axes(ax, (4.6, 4.0))
    ax.grid(False)
    ax.spines[["left", "bottom"]].set_visible(False)
    share = table / table.sum(1, keepdim=True).clamp_min(1)
    # Squares of one colour and different strength read well on a light page and on a dark one.
    red, green, blue = (int(BLUE[i : i + 2], 16) / 255 for i in (1, 3, 5))
    picture = torch.stack([torch.full_like(share, red), torch.full_like(share, green), torch.full_like(share, blue), share], -1)
    ax.imshow(picture.numpy(), aspect="auto", interpolation="nearest")
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
    """All rows from the most to the least certain, their uncertainty split into its two kinds.

    Numbers: the height is the standard deviation, split in the proportion of the variances. Classes: entropy, the sum of both
    kinds, in nats.

    Args:
        predictive: N rows.
        ax: where to draw; a new figure if None.
        output: which of D outputs.

    Returns:
        The Axes.
    """
    total, noise, name = uncertainty(predictive, output)
    order = total.argsort()
    pick = torch.linspace(0, len(total) - 1, min(400, len(total))).round().long()
    total, noise = total[order][pick], noise[order][pick]
    place = (pick + 0.5) / len(order) if len(pick) > 1 else torch.tensor([0.0, 1.0])
    total, noise = (v if len(pick) > 1 else v.repeat(2) for v in (total, noise))
    ax = axes(ax)
    ax.fill_between(100 * place, 0, noise, color=MUTED, alpha=0.45, linewidth=0, label="noise in the data (aleatoric)")
    ax.fill_between(100 * place, noise, total, color=ORANGE, alpha=0.75, linewidth=0, label="the model's doubt (epistemic)")
    ax.set_xlim(0, 100)
    ax.set_ylim(0, max(1.25 * total.max().item(), 1e-12))
    ax.xaxis.set_major_formatter("{x:.0f}%")
    label(ax, "rows, most certain first", name)
    legend(ax, loc="upper left")
    return ax


def plot_feature(predictive: Predictive, feature: Series, ax: Axes | None = None, *, output: int = 0) -> Axes:
    """Uncertainty against one feature: rows and their running median, or the mean per category (ten most frequent).

    Args:
        predictive: N rows.
        feature: a pandas Series of N values; missing ones are left out.
        ax: where to draw; a new figure if None.
        output: which of D outputs.

    Returns:
        The Axes.
    """
    from pandas.api.types import is_bool_dtype, is_datetime64_any_dtype, is_numeric_dtype

    doubt, _, name = uncertainty(predictive, output)
    if len(feature) != len(doubt):
        raise ValueError(f"feature must have one value per row, {len(doubt)}, got {len(feature)}")
    ax = axes(ax)
    values, doubt = feature.dropna(), doubt[torch.tensor(feature.notna().to_numpy(dtype=bool))]
    if (is_numeric_dtype(values) and not is_bool_dtype(values)) or is_datetime64_any_dtype(values):
        points = values.to_numpy() if is_datetime64_any_dtype(values) else values.to_numpy(dtype=float)
        alpha = 0.6 if len(points) <= 300 else 0.3
        ax.scatter(points, doubt, s=9, color=BLUE, alpha=alpha, linewidths=0, rasterized=len(points) > MANY)
        groups = equal_bins(torch.tensor(values.rank().to_numpy(dtype=float)), 10) if len(values) >= 30 else []
        middle = [(values.iloc[rows.numpy()].median(), doubt[rows].median().item()) for rows in groups]
        if middle:
            ax.plot([x for x, _ in middle], [d for _, d in middle], color=ORANGE, label="median")
            legend(ax)
        ax.set_ylim(bottom=0)
        label(ax, str(feature.name), name)
    else:
        texts = values.astype(str)
        counts = texts.value_counts().head(10)
        means = [doubt[torch.tensor((texts == category).to_numpy())].mean().item() for category in counts.index]
        order = sorted(range(len(means)), key=means.__getitem__)
        ax.barh(range(len(order)), [means[i] for i in order], color=BLUE, alpha=0.75, height=0.65)
        ticks = [f"{shorten(counts.index[i], 18)} ({counts.iloc[i]:,})" for i in order]
        ax.set_yticks(range(len(order)), ticks, parse_math=False)
        ax.grid(visible=False, axis="y")
        label(ax, f"mean {name}", str(feature.name))
    return ax
