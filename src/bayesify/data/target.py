"""The target column: separation from the inputs, task inference and checks before training."""

from __future__ import annotations

import difflib
from typing import Literal

import numpy as np
import pandas as pd

from bayesify.core.checks import check_choice
from bayesify.data.columns import check_unique_names, check_value_types, format_value
from bayesify.errors import DataError
from bayesify.formatting import listing

__all__ = ["check_target", "infer_task", "split_target"]

_MAX_CLASSES = 30
_LARGEST = 1e150  # squares of larger values overflow


def split_target(table: pd.DataFrame, target: str) -> tuple[pd.DataFrame, pd.Series]:
    """Split a table into inputs and target.

    Raises:
        DataError: no such column, no column but the target, or target values such as lists or bytes.

    Example:
        >>> import pandas as pd
        >>> X, y = split_target(pd.DataFrame({"age": [30, 40], "price": [1.0, 2.0]}), "price")
        >>> list(X), y.name
        (['age'], 'price')
    """
    check_unique_names(table.columns, "the table")
    names = list(map(str, table.columns))
    if target not in table.columns:
        close = difflib.get_close_matches(str(target).lower(), [name.lower() for name in names], n=1, cutoff=0.6)
        hint = "".join(f" Did you mean {name!r}?" for name in names if [name.lower()] == close)
        raise DataError(f"the table has no column {target!r}.{hint} Its columns are {listing(map(repr, names), most=20)}")
    if len(names) == 1:
        raise DataError(f"the table has no column but the target {target!r}; at least one input column is needed")
    check_value_types(f"the target {target!r}", table[target])
    return table.drop(columns=target), table[target]


def infer_task(y: pd.Series | np.ndarray) -> Literal["regression", "classification"]:
    """Infer the task from a target, ignoring missing values.

    Classification: text, categories, booleans, any target with two distinct values, and integers with at most 30 distinct values
    that occur five times or more on average. Regression: everything else.

    Example:
        >>> import pandas as pd
        >>> infer_task(pd.Series(["no", "yes", "no"])), infer_task(pd.Series([1.5, 2.5, 3.5])), infer_task(pd.Series([0, 1, 2] * 5))
        ('classification', 'regression', 'classification')
    """
    values = pd.Series(y).dropna()
    distinct = values.nunique()
    if not pd.api.types.is_numeric_dtype(values) or pd.api.types.is_bool_dtype(values) or distinct == 2:
        return "classification"
    if pd.api.types.is_integer_dtype(values) and distinct <= min(_MAX_CLASSES, len(values) // 5):
        return "classification"
    return "regression"


def check_target(y: pd.Series, task: str, *, least_rows: int = 10) -> None:
    """Check a target column before training.

    Args:
        y: the target of all rows, training and test.
        task: "regression" or "classification".
        least_rows: minimum number of rows.

    Raises:
        ConfigurationError: an unknown task.
        DataError: too few rows, or missing values. Regression: a non-numeric, infinite or constant target. Classification: a single
            class, or a class with a single row.
    """
    check_choice("task", task, ("regression", "classification"))
    name = f"the target {y.name!r}"
    if len(y) < least_rows:
        raise DataError(f"the table has {len(y)} rows; at least {least_rows} are needed for training and evaluation")
    if missing := int(y.isna().sum()):
        raise DataError(f"{name} is missing in {missing} of {len(y)} rows (first: row {int(y.isna().argmax())}); drop these rows")
    if task == "regression":
        _check_regression(y, name)
    else:
        _check_classification(y, name)


def _check_regression(y: pd.Series, name: str) -> None:
    if not pd.api.types.is_numeric_dtype(y) or pd.api.types.is_complex_dtype(y):
        raise DataError(f"{name} has {y.dtype} values such as {format_value(y.iloc[0])}; regression needs numbers")
    sizes = np.abs(y.to_numpy(float))
    if excessive := int((sizes > _LARGEST).sum()):
        kind = "infinite" if np.isinf(sizes).any() else f"beyond {_LARGEST:.0e}"
        raise DataError(f"{name} is {kind} in {excessive} of {len(y)} rows; drop or rescale them")
    if y.nunique() == 1:
        raise DataError(f"{name} is {format_value(y.iloc[0])} in every row; at least two distinct values are needed")


def _check_classification(y: pd.Series, name: str) -> None:
    counts = y.value_counts()
    counts = counts[counts > 0]  # a categorical dtype also counts unused categories
    if len(counts) == 1:
        raise DataError(f"{name} has a single class, {format_value(counts.index[0])}; at least two are needed")
    if len(counts) > len(y) // 2:
        raise DataError(f"{name} has {len(counts)} classes in {len(y)} rows; check that it is neither numeric nor an identifier")
    if len(single := counts[counts == 1]):
        classes = ", ".join(map(format_value, single.index[:10])) + (" ..." if len(single) > 10 else "")
        raise DataError(f"{name} has classes with a single row: {classes}; merge them with others or drop these rows")
