"""The figure of a table of data sets: one panel per data set and metric with our estimates and the paper's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from experiments.harness.protocol import ByJob, Job
from experiments.protocols.shared.figures import Point, add_legend, draw_points
from experiments.protocols.shared.published import Metric
from experiments.protocols.tabular.tables import Grid, Kind, Published, mean_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["draw_overview"]


def draw_overview(jobs: Sequence[Job], results: ByJob, published: Published, kind: Kind) -> Figure | None:
    """Means and standard errors: a row of panels per metric, a column per data set with results, a line per method."""
    grid = Grid(jobs, results)
    datasets = [d for d in grid.datasets if any(grid.units(d, method) for method in grid.methods)]
    if not datasets:
        return None
    from matplotlib.figure import Figure

    from bayesify.plots.style import INK, MUTED

    figure = Figure(figsize=(1.6 + 1.75 * max(2, len(datasets)), 1.9 + 0.62 * len(grid.methods)), layout="constrained")
    for part, metric in zip(figure.subfigures(2, 1, squeeze=False)[:, 0], kind.compared, strict=True):
        row = part.subplots(1, len(datasets), squeeze=False, sharey=True)[0]
        for ax, dataset in zip(row, datasets, strict=True):
            draw_points(ax, _points(grid, dataset, metric, published), len(grid.methods), metric.sign)
            ax.set_title(dataset, fontsize=9.5, color=INK)
        row[0].set_yticks(range(len(grid.methods)), grid.methods, color=INK, fontsize=8.5)
        better = "lower is better" if metric.sign < 0 else "higher is better"
        part.supxlabel(f"{metric.title}, mean ± standard error over splits ({better})", color=MUTED, fontsize=8.5)
    add_legend(figure)
    return figure


def _points(grid: Grid, dataset: str, metric: Metric, published: Published) -> list[Point]:
    points = []
    for line, method in enumerate(grid.methods):
        paper = published.get(method, {}).get(dataset, {}).get(metric.key)
        if units := grid.units(dataset, method):
            points.append(Point(mean_of(units, metric.key), line, "ours"))
        if paper is not None:
            points.append(Point(paper, line, "paper"))
    return points
