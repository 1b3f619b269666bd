"""What the pictures of all tables share: numbers with their errors along an axis, one line per method."""

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
    """A number on a line, counted from the top; `label` is what it is of: "ours", "ensemble" or "paper"."""

    value: Estimate
    line: int
    label: str


_APART = 0.24  # of points on the same line
# Colour (a name in the library's style) and marker.
_LOOKS = {"ours": ("BLUE", "o"), "ensemble": ("INK", "s"), "paper": ("ORANGE", "D")}


def draw_points(ax: Axes, points: Sequence[Point], lines: int, sign: int) -> None:
    """Points with error bars; those far off on the bad side as an arrow at the edge, with the number.

    Args:
        ax: to draw on.
        points: any number of them.
        lines: how many there are.
        sign: 1 where more is better, -1 where less is.
    """
    from bayesify.plots import style

    style.axes(ax)
    low, high = visible_range([point.value for point in points], sign)
    ax.set_xlim(low, high)
    for value, line, label in points:
        kinds = [kind for kind in _LOOKS if any(point[1:] == (line, kind) for point in points)]
        place = line + _APART * (kinds.index(label) - (len(kinds) - 1) / 2)
        name, marker = _LOOKS[label]
        colour = getattr(style, name)
        if low <= value.mean <= high:
            bar = None if math.isnan(value.error) else [value.error]
            ax.errorbar([value.mean], [place], xerr=bar, color=colour, marker=marker, markersize=4.5, linewidth=1.4, label=label)
        else:
            left = value.mean < low
            look: dict[str, Any] = {"color": colour, "fontsize": 7.5, "va": "center", "ha": "left" if left else "right"}
            ax.text(low if left else high, place, f" ◂ {value.mean:.3g}" if left else f"{value.mean:.3g} ▸ ", **look)
    ax.set_ylim(lines - 0.5, -0.5)
    ax.locator_params(axis="x", nbins=3)
    ax.tick_params(labelsize=7.5)


def add_legend(figure: Figure) -> None:
    """Say which points are whose, where there are several kinds."""
    from bayesify.plots.style import INK

    found = {label: mark for ax in figure.axes for mark, label in zip(*ax.get_legend_handles_labels(), strict=True)}
    if len(found) > 1:
        look = {"frameon": False, "labelcolor": INK, "fontsize": 8.5, "ncols": len(found), "borderpad": 0.0}
        figure.legend(found.values(), found.keys(), loc="outside upper right", **look)


def visible_range(values: Sequence[Estimate], sign: int) -> tuple[float, float]:
    """Where an axis begins and ends: it holds all values with their errors, but for a few so bad that they would hide the rest.

    Args:
        values: any number of them.
        sign: 1 where more is better, -1 where less is.

    Example:
        >>> visible_range([Estimate(1.0), Estimate(2.0), Estimate(1.5)], sign=-1)
        (0.92, 2.08)
        >>> visible_range([Estimate(1.0), Estimate(2.0), Estimate(90.0)], sign=-1)
        (0.92, 2.08)
    """

    def ends(some: Sequence[Estimate]) -> tuple[float, float]:
        errors = [0.0 if math.isnan(value.error) else value.error for value in some]
        low = min(value.mean - error for value, error in zip(some, errors, strict=True))
        high = max(value.mean + error for value, error in zip(some, errors, strict=True))
        return low, high

    if not values:
        return 0.0, 1.0
    low, high = ends(values)
    for worst in range(1, len(values) // 2 + 1):
        rest = sorted(values, key=lambda value: sign * value.mean)[worst:]
        inner = ends(rest)
        if high - low > 5 * (inner[1] - inner[0]) > 0:
            low, high = inner
            break
    margin = 0.08 * (high - low) or 1e-3 * (abs(low) or 1.0)
    return low - margin, high + margin
