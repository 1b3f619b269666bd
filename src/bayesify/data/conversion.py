"""Conversion of columns to text and floats."""

from __future__ import annotations

import math
import warnings
from typing import Any

import numpy as np
import pandas as pd

from bayesify.data.column import DAY, EPOCH, Column, format_value, remedy
from bayesify.data.dates import ISO_DATE
from bayesify.data.text_values import MISSING_WORDS, all_text, no_value, parse_numbers
from bayesify.errors import DataError
from bayesify.formatting import listing

__all__ = ["convert"]

_LARGEST = 1e100  # squares of larger values overflow
_EXAMPLE = pd.Timestamp("2020-12-31 18:30")


def convert(values: pd.Series, column: Column, *, tell: bool = True) -> pd.Series:
    """Convert a column to text (categories) or float; raise a `DataError` for values that do not fit the kind.

    Text such as "NA" is a missing value, in columns other than categories also "?" and the like, and in a column of numbers that
    was text in training all text that is no number; `tell` warns of it.
    """
    name, kind = column.name, column.kind
    if kind == "category":
        return _categories(values, column, tell)
    is_written = bool(column.format) and all_text(values)
    if is_written and kind == "number":
        result = parse_numbers(values.astype(object).where(values.notna(), "").astype(str), column.format)
    else:
        result = _days(values, column.format if is_written else "") if kind == "datetime" else _floats(values, kind)
    invalid = result.isna() & values.notna()
    if invalid.any():
        missing = invalid if is_written and kind == "number" else invalid & no_value(values)
        if (invalid & ~missing).any():
            raise _unfit(values, invalid & ~missing, column)
        if tell:
            _tell_missing(name, values, missing, "is no date" if kind == "datetime" else f"is no {kind}")
    too_large = result.abs() > _LARGEST
    if too_large.any():
        problem = "infinite" if np.isinf(result).any() else f"beyond {_LARGEST:g}"
        raise DataError(f"column {name!r} is {problem} in {int(too_large.sum())} of {len(result)} rows; drop or correct them")
    return result


def _categories(values: pd.Series, column: Column, tell: bool) -> pd.Series:
    """Convert values to text; text such as "NA" is missing unless it was a category in training."""
    if isinstance(values.dtype, pd.CategoricalDtype):  # far fewer categories than values
        texts = np.array([*map(_text, values.cat.categories), np.nan], dtype=object)
        return pd.Series(texts[values.cat.codes.to_numpy()], index=values.index, name=values.name)
    result = values.astype(object)
    if not isinstance(values.dtype, pd.StringDtype):
        result = result.map(_text, na_action="ignore")
    words = values.isin(MISSING_WORDS.difference(column.categories))
    if tell and words.any():
        _tell_missing(column.name, values, words, "means a missing value")
    return result.where(values.notna() & ~words, np.nan)


def _tell_missing(name: str, values: pd.Series, missing: pd.Series, problem: str) -> None:
    """Warn of text that is treated as missing."""
    texts = listing(map(repr, dict.fromkeys(values[missing])), most=3)
    rows = f"{int(missing.sum())} of {len(values)} rows"
    warnings.warn(f"column {name!r} has text that {problem} in {rows} ({texts}); it is treated as missing", stacklevel=6)


def _unfit(values: pd.Series, invalid: pd.Series, column: Column) -> DataError:
    """The error for values that are not of the column's kind."""
    first = int(invalid.argmax())
    value = values.iloc[first]
    expected = {
        "boolean": " (True, False, 1 or 0, no text)",
        "datetime": f" such as {_EXAMPLE.strftime(column.format or '%Y-%m-%d')!r}",
    }.get(column.kind, "")
    return DataError(
        f"column {column.name!r} must be of kind {column.kind!r}{expected}, got {format_value(value)} in row {values.index[first]} "
        f"({int(invalid.sum())} such rows); {remedy(value)}"
    )


def _days(values: pd.Series, written: str = "") -> pd.Series:
    if pd.api.types.is_numeric_dtype(values) or isinstance(values.dtype, pd.PeriodDtype):  # pandas reads numbers as nanoseconds
        return pd.Series(np.nan, values.index)
    if not (written or pd.api.types.is_datetime64_any_dtype(values)):  # pandas would read other text month first
        values = values.where(values.map(lambda value: not isinstance(value, str) or bool(ISO_DATE.fullmatch(value.strip()))))
    return (pd.to_datetime(values, errors="coerce", utc=True, format=written or "mixed") - EPOCH) / DAY


def _floats(values: pd.Series, kind: str) -> pd.Series:
    if pd.api.types.is_timedelta64_dtype(values):
        return values / DAY
    if pd.api.types.is_datetime64_any_dtype(values):
        return pd.Series(np.nan, values.index)
    if isinstance(values.dtype, np.dtype) and values.dtype.kind in "iuf" and kind == "number":
        return values.astype(float)
    try:
        result = pd.to_numeric(values.astype(object), errors="coerce").astype(float)
    except OverflowError:  # an integer beyond the range of float64
        result = values.map(lambda value: math.inf if isinstance(value, int) and abs(value) > _LARGEST else value)
        result = pd.to_numeric(result, errors="coerce").astype(float)
    return result.where(result.isin((0.0, 1.0))) if kind == "boolean" else result


def _text(value: Any) -> str:
    """Text of a category; 1 and 1.0 are the same, since a missing value turns a column of integers into floats."""
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)
