"""`bayesify explain`: which columns drive the predictions, and why a row is predicted as it is."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bayesify.cli.files import check_file, check_input, write_table
from bayesify.cli.options import Data, Decimal, Encoding, Separator
from bayesify.cli.terminal import UsageError, handle_errors, print_line, print_table, say
from bayesify.files import write_atomically
from bayesify.formatting import number, with_error

if TYPE_CHECKING:
    import pandas as pd

    from bayesify.cli.tables import LaterTables
    from bayesify.estimators import BayesianEstimator
    from bayesify.report.sections import Section

__all__ = ["explain"]

_PAGES, _TABLES = (".html", ".htm"), (".csv", ".tsv", ".parquet")
_SHOWN = 20  # columns on the terminal


@handle_errors
def explain(
    model: Annotated[Path, typer.Argument(help="A model directory written by `bayesify fit`.", metavar="DIR", show_default=False)],
    data: Data,
    row: Annotated[int | None, typer.Option(help="Explain this row of DATA, counted from 0.", min=0, show_default=False)] = None,
    train: Annotated[
        Path | None, typer.Option(help="The training table, for the rows most similar to --row.", show_default=False)
    ] = None,
    out: Annotated[Path | None, typer.Option(help="An .html page, or a .csv, .tsv or .parquet table.", show_default=False)] = None,
    sep: Separator = None,
    encoding: Encoding = None,
    decimal: Decimal = None,
) -> None:
    """Explain a model: which columns drive its predictions and uncertainty, or with --row why a row is predicted as it is.

    Without --row, DATA needs the target, best in rows that the model was not trained on. Columns that carry the same information
    share their importance.
    """
    if out is not None:
        _check_out(out, [data, *([] if train is None else [train])])
    if train is not None and row is None:
        raise UsageError("--train shows training rows similar to one row; add --row N")
    check_input(data)
    if train is not None:
        check_input(train)

    from bayesify.cli.tables import TextOptions, open_model

    estimator, tables = open_model(model, TextOptions(sep, encoding, decimal))
    if row is None:
        table, sections = _explain_columns(estimator, tables, data)
    else:
        table, sections = _explain_row(estimator, tables, data, row, train)
    if out is None:
        return
    if out.suffix.lower() in _PAGES:
        from bayesify.report.page import render_page

        title = f"Explanation: {tables.target or 'predictions'}"
        write_atomically(out, render_page("page", title=title, subtitle=f"{model} on {data}", sections=sections).encode())
    else:
        write_table(table, out)
    say(f"\nExplanation: {out}")


def _check_out(out: Path, inputs: list[Path]) -> None:
    if out.suffix.lower() not in (*_PAGES, *_TABLES):
        raise UsageError(f"--out {out}: unknown ending {out.suffix!r}; use .html for a page, or {', '.join(_TABLES)} for a table")
    check_file(out, inputs)


def _explain_columns(estimator: BayesianEstimator, tables: LaterTables, data: Path) -> tuple[pd.DataFrame, list[Section]]:
    """Importance of the columns: as a table, on the terminal and as sections."""
    from bayesify.inspection import explain as explain_columns
    from bayesify.report.reasons import drivers

    features, y = tables.read_with_target(data)
    explanation = explain_columns(estimator, features, y)
    table = explanation.importance
    scores = [name for name in table.columns if f"{name}_se" in table]
    shown = table.head(_SHOWN)
    lines = [[str(column), *(with_error(r[s], r[f"{s}_se"]) for s in scores)] for column, r in shown.iterrows()]
    print_table(["column", *scores], lines)
    more = f" {len(table) - _SHOWN} less important columns are not shown; --out has them." if len(table) > _SHOWN else ""
    print_line(f"\nChanges if the values of a column are shuffled, ± one standard error. {explanation.note}{more}")
    return table.reset_index(), [drivers(explanation, predicted_name(estimator, str(y.name)))]


def _explain_row(
    estimator: BayesianEstimator, tables: LaterTables, data: Path, row: int, train: Path | None
) -> tuple[pd.DataFrame, list[Section]]:
    """Effects of the values of a row and similar training rows: as a table, on the terminal and as sections."""
    from bayesify.cli.predictions import prediction_table, rounded
    from bayesify.inspection import row_effects, similar_rows
    from bayesify.report.reasons import row_reasons, similar
    from bayesify.report.uncertain_rows import cell

    table = tables.read(data)
    if row >= len(table):
        raise UsageError(f"--row {row}: {data} has {len(table)} rows, so use 0 to {len(table) - 1}")
    features = tables.features(table)
    one = features.iloc[[row]]
    predicted = rounded(prediction_table(estimator, one, estimator.predictive(one), one.index, 0.95)).iloc[0]
    warning = estimator.unusual(one).iloc[0]
    words = ", ".join(f"{name} {cell(value)}" for name, value in predicted.items())
    prediction = f"Prediction: {words}.{f' Unlike the training rows: {warning}.' if warning else ''}"
    effects = row_effects(estimator, features, row)
    name = predicted_name(estimator, tables.target or "prediction", predicted.get("prediction"))
    sections = [row_reasons(str(row), prediction, effects, name)]
    scores = list(effects.columns[1:])
    lines = [
        [str(column), cell(values["value"]), *(number(values[score], 3) for score in scores)]
        for column, values in effects.head(_SHOWN).iterrows()
    ]
    print_line(prediction)
    print_line()
    print_table(["column", "value", f"effect on {name}", *(f"effect on {score}" for score in scores[1:])], lines, left=2)
    if train is not None:
        nearest = similar_rows(estimator, features, row, tables.read(train))
        sections.append(similar(nearest))
        print_line(f"\n{sections[-1].text}\n")
        shown = sections[-1].table
        assert shown is not None
        print_table(shown.header, shown.rows)
    effects["value"] = effects["value"].map(cell)  # values of several types have no column in .parquet
    return effects.reset_index(), sections


def predicted_name(estimator: BayesianEstimator, target: str, label: object = None) -> str:
    """What effects and partial dependence are about: the target, or the probability of a class, by default that of the page."""
    classes = getattr(estimator, "classes_", None)
    if classes is None:
        return target
    return f"probability of {classes[1 if len(classes) == 2 else 0] if label is None else label}"
