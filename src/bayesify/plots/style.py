"""Common style of all figures: a color-blind safe palette and plain axes, without global state."""

from __future__ import annotations

from typing import Any

from matplotlib.axes import Axes
from matplotlib.dates import AutoDateLocator, ConciseDateFormatter
from matplotlib.figure import Figure

__all__ = ["BLUE", "GRID", "INK", "MUTED", "ORANGE", "REFERENCE", "THEME", "axes", "date_axis", "label", "legend", "shorten"]

# Blue and vermilion of the Okabe-Ito palette; the report replaces these five colors with CSS variables, for its dark mode.
BLUE = "#0072b2"
ORANGE = "#d55e00"
INK = "#1f2933"
MUTED = "#6b7785"
GRID = "#e3e7ec"

THEME: dict[str, Any] = {
    "font.size": 9.0,
    "font.family": "sans-serif",
    "axes.labelsize": 9.0,
    "legend.fontsize": 8.5,
    "xtick.labelsize": 8.5,
    "ytick.labelsize": 8.5,
    "lines.linewidth": 1.6,
    "svg.fonttype": "none",
}
"""Settings for `matplotlib.rc_context` when figures are written to files; the functions here do not need them."""

REFERENCE: dict[str, Any] = {"color": MUTED, "linewidth": 1, "linestyle": (0, (4, 3))}
"""Style of reference lines."""


def axes(ax: Axes | None, size: tuple[float, float] = (4.6, 3.2)) -> Axes:
    """Apply the common style to the given Axes, or to those of a new figure."""
    if ax is None:
        ax = Figure(figsize=size, layout="constrained").subplots()
        ax.figure.patch.set_alpha(0)
    ax.patch.set_alpha(0)
    ax.spines[["top", "right"]].set_visible(False)
    ax.spines[["left", "bottom"]].set_color(GRID)
    ax.tick_params(colors=MUTED, length=0)
    ax.grid(color=GRID, linewidth=0.8)
    ax.set_axisbelow(True)
    return ax


def date_axis(ax: Axes) -> None:
    """Few ticks with short dates on the horizontal axis."""
    locator = AutoDateLocator(maxticks=6)
    ax.xaxis.set_major_locator(locator)
    ax.xaxis.set_major_formatter(ConciseDateFormatter(locator))


def label(ax: Axes, x: str, y: str) -> None:
    """Label both axes; mathtext is off, since labels may come from data."""
    ax.set_xlabel(shorten(x), color=INK, parse_math=False)
    ax.set_ylabel(shorten(y), color=INK, parse_math=False)


def legend(ax: Axes, **kwargs: Any) -> None:
    """Add a legend without a frame: above the axes, where it covers no data, unless `loc` is given."""
    if "loc" not in kwargs:
        texts = ax.get_legend_handles_labels()[1]
        fits = sum(map(len, texts)) + 6 * len(texts) <= 50
        kwargs |= {"loc": "lower left", "bbox_to_anchor": (0, 1), "borderaxespad": 0.2, "columnspacing": 1.2, "handlelength": 1.5}
        kwargs.setdefault("ncols", max(1, len(texts)) if fits else 2)
    ax.legend(frameon=False, labelcolor=INK, **kwargs)


def shorten(text: object, limit: int = 48) -> str:
    """Shorten text to one line of at most `limit` characters.

    Example:
        >>> shorten("a very long name", limit=10)
        'a very lo…'
    """
    line = " ".join(str(text).split())
    return line if len(line) <= limit else line[: limit - 1] + "…"
