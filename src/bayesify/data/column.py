"""The description of a column of the training table."""

from __future__ import annotations

import dataclasses
from typing import Any

from bayesify.errors import MissingDependencyError

try:
    import numpy as np
    import pandas as pd
except ImportError as error:
    raise MissingDependencyError("tables", "pandas", extra="tables") from error

__all__ = ["CATEGORIES", "DAY", "EPOCH", "KINDS", "QUANTILES", "Column", "format_value", "remedy"]

KINDS = ("number", "boolean", "datetime", "category")
DAY = pd.Timedelta(days=1).as_unit("s")
EPOCH = pd.Timestamp(0, tz="UTC").as_unit("s")  # nanoseconds end in the year 2262
QUANTILES = 19  # of a column, at most
CATEGORIES = 500  # of a column, at most
_LEAST_GAPS = 10  # missing values from which a model can learn what it means that a value is missing


@dataclasses.dataclass(frozen=True, kw_only=True)
class Column:
    """Kind and range of one column of the training table.

    Args:
        name: the column's name.
        kind: "number", "boolean", "datetime" (encoded as days since 1970), "category", or "dropped".
        minimum, maximum: of numeric, boolean and datetime columns (in days).
        categories: the most frequent categories, at most 500.
        missing: fraction of rows without a value.
        reason: why the column was dropped.
        format: of text: the decimal separator of numbers, followed by their unit (".kg"), or the `strftime` format of dates; empty
            for other columns.
        rows: number of rows of the training table; 0 in models of earlier versions, which have no quantiles and shares either.
        quantiles: of numeric, boolean and datetime columns: the distinct ones of the 19 values at 5 %, 10 %, ..., 95 %.
        shares: fraction of the values that are at most the quantile, or that are the category, for each of these.

    Example:
        >>> import pandas as pd
        >>> from bayesify.data import describe_columns
        >>> (column,) = describe_columns(pd.DataFrame({"area": [20, 192, None, 50]}))
        >>> column.name, column.kind, column.minimum, column.maximum, column.missing
        ('area', 'number', 20.0, 192.0, 0.25)
    """

    name: str
    kind: str
    minimum: float | None = None
    maximum: float | None = None
    categories: tuple[str, ...] = ()
    missing: float = 0.0
    reason: str = ""
    format: str = ""
    rows: int = 0
    quantiles: tuple[float, ...] = ()
    shares: tuple[float, ...] = ()

    @property
    def has_gaps(self) -> bool:
        """Whether enough values were missing in training for an indicator of missing values: ten."""
        return round(self.missing * self.rows) >= _LEAST_GAPS if self.rows else self.missing > 0

    @property
    def is_text(self) -> bool:
        """Whether a text file must leave this column as text: numbers and dates in a format, categories such as 01067."""
        return bool(self.format) or (
            self.kind == "category" and not all(c.isdecimal() and str(int(c)) == c for c in self.categories)
        )


def format_value(value: Any) -> str:
    """Representation of a cell without NumPy types: 2 instead of np.int64(2)."""
    return repr(value.item() if isinstance(value, np.generic) else value)


def remedy(value: Any) -> str:
    """What to do with the values of a column that are like this one and not of its kind."""
    is_period = isinstance(value, pd.Period)
    return "convert them with .dt.to_timestamp()" if is_period else "correct these values or leave them empty"
