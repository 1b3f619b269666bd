r"""Encoding of columns as network inputs, by scikit-learn transformers and `SoftClip`.

Numeric, boolean and datetime columns: `SoftClip`, standardization, median imputation, and a missing-value indicator for each column
with ten missing values or more in training. Categorical columns: one-hot encoding. A missing value is a category; infrequent
categories (`own_indicators`) and unseen ones share one indicator.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Self

from bayesify.core.checks import check_positive
from bayesify.data.column import CATEGORIES, Column
from bayesify.errors import MissingDependencyError

try:
    import numpy as np
    from sklearn.base import BaseEstimator, OneToOneFeatureMixin, TransformerMixin
    from sklearn.compose import ColumnTransformer
    from sklearn.impute import MissingIndicator, SimpleImputer
    from sklearn.pipeline import Pipeline
    from sklearn.preprocessing import OneHotEncoder, StandardScaler
    from sklearn.utils.validation import check_is_fitted, validate_data
except ImportError as error:
    raise MissingDependencyError("preprocessing", "scikit-learn", extra="tables") from error

if TYPE_CHECKING:
    from numpy.typing import ArrayLike
    from sklearn.utils import Tags

__all__ = ["MAX_CATEGORIES", "SoftClip", "own_indicators", "preprocessing", "share_of_rare"]

MIN_FREQUENCY, MAX_CATEGORIES = 0.005, 50  # of categories with an indicator of their own, in tables without many rows
_MANY_ROWS, _ENOUGH_ROWS = 10_000, 50  # of a table, and of a category in one with more rows, which has an indicator
_MOST_INDICATORS = 1000  # of all columns of such a table; no column has more than `CATEGORIES`
_SAMPLE = 100_000  # rows that describe a table in files: more rows change nothing


class SoftClip(OneToOneFeatureMixin, TransformerMixin, BaseEstimator):
    r"""Pull outliers toward the bulk of their column; the order of values is preserved.

    With the quartiles $q_1, q_3$ and $r = q_3 - q_1$, values beyond the fence $b = q_3 + k r$ become

    $$b + r \log\Bigl(1 + \frac{x - b}{r}\Bigr)$$

    and symmetrically below $q_1 - k r$, so that one outlier cannot dominate the standardization of its column. Values within the
    fences, missing values and columns with r = 0 are unchanged. For k = 5 and normal data, a fence is 7.4 standard deviations out.

    Args:
        k: distance of the fences from the quartiles, in units of r.

    Example:
        >>> SoftClip().fit_transform([[0.0], [1.0], [2.0], [3.0], [4.0], [1e6]]).round(1).ravel().tolist()
        [0.0, 1.0, 2.0, 3.0, 4.0, 48.5]
    """

    def __init__(self, k: float = 5.0) -> None:
        self.k = k

    def fit(self, X: ArrayLike, y: object = None) -> Self:
        """Learn the fences of each column: X (N, D).

        Raises:
            ConfigurationError: `k` is not above 0.
        """
        check_positive("k", self.k)
        values = validate_data(self, X, dtype=np.float64, ensure_all_finite="allow-nan")
        low, high = np.nanpercentile(values, [25, 75], axis=0)
        self.scale_ = high - low
        self.lower_ = low - self.k * self.scale_
        self.upper_ = high + self.k * self.scale_
        return self

    def transform(self, X: ArrayLike) -> np.ndarray:
        """Clip X (N, D).

        Raises:
            NotFittedError: `fit` was not called.
        """
        check_is_fitted(self)
        values = validate_data(self, X, dtype=np.float64, ensure_all_finite="allow-nan", reset=False, copy=True)
        scale = np.where(self.scale_ > 0, self.scale_, 1.0)
        above, below = (np.maximum(beyond, 0) / scale for beyond in (values - self.upper_, self.lower_ - values))
        clipped = self.scale_ > 0
        values = np.where(clipped & (above > 0), self.upper_ + scale * np.log1p(above), values)
        return np.where(clipped & (below > 0), self.lower_ - scale * np.log1p(below), values)

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        return tags


def own_indicators(columns: Sequence[Column]) -> tuple[float, int]:
    """Return the smallest share of the rows that gives a category its own indicator, and the most indicators of a column.

    They are 0.5 % and 50, with the one that rare categories share; in tables of more than 10,000 rows the share of 50 rows (of
    100,000, if there are more), and 500, but at most 1,000 in all columns together, unless that leaves a column fewer than 50.

    Args:
        columns: from `describe_columns`.

    Example:
        >>> [own_indicators([Column(name="shop", kind="category", rows=rows)]) for rows in (10_000, 50_000)]
        [(0.005, 50), (0.001, 500)]
    """
    categorical = [column for column in columns if column.kind == "category"]
    rows = min(_SAMPLE, max((column.rows for column in categorical), default=0))
    if rows <= _MANY_ROWS:
        return MIN_FREQUENCY, MAX_CATEGORIES
    return _ENOUGH_ROWS / rows, max(MAX_CATEGORIES, min(CATEGORIES, _MOST_INDICATORS // len(categorical)))


def share_of_rare(column: Column, columns: Sequence[Column]) -> float:
    """Return the fraction of the values of a column of `columns` that are categories without an indicator of their own."""
    least, most = own_indicators(columns)
    present = (1 - column.missing) * column.rows  # shares are rounded: a category has a whole number of rows
    return 1 - sum(share for share in column.shares[: most - 1] if round(share * present) >= least * column.rows)


def preprocessing(columns: Sequence[Column]) -> ColumnTransformer:
    """Return the unfitted transformer for tables from `conform`.

    Args:
        columns: from `describe_columns`.

    Example:
        >>> import pandas as pd
        >>> from bayesify.data import conform, describe_columns
        >>> X = pd.DataFrame({"a": [1.0, 3.0], "b": ["x", "y"]})
        >>> columns = describe_columns(X)
        >>> preprocessing(columns).fit_transform(conform(X, columns)).tolist()
        [[-1.0, 1.0, 0.0], [1.0, 0.0, 1.0]]
    """
    numbers = [column for column in columns if column.kind in ("number", "boolean", "datetime")]
    categorical = [column.name for column in columns if column.kind == "category"]
    numeric_steps: list[tuple[str, Any]] = [
        ("clip", SoftClip()),
        ("scale", StandardScaler()),
        ("impute", SimpleImputer(strategy="median")),
    ]
    least, most = own_indicators(columns)
    encode = OneHotEncoder(handle_unknown="infrequent_if_exist", min_frequency=least, max_categories=most, sparse_output=False)
    categorical_steps: list[tuple[str, Any]] = [
        ("impute", SimpleImputer(strategy="constant", fill_value="(missing)")),
        ("encode", encode),
    ]
    return ColumnTransformer(
        [
            ("numbers", Pipeline(numeric_steps), [column.name for column in numbers]),
            ("gaps", MissingIndicator(features="all"), [column.name for column in numbers if column.has_gaps]),
            ("categories", Pipeline(categorical_steps), categorical),
        ]
    )
