"""Column kinds: inferred from a training table, and enforced on every later table."""

from __future__ import annotations

import datetime
import decimal
import numbers
import re
import warnings
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pandas as pd

from bayesify.data.column import CATEGORIES, KINDS, QUANTILES, Column, format_value, remedy
from bayesify.data.conversion import convert
from bayesify.data.dates import ISO_DATE, date_format
from bayesify.data.encoding import own_indicators, share_of_rare
from bayesify.data.text_values import all_text, describe_format, distinct, no_value, number_format, numeric_share
from bayesify.errors import DataError
from bayesify.formatting import listing, percent

__all__ = ["SMALLEST_RANGE", "check_unique_names", "check_value_types", "conform", "describe_columns"]

_ROW_NAME = re.compile(r"(?:.*[_ ])?(?:id|index|row|rowid|row number|nr|no|unnamed: ?\d+)", re.IGNORECASE)
SMALLEST_RANGE = 1e-150  # the square of a smaller one vanishes
_MANY_TEXTS, _MANY_NUMBERS = 20, 1 / 3  # distinct values and share of numbers from which on text may have been meant as numbers
_MOST_RARE = 0.5  # of the values of a column, which may be rare categories without a word
_LEVELS = np.arange(1, QUANTILES + 1) / (QUANTILES + 1)


def describe_columns(X: pd.DataFrame) -> tuple[Column, ...]:
    """Infer the kind of every column of a training table.

    Columns without values, columns that are constant up to 1e-150, and text columns that differ in nearly every row (identifiers,
    free text) are marked as dropped. Text that is nearly always a number ("1,200", "3,5", "$5", "7 %", "57.3 kg") or a date
    (31.12.2020, 12/31/2020 18:30) is read as such, apart from marks of missing values ("?", "n/a"), and other values in a column of
    numbers are missing values. Dropping an identifier, reading text, and a column whose categories are mostly rare issue a warning.

    Raises:
        DataError: duplicate column names, infinite values, mixed types in one column, or no usable column.

    Example:
        >>> import pandas as pd
        >>> [column.kind for column in describe_columns(pd.DataFrame({"a": [1, 2], "b": ["x", "y"], "c": [0, 0]}))]
        ['number', 'category', 'dropped']
    """
    names = [str(name) for name in X.columns]
    check_unique_names(names, "X")
    columns = tuple(_describe(name, X.iloc[:, i]) for i, name in enumerate(names))
    if all(column.kind == "dropped" for column in columns):
        reasons = "; ".join(f"{column.name!r}: {column.reason}" for column in columns[:10])
        raise DataError(f"X has no usable column ({reasons})")
    _tell_rare_categories(columns)
    return columns


def conform(X: pd.DataFrame, columns: Sequence[Column], *, new: bool = True) -> pd.DataFrame:
    """Select the columns in use by name and convert them: text for categories, floats otherwise; missing values stay missing.

    Args:
        X: a table with these columns in any order; others are ignored.
        columns: from `describe_columns`.
        new: whether X is not the training table; unknown columns then issue a warning.

    Raises:
        DataError: missing columns, duplicate column names, infinite values, or values of another kind than in training.

    Example:
        >>> columns = describe_columns(pd.DataFrame({"area": [20, 192], "color": ["red", "blue"]}))
        >>> conform(pd.DataFrame({"color": ["red"], "area": [50]}), columns).to_dict("list")
        {'area': [50.0], 'color': ['red']}
        >>> conform(pd.DataFrame({"color": ["red"]}), columns)
        Traceback (most recent call last):
            ...
        bayesify.errors.DataError: the table lacks columns of the training table: 'area'; it has 'color'
    """
    check_unique_names(X.columns, "the table")
    positions = {str(name): i for i, name in enumerate(X.columns)}
    used = [column for column in columns if column.kind != "dropped"]
    if absent := [column.name for column in used if column.name not in positions]:
        raise DataError(
            f"the table lacks columns of the training table: {listing(map(repr, absent))}; it has {listing(map(repr, positions))}"
        )
    if new and (unknown := sorted(set(positions) - {column.name for column in columns})):
        warnings.warn(
            f"the table has columns that were not in the training table; they are ignored: {listing(map(repr, unknown))}",
            stacklevel=3,
        )
    return pd.DataFrame({c.name: convert(X.iloc[:, positions[c.name]], c, tell=new) for c in used}, index=X.index)


def check_unique_names(names: Iterable[object], source: str) -> None:
    """Raise a `DataError` if column names are not unique; `source` names the table in the message."""
    if duplicates := [name for name, count in Counter(map(str, names)).items() if count > 1]:
        raise DataError(f"{source} has duplicate column names: {listing(map(repr, duplicates))}; rename or drop them")


def check_value_types(name: str, values: pd.Series) -> None:
    """Raise a `DataError` if a column has values other than numbers, text, booleans or dates."""
    if values.dtype == object or isinstance(values.dtype, pd.PeriodDtype):
        for value in values.dropna():
            if (kind := _kind_of_value(value)) not in KINDS:
                raise DataError(
                    f"{name} has values of type {kind} ({format_value(value)}); supported are numbers, text, booleans and dates; "
                    f"{remedy(value)}"
                )


