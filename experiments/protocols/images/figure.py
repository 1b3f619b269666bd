"""The figure of an image table: one panel per metric with our estimates, ensembles and the paper's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from experiments.harness.numbers import Estimate, estimate
from experiments.harness.protocol import ByJob, Job, Unit
from experiments.protocols.images.results import Published, Row, metrics_of, rows_of
from experiments.protocols.shared.figures import Point, add_legend, draw_points

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["draw_scores"]

_SHORT = {"nll": "NLL (nats)", "error": "error (%)", "ece": "calibration error", "mce": "maximum cal. error"}


class _Column(NamedTuple):
    """A column of panels: one score of a unit."""

    title: str
    of: Callable[[Unit], float]
    sign: int  # 1 if higher is better, -1 if lower is
    key: str = ""  # of the paper's number


def draw_scores(jobs: Sequence[Job], results: ByJob, published: Published) -> Figure | None:
    """Means and standard errors over networks: a line per method, a row of panels per data set and network.

    Columns are the metrics and the AUROC of out-of-distribution images.
    """
    rows = [row for row in rows_of(jobs, results) if row.nets]
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        groups.setdefault(row.labels[:2], []).append(row)
    if not groups:
        return None
    from matplotlib.figure import Figure

    from bayesify.plots.style import INK, MUTED

    columns, most = _columns(rows), max(map(len, groups.values()))
    figure = Figure(figsize=(2.0 + 2.1 * len(columns), (0.9 + 0.34 * most) * len(groups) + 0.3), layout="constrained")
    grid = figure.subplots(len(groups), len(columns), squeeze=False)
    for line, ((dataset, net), group) in zip(grid, groups.items(), strict=True):
        for ax, column in zip(line, columns, strict=True):
            draw_points(ax, _points(group, column, published), len(group), column.sign)
            ax.set_yticks(range(len(group)), [""] * len(group))
            ax.set_xlabel(column.title, color=MUTED, fontsize=8.5)
        line[0].set_yticks(range(len(group)), [row.labels[2] for row in group], color=INK, fontsize=8.5)
        line[0].set_ylabel(f"{dataset}, {net}", color=INK, fontsize=8.5)
    add_legend(figure)
    return figure


def _columns(rows: Sequence[Row]) -> list[_Column]:
    columns = [_Column(_SHORT[m.key], lambda unit, key=m.key: unit[key], -1, m.key) for m in metrics_of(rows)]
    others = dict.fromkeys(name for row in rows for unit in row.nets for name in unit["ood"])
    shared = [name for name in others if all(name in unit["ood"] for row in rows for unit in row.nets)]
    return columns + [_Column(f"AUROC, {name}", lambda unit, name=name: unit["ood"][name]["auroc"], 1) for name in shared]


def _points(group: Sequence[Row], column: _Column, published: Published) -> list[Point]:
    points = []
    for line, row in enumerate(group):
        paper = published.get(row.labels, {}).get(column.key)
        points.append(Point(estimate(map(column.of, row.nets)), line, "ours"))
        points += [Point(Estimate(column.of(unit)), line, "ensemble") for unit in row.units.values() if "members" in unit]
        if paper is not None:
            points.append(Point(paper, line, "paper"))
    return points
