"""Elements of all figures: estimates with error bars along an axis, one line per method."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from experiments.harness.numbers import Estimate

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["Point", "add_legend", "draw_points", "visible_range"]


class Point(NamedTuple):
    """An estimate on a line, counted from the top; `label` is "ours", "ensemble" or "paper"."""

    value: Estimate
    line: int
    label: str


_OFFSET = 0.24  # between points on the same line
# Color (a name in `bayesify.plots.style`) and marker.
_LOOKS = {"ours": ("BLUE", "o"), "ensemble": ("INK", "s"), "paper": ("ORANGE", "D")}


def draw_points(ax: Axes, points: Sequence[Point], lines: int, sign: int) -> None:
    """Draw points with error bars; outliers on the worse side become an arrow at the edge with the number.

    Args:
        ax: axes to draw on.
        points: at least one for a scale.
        lines: number of lines.
        sign: 1 if higher is better, -1 if lower is.
    """
    from bayesify.plots import style

    style.axes(ax)
    low, high = visible_range([point.value for point in points], sign)
    ax.set_xlim(low, high)
    for value, line, label in points:
        kinds = [kind for kind in _LOOKS if any(point[1:] == (line, kind) for point in points)]
        y = line + _OFFSET * (kinds.index(label) - (len(kinds) - 1) / 2)
        name, marker = _LOOKS[label]
        color = getattr(style, name)
        if low <= value.mean <= high:
            bar = None if math.isnan(value.error) else [value.error]
            ax.errorbar([value.mean], [y], xerr=bar, color=color, marker=marker, markersize=4.5, linewidth=1.4, label=label)
        else:
            left = value.mean < low
            look: dict[str, Any] = {"color": color, "fontsize": 7.5, "va": "center", "ha": "left" if left else "right"}
            ax.text(low if left else high, y, f" ◂ {value.mean:.3g}" if left else f"{value.mean:.3g} ▸ ", **look)
    ax.set_ylim(lines - 0.5, -0.5)
    ax.locator_params(axis="x", nbins=3)
    ax.tick_params(labelsize=7.5)


def add_legend(figure: Figure) -> None:
    """Add a legend if there are several kinds of points."""
    from bayesify.plots.style import INK

    marks = {label: mark for ax in figure.axes for mark, label in zip(*ax.get_legend_handles_labels(), strict=True)}
    if len(marks) > 1:
        look = {"frameon": False, "labelcolor": INK, "fontsize": 8.5, "ncols": len(marks), "borderpad": 0.0}
        figure.legend(marks.values(), marks.keys(), loc="outside upper right", **look)


def visible_range(values: Sequence[Estimate], sign: int) -> tuple[float, float]:
    """Limits of an axis that shows all values with their errors, without outliers on the worse side that would hide the rest.

    Outliers are further from the others than these from each other, and less than half of the values.

    Args:
        values: estimates on the axis.
        sign: 1 if higher is better, -1 if lower is.

    Example:
        >>> visible_range([Estimate(1.0), Estimate(2.0), Estimate(1.5)], sign=-1)
        (0.92, 2.08)
        >>> visible_range([Estimate(1.0), Estimate(2.0), Estimate(90.0)], sign=-1)
        (0.92, 2.08)
        >>> visible_range([Estimate(1.0), Estimate(2.0), Estimate(90.0), Estimate(92.0)], sign=-1)
        (-6.28, 99.28)
    """

    def ends(some: Sequence[Estimate]) -> tuple[float, float]:
        errors = [0.0 if math.isnan(value.error) else value.error for value in some]
        low = min(value.mean - error for value, error in zip(some, errors, strict=True))
        high = max(value.mean + error for value, error in zip(some, errors, strict=True))
        return low, high

    if not values:
        return 0.0, 1.0
    low, high = ends(values)
    ordered = sorted(values, key=lambda value: sign * value.mean)
    for worst in range(1, (len(values) + 1) // 2):
        inner = ends(ordered[worst:])
        width = inner[1] - inner[0]
        gap = max(inner[0] - ordered[worst - 1].mean, ordered[worst - 1].mean - inner[1])
        if gap > width > 0 and high - low > 4 * width:
            low, high = inner
    margin = 0.08 * (high - low) or 1e-3 * (abs(low) or 1.0)
    return low - margin, high + margin
