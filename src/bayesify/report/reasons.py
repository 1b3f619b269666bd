"""Sections that explain predictions: which columns drive them, and why a row is predicted as it is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bayesify import plots
from bayesify.formatting import number, percent, with_error
from bayesify.plots.style import shorten
from bayesify.report.figures import picture
from bayesify.report.sections import Section, Table
from bayesify.report.uncertain_rows import cell

if TYPE_CHECKING:
    from pandas import DataFrame

    from bayesify.inspection import Dependence, Explanation

__all__ = ["drivers", "row_reasons", "similar"]

_MOST_COLUMNS = 20  # in tables
_FAR = 2.0  # times the usual distance between neighbors
_MOST_CELLS = 8  # columns of similar rows


def drivers(explanation: Explanation, predicted: str) -> Section:
    """Importance of the columns, and the prediction against the most important ones; `predicted` names what is predicted."""
    importance = explanation.importance
    scores = [str(name) for name in importance.columns if f"{name}_se" in importance]
    error, total = scores[0], scores[2]
    known = {"rmse": "RMSE", "nll": "NLL"}
    titles = {name: known.get(name) or name.replace("_", " ") for name in scores}
    pictures = [
        picture(
            "Importance for the error",
            f"Increase of the {titles[error]} if a column is shuffled, most important columns first.",
            f"Increase of the {titles[error]} if the values of a column are shuffled; bars are two standard errors. Columns that "
            "carry the same information share their importance.",
            lambda ax: plots.plot_importance(importance, error, ax, name=f"increase of the {titles[error]}"),
            "importance",
        ),
        picture(
            "Importance for the uncertainty",
            f"Change of the {titles[total]} of a row if a column is shuffled, largest changes first.",
            f"Mean absolute change of the {titles[total]} of a row if the values of a column are shuffled: the columns that decide "
            "how certain the model is.",
            lambda ax: plots.plot_importance(importance, total, ax, name=f"mean change of the {titles[total]}"),
            "importanceuncertainty",
        ),
    ]

    def meaning(curve: Dependence) -> str:
        band = f"{percent(curve.level)} of the draws, how well the model knows the mean"
        return f"Inner band: {band}. Outer band: noise included." if "predictive_lower" in curve.table else f"Band: {band}."

    pictures += [
        picture(
            f"Prediction by {shorten(curve.column)}",
            f"Mean prediction against {curve.column}, with intervals.",
            f"Mean of {predicted} over the rows if all had this value. {meaning(curve)}",
            lambda ax, curve=curve: plots.plot_dependence(curve, ax, name=predicted),
            f"dependence{j}",
        )
        for j, curve in enumerate(explanation.dependences)
    ]
    rows = [
        [shorten(column), *(with_error(row[name], row[f"{name}_se"]) for name in scores)]
        for column, row in importance.head(_MOST_COLUMNS).iterrows()
    ]
    hidden = f", the first {_MOST_COLUMNS} of {len(importance)} columns" if len(importance) > _MOST_COLUMNS else ""
    table = Table(
        f"Changes when a column is shuffled, ± one standard error{hidden}.",
        ("column", *titles.values()),
        rows,
        (False, *[True] * len(scores)),
    )
    text = f"A column is important if predictions get worse when its values are shuffled among the rows. {explanation.note}"
    return Section("Which columns drive the predictions", text, pictures, table)


def row_reasons(name: str, prediction: str, effects: DataFrame, predicted: str) -> Section:
    """What the values of a row contribute to its prediction and to its uncertainty.

    Args:
        name: of the row.
        prediction: in words.
        effects: from `bayesify.inspection.row_effects`.
        predicted: what is predicted.
    """
    total = str(effects.columns[2])
    pictures = [
        picture(
            f"Effects on {shorten(title)}",
            f"Effects of the values of row {name} on {title}, largest first.",
            f"{title[:1].upper()}{title[1:]} of the row, minus its mean if the column had the value of another row. One column at "
            "a time, so effects of columns that act together do not add up.",
            lambda ax, score=score, title=title: plots.plot_effects(effects[score], ax, name=f"effect on {title}"),
            f"effect{score.replace('_', '')}",
        )
        for score, title in (("prediction", predicted), (total, total))
    ]
    scores = [str(score) for score in effects.columns[1:]]
    rows = [
        [shorten(column), cell(values["value"]), *(number(values[score], 3) for score in scores)]
        for column, values in effects.head(_MOST_COLUMNS).iterrows()
    ]
    hidden = f", the first {_MOST_COLUMNS} of {len(effects)} columns" if len(effects) > _MOST_COLUMNS else ""
    header = ("column", "value", *(score.replace("_", " ") for score in scores))
    table = Table(f"Effects of the values{hidden}.", header, rows, (False, False, *[True] * len(scores)))
    return Section(f"Row {name}", prediction, pictures, table)


def similar(rows: DataFrame) -> Section:
    """The training rows most similar to a row, from `bayesify.inspection.similar_rows`."""
    nearest = rows["relative distance"].iloc[0]
    if nearest == 0:
        text = "A training row has the same inputs."
    else:
        verdict = "No training row is similar" if nearest > _FAR else "There are similar training rows"
        text = f"{verdict}: the nearest is {number(nearest, 2)} times as far as training rows are from their nearest neighbors."
    shown = rows.iloc[:, : 1 + _MOST_CELLS]
    cells = [[shorten(index, 24), *map(cell, values)] for index, values in zip(shown.index, shown.to_numpy(object), strict=True)]
    hidden = f" ({rows.shape[1] - shown.shape[1]} more columns not shown)" if rows.shape[1] > shown.shape[1] else ""
    caption = f"Nearest rows of the training table, in preprocessed inputs{hidden}."
    header = ("row", *(shorten(column, 24) for column in shown.columns))
    return Section("Similar training rows", text, (), Table(caption, header, cells, [False] * len(header)))
