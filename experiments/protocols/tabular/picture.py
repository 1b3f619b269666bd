"""The overview of a table of data sets: one small picture per data set and metric, the paper's points beside ours."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from experiments.harness.numbers import Estimate
from experiments.harness.protocol import Job, Unit
from experiments.protocols.tabular.tables import Grid, Kind, Metric, Published, mean_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["draw_overview", "visible_range"]


def draw_overview(jobs: Sequence[Job], results: Mapping[str, Mapping[str, Unit]], published: Published, kind: Kind) -> Figure:
    """Means and standard errors, a row of pictures per metric, a column per data set, a line per method."""
    from matplotlib.figure import Figure

    from bayesify.plots.style import INK, MUTED

    grid = Grid(jobs, results)
    figure = Figure(figsize=(1.6 + 1.75 * len(grid.datasets), 1.9 + 0.62 * len(grid.methods)), layout="constrained")
    for part, metric in zip(figure.subfigures(2, 1, squeeze=False)[:, 0], kind.compared, strict=True):
        row = part.subplots(1, len(grid.datasets), squeeze=False, sharey=True)[0]
        for ax, dataset in zip(row, grid.datasets, strict=True):
            _draw(ax, grid, dataset, metric, published)
        row[0].set_yticks(range(len(grid.methods)), grid.methods, color=INK, fontsize=8.5)
        better = "lower is better" if metric.sign < 0 else "higher is better"
        part.supxlabel(f"{metric.title}, mean ± standard error over splits ({better})", color=MUTED, fontsize=8.5)
    found = {label: mark for ax in figure.axes for mark, label in zip(*ax.get_legend_handles_labels(), strict=True)}
    if len(found) > 1:
        style = {"frameon": False, "labelcolor": INK, "fontsize": 8.5, "ncols": 2, "borderpad": 0.0}
        figure.legend(found.values(), found.keys(), loc="outside upper right", **style)
    return figure


def visible_range(values: Sequence[Estimate], sign: int) -> tuple[float, float]:
    """Where an axis begins and ends: it holds all values with their errors, but for those so bad that they would hide the rest.

    Args:
        values: any number of them.
        sign: 1 where more is better, -1 where less is.
    """

    def ends(some: Sequence[Estimate]) -> tuple[float, float]:
        errors = [0.0 if math.isnan(value.error) else value.error for value in some]
        low = min(value.mean - error for value, error in zip(some, errors, strict=True))
        high = max(value.mean + error for value, error in zip(some, errors, strict=True))
        return low, high

    if not values:
        return 0.0, 1.0
    low, high = ends(values)
    for worst in range(1, len(values) - 1):
        rest = sorted(values, key=lambda value: sign * value.mean)[worst:]
        inner = ends(rest)
        if high - low > 5 * (inner[1] - inner[0]) > 0:
            low, high = inner
            break
    margin = 0.08 * (high - low) or 1e-3 * (abs(low) or 1.0)
    return low - margin, high + margin


def _draw(ax: Axes, grid: Grid, dataset: str, metric: Metric, published: Published) -> None:
    from bayesify.plots.style import BLUE, INK, ORANGE, axes

    axes(ax)
    points: list[tuple[Estimate, float, str, str, str]] = []
    for place, method in enumerate(grid.methods):
        paper = published.get(method, {}).get(dataset, {}).get(metric.key)
        if units := grid.units(dataset, method):
            points.append((mean_of(units, metric.key), place - 0.13 * (paper is not None), BLUE, "o", "ours"))
        if paper is not None:
            points.append((paper, place + 0.13, ORANGE, "D", "paper"))
    low, high = visible_range([point[0] for point in points], metric.sign)
    ax.set_xlim(low, high)
    for value, place, colour, marker, label in points:
        if low <= value.mean <= high:
            bar = None if math.isnan(value.error) else [value.error]
            ax.errorbar([value.mean], [place], xerr=bar, color=colour, marker=marker, markersize=4.5, linewidth=1.4, label=label)
        else:  # far off: an arrow at the edge, and the number
            left = value.mean < low
            style: dict[str, Any] = {"color": colour, "fontsize": 7.5, "va": "center", "ha": "left" if left else "right"}
            ax.text(low if left else high, place, f" ◂ {value.mean:.3g}" if left else f"{value.mean:.3g} ▸ ", **style)
    ax.set_ylim(len(grid.methods) - 0.5, -0.5)
    ax.locator_params(axis="x", nbins=3)
    ax.tick_params(labelsize=7.5)
    ax.set_title(dataset, fontsize=9.5, color=INK)
