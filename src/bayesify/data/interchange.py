"""What callers give as a table: those of polars, pyarrow, narwhals, SciPy's sparse matrices; and labels of its rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import scipy.sparse

from bayesify.errors import DataError, warn

__all__ = ["as_table", "warn_of_other_order"]

_DENSE_BYTES = 2**30  # of the largest sparse matrix that is converted


def as_table(X: Any) -> Any:
    """Convert a table of another library to a DataFrame of pandas, and a sparse matrix to an array; return other values unchanged.

    Args:
        X: anything. Tables are objects with `to_pandas` or with the Arrow stream protocol.

    Raises:
        TypeError: a table that is not computed yet, such as a `polars.LazyFrame`.
        DataError: a Series, an array with text, or a sparse matrix of more than 1 GiB as an array.

    Example:
        >>> import pyarrow
        >>> as_table(pyarrow.table({"a": [1, 2], "b": ["x", "y"]})).to_dict("list")
        {'a': [1, 2], 'b': ['x', 'y']}
    """
    if hasattr(X, "to_pandas"):
        X = X.to_pandas()
    if isinstance(X, pd.DataFrame):
        return X
    if isinstance(X, pd.Series):
        raise DataError(
            f"X must be two-dimensional, got a Series named {X.name!r}; use X[[{X.name!r}]] for a column, or X.iloc[[0]] for a row"
        )
    if scipy.sparse.issparse(X):
        if (size := 8 * X.shape[0] * X.shape[1]) > _DENSE_BYTES:
            raise DataError(
                f"X is a sparse matrix of shape {X.shape}, which needs {size / 2**30:.1f} GiB as an array, and at most 1 GiB is "
                "converted; reduce its columns first, for example with sklearn.decomposition.TruncatedSVD"
            )
        return X.toarray()
    if isinstance(X, np.ndarray) and X.dtype.kind in "OU":
        _check_text(X)
    if hasattr(X, "collect"):
        raise TypeError(f"X is a {type(X).__name__}, which is not computed yet; pass X.collect()")
    if hasattr(X, "__arrow_c_stream__"):
        import pyarrow

        return pyarrow.table(X).to_pandas()
    return X


def _check_text(array: np.ndarray) -> None:
    """Raise a `DataError` if an array has text other than numbers."""
    try:
        array.astype(float)
    except ValueError as error:
        raise DataError(
            f"X is an array with text ({error}); pass a DataFrame, which keeps the kinds of columns, for example with "
            'set_output(transform="pandas") of a transformer'
        ) from None
    except TypeError:  # other objects, which scikit-learn refuses
        return


def warn_of_other_order(X: Any, y: Any, name: str = "y") -> None:
    """Warn if rows have the same labels as the argument `name` in another order: they are paired by position, not by label."""
    if not isinstance(X, pd.DataFrame) or not isinstance(y, pd.DataFrame | pd.Series):
        return
    rows, targets = X.index, y.index
    if len(rows) != len(targets) or rows.equals(targets):
        return
    if rows.is_unique and targets.is_unique and rows.isin(targets).all():
        warn(
            f"X and {name} have the same index in another order, and are paired by position; if labels should decide, give "
            f"{name}.loc[X.index], otherwise reset both indices"
        )
