"""Columns: what kind of thing each one holds, learned from training data, and what later tables are held to."""

from __future__ import annotations

import dataclasses
import datetime
import numbers
import warnings
from collections.abc import Sequence
from typing import Any

try:
    import numpy as np
    import pandas as pd
except ImportError as error:
    raise ImportError('tables need pandas: pip install "bayesify[tables]"') from error

__all__ = ["KINDS", "Column", "conform", "describe_columns", "shown"]

KINDS = ("number", "boolean", "datetime", "category")
_DAY = pd.Timedelta(days=1)
_EPOCH = pd.Timestamp(0, tz="UTC")
_ISO_DATE = r"\d{4}-\d{2}-\d{2}(?:[T ].*)?"
_MOST_LISTED = 100
_LARGEST = 1e100  # squares of larger numbers overflow


@dataclasses.dataclass(frozen=True, kw_only=True)
class Column:
    """What training data said about one column.

    Args:
        name: the column's name.
        kind: "number", "boolean", "datetime" (used as days since 1970), "category", or "dropped".
        minimum, maximum: of numbers, booleans and datetimes (in days).
        categories: the most frequent ones, at most 100.
        missing: the share of rows without a value.
        reason: why it was dropped.
    """

    name: str
    kind: str
    minimum: float | None = None
    maximum: float | None = None
    categories: tuple[str, ...] = ()
    missing: float = 0.0
    reason: str = ""


def describe_columns(X: pd.DataFrame) -> tuple[Column, ...]:
    """Find out what every column of a training table holds.

    Columns without values, with the same value everywhere, and text that is different in nearly every row (identifiers, free
    text) are marked as dropped; the last with a warning.

    Raises:
        ValueError: column names that come twice, infinite numbers, values of several kinds in one column, no column left.

    Example:
        >>> import pandas as pd
        >>> [column.kind for column in describe_columns(pd.DataFrame({"a": [1, 2], "b": ["x", "y"], "c": [0, 0]}))]
        ['number', 'category', 'dropped']
    """
    names = [str(name) for name in X.columns]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(f"X has columns of the same name: {', '.join(map(repr, twice))}; rename or drop them")
    columns = tuple(_describe(name, X.iloc[:, i]) for i, name in enumerate(names))
    if all(column.kind == "dropped" for column in columns):
        listing = "; ".join(f"{column.name!r}: {column.reason}" for column in columns[:10])
        raise ValueError(f"no column of X can be learned from ({listing})")
    return columns


def conform(X: pd.DataFrame, columns: Sequence[Column], *, new: bool = True) -> pd.DataFrame:
    """A table with exactly the columns that are used, found by name: floats, and text for categories; missing values stay missing.

    Args:
        X: a table with these columns in any order; others are ignored.
        columns: what `describe_columns` said of the training table.
        new: whether X is another table than that, so that columns it has besides are mentioned in a warning.

    Raises:
        ValueError: columns that are missing, infinite numbers, values of another kind than in training.
    """
    by_name = {str(name): i for i, name in enumerate(X.columns)}
    used = [column for column in columns if column.kind != "dropped"]
    if absent := [column.name for column in used if column.name not in by_name]:
        raise ValueError(
            f"X lacks columns the model was trained on: {', '.join(map(repr, absent))}; it has {', '.join(map(repr, by_name))}"
        )
    if new and (extra := sorted(set(by_name) - {column.name for column in columns})):
        warnings.warn(f"X has columns the model does not know and ignores: {', '.join(map(repr, extra))}", stacklevel=3)
    return pd.DataFrame({c.name: _convert(c.name, X.iloc[:, by_name[c.name]], c.kind) for c in used}, index=X.index)


def shown(value: Any) -> str:
    """A value as a person would write it: 2, not np.int64(2)."""
    return repr(value.item() if isinstance(value, np.generic) else value)


