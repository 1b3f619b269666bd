"""The target column: separation from the inputs, numbers that are text, task inference and checks before training."""

from __future__ import annotations

import difflib
from typing import Literal

import numpy as np
import pandas as pd

from bayesify.core.checks import check_choice
from bayesify.data.column import format_value
from bayesify.data.columns import SMALLEST_RANGE, check_unique_names, check_value_types
from bayesify.data.text_values import MISSING_WORDS, all_text, describe_format, number_format, parse_numbers
from bayesify.errors import DataError, warn
from bayesify.formatting import listing, plural

__all__ = [
    "LARGEST_TARGET",
    "check_target",
    "drop_missing_target",
    "infer_task",
    "read_target",
    "split_target",
    "target_format",
    "task_reason",
    "tell_format",
]

_MAX_CLASSES = 30
_FEW_NUMBERS = 10  # with a decimal point that may be classes, such as 0.0, 1.0, 2.0
LARGEST_TARGET = 1e150  # squares of larger values overflow


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


def target_format(y: pd.Series, task: str = "auto") -> str:
    """Return the format of a target that is numbers written as text: the decimal separator and the unit, as `Column` has it.

    It is empty for other targets, and for classes.

    Args:
        y: the target of the training table.
        task: "regression", "classification" or "auto"; with "auto", text is read as numbers if nearly all of it is, such as "$5",
            "1,200" or "3,5", and has more than two distinct values; with a unit ("5 kg"), more than 30.

    Example:
        >>> import pandas as pd
        >>> [target_format(pd.Series(y)) for y in (["$6,457", "$95", "$105"], ["3,5", "4,5", "1,5"], ["no", "yes"], [1.5, 2.5])]
        ['.', ',', '', '']
    """
    text = y.dropna()
    if task == "classification" or not all_text(text):
        return ""
    if task == "auto":
        written = number_format(text.astype(str))
        return written if text.nunique() > (_MAX_CLASSES if written[1:] else 2) else ""
    return number_format(text.astype(str)) or "."


def tell_format(y: pd.Series, written: str) -> None:
    """Warn that a target is text which is read as numbers; `written` is from `target_format`.

    Example:
        >>> import warnings
        >>> y = pd.Series(["3,5", "4,5", "1,5"], name="price")
        >>> with warnings.catch_warnings(record=True, action="always") as caught:
        ...     tell_format(y, target_format(y, "auto"))
        >>> print(caught[0].message)
        the target 'price' is text and read as numbers with a decimal comma, such as '3,5'
    """
    example = y[read_target(y, written, tell=False).notna()].iloc[:1].map(repr).str.cat()
    warn(f"the target {y.name!r} is text and read as {describe_format(written)}{', such as ' if example else ''}{example}")


def read_target(y: pd.Series, written: str, *, tell: bool = True) -> pd.Series:
    """Read a target in the format of the training table; text that is no number is missing.

    Decimals become floats, and integers if none of them has digits after the point.

    Args:
        y: the target of any table.
        written: from `target_format`.
        tell: whether to warn of text that is no number, and to raise an error if all of it is.

    Raises:
        DataError: no value is a number.

    Example:
        >>> import pandas as pd
        >>> read_target(pd.Series(["1.200,5", "950"], name="price"), ",").tolist()
        [1200.5, 950.0]
    """
    if pd.api.types.infer_dtype(y) == "decimal":
        return _without_decimals(y)
    present = y.dropna()
    if not written or not all_text(present):
        return y
    result = parse_numbers(y.astype(object).where(y.notna(), "").astype(str), written)
    if not tell:
        return result
    strays = present[result[y.notna()].isna().to_numpy()]
    examples = listing(map(repr, dict.fromkeys(strays)), most=3)
    if len(strays) == len(present):
        raise DataError(f"the target {y.name!r} has no numbers, but {examples}; regression needs numbers")
    if len(strays):
        warn(f"the target {y.name!r} has text that is no number in {len(strays)} of {len(y)} rows ({examples})")
    return result


def _without_decimals(y: pd.Series) -> pd.Series:
    if not all(value.as_tuple().exponent == 0 and abs(value) < 2**63 for value in y.dropna()):
        return y.astype(float)
    whole = [pd.NA if missing else int(value) for value, missing in zip(y, y.isna(), strict=True)]
    return _without_gaps(pd.Series(whole, y.index, "Int64", y.name))


def drop_missing_target(X: pd.DataFrame, y: pd.Series, source: str = "the table") -> tuple[pd.DataFrame, pd.Series]:
    """Drop the rows without a target, with a warning that counts them; integers and booleans get the types they have without gaps.

    Text such as "NA" or "None" is a class, with a warning.

    Args:
        X: the inputs.
        y: the target.
        source: the table's name in the warning.

    Example:
        >>> import pandas as pd
        >>> X, y = drop_missing_target(pd.DataFrame({"a": [1, 2, 3]}), pd.Series([0, None, 1], name="label"))
        >>> len(X), y.tolist()
        (2, [0, 1])
    """
    known = y.notna().to_numpy()
    _tell_words(y, source)
    if known.all():
        return X, _without_gaps(y)
    warn(f"the target {y.name!r} is missing in {len(y) - known.sum():,} of {len(y):,} rows of {source}; they are not used")
    X, y = X[known], _without_gaps(y[known])
    if pd.api.types.is_float_dtype(y) and (y % 1 == 0).all():
        y = y.astype(np.int64)
    return X, y


