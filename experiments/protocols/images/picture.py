"""The figure of an image table: one small picture per metric, the paper's points beside ours."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from experiments.harness.numbers import Estimate
from experiments.harness.protocol import Job, Unit
from experiments.protocols.images.rows import Metric, Published, Row, metrics_of, rows_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["draw_scores"]


def draw_scores(jobs: Sequence[Job], results: Mapping[str, Mapping[str, Unit]], published: Published) -> Figure | None:
    """Means and standard errors over nets: a row of pictures per data set and net, a column per metric, a line per method."""
    rows = [row for row in rows_of(jobs, results) if row.nets]
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        groups.setdefault(row.place[:2], []).append(row)
    if not groups:
        return None
    from matplotlib.figure import Figure

    from bayesify.plots.style import INK

    metrics, most = metrics_of(rows), max(map(len, groups.values()))
    figure = Figure(figsize=(2.0 + 2.3 * len(metrics), (0.9 + 0.4 * most) * len(groups) + 0.3), layout="constrained")
    grid = figure.subplots(len(groups), len(metrics), squeeze=False)
    for line, ((dataset, net), group) in zip(grid, groups.items(), strict=True):
        for ax, metric in zip(line, metrics, strict=True):
            _draw(ax, group, metric, published)
        line[0].set_yticks(range(len(group)), [row.place[2] for row in group], color=INK, fontsize=8.5)
        line[0].set_ylabel(f"{dataset}, {net}", color=INK, fontsize=8.5)
    found = {label: mark for ax in figure.axes for mark, label in zip(*ax.get_legend_handles_labels(), strict=True)}
    if len(found) > 1:
        style = {"frameon": False, "labelcolor": INK, "fontsize": 8.5, "ncols": 2, "borderpad": 0.0}
        figure.legend(found.values(), found.keys(), loc="outside upper right", **style)
    return figure


def _draw(ax: Axes, group: Sequence[Row], metric: Metric, published: Published) -> None:
    from bayesify.plots.style import BLUE, MUTED, ORANGE, axes

    axes(ax)
    for place, row in enumerate(group):
        paper = published.get(row.place, {}).get(metric.key)
        _point(ax, row.of(metric.key), place - 0.13 * (paper is not None), BLUE, "o", "ours")
        if paper is not None:
            _point(ax, paper, place + 0.13, ORANGE, "D", "paper")
    ax.set_ylim(len(group) - 0.5, -0.5)
    ax.set_yticks(range(len(group)), [""] * len(group))
    ax.locator_params(axis="x", nbins=4)
    ax.tick_params(labelsize=7.5)
    short = {"nll": "NLL (nats)", "error": "error (%)", "ece": "calibration error", "mce": "maximum cal. error"}
    ax.set_xlabel(short[metric.key], color=MUTED, fontsize=8.5)


def _point(ax: Axes, value: Estimate, place: float, colour: str, marker: str, label: str) -> None:
    bar = None if math.isnan(value.error) else [value.error]
    ax.errorbar([value.mean], [place], xerr=bar, color=colour, marker=marker, markersize=4.5, linewidth=1.4, label=label)