def _describe(name: str, values: pd.Series) -> Column:
    present = values.dropna()
    missing = round(1 - len(present) / max(1, len(values)), 6)
    if present.empty:
        return Column(name=name, kind="dropped", missing=1.0, reason="it has no values")
    kind = _kind(name, present)
    converted = _convert(name, present, kind)
    distinct = converted.nunique()
    if distinct == 1 and not missing:
        return Column(name=name, kind="dropped", reason=f"it is {shown(present.iloc[0])} in every row")
    if kind != "category":
        return Column(name=name, kind=kind, minimum=float(converted.min()), maximum=float(converted.max()), missing=missing)
    if distinct >= 20 and distinct > 0.9 * len(present):
        reason = f"its {len(present)} values are nearly all different ({shown(present.iloc[0])}, ...): an identifier or free text"
        warnings.warn(f"column {name!r} is not used: {reason}", stacklevel=4)
        return Column(name=name, kind="dropped", missing=missing, reason=reason)
    return Column(name=name, kind=kind, categories=tuple(converted.value_counts().index[:_MOST_LISTED]), missing=missing)


def _kind(name: str, present: pd.Series) -> str:
    types = pd.api.types
    if types.is_bool_dtype(present):
        return "boolean"
    if types.is_complex_dtype(present):
        raise ValueError(f"column {name!r} holds complex numbers; split them into real and imaginary parts")
    if types.is_numeric_dtype(present) or types.is_timedelta64_dtype(present):
        return "number"
    if types.is_datetime64_any_dtype(present):
        return "datetime"
    if isinstance(present.dtype, pd.CategoricalDtype):
        return "category"
    examples = {_kind_of(value): value for value in present}
    if len(examples) > 1:
        listing = ", ".join(f"{kind} ({shown(value)})" for kind, value in sorted(examples.items()))
        raise ValueError(f"column {name!r} holds values of several kinds: {listing}; make them all the same")
    kind, value = next(iter(examples.items()))
    if kind not in KINDS:
        raise ValueError(f"column {name!r} holds values of type {kind} ({shown(value)}); use numbers, text, booleans or dates")
    return "datetime" if kind == "category" and present.astype(str).str.fullmatch(_ISO_DATE).all() else kind


def _kind_of(value: Any) -> str:
    if isinstance(value, bool | np.bool_):
        return "boolean"
    if isinstance(value, numbers.Real):
        return "number"
    if isinstance(value, datetime.date):
        return "datetime"
    return "category" if isinstance(value, str) else type(value).__name__


def _convert(name: str, values: pd.Series, kind: str) -> pd.Series:
    """Floats, or text for a category; what cannot be one is an error."""
    if kind == "category":
        return values.astype(object).map(_text, na_action="ignore").where(values.notna(), np.nan)
    result = _days(values) if kind == "datetime" else _floats(values, kind)
    wrong = result.isna() & values.notna()
    if wrong.any():
        first = int(wrong.argmax())
        raise ValueError(
            f"column {name!r} holds {kind}s, but row {first} has {shown(values.iloc[first])} ({int(wrong.sum())} such rows); "
            "correct these values or leave them empty"
        )
    infinite = result.abs() > _LARGEST
    if infinite.any():
        what = "infinite" if np.isinf(result).any() else f"beyond {_LARGEST:g}"
        raise ValueError(f"column {name!r} is {what} in {int(infinite.sum())} of {len(result)} rows; drop or correct them")
    return result


def _days(values: pd.Series) -> pd.Series:
    if pd.api.types.is_numeric_dtype(values):  # pandas would take them for nanoseconds
        return pd.Series(np.nan, values.index)
    return (pd.to_datetime(values, errors="coerce", utc=True, format="mixed") - _EPOCH) / _DAY


def _floats(values: pd.Series, kind: str) -> pd.Series:
    if pd.api.types.is_timedelta64_dtype(values):
        return values / _DAY
    if pd.api.types.is_datetime64_any_dtype(values):
        return pd.Series(np.nan, values.index)
    result = pd.to_numeric(values.astype(object), errors="coerce").astype(float)
    return result.where(result.isin((0.0, 1.0))) if kind == "boolean" else result


def _text(value: Any) -> str:
    """Text of a category: 1 and 1.0 are the same one, as a missing value turns a column of integers into floats."""
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)