def _describe(name: str, values: pd.Series) -> Column:
    present = values.dropna()
    kind, written = _kind(name, present) if len(present) else ("category", "")
    read = convert(present, Column(name=name, kind=kind, format=written))
    converted = read.dropna()
    if converted.empty:
        return Column(name=name, kind="dropped", missing=1.0, reason="it has no values")
    missing = round(1 - len(converted) / max(1, len(values)), 6)
    distinct = converted.nunique()
    if _identifies_rows(name, converted, kind):
        reason = "all of its values are different, as in an identifier"
        warnings.warn(f"column {name!r} is not used: {reason}; rename it if they mean something", stacklevel=4)
        return Column(name=name, kind="dropped", missing=missing, reason=reason)
    if distinct == 1 and not missing:
        return Column(name=name, kind="dropped", reason=f"it is {format_value(present.iloc[0])} in every row")
    if kind != "category":
        if distinct > 1 and converted.max() - converted.min() < SMALLEST_RANGE:
            reason = f"its values differ by less than {SMALLEST_RANGE:g}; multiply them by a constant"
            warnings.warn(f"column {name!r} is not used: {reason}", stacklevel=4)
            return Column(name=name, kind="dropped", missing=missing, reason=reason)
        if written:
            example = f", such as {format_value(present[read.notna().to_numpy()].iloc[0])}"
            warnings.warn(f"column {name!r} is text and read as {describe_format(written)}{example}", stacklevel=4)
        quantiles = np.unique(np.quantile(converted, _LEVELS, method="inverted_cdf"))  # values that occur
        return Column(
            name=name,
            kind=kind,
            minimum=float(converted.min()),
            maximum=float(converted.max()),
            missing=missing,
            format=written,
            rows=len(values),
            quantiles=tuple(quantiles.tolist()),
            shares=tuple(np.round(np.searchsorted(np.sort(converted), quantiles, side="right") / len(converted), 6).tolist()),
        )
    if distinct >= 20 and distinct > 0.9 * len(present):
        example = format_value(present.iloc[0])
        reason = f"nearly all of its {len(present)} values are distinct ({example}, ...), as in an identifier or free text"
        warnings.warn(f"column {name!r} is not used: {reason}", stacklevel=4)
        _tell_unread_numbers(name, present.astype(str), "not used")
        return Column(name=name, kind="dropped", missing=missing, reason=reason)
    if distinct >= _MANY_TEXTS and all_text(present):
        _tell_unread_numbers(name, present, "used as categories")
    shares = converted.value_counts(normalize=True).head(CATEGORIES).round(6)
    return Column(
        name=name, kind=kind, categories=tuple(shares.index), missing=missing, rows=len(values), shares=tuple(shares.tolist())
    )


def _identifies_rows(name: str, converted: pd.Series, kind: str) -> bool:
    """Whether a column called id, index or the like has integers that are all different."""
    if kind != "number" or len(converted) < 20 or not _ROW_NAME.fullmatch(name.strip()):
        return False
    return converted.is_unique and bool((converted % 1 == 0).all())


def _tell_rare_categories(columns: Sequence[Column]) -> None:
    """Warn of columns whose categories are mostly too rare for an input of their own."""
    least, most = own_indicators(columns)
    for column in columns:
        if column.kind == "category" and (rare := share_of_rare(column, columns)) >= _MOST_RARE:
            warnings.warn(
                f"{percent(rare)} of the values of column {column.name!r} are categories that share one input, as each is in fewer "
                f"than {percent(least)} of the rows or not among the {most - 1} most frequent; the model cannot tell them apart. "
                "Group them, or add columns that describe them",
                stacklevel=3,
            )


def _tell_unread_numbers(name: str, text: pd.Series, use: str) -> None:
    """Warn of text that may have been meant as numbers or dates."""
    share, others = numeric_share(text)
    if share <= _MANY_NUMBERS:
        return
    examples = listing(map(repr, others if len(others) else text.unique()), most=3)
    rest = f"; others are {examples}. Correct these or leave them empty if they should be numbers"
    if others.empty:
        rest = f", in no format that is read, such as {examples}. Write numbers as 1200.5, and dates as 2020-12-31"
    warnings.warn(
        f"column {name!r} is text and {use}, although {percent(share)} of its values are numbers or dates{rest}", stacklevel=5
    )


def _kind(name: str, present: pd.Series) -> tuple[str, str]:
    """The kind of a column, and the format of its text."""
    kind = _kind_of_dtype(name, present)
    if kind != "category" or not all_text(present):
        return kind, ""
    text = present.astype(str)
    dates = text[~no_value(text)].str.fullmatch(ISO_DATE)
    if len(dates) and dates.all():
        return "datetime", ""
    if written := date_format(distinct(text[~no_value(text)])[0]):
        return "datetime", written
    return ("number", written) if (written := number_format(text)) else ("category", "")


def _kind_of_dtype(name: str, present: pd.Series) -> str:
    types = pd.api.types
    if types.is_bool_dtype(present):
        return "boolean"
    if types.is_complex_dtype(present):
        raise DataError(f"column {name!r} has complex values; split them into real and imaginary parts")
    if types.is_numeric_dtype(present) or types.is_timedelta64_dtype(present):
        return "number"
    if types.is_datetime64_any_dtype(present):
        return "datetime"
    if isinstance(present.dtype, pd.CategoricalDtype):
        return "category"
    examples = {_kind_of_value(value): value for value in present}
    if len(examples) > 1:
        kinds = ", ".join(f"{kind} ({format_value(value)})" for kind, value in sorted(examples.items()))
        raise DataError(f"column {name!r} has values of several kinds: {kinds}; convert them to one kind")
    check_value_types(f"column {name!r}", present)
    (kind,) = examples
    return kind


def _kind_of_value(value: Any) -> str:
    if isinstance(value, bool | np.bool_):
        return "boolean"
    if isinstance(value, numbers.Real | decimal.Decimal):
        return "number"
    if isinstance(value, datetime.date):
        return "datetime"
    return "category" if isinstance(value, str) else type(value).__name__