def _tell_words(y: pd.Series, source: str) -> None:
    words = y[y.isin(MISSING_WORDS)] if all_text(y) else y[:0]
    if len(words):
        found = listing(map(repr, words.unique()), most=3)
        warn(
            f"the target {y.name!r} is the text {found} in {len(words):,} of {len(y):,} rows of {source}, which counts as a class; "
            "leave cells without a value empty"
        )


def _without_gaps(y: pd.Series) -> pd.Series:
    """Convert types that allow missing values, such as Int64, to those of NumPy, if none is missing."""
    if y.hasnans:
        return y
    nullable = getattr(y.dtype, "numpy_dtype", None)
    return y.infer_objects() if nullable is None or isinstance(y.dtype, np.dtype) else y.astype(nullable)


def infer_task(y: pd.Series | np.ndarray) -> Literal["regression", "classification"]:
    """Infer the task from a target, ignoring missing values.

    Classification: text, categories, booleans, any target with two distinct whole numbers, and integers with at most 30 distinct
    values, each of which occurs twice or more and five times on average. Regression: everything else.

    Example:
        >>> import pandas as pd
        >>> infer_task(pd.Series(["no", "yes", "no"])), infer_task(pd.Series([1.5, 2.5, 3.5])), infer_task(pd.Series([0, 1, 2] * 5))
        ('classification', 'regression', 'classification')
    """
    return _infer(y)[0]


def task_reason(y: pd.Series | np.ndarray) -> str:
    """Return why `infer_task` took few distinct numbers for classes or for numbers; empty for targets that leave no choice.

    Example:
        >>> task_reason(pd.Series([3, 4, 5] * 9))
        'it has 3 distinct integers'
    """
    return _infer(y)[1]


def _infer(y: pd.Series | np.ndarray) -> tuple[Literal["regression", "classification"], str]:
    values = read_target(pd.Series(y), "").dropna()
    distinct = values.nunique()
    if not pd.api.types.is_numeric_dtype(values) or pd.api.types.is_bool_dtype(values):
        return "classification", ""
    are_whole = bool((values % 1 == 0).all())
    if distinct == 2 and are_whole:
        return "classification", "" if set(values) == {0, 1} else "it has 2 distinct numbers"
    if pd.api.types.is_integer_dtype(values) and distinct <= min(_MAX_CLASSES, len(values) // 5):
        found = f"it has {distinct} distinct integers"
        is_count = values.value_counts().min() == 1  # an integer in a single row is the end of a range rather than a class
        return ("regression", f"{found}, some in a single row") if is_count else ("classification", found)
    few = are_whole and distinct <= min(_FEW_NUMBERS, len(values) // 5)
    return "regression", f"it has {distinct} distinct numbers" if few else ""


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

    Example:
        >>> check_target(pd.Series([1.0, 2.0, None] * 5, name="price"), "regression")
        Traceback (most recent call last):
            ...
        bayesify.errors.DataError: the target 'price' is missing in 5 of 15 rows (first: row 2); drop these rows
    """
    check_choice("task", task, ("regression", "classification"))
    name = f"the target {y.name!r}"
    if len(y) < least_rows:
        raise DataError(f"the table has {plural(len(y), 'row')}; at least {least_rows} are needed for training and evaluation")
    if missing := int(y.isna().sum()):
        raise DataError(f"{name} is missing in {missing} of {len(y)} rows (first: row {y.index[y.isna()][0]}); drop these rows")
    if task == "regression":
        _check_regression(y, name)
    else:
        _check_classification(y, name)


def _check_regression(y: pd.Series, name: str) -> None:
    if not pd.api.types.is_numeric_dtype(y) or pd.api.types.is_complex_dtype(y):
        raise DataError(f"{name} has {y.dtype} values such as {format_value(y.iloc[0])}; regression needs numbers")
    sizes = np.abs(y.to_numpy(float))
    if excessive := int((sizes > LARGEST_TARGET).sum()):
        kind = "infinite" if np.isinf(sizes).any() else f"beyond {LARGEST_TARGET:.0e}"
        raise DataError(f"{name} is {kind} in {excessive} of {len(y)} rows; drop or rescale them")
    if y.nunique() == 1:
        raise DataError(f"{name} is {format_value(y.iloc[0])} in every row; at least two distinct values are needed")
    if np.ptp(y.to_numpy(float)) < SMALLEST_RANGE:
        raise DataError(f"{name} has values that differ by less than {SMALLEST_RANGE:g}; rescale it")


def _check_classification(y: pd.Series, name: str) -> None:
    if pd.api.types.is_float_dtype(y) and len(broken := y[y % 1 != 0]):
        raise DataError(
            f"{name} has numbers such as {format_value(broken.iloc[0])}; classes are text, booleans or whole numbers. Give them "
            "names, or use --task regression to predict numbers"
        )
    counts = y.value_counts()
    counts = counts[counts > 0]  # a categorical dtype also counts unused categories
    if len(counts) == 1:
        raise DataError(f"{name} has a single class, {format_value(counts.index[0])}; at least two are needed")
    is_numeric = pd.api.types.is_numeric_dtype(y) or bool(target_format(y, "auto"))
    if len(counts) > len(y) // 2:
        advice = "use --task regression to predict numbers" if is_numeric else "check that it is not an identifier"
        raise DataError(f"{name} has {len(counts)} classes in {len(y)} rows; {advice}")
    if len(single := counts[counts == 1]):
        advice = ", or use --task regression to predict numbers" if is_numeric else ""
        classes = listing(map(format_value, single.index))
        raise DataError(f"{name} has classes with a single row: {classes}; merge them with others or drop these rows{advice}")
