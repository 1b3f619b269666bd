r"""Values and tables unlike those of training, for which intervals and probabilities may be wrong."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
import pandas as pd

from bayesify.data.column import DAY, EPOCH, Column
from bayesify.data.columns import conform
from bayesify.data.imputation import unknown_values
from bayesify.formatting import MINUS, number, percent

__all__ = ["drift", "unusual_values"]

_MARGIN = 0.1  # of the training range; new values slightly beyond the extremes are expected
_FALSE_WARNINGS = 0.01  # probability of a false result of `drift`, at most
_SMALLEST = 0.1  # difference of two fractions that matters, however many rows there are


def unusual_values(X: pd.DataFrame, columns: Sequence[Column]) -> pd.Series:
    """Return what no training row prepared the model for, by row: text such as "area=500 above 192 seen in training", or "".

    Reasons are numbers and dates beyond the training range by more than a tenth of it, missing values in columns that were always
    present, and categories that are not in the training table, except in columns with many rare ones.

    Args:
        X: a table with these columns.
        columns: from `describe_columns`.

    Raises:
        DataError: as `conform`.

    Example:
        >>> from bayesify.data import describe_columns
        >>> columns = describe_columns(pd.DataFrame({"area": [20, 192], "color": ["red", "blue"]}))
        >>> unusual_values(pd.DataFrame({"area": [500, 100, None], "color": ["red", "teal", "red"]}), columns).tolist()
        ['area=500 above 192 seen in training', "color='teal' not seen in training", 'area missing, never missing in training']
    """
    table = conform(X, columns, new=False)
    unknown = unknown_values(table, columns)
    reasons: list[list[str]] = [[] for _ in range(len(table))]
    for column in columns:
        if column.kind != "dropped":
            for row, reason in _reasons(table[column.name].to_numpy(), unknown[column.name].to_numpy(), column):
                reasons[row].append(reason)
    return pd.Series(["; ".join(parts) for parts in reasons], index=X.index, name="warning", dtype=object)


def drift(X: pd.DataFrame, columns: Sequence[Column]) -> dict[str, str]:
    r"""Return the columns whose distribution differs from the training table's, each with a description.

    Compared are the fraction of missing values, of each category, and of the values up to 19 quantiles of the training table. With
    $n$ values in training and $m$ in X, a fraction differs if the difference is at least 0.1 and more than

    $$\sqrt{\tfrac{1}{2} \ln\frac{e K}{0.01} \Bigl(\frac{1}{n} + \frac{1}{m}\Bigr)}$$

    where $K$ is the number of comparisons, the quantiles of a column counting once (inequalities of Hoeffding, and of Dvoretzky,
    Kiefer and Wolfowitz). If the rows of X come from the distribution of the training rows, the result is empty with probability
    0.99 or more. It describes a table, so that rows which are sorted or selected by a column differ, whatever their number.

    Args:
        X: a table with these columns.
        columns: from `describe_columns`.

    Raises:
        DataError: as `conform`.

    Example:
        >>> from bayesify.data import describe_columns
        >>> rng = np.random.default_rng(0)
        >>> columns = describe_columns(pd.DataFrame({"a": rng.normal(size=500)}))
        >>> drift(pd.DataFrame({"a": rng.normal(size=50)}), columns), drift(pd.DataFrame({"a": rng.normal(3, 1, 50)}), columns)
        ({}, {'a': 'median 2.87248, -0.0506041 in training'})
    """
    used = [column for column in columns if column.kind != "dropped" and column.rows]
    table = conform(X, columns, new=False)
    comparisons = sum(2 if column.quantiles else 2 + len(column.categories) for column in used)
    found = {}
    for column in used:
        values = table[column.name]
        missing = float(values.isna().mean())
        if _differs(abs(missing - column.missing), column.rows, len(values), comparisons):
            found[column.name] = f"missing in {percent(missing)} of the rows, {percent(column.missing)} in training"
            continue
        present = values.dropna()
        rows = round(column.rows * (1 - column.missing))
        compare = _compare_numbers if column.quantiles else _compare_categories
        difference, description = compare(present, column) if len(present) else (0.0, "")
        if _differs(difference, rows, len(present), comparisons):
            found[column.name] = description
    return found


def _differs(difference: float, n: int, m: int, comparisons: int) -> bool:
    if not (n and m):
        return False
    noise = math.sqrt((1 + math.log(comparisons / _FALSE_WARNINGS)) / 2 * (1 / n + 1 / m))
    return difference >= _SMALLEST and difference > noise


def _compare_numbers(values: pd.Series, column: Column) -> tuple[float, str]:
    shares = np.searchsorted(np.sort(values.to_numpy(float)), column.quantiles, side="right") / len(values)
    difference = float(np.abs(shares - column.shares).max())
    median = column.quantiles[int(np.searchsorted(column.shares, 0.5))] if column.shares[-1] >= 0.5 else column.maximum
    return difference, f"median {_shown(float(values.median()), column)}, {_shown(median, column)} in training"


def _compare_categories(values: pd.Series, column: Column) -> tuple[float, str]:
    before = dict(zip(column.categories, column.shares, strict=True))
    now = values.value_counts(normalize=True).to_dict()
    differences = {category: abs(now.get(category, 0.0) - share) for category, share in before.items()}
    category = max(differences, key=lambda name: differences[name])
    shares = f"{percent(now.get(category, 0.0))} of the rows, {percent(before[category])} in training"
    return differences[category], f"{category!r} in {shares}"


def _reasons(values: np.ndarray, unknown: np.ndarray, column: Column) -> Iterator[tuple[int, str]]:
    """The numbers of unusual rows in a column, with reasons."""
    for row in np.flatnonzero(unknown).tolist():
        if not pd.isna(values[row]):
            yield row, f"{column.name}={values[row]!r} not seen in training"
        elif not column.missing:
            yield row, f"{column.name} missing, never missing in training"
    if column.kind == "category":
        return
    assert column.minimum is not None
    assert column.maximum is not None
    margin = _MARGIN * (column.maximum - column.minimum)
    words = ("before", "after") if column.kind == "datetime" else ("below", "above")
    for word, bound, is_beyond in (
        (words[0], column.minimum, values < column.minimum - margin),
        (words[1], column.maximum, values > column.maximum + margin),
    ):
        for row in np.flatnonzero(is_beyond).tolist():
            yield row, f"{column.name}={_shown(values[row], column)} {word} {_shown(bound, column)} seen in training"


def _shown(value: float | None, column: Column) -> str:
    assert value is not None
    return str((EPOCH + value * DAY).date()) if column.kind == "datetime" else number(value, 6).replace(MINUS, "-")
