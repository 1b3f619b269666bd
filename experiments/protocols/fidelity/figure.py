"""Figures of the comparison with the reference."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch

from experiments.harness.numbers import Estimate
from experiments.harness.protocol import Unit
from experiments.protocols.fidelity.tasks import Task

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["draw_bands", "draw_variation"]


def draw_variation(scores: Mapping[str, Mapping[str, Estimate]], regions: Sequence[str]) -> Figure:
    """Total variation of every method, a color per region; the best of the first region on top."""
    from matplotlib.figure import Figure

    from bayesify.plots.style import BLUE, MUTED, axes

    names = sorted(scores, key=lambda name: -scores[name][f"variation, {regions[0]}"].mean)
    figure = Figure(figsize=(6, 0.2 * len(names) + 1), layout="constrained")
    ax = figure.subplots()
    axes(ax)
    for region, color in zip(regions, (BLUE, MUTED), strict=True):
        found = [scores[name][f"variation, {region}"] for name in names]
        errors = [0.0 if math.isnan(score.error) else score.error for score in found]
        ax.errorbar([score.mean for score in found], range(len(names)), xerr=errors, fmt="o", color=color, ms=4, label=region)
    ax.set_yticks(range(len(names)), names, fontsize=7)
    ax.set_xlim(left=0)
    ax.set_xlabel("total variation from the posterior")
    ax.legend(frameon=False, fontsize=7, ncol=2, loc="lower right", bbox_to_anchor=(1, 1))  # beside points it would look like some
    return figure


def draw_bands(shown: Mapping[str, Unit], reference: Unit, task: Task) -> Figure:
    """Mean and two epistemic standard deviations of every method, on those of the reference."""
    from matplotlib.figure import Figure

    from bayesify.plots.style import BLUE, INK, MUTED, axes

    columns = min(6, len(shown))
    rows = math.ceil(len(shown) / columns)
    figure = Figure(figsize=(1.9 * columns, 1.6 * rows), layout="constrained")
    grid = list(figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=True).flat)
    x = task.test.flatten()
    for ax, (name, unit) in zip(grid, shown.items(), strict=False):
        axes(ax)
        mean, spread = torch.tensor(reference["mean"]), 2 * torch.tensor(reference["epistemic"]).clamp_min(0).sqrt()
        ax.fill_between(x, mean - spread, mean + spread, color=MUTED, alpha=0.25, linewidth=0)
        mean, spread = torch.tensor(unit["mean"]), 2 * torch.tensor(unit["epistemic"]).clamp_min(0).sqrt()
        ax.plot(x, mean, color=BLUE, linewidth=1.2)
        for bound in (mean - spread, mean + spread):
            ax.plot(x, bound, color=BLUE, linewidth=0.8)
        ax.plot(task.x.flatten(), task.y.flatten(), ".", color=INK, markersize=2)
        ax.set_title(name, fontsize=7)
        ax.set_ylim(-3, 3)
    for ax in grid[len(shown) :]:
        ax.set_visible(False)
    return figure
