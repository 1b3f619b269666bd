"""Whole tables: reading them from a file, telling the target apart, and the checks that come before any training."""

from __future__ import annotations

import difflib
import os
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from bayesify.core.checks import check_choice
from bayesify.data.columns import shown

try:
    import numpy as np
    import pandas as pd
except ImportError as error:
    raise ImportError('tables need pandas: pip install "bayesify[tables]"') from error

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["check_target", "infer_task", "read_table", "split_target"]

_SEPARATORS = {".csv": ",", ".tsv": "\t"}
_MOST_CLASSES = 30


def read_table(path: str | os.PathLike[str]) -> pd.DataFrame:
    """Read a table with a header row.

    An unnamed first column, as `DataFrame.to_csv` writes it, becomes the index.

    Args:
        path: a file that ends in .csv, .tsv (also .csv.gz, .tsv.gz) or .parquet.

    Returns:
        At least one row and one column, column names unique.

    Raises:
        FileNotFoundError: no such file.
        ValueError: another ending, no rows, a file that cannot be read, column names that come twice.
        ImportError: a parquet file without pyarrow.
    """
    path = Path(path)
    if not path.is_file():
        what = "is a folder" if path.is_dir() else "does not exist"
        raise FileNotFoundError(f"{path} {what}; give a .csv, .tsv or .parquet file")
    ending = Path(path.stem).suffix.lower() if path.suffix.lower() == ".gz" else path.suffix.lower()
    if ending not in _SEPARATORS and path.suffix.lower() != ".parquet":
        raise ValueError(f"{path} has the ending {path.suffix!r}; known endings are .csv, .tsv, .csv.gz, .tsv.gz and .parquet")
    try:
        table = _read_text(path, _SEPARATORS[ending]) if ending in _SEPARATORS else pd.read_parquet(path)
    except pd.errors.EmptyDataError:
        raise ValueError(f"{path} is empty; it needs a header row and at least one row of data") from None
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 text (byte {error.start}); save it as CSV UTF-8") from error
    except (pd.errors.ParserError, OSError, ValueError) as error:
        raise ValueError(f"{path} cannot be read as a table: {error}") from error
    if table.shape[1] == 0 or len(table) == 0:
        raise ValueError(f"{path} has {len(table)} rows and {table.shape[1]} columns; at least one of each is needed")
    _check_names(table.columns, str(path))
    return table


def _read_text(path: Path, separator: str) -> pd.DataFrame:
    # pandas renames columns that come twice ("a", "a.1"); the header itself tells.
    header = pd.read_csv(path, sep=separator, header=None, nrows=1, dtype=str, encoding="utf-8-sig").iloc[0]
    names = [name for name in header if isinstance(name, str)]
    _check_names(names, str(path))
    if len(header) == 1 and any(other in str(header[0]) for other in ";\t,"):
        raise ValueError(f"it has a single column {header[0]!r}; columns must be separated by {separator!r}")
    index = 0 if not isinstance(header[0], str) and len(header) > 1 else False
    return pd.read_csv(path, sep=separator, index_col=index, encoding="utf-8-sig", low_memory=False)


def _check_names(names: Sequence[Any] | pd.Index, where: str) -> None:
    if twice := [str(name) for name, count in Counter(names).items() if count > 1]:
        raise ValueError(f"{where} has columns of the same name: {', '.join(map(repr, twice))}; rename or drop them")


def split_target(table: pd.DataFrame, target: str) -> tuple[pd.DataFrame, pd.Series]:
    """The columns to predict from, and the column to predict.

    Raises:
        ValueError: no such column (with the known ones), or no other column.

    Example:
        >>> import pandas as pd
        >>> X, y = split_target(pd.DataFrame({"age": [30, 40], "price": [1.0, 2.0]}), "price")
        >>> list(X), y.name
        (['age'], 'price')
    """
    _check_names(table.columns, "the table")
    names = list(map(str, table.columns))
    if target not in table.columns:
        close = difflib.get_close_matches(str(target).lower(), [name.lower() for name in names], n=1, cutoff=0.6)
        hint = "".join(f" Did you mean {name!r}?" for name in names if [name.lower()] == close)
        known = ", ".join(map(repr, names[:20])) + (f" and {len(names) - 20} more" if len(names) > 20 else "")
        raise ValueError(f"the table has no column {target!r}.{hint} Its columns are {known}")
    if len(names) == 1:
        raise ValueError(f"the table has no column besides the target {target!r}; nothing to predict it from")
    return table.drop(columns=target), table[target]


def infer_task(y: pd.Series | np.ndarray) -> Literal["regression", "classification"]:
    """Whether a target is a number or a class.

    Text, categories, booleans and anything with two distinct values are classes. Integers are classes where there are at most 30
    distinct ones and each comes five times or more on average. Everything else is a number. Missing values do not count.

    Example:
        >>> import pandas as pd
        >>> infer_task(pd.Series(["no", "yes", "no"])), infer_task(pd.Series([1.5, 2.5, 3.5])), infer_task(pd.Series([0, 1, 2] * 5))
        ('classification', 'regression', 'classification')
    """
    values = pd.Series(y).dropna()
    distinct = values.nunique()
    if not pd.api.types.is_numeric_dtype(values) or pd.api.types.is_bool_dtype(values) or distinct == 2:
        return "classification"
    if pd.api.types.is_integer_dtype(values) and distinct <= min(_MOST_CLASSES, len(values) // 5):
        return "classification"
    return "regression"


def check_target(y: pd.Series, task: str, *, least_rows: int = 10) -> None:
    """Check a target column before any training.

    Args:
        y: the target of all rows, training and test.
        task: "regression" or "classification".
        least_rows: the smallest number of rows worth training on.

    Raises:
        ValueError: too few rows, missing or infinite values, numbers that are all the same or no numbers at all, a single class,
            a class with a single row.
    """
    check_choice("task", task, ("regression", "classification"))
    name = f"the target {y.name!r}"
    if len(y) < least_rows:
        raise ValueError(f"the table has {len(y)} rows; at least {least_rows} are needed to train and test on")
    if missing := int(y.isna().sum()):
        raise ValueError(f"{name} is missing in {missing} of {len(y)} rows (first: row {int(y.isna().argmax())}); drop these rows")
    if task == "regression":
        if not pd.api.types.is_numeric_dtype(y) or pd.api.types.is_complex_dtype(y):
            raise ValueError(
                f"{name} holds {y.dtype} values such as {shown(y.iloc[0])}; regression needs numbers, else classification"
            )
        if infinite := int(np.isinf(y.to_numpy(float)).sum()):
            raise ValueError(f"{name} is infinite in {infinite} of {len(y)} rows; drop these rows")
        if y.nunique() == 1:
            raise ValueError(f"{name} is {shown(y.iloc[0])} in every row; there is nothing to learn")
        return
    counts = y.value_counts()
    counts = counts[counts > 0]  # a categorical column counts what it never holds
    if len(counts) == 1:
        raise ValueError(f"{name} has one class only, {shown(counts.index[0])}; at least two are needed")
    if len(counts) > len(y) // 2:
        raise ValueError(f"{name} has {len(counts)} classes in {len(y)} rows; is it a number (regression) or an identifier?")
    if len(single := counts[counts == 1]):
        listing = ", ".join(map(shown, single.index[:10])) + (" ..." if len(single) > 10 else "")
        raise ValueError(f"{name} has classes with a single row: {listing}; join them with others or drop these rows")
