"""Figures of explanations: importance of columns, and partial dependence."""

from __future__ import annotations

from typing import TYPE_CHECKING

from matplotlib.axes import Axes

from bayesify.core.checks import check_choice
from bayesify.plots.style import BLUE, INK, MUTED, ORANGE, axes, date_axis, label, legend, shorten

if TYPE_CHECKING:
    from pandas import DataFrame, Series

    from bayesify.inspection import Dependence

__all__ = ["plot_dependence", "plot_effects", "plot_importance"]


def plot_importance(importance: DataFrame, score: str, ax: Axes | None = None, *, most: int = 10, name: str = "") -> Axes:
    """Bars of the columns with the largest importance, with two standard errors.

    Args:
        importance: from `bayesify.inspection.permutation_importance`.
        score: a column of it, such as "rmse".
        ax: Axes to draw on; a new figure if None.
        most: number of columns that are shown.
        name: of the quantity; the score if empty.

    Returns:
        The Axes.

    Raises:
        ConfigurationError: the table has no column `score` with standard errors.

    Example:
        >>> import pandas as pd
        >>> table = pd.DataFrame({"rmse": [2.0, 0.1], "rmse_se": [0.2, 0.1]}, index=["area", "noise"])
        >>> [text.get_text() for text in plot_importance(table, "rmse").get_yticklabels()]
        ['noise', 'area']
    """
    check_choice("score", score, [column for column in importance.columns if f"{column}_se" in importance])
    shown = importance.sort_values(score, key=abs, ascending=False).head(most).sort_values(score)
    ax = axes(ax)
    bars = {"xerr": 2 * shown[f"{score}_se"], "error_kw": {"ecolor": INK, "elinewidth": 1}}
    ax.barh(range(len(shown)), shown[score], color=BLUE, alpha=0.75, height=0.65, **bars)
    _columns(ax, shown)
    label(ax, name or score, "")
    return ax


def plot_effects(effects: Series, ax: Axes | None = None, *, most: int = 10, name: str = "effect") -> Axes:
    """Bars of the largest effects of the values of one row: positive blue, negative orange.

    Args:
        effects: a column of the result of `bayesify.inspection.row_effects`.
        ax: Axes to draw on; a new figure if None.
        most: number of columns that are shown.
        name: of the effect.

    Returns:
        The Axes.

    Example:
        >>> import pandas as pd
        >>> [text.get_text() for text in plot_effects(pd.Series({"a": 1.0, "b": -2.0})).get_yticklabels()]
        ['a', 'b']
    """
    shown = effects.sort_values(key=abs, ascending=False).head(most)[::-1]
    ax = axes(ax)
    colors = [BLUE if effect > 0 else ORANGE for effect in shown]
    ax.barh(range(len(shown)), shown, color=colors, alpha=0.75, height=0.65)
    _columns(ax, shown)
    label(ax, name, "")
    return ax


def plot_dependence(dependence: Dependence, ax: Axes | None = None, *, name: str = "prediction") -> Axes:
    """The averaged prediction against a column: the dark band is what the draws disagree on, the light one includes noise.

    Args:
        dependence: from `bayesify.inspection.partial_dependence`.
        ax: Axes to draw on; a new figure if None.
        name: of what is predicted.

    Returns:
        The Axes.

    Example:
        >>> import pandas
        >>> from bayesify.inspection import Dependence
        >>> curve = pandas.DataFrame({"value": [0.0, 1.0], "mean": [2.0, 3.0], "lower": [1.5, 2.5], "upper": [2.5, 3.5]})
        >>> plot_dependence(Dependence("area", "number", 0.9, curve)).get_xlabel()
        'area'
    """
    ax = axes(ax)
    table, percent = dependence.table, f"{dependence.level:.0%}"
    noise = ("predictive_lower", "predictive_upper") if "predictive_lower" in table else None
    if dependence.kind in ("category", "boolean"):
        positions = list(range(len(table)))
        if noise:
            ax.vlines(
                positions, table[noise[0]], table[noise[1]], color=BLUE, alpha=0.2, linewidth=10, label=f"{percent} with noise"
            )
        ax.vlines(positions, table["lower"], table["upper"], color=BLUE, alpha=0.55, linewidth=10, label=f"{percent} of draws")
        ax.plot(positions, table["mean"], color=INK, marker="o", markersize=4, linestyle="", label="mean")
        texts = [shorten(_category(value), 14) for value in table["value"]]
        long = sum(map(len, texts)) > 40
        ax.set_xticks(positions, texts, rotation=45 if long else 0, ha="right" if long else "center", parse_math=False)
        ax.set_xlim(-0.6, len(table) - 0.4)
        ax.grid(visible=False, axis="x")
    else:
        x = table["value"].to_numpy()
        if noise:
            ax.fill_between(x, table[noise[0]], table[noise[1]], color=BLUE, alpha=0.16, linewidth=0, label=f"{percent} with noise")
        ax.fill_between(x, table["lower"], table["upper"], color=BLUE, alpha=0.35, linewidth=0, label=f"{percent} of draws")
        ax.plot(x, table["mean"], color=BLUE, marker="o" if len(x) == 1 else "", label="mean")
        if dependence.kind == "datetime":
            date_axis(ax)
    label(ax, dependence.column, name)
    legend(ax)
    return ax


def _columns(ax: Axes, shown: DataFrame | Series) -> None:
    """Names of columns on the vertical axis of bars."""
    ax.axvline(0, color=MUTED, linewidth=0.8)
    ax.set_yticks(range(len(shown)), [shorten(column, 20) for column in shown.index], parse_math=False)
    ax.grid(visible=False, axis="y")


def _category(value: object) -> str:
    return {0.0: "no", 1.0: "yes"}[value] if isinstance(value, float) and value in (0.0, 1.0) else str(value)
