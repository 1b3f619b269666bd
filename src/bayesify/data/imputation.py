"""Values for the cells of a table that training has not prepared a model for.

A single value, such as the median, would make the model as sure of a row as if nothing were missing. Predictions are therefore
averaged over several values from the training table.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from bayesify.data.column import QUANTILES, Column
from bayesify.data.encoding import MAX_CATEGORIES, share_of_rare

__all__ = ["imputations", "unknown_values"]

_RARE = 0.05  # fraction of the training rows with rare categories, from which on a new category is nothing unusual


def unknown_values(table: pd.DataFrame, columns: Sequence[Column]) -> pd.DataFrame:
    """Return which cells are unknown to a model: missing or new categories, in columns where training had (nearly) none.

    A missing value is unknown if its column has no indicator of missing values (`Column.has_gaps`). A category that is not in the
    training table is unknown, except in columns with many rare ones.

    Args:
        table: from `conform`.
        columns: from `describe_columns`.

    Example:
        >>> from bayesify.data import conform, describe_columns
        >>> columns = describe_columns(pd.DataFrame({"area": [20, 192], "color": ["red", "blue"]}))
        >>> unknown_values(conform(pd.DataFrame({"area": [50, None], "color": ["teal", "red"]}), columns), columns).to_numpy()
        array([[False,  True],
               [ True, False]])
    """
    unknown = pd.DataFrame(False, index=table.index, columns=table.columns)
    for column in columns:
        if column.kind == "dropped":
            continue
        values = table[column.name]
        missing = values.isna().to_numpy()
        if not column.has_gaps:
            unknown[column.name] = missing
        if column.kind == "category" and not _has_rare_categories(column, columns):
            unknown[column.name] |= ~missing & ~values.isin(column.categories).to_numpy()
    return unknown


def imputations(
    table: pd.DataFrame, unknown: pd.DataFrame, columns: Sequence[Column], *, draws: int, seed: int
) -> list[pd.DataFrame]:
    """Return copies of a table, each with other values in the unknown cells.

    The values of a column are those of the training table at the `draws` levels 1 / (2 draws), 3 / (2 draws), ... of its cumulative
    distribution, in an order of its own (a Latin hypercube), the same for all rows. Columns are drawn independently. Between the
    quantiles of `Column`, the distribution of a column of numbers is linear.

    Args:
        table: from `conform`.
        unknown: from `unknown_values`.
        columns: from `describe_columns`.
        draws: number of copies.
        seed: of the orders.

    Example:
        >>> from bayesify.data import conform, describe_columns
        >>> columns = describe_columns(pd.DataFrame({"area": [20, 192], "color": ["red", "blue"]}))
        >>> table = conform(pd.DataFrame({"area": [50, None], "color": ["red", "red"]}), columns)
        >>> copies = imputations(table, unknown_values(table, columns), columns, draws=2, seed=0)
        >>> sorted(copy["area"].tolist() for copy in copies)
        [[50.0, 20.0], [50.0, 192.0]]
    """
    copies = [table.copy() for _ in range(draws)]
    for i, column in enumerate(columns):
        if column.kind == "dropped" or not column.rows or not unknown[column.name].any():
            continue
        levels = (np.random.default_rng((seed, i)).permutation(draws) + 0.5) / draws
        for copy, value in zip(copies, _at_levels(column, levels), strict=True):
            copy[column.name] = copy[column.name].mask(unknown[column.name], value)
    return copies


def _at_levels(column: Column, levels: np.ndarray) -> np.ndarray:
    """The values of the training table at levels of the cumulative distribution; of categories, in order of frequency."""
    if column.kind == "category":
        values, cumulative = np.array(column.categories, dtype=object), np.cumsum(column.shares)
        levels = levels * cumulative[-1]  # there may be more categories than are described
    elif len(column.quantiles) == QUANTILES:
        assert column.minimum is not None
        assert column.maximum is not None
        return np.interp(levels, [0.0, *column.shares, 1.0], [column.minimum, *column.quantiles, column.maximum])
    else:  # few distinct values: nothing in between
        values, cumulative = np.array([*column.quantiles, column.maximum]), np.array([*column.shares, 1.0])
    return values[np.minimum(np.searchsorted(cumulative, levels), len(values) - 1)]


def _has_rare_categories(column: Column, columns: Sequence[Column]) -> bool:
    """Whether training prepared the model for new categories: 5 % of its rows had one that `preprocessing` takes for infrequent."""
    return len(column.categories) > MAX_CATEGORIES and share_of_rare(column, columns) >= _RARE
