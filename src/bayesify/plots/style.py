"""The look that all figures share: a palette colour-blind readers can tell apart, quiet axes, no global state."""

from __future__ import annotations

from typing import Any

try:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
except ImportError as error:
    raise ImportError('figures need matplotlib: pip install "bayesify[plots]"') from error

__all__ = ["BLUE", "GRID", "INK", "MUTED", "ORANGE", "THEME", "axes", "label", "legend", "shorten"]

# Blue and vermilion of Okabe & Ito's palette; the report swaps each of these five for a CSS variable, so that it can go dark.
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
"""Settings for `matplotlib.rc_context`, used where whole files are written; the functions here do not need them."""


def axes(ax: Axes | None, size: tuple[float, float] = (4.6, 3.2)) -> Axes:
    """The given Axes, or those of a new figure that belongs to nobody else, in the common look."""
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


def label(ax: Axes, x: str, y: str) -> None:
    """Name both axes; names from data are taken literally, dollar signs included."""
    ax.set_xlabel(shorten(x), color=INK, parse_math=False)
    ax.set_ylabel(shorten(y), color=INK, parse_math=False)


def legend(ax: Axes, **kwargs: Any) -> None:
    """A legend without a box."""
    ax.legend(frameon=False, labelcolor=INK, **kwargs)


def shorten(text: object, limit: int = 48) -> str:
    """Text of at most `limit` characters, in one line.

    Example:
        >>> shorten("a very long name", limit=10)
        'a very lo…'
    """
    line = " ".join(str(text).split())
    return line if len(line) <= limit else line[: limit - 1] + "…"
